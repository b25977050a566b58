"""Systems that the gate does not run on, as far as they can be imitated: the package sees what they lack.

Only modules of the package see it: what tests and libraries need of this machine stays. A module is given
another one in the place of `os`, say, in which the names are missing that the system does not have.
"""

from __future__ import annotations

import builtins
import dataclasses
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Set
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn

#: The variable of the environment that names a system.
NAMED: Final = "IMITATED_SYSTEM"
_PACKAGE: Final = "lazaretto"
#: Folders in which Linux tells of itself.
_KERNEL: Final = ("/proc", "/sys")

#: What only Linux has, of those that the package could come to use.
_LINUX: Final = {
    "os": """memfd_create MFD_CLOEXEC MFD_ALLOW_SEALING pidfd_open P_PIDFD O_NOATIME O_PATH O_TMPFILE eventfd
    timerfd_create sched_getaffinity sched_setaffinity sched_setscheduler posix_fadvise
    posix_fallocate pipe2 splice copy_file_range getrandom setns unshare getxattr setxattr
    listxattr removexattr waitid WNOWAIT fdatasync getresuid setresuid""",
    "fcntl": """F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW F_ADD_SEALS F_GET_SEALS F_SEAL_SEAL F_SEAL_SHRINK
    F_SEAL_GROW F_SEAL_WRITE F_SETPIPE_SZ F_GETPIPE_SZ""",
    "signal": """pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPWR SIGPOLL SIGSTKFLT""",
    "select": "epoll EPOLLIN EPOLLOUT EPOLLET",
    "socket": """SOCK_CLOEXEC SOCK_NONBLOCK AF_NETLINK AF_VSOCK AF_ALG SO_PEERCRED
    MSG_NOSIGNAL TCP_USER_TIMEOUT""",
    "resource": "prlimit RLIMIT_OFILE RUSAGE_THREAD",
    "mmap": "MADV_REMOVE MADV_DONTFORK MADV_HUGEPAGE MAP_POPULATE",
    "time": "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
}
#: What systems of the POSIX family have, and Windows has not.
_POSIX: Final = {
    "os": """register_at_fork fork forkpty openpty posix_spawn posix_spawnp killpg getpgid setpgid getpgrp
    setsid getsid getuid geteuid getgid getegid getgroups getresgid setuid setgid initgroups mknod
    mkfifo makedev chown lchown fchown fchmod chroot fchdir lockf pread pwrite preadv pwritev
    readv writev sendfile set_blocking get_blocking sched_yield wait wait3 wait4 WNOHANG WUNTRACED
    WIFEXITED WIFSIGNALED WEXITSTATUS WTERMSIG P_PID P_ALL WEXITED O_CLOEXEC O_NOFOLLOW
    O_DIRECTORY O_NONBLOCK O_SYNC O_DSYNC O_NOCTTY statvfs fstatvfs pathconf fpathconf sysconf
    confstr uname nice getpriority setpriority getloadavg sync ttyname ctermid tcgetpgrp tcsetpgrp
    environb getenvb fwalk RTLD_NOW""",
    "signal": """SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 SIGCHLD SIGCLD SIGALRM SIGPIPE SIGTSTP SIGCONT SIGSTOP
    SIGTTIN SIGTTOU SIGWINCH SIGXCPU SIGIO SIGURG SIGVTALRM SIGPROF SIGSYS SIGTRAP SIGBUS
    pthread_sigmask pthread_kill siginterrupt sigwait sigpending alarm pause setitimer getitimer
    SIG_BLOCK SIG_UNBLOCK SIG_SETMASK ITIMER_REAL Sigmasks""",
    "select": "poll POLLIN POLLOUT POLLERR POLLHUP POLLNVAL POLLPRI",
    "socket": "AF_UNIX SO_REUSEPORT MSG_DONTWAIT sendmsg send_fds recv_fds",
    "mmap": """PROT_READ PROT_WRITE PROT_EXEC MAP_SHARED MAP_PRIVATE MAP_ANON MAP_ANONYMOUS MADV_DONTNEED""",
    "time": "tzset clock_gettime clock_gettime_ns CLOCK_MONOTONIC CLOCK_REALTIME",
    "faulthandler": "register unregister",
}


@dataclasses.dataclass(frozen=True)
class System:
    """A system to imitate.

    `lacks`: names by module. `absent`: modules. `differs`: names that are something else there, by module.
    """

    lacks: Mapping[str, Set[str]]
    absent: Set[str]
    differs: Mapping[str, Mapping[str, Any]]


# -- behaviour ---------------------------------------------------------------------------------


def _mknod(path: str, mode: int = 0, device: int = 0) -> NoReturn:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)


def _kill(pid: int, number: int) -> NoReturn:
    raise AssertionError(f"os.kill({pid}, {number}) would end that process on Windows")


