"""The file beside a store in whose shared memory its processes tell each other that they wait.

All in it are hints. What is true stands in the store, and SQLite's own lock says who may write: a process
that was killed, or two that write at once, can cost a nap or a look in vain, never a message. So plain writes
do, without any that the processor makes in one step.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import platform
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path

_WAIT, _WAKE = 0, 1
#: The number of the system call, by machine: those of 64 bits, whose times are two whole words.
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "loongarch64": 98, "ppc64le": 221, "s390x": 238}

#: How many stores that are open at the same time have a slot; the others nap.
SLOTS = 256
#: How many words tell of news; places share them.
BUCKETS = 256

#: The layout: what it is, who reads, who writes, words of news, slots.
_MAGIC = b"lazaretto wake 1"
_PAUSE, _OWNER = 2, 3
READERS = 256
WRITERS = READERS + SLOTS
_NEWS = 1024
#: The word that tells of the first bucket's news.
FIRST_NEWS = _NEWS >> 2
_SLOT = _NEWS + 4 * BUCKETS
#: A slot: its readers' bell, its writer's bell, the times of a waiting writer, what its readers wait for.
_SLOT_BYTES = 512
READER_BELL, WRITER_BELL, _TIMERS, TIMES, WANTS = 0, 4, 8, 16, 64
_BYTES = _SLOT + SLOTS * _SLOT_BYTES
_times = struct.Struct("=QQ")
#: struct flock: type, whence, start, length, process.
_lock = struct.Struct("hhqqi4x")


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


def _system_call() -> tuple[int, Callable[..., int]] | None:
    number = _NUMBERS.get(platform.machine())
    if sys.platform != "linux" or number is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (AttributeError, OSError):
        return None
    call.restype = ctypes.c_long
    pointer, number32 = ctypes.c_void_p, ctypes.c_uint32
    call.argtypes = (ctypes.c_long, pointer, ctypes.c_int, number32, ctypes.POINTER(_Time), pointer, number32)
    return number, call


_CALL = _system_call()


def is_there() -> bool:
    """Return whether the system has futexes that this program can call."""
    return _CALL is not None


def wait(address: int, seen: int, seconds: float) -> None:
    """Sleep until a `wake` at `address`, a signal or the timeout; other threads keep running.

    It returns at once if the word is not `seen`.
    """
    assert _CALL is not None
    number, call = _CALL
    whole = int(seconds)
    time = _Time(whole, int((seconds - whole) * 1e9))
    if call(number, address, _WAIT, seen, ctypes.byref(time), None, 0) < 0:
        error = ctypes.get_errno()
        if error not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            raise OSError(error, os.strerror(error))


def wake(address: int) -> None:
    """Wake the threads that sleep at `address`."""
    assert _CALL is not None
    number, call = _CALL
    call(number, address, _WAKE, 0x7FFF_FFFF, None, None, 0)


def wake_file_of(store: str | os.PathLike[str]) -> str:
    """Return where a store's wake file is: beside the file itself, not beside a link to it."""
    return f"{os.path.realpath(store)}-wake"


