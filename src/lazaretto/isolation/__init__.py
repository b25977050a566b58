"""TEMPORARY"""
from __future__ import annotations
import dataclasses, enum, os, sys, mmap, struct, time, signal, subprocess, select, traceback, pickle, threading
from collections.abc import Callable, Sequence
import cloudpickle, msgspec
from lazaretto.options import option_set

class Status(enum.Enum):
    DONE="done"; ERROR="error"; TIMEOUT="timeout"; CRASH="crash"; MEMORY="memory"; NOT_RUN="not_run"

class Verdict(msgspec.Struct, frozen=True):
    status: Status
    result: bytes | None = None
    error_type: str | None = None
    error_message: str | None = None
    stack: str | None = None
    signal: int | None = None
    exit_status: int | None = None
    elapsed: float = 0.0

@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    deadline: float | None = 30.0
    memory: int | None = 2 << 30
    max_result: int = 16 << 20
    max_output: int = 65536
    mode: str = "auto"
    refork_every: int | None = None

_DONE = Verdict(Status.DONE)
_CHILD = r'''
import os,sys,mmap,struct,signal,faulthandler,resource,ctypes,pickle,traceback,time
infd,outfd,shmfd,stackfd=map(int,sys.argv[1:5]); mem=int(sys.argv[5])
libc=ctypes.CDLL(None); libc.prctl(1,9)
def rd(n):
    b=b""
    while len(b)<n:
        x=os.read(infd,n-len(b))
        if not x: os._exit(0)
        b+=x
    return b
run=pickle.loads(rd(struct.unpack("q",rd(8))[0]))()
m=mmap.mmap(shmfd,1<<28); c=memoryview(m)[:4096].cast("q")
def runner():
    libc.prctl(1,9)
    faulthandler.enable(file=stackfd,all_threads=False); faulthandler.register(signal.SIGUSR1,file=stackfd,all_threads=True)
    if mem:
        base=int(open("/proc/self/statm").read().split()[0])*4096
        resource.setrlimit(resource.RLIMIT_AS,(base+mem,base+mem))
    resource.setrlimit(resource.RLIMIT_CORE,(0,0))
    while True:
        start,stop=struct.unpack("qq",rd(16))
        items=pickle.loads(memoryview(m)[4096:4096+c[4]])
        for i in range(start,len(items)):
            if c[3]: break
            c[1]=time.monotonic_ns(); c[0]=i
            try: r=(0,run(items[i]))
            except BaseException as e:
                t=type(e); n=t.__qualname__ if t.__module__=="builtins" else t.__module__+"."+t.__qualname__
                try: s=str(e); st="".join(traceback.format_exception(e))
                except BaseException: s=st="?"
                r=(2 if t is MemoryError else 1,(n,s,st))
            p=pickle.dumps((i,)+r); o=c[2]; m[o:o+8]=struct.pack("q",len(p)); m[o+8:o+8+len(p)]=p; c[2]=o+8+len(p)
            if stop and r[0]: break
        c[0]=-1; os.write(outfd,b"d")
while True:
    pid=os.fork()
    if pid==0:
        try: runner()
        finally: os._exit(99)
    os.write(outfd,b"r"+struct.pack("q",pid))
    _,st=os.waitpid(pid,0)
    os.write(outfd,b"x"+struct.pack("q",st))
'''
class Sandbox:
    def __init__(self, setup, options=SandboxOptions(), *, on_output=None):
        self.options=options; self.deaths=0
        self._shm=os.memfd_create("box"); os.ftruncate(self._shm,1<<28); self._m=mmap.mmap(self._shm,1<<28); self._c=memoryview(self._m)[:4096].cast("q")
        self._stack=os.memfd_create("stack")
        ri,wi=os.pipe(); ro,wo=os.pipe()
        self._p=subprocess.Popen([sys.executable,"-c",_CHILD,str(ri),str(wo),str(self._shm),str(self._stack),str(options.memory or 0)],pass_fds=(ri,wo,self._shm,self._stack),stdin=subprocess.DEVNULL)
        os.close(ri); os.close(wo); self._w=wi; self._r=ro
        h=cloudpickle.dumps(setup)
        os.write(self._w,struct.pack("q",len(h))+h)
        self._ready()
    def _read(self,n):
        b=b""
        while len(b)<n:
            x=os.read(self._r,n-len(b))
            if not x: raise RuntimeError("setup failed")
            b+=x
        return b
    def _ready(self):
        assert self._read(1)==b"r"; self.pid=struct.unpack("q",self._read(8))[0]
    def start(self, items, *, stop_on_failure=False):
        self._items=list(items); self._sof=stop_on_failure
        p=pickle.dumps(self._items); self._m[4096:4096+len(p)]=p; c=self._c; c[4]=len(p); self._out=c[2]=4096+len(p); c[0]=-1; c[3]=0
        os.write(self._w,struct.pack("qq",0,stop_on_failure)); self._start=0
    def run(self, items): self.start(items); return self.collect()
    def collect(self):
        n=len(self._items); out=[None]*n
        while True:
            why=None; c=self._c
            while True:
                rd,_,_=select.select([self._r],[],[],0.05)
                if rd:
                    why=None if self._read(1)==b"d" else "x"; break
                d=self.options.deadline
                if d and c[0]>=0 and time.monotonic_ns()-c[1]>d*1e9:
                    why="t"
                    os.kill(self.pid,signal.SIGUSR1); time.sleep(.02); os.kill(self.pid,9)
                    while self._read(1)!=b"x": pass
                    break
                if c[3] and time.monotonic()>self._stop_at:
                    why="s"; os.kill(self.pid,9)
                    while self._read(1)!=b"x": pass
                    break
            self._drain(out)
            if why is None: break
            self.deaths+=1
            st=struct.unpack("q",self._read(8))[0]; i=c[0]
            sz=os.fstat(self._stack).st_size; txt=os.pread(self._stack,sz,0).decode("utf8","replace"); os.ftruncate(self._stack,0); os.lseek(self._stack,0,0)
            self._ready()
            if why=="s": break
            if out[i] is None:
                out[i]=Verdict(Status.TIMEOUT,None,"HandlerTimeout",f"no answer within {d:g} s",txt) if why=="t" else Verdict(Status.CRASH,None,"WorkerCrashed",f"wait status {st}",txt)
            if i+1>=n or self._sof or c[3]: break
            os.write(self._w,struct.pack("qq",i+1,self._sof))
        return [v or Verdict(Status.NOT_RUN) for v in out]
    def _drain(self,out):
        o=self._out; end=self._c[2]
        while o<end:
            k=struct.unpack("q",self._m[o:o+8])[0]; i,s,r=pickle.loads(self._m[o+8:o+8+k]); o+=8+k
            out[i]=(_DONE if r is None else Verdict(Status.DONE,r)) if s==0 else Verdict(Status.MEMORY if s==2 else Status.ERROR,None,"OutOfMemory" if s==2 else r[0],r[1],r[2])
        self._out=o
    def stop(self, grace=0.0): self._stop_at=time.monotonic()+grace; self._c[3]=1
    def close(self):
        os.close(self._w); self._p.kill(); self._p.wait()
        try: os.kill(self.pid,9)
        except OSError: pass
    def __enter__(self): return self
    def __exit__(self,*a): self.close()