class _Library:
    """The C library of a system that is not Linux."""

    _LACKS: Final = ("inotify_", "syscall", "prctl", "mallopt", "memfd_", "pidfd_")

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        if name.startswith(self._LACKS):
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return getattr(self._real, name)


def _posix_library(name: str | None = None, *words: Any, **named: Any) -> Any:
    import ctypes

    return _Library(ctypes.CDLL(name, *words, **named))


def _windows_library(name: str | None = None, *words: Any, **named: Any) -> Any:
    if name is None:
        raise TypeError("LoadLibrary() argument 1 must be str, not None")
    raise FileNotFoundError(f"Could not find module {name!r} (or one of its dependencies)")


def _split(names: Mapping[str, str]) -> dict[str, frozenset[str]]:
    return {module: frozenset(text.split()) for module, text in names.items()}


_OF_LINUX, _OF_POSIX = _split(_LINUX), _split(_POSIX)
_NONE: Final[frozenset[str]] = frozenset()
SYSTEMS: Final = {
    "macos": System(
        lacks=_OF_LINUX,
        absent=frozenset(),
        differs={
            "os": {"mknod": _mknod},
            "sys": {"platform": "darwin"},
            "ctypes": {"CDLL": _posix_library},
        },
    ),
    "windows": System(
        lacks={name: _OF_LINUX.get(name, _NONE) | names for name, names in _OF_POSIX.items()},
        absent=frozenset(
            {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix", "uvloop"}
        ),
        differs={
            "os": {"name": "nt", "kill": _kill, "O_BINARY": 0},
            "sys": {"platform": "win32"},
            "ctypes": {"CDLL": _windows_library},
        },
    ),
}


# -- how the package sees it -------------------------------------------------------------------


class _View(ModuleType):
    """A module as a system has it."""

    def __init__(self, real: ModuleType, lacks: Set[str], differs: Mapping[str, Any]) -> None:
        super().__init__(real.__name__, real.__doc__)
        self.__dict__.update(differs, _real=real, _lacks=lacks)

    def __getattr__(self, name: str) -> Any:
        if name in self._lacks:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)


def imitate(name: str) -> None:
    """Have the package see such a system in this process from now on."""
    system = SYSTEMS[name]
    views: dict[str, ModuleType] = {}
    real_import = builtins.__import__

    def view_of(module: ModuleType) -> ModuleType:
        found = module.__name__
        if found not in system.lacks and found not in system.differs:
            return module
        if found not in views:
            views[found] = _View(module, system.lacks.get(found, frozenset()), system.differs.get(found, {}))
        return views[found]

    def imports(what: str, *words: Any, **named: Any) -> ModuleType:
        asking = words[0] if words else named.get("globals")
        relative = words[3] if len(words) > 3 else named.get("level", 0)
        if asking is None or relative or not _is_ours(asking.get("__name__")):
            return real_import(what, *words, **named)
        if what.partition(".")[0] in system.absent:
            raise ModuleNotFoundError(f"No module named {what!r}", name=what)
        return view_of(real_import(what, *words, **named))

    vars(builtins)["__import__"] = imports
    _hide_kernel()
    if name == "windows":
        _refuse_loop_signals()


def _is_ours(name: object) -> bool:
    return isinstance(name, str) and (name == _PACKAGE or name.startswith(f"{_PACKAGE}."))


def _hide_kernel() -> None:
    """Have the package find nothing in /proc and /sys."""
    for owner, names in ((os, ("open", "stat", "lstat", "readlink", "listdir", "scandir")), (io, ("open",))):
        for name in names:
            real = getattr(owner, name)
            hidden = _hidden(real)
            setattr(owner, name, hidden)
            for several in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
                if real in several:
                    several.add(hidden)
    builtins.open = io.open


def _hidden(real: Callable[..., Any]) -> Callable[..., Any]:
    def function(*words: Any, **named: Any) -> Any:
        path = str(words[0]) if words else ""
        if path.startswith(_KERNEL) and _asked_by_us(sys._getframe(1)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return real(*words, **named)

    return function


def _asked_by_us(frame: FrameType | None) -> bool:
    """Return whether the package asks, itself or by way of the standard library's paths."""
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in (
        "pathlib",
        "os",
        "glob",
    ):
        frame = frame.f_back
    return frame is not None and _is_ours(frame.f_globals.get("__name__"))


def _refuse_loop_signals() -> None:
    """Have event loops take no signals, as those of Windows."""

    def refuse(self: object, number: int, callback: object, *words: object) -> NoReturn:
        raise NotImplementedError

    loops = importlib.import_module("asyncio.unix_events")
    loops._UnixSelectorEventLoop.add_signal_handler = refuse