class WakeFile:
    """A store's wake file, in which this process has a slot. Raises OSError where that cannot be."""

    def __init__(self, store: Path) -> None:
        try:
            import fcntl

            self._take, self._look = fcntl.F_OFD_SETLK, fcntl.F_OFD_GETLK
            self._write, self._unlocked, self._control = fcntl.F_WRLCK, fcntl.F_UNLCK, fcntl.fcntl
        except (ImportError, AttributeError):
            raise OSError("this system has no locks of open files") from None
        if not is_there():
            raise OSError("this system has no futexes")
        self._fd = _open(wake_file_of(store), store.stat())
        try:
            self.slot = self._take_slot()
            self.memory = mmap.mmap(self._fd, _BYTES)
        except BaseException:
            os.close(self._fd)
            raise
        self.words = memoryview(self.memory).cast("I")
        self._times = memoryview(self.memory).cast("Q")
        #: Return where the first one stands that waits, to read or to write; below 0 if nobody does.
        self.find_reader = functools.partial(self.memory.find, b"\1", READERS, READERS + SLOTS)
        self.find_writer = functools.partial(self.memory.find, b"\1", WRITERS, WRITERS + SLOTS)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._base = self.offset(self.slot)

    def _take_slot(self) -> int:
        for slot in range(SLOTS):
            # The kernel gives it up when this process ends, however it does.
            with contextlib.suppress(BlockingIOError):
                self._lock(self._take, slot, self._write)
                # Whoever had it may have left something. Written, so that a full disk shows here, not later.
                os.pwrite(self._fd, bytes(_SLOT_BYTES), self.offset(slot))
                for flags in (READERS, WRITERS):
                    os.pwrite(self._fd, b"\0", flags + slot)
                return slot
        raise OSError("all slots are in use")

    def _lock(self, command: int, slot: int, kind: int) -> int:
        answer = self._control(self._fd, command, _lock.pack(kind, os.SEEK_SET, slot, 1, 0))
        held: int = _lock.unpack(answer)[0]
        return held

    @staticmethod
    def offset(slot: int) -> int:
        """Return where a slot begins."""
        return _SLOT + slot * _SLOT_BYTES

    # -- those who wait -------------------------------------------------------------------------

    def waiting(self, flags: int) -> list[int]:
        """Return the slots that wait as readers, or as writers."""
        find, waiting = self.memory.find, []
        at = find(b"\1", flags, flags + SLOTS)
        while at >= 0:
            waiting.append(at - flags)
            at = find(b"\1", at + 1, flags + SLOTS)
        return waiting

    def set_waiting(self, flags: int, waits: bool) -> None:
        """Say that this process waits, or does so no more."""
        self.memory[flags + self.slot] = waits

    def clear_dead(self) -> None:
        """Clear the slots of processes that no longer exist."""
        for flags in (READERS, WRITERS):
            for slot in self.waiting(flags):
                if slot != self.slot and self._lock(self._look, slot, self._write) == self._unlocked:
                    self.memory[flags + slot] = 0

    # -- bells ----------------------------------------------------------------------------------

    def ring(self, slot: int, bell: int) -> bool:
        """Wake the sleeper at a bell; return False if the bell is still ringing."""
        offset = self.offset(slot) + bell
        if self.words[offset >> 2]:
            return False
        self.words[offset >> 2] = 1
        wake(self._start + offset)
        return True

    def silence(self, bell: int) -> None:
        """Note that an own bell was heard."""
        self.words[(self._base + bell) >> 2] = 0

    def sleep(self, bell: int, seconds: float) -> None:
        """Sleep until an own bell is rung, a signal comes, or the time is over."""
        wait(self._start + self._base + bell, 0, seconds)

    # -- news -----------------------------------------------------------------------------------

    def news(self, bucket: int) -> int:
        """Return a number that changes when there are news."""
        return self.words[FIRST_NEWS + bucket]

    def all_news(self) -> bytes:
        """Return the numbers of all buckets."""
        return self.memory[_NEWS : _NEWS + 4 * BUCKETS]

    def wants(self, slot: int, bucket: int) -> int:
        """Return which news the readers of a slot wait for."""
        return self.memory[self.offset(slot) + WANTS + bucket]

    def set_wants(self, bucket: int, wants: int) -> None:
        """Record which news the readers of this process wait for."""
        self.memory[self._base + WANTS + bucket] = wants

    def set_timers(self, slot: int) -> None:
        """Tell a slot that a timer is due soon."""
        self.memory[self.offset(slot) + _TIMERS] = 1

    def take_timers(self) -> bool:
        """Return whether this process was told so since it last asked."""
        at = self._base + _TIMERS
        is_set = bool(self.memory[at])
        self.memory[at] = 0
        return is_set

    # -- a writer's times -----------------------------------------------------------------------

    def times(self, slot: int) -> tuple[int, int]:
        """Return since when a writer waits, and when it last said so, in nanoseconds."""
        since, latest = _times.unpack_from(self.memory, self.offset(slot) + TIMES)
        return since, latest

    @property
    def pause(self) -> int:
        """Until when the writer whose turn it is means to have written again, in nanoseconds."""
        return self._times[_PAUSE]

    @pause.setter
    def pause(self, until: int) -> None:
        self._times[_PAUSE] = until

    @property
    def owner(self) -> int:
        """The slot of the writer whose turn it is."""
        return self._times[_OWNER]

    @owner.setter
    def owner(self, slot: int) -> None:
        self._times[_OWNER] = slot

    def set_times(self, since: int, latest: int) -> None:
        _times.pack_into(self.memory, self._base + TIMES, since, latest)

    def close(self) -> None:
        """Release the slot. The memory goes with its last user."""
        for flags in (READERS, WRITERS):
            self.set_waiting(flags, False)
        # The mapping has the file open, too.
        self._lock(self._take, self.slot, self._unlocked)
        os.close(self._fd)
        self._fd = -1


def _open(path: str, store: os.stat_result) -> int:
    """Return the open file, made if it is not there. Whoever may use the store may use it."""
    rights, us = stat.S_IMODE(store.st_mode) & 0o666, os.geteuid()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, rights)
    try:
        status = os.fstat(fd)
        # Who can cut it short can end every process that has it mapped.
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (store.st_uid, us):
            raise OSError(f"{path} belongs to another user")
        if us == 0:
            os.fchown(fd, store.st_uid, store.st_gid)
        if us in (0, status.st_uid) and stat.S_IMODE(status.st_mode) != rights:
            os.fchmod(fd, rights)
        if status.st_size < _BYTES:
            # In this order, so that whoever finds it long enough finds it whole.
            os.pwrite(fd, _MAGIC, 0)
            os.ftruncate(fd, _BYTES)
        if os.pread(fd, len(_MAGIC), 0) != _MAGIC:
            raise OSError(f"{path} was written by another version")
    except BaseException:
        os.close(fd)
        raise
    return fd
