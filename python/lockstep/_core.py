# SPDX-License-Identifier: Apache-2.0
"""The runtime, errors, works and groups, on raw addresses; arrays and tensors build on it.

Threads. The library knows its threads: a call comes from the thread that called init, or from one
that is attached for the length of the call. The library takes a rank all of whose threads wait for
one that makes no other call, and reports circles of such ranks as deadlocks at once. A Python
thread that has not called yet is not known to it, so as soon as there are several threads a *guard*
is attached that never waits: no deadlock is claimed then, and deadlines hold as ever.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import os
import sys
import threading
import time
import weakref
from typing import (Any, Callable, DefaultDict, Deque, Dict, List, Optional, Sequence, Set, Tuple)

from . import _end
from ._errors import (AbortedError, Error, InvalidError, MismatchError, PeerError, StillRunning,
                      TimeoutError, failures, make_error, note_failure, raise_last,
                      still_running)
from ._library import Counters, GroupOptions, InitOptions, Options, library

__all__ = []

IN_PROGRESS = 1
ANY_SOURCE = -1  # as the peer of a receive: whoever sends first

# ---- calls and threads --------------------------------------------------------------------------


class _State:
    runtime: Optional[int] = None  # ls_runtime *
    owner = 0  # the thread that called init, attached for good
    pid = 0
    world: Any = None  # a Group, while there is a runtime
    guard: Optional[Tuple[threading.Thread, threading.Event]] = None  # with what ends it
    helpers = 0  # threads of our own, which make no calls of the user's
    waiting = False  # whether the thread that called init waits in the library
    lock = threading.RLock()


state = _State()
combining: Set[int] = set()  # threads that run an operator of the user's, inside the library
_later: List[Callable[[], Any]] = []  # calls that had to wait until they do not


def call(function: Any, *arguments: Any) -> int:
    """Calls a function of the library on whatever thread; raises on an error."""
    if combining and threading.get_ident() in combining:
        raise make_error(-8, "an operator of the user's must not call lockstep: it runs on the "
                             "thread that moves all operations on")
    while _later:
        _later.pop()()
    if threading.get_ident() == state.owner:
        status = function(*arguments)
        if status < 0:
            raise_last(status)
        return status
    return _call_attached(function, arguments)


def now_or_later(function, *arguments):
    """For what the collection of garbage calls, which may run within an operator."""
    if threading.get_ident() not in combining:
        call(function, *arguments)
        return
    runtime = state.runtime
    _later.append(lambda: state.runtime == runtime and call(function, *arguments))


def _call_attached(function, arguments):
    runtime = state.runtime
    if runtime is None:
        raise make_error(-8, "lockstep is not initialised in this process; call lockstep.init() "
                             "first")
    lib = library()
    status = lib.ls_runtime_attach(runtime)
    if status < 0:
        raise_last(status)
    try:
        status = function(*arguments)
        if status < 0:
            raise_last(status)
        return status
    finally:
        lib.ls_runtime_attach(None)


def _stand_guard(runtime, ready, end):
    lib = library()
    lib.ls_runtime_attach(runtime)
    ready.set()
    end.wait()
    lib.ls_runtime_attach(None)


def several_threads() -> bool:
    """Whether the program has threads beside ours, which may call at the same time."""
    return threading.active_count() > 1 + state.helpers


def wait(function: Any, *arguments: Any) -> int:
    """Calls a function that waits for other ranks; Ctrl-C ends it (_end.py)."""
    before_waiting()
    if threading.get_ident() != state.owner:
        return call(function, *arguments)
    state.waiting = True
    try:
        return call(function, *arguments)
    finally:
        state.waiting = False


def before_waiting() -> None:
    """Called before a wait: with several threads, the guard has to stand."""
    if state.guard is None and several_threads():
        with state.lock:
            if state.guard is None and state.runtime is not None:
                ready, end = threading.Event(), threading.Event()
                state.helpers += 1
                thread = threading.Thread(target=_stand_guard, args=(state.runtime, ready, end),
                                          name="lockstep guard", daemon=True)
                thread.start()
                ready.wait()
                state.guard = thread, end


# ---- the runtime --------------------------------------------------------------------------------


def init(seed: int = 0, timeout: Optional[float] = None, threads: int = 0,
         graceful_stop: bool = False) -> None:
    """Joins the world of ranks that this process was started in (`lockstep run`, torchrun, mpirun,
    srun, ...), or makes a world of one. `timeout`: deadline of operations, in seconds."""
    if is_initialized():
        raise make_error(-8, "lockstep.init: lockstep is initialised already; call "
                             "lockstep.finalize() first")
    options = InitOptions(ctypes.sizeof(InitOptions), seed, milliseconds(timeout), threads,
                          graceful_stop)
    lib = library()
    status = lib.ls_init(ctypes.byref(options))
    if status < 0:
        raise_last(status)
    state.runtime = lib.ls_runtime_current()
    state.owner, state.pid = threading.get_ident(), os.getpid()
    state.world = Group(lib.ls_world(), owned=False)
    _end.watch()


def finalize() -> None:
    """Leaves the world. Waits for operations in flight; groups that were not freed are freed. In a
    process that was forked from a rank there is nothing to leave."""
    if not is_initialized():
        return
    while _left:
        _left.popleft().forget()
    if state.guard is not None:
        thread, end = state.guard
        end.set()
        thread.join()  # it detaches from the runtime, which is freed below
        state.helpers -= 1
    lib = library()
    runtime, state.runtime, state.owner, state.guard, state.world = state.runtime, None, 0, None, None
    lib.ls_runtime_attach(runtime)
    status = lib.ls_finalize()
    if status < 0:
        raise_last(status)


def is_initialized() -> bool:
    return state.runtime is not None and state.pid == os.getpid()


@atexit.register
def _at_exit():
    # After an exception nobody caught the others have to learn that this rank failed: leaving
    # properly would tell them that it is done.
    if is_initialized() and getattr(sys, "last_value", None) is None:
        try:
            finalize()
        except Error as error:
            print(f"lockstep: {error}", file=sys.stderr)


def rank() -> int:
    """This process' rank in the world; 0 without a runtime."""
    return state.world.rank if state.runtime is not None else 0


def world_size() -> int:
    """Number of ranks; 1 without a runtime."""
    return state.world.size if state.runtime is not None else 1


def local_rank() -> int:
    """This process' rank among those on this host."""
    return _ask("ls_local_rank", 0)


def local_world_size() -> int:
    """Number of ranks on this host."""
    return _ask("ls_local_world_size", 1)


def _ask(name, otherwise):
    answer = []
    if state.runtime is None:
        return otherwise
    call(lambda: answer.append(getattr(library(), name)()) or 0)
    return answer[0]


def stop_requested() -> bool:
    """Whether the job was asked to stop (Ctrl-C, SIGTERM); needs init(graceful_stop=True)."""
    return bool(_ask("ls_stop_requested", False))


def version() -> str:
    """The version of the library that was found."""
    return library().ls_version().decode()


# ---- options ------------------------------------------------------------------------------------

_LEGACY = 1  # cudaStreamLegacy: NULL would mean that the host has filled the buffers


def milliseconds(seconds: Optional[float]) -> int:
    """0 is the library's default; a time too short to count is one millisecond."""
    if seconds is None:
        return 0
    if seconds <= 0:
        raise make_error(-1, f"a timeout of {seconds} s; give a time above 0, or None")
    return max(1, int(seconds * 1000))


def make_options(tag=None, timeout_ms=0, algorithm=None, divisor=0.0, factor=1.0, stream=None):
    """A pointer to options for a call, or None for the defaults."""
    if (tag, timeout_ms, algorithm, divisor, factor, stream) == (None, 0, None, 0.0, 1.0, None):
        return None
    return ctypes.pointer(Options(
        size=ctypes.sizeof(Options), tag=tag.encode() if tag is not None else None,
        timeout_ms=timeout_ms, algorithm=algorithm.encode() if algorithm is not None else None,
        divisor=divisor, factor=factor, stream=_LEGACY if stream == 0 else stream))


# ---- works --------------------------------------------------------------------------------------

_left: Deque[_Left] = collections.deque()  # works nobody waits for any more, while their operations use the buffers
_LOOKED_AT = 4  # of them at each start: more than are added, so that they do not pile up


class _Left:
    """What remains of a work that was dropped: the handle, and its buffers."""

    def __init__(self, handle, buffers):
        self.handle, self.buffers = handle, buffers

    def ended(self):
        try:
            return call(library().ls_work_test, self.handle) != IN_PROGRESS
        except Error:
            return True

    def forget(self):
        try:
            call(library().ls_work_wait, self.handle)
        except Error:
            pass  # the group has failed; its next call says so


def _reap():
    """Releases those that have ended, of the few that were looked at longest ago."""
    for _ in range(min(_LOOKED_AT, len(_left))):
        try:
            work = _left.popleft()
        except IndexError:
            return  # another thread did it
        if work.ended():
            work.forget()
        else:
            _left.append(work)


class Work:
    """An operation under way. It keeps its buffers alive; they must not be touched before the end.

    A work that is dropped goes on by itself."""

    source: Optional[int]  # of a receive from any rank, once it has ended: the sender

    def __init__(self, handle: Any, buffers: Any = None, result: Any = None) -> None:
        self._handle, self._buffers, self._result = handle, buffers, result
        self._error: Optional[Error] = None
        self.source, self._wants_source = None, False
        self._lock = threading.Lock()

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Waits for the end and returns the operation's result (its output array). With a timeout,
        in seconds, only so long: then StillRunning is raised, and the operation goes on."""
        with self._lock:
            if self._handle is not None:
                try:
                    self._wait_for(timeout)
                except StillRunning:
                    raise
                except Error as error:
                    self._error = error
                self._handle = self._buffers = None
        if self._error is not None:
            raise self._error
        return self._result

    def _wait_for(self, timeout):
        lib = library()
        if self._wants_source:
            self._find_source(timeout)
        if timeout is None:
            wait(lib.ls_work_wait, self._handle)
        elif wait(lib.ls_work_wait_for, self._handle, int(timeout * 1000)) == IN_PROGRESS:
            raise still_running(timeout)

    def follow(self, stream: int) -> None:
        """Has a stream of the device wait for the end: for the host the work is over then."""
        with self._lock:
            if self._handle is not None:
                handle, self._handle = self._handle, None
                wait(library().ls_work_wait_stream, handle, _LEGACY if stream == 0 else stream)

    def keep_source(self) -> None:
        """Has `source` hold the rank that a receive from any rank came from, once it has ended."""
        self._wants_source = True

    def _find_source(self, timeout):
        """The library knows it until the handle is released, which a wait does: so this asks."""
        end, lib, pause = None if timeout is None else time.monotonic() + timeout, library(), 1e-5
        while call(lib.ls_work_test, self._handle) == IN_PROGRESS:
            if end is not None and time.monotonic() > end:
                return
            time.sleep(pause)
            pause = min(pause * 1.5, 1e-3)
        self.source = lib.ls_work_source(self._handle)

    def abort(self, why: str = "no reason was given") -> None:
        """Fails the operation's group on every rank, unless it has ended: it cannot be taken back
        alone. wait() still has to be called, and raises AbortedError with `why`."""
        with self._lock:
            if self._handle is not None:
                call(library().ls_work_abort, self._handle, why.encode())

    def done(self) -> bool:
        """Whether it has ended; an error is raised by wait."""
        if not self._lock.acquire(blocking=False):
            return False  # another thread waits for it
        try:
            return (self._handle is None
                    or call(library().ls_work_test, self._handle) != IN_PROGRESS)
        except Error:
            return True
        finally:
            self._lock.release()

    def __del__(self):
        if self._handle is not None and is_initialized() and not sys.is_finalizing():
            _left.append(_Left(self._handle, self._buffers))


_starting: DefaultDict[int, threading.Lock] = collections.defaultdict(threading.Lock)  # of each group: one thread starts at a time


def start(function, arguments, options=None, buffers=None, result=None):
    """Starts an operation whose last arguments are options and work; the first one is the group."""
    if _left:
        _reap()
    handle = ctypes.c_void_p()
    with _starting[arguments[0]]:
        call(function, *arguments, options, ctypes.byref(handle))
    return Work(handle.value, buffers, result)


def run(function, arguments, options=None, buffers=None, result=None, async_op=False):
    """The same; without async_op in one call, which ends with the operation. With several threads
    it is started and waited for: the others may start theirs meanwhile."""
    if async_op:
        return start(function, arguments, options, buffers, result)
    if several_threads():
        return start(function, arguments, options, buffers, result).wait()
    wait(function, *arguments, options, None)
    return result


# ---- groups -------------------------------------------------------------------------------------


groups: weakref.WeakSet[Group] = weakref.WeakSet()  # those that were not freed


class Group:
    """Ranks that run operations together. `world()` is the one of all."""

    rank: int  # of this process in the group
    size: int
    name: str

    def __init__(self, handle: Any, owned: bool = True) -> None:
        lib = library()
        self._handle, self._owned = handle, owned
        groups.add(self)
        self.rank = lib.ls_group_rank(handle)
        self.size = lib.ls_group_size(handle)
        self.name = lib.ls_group_name(handle).decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"<lockstep.Group {self.name!r}: rank {self.rank} of {self.size}>"

    @property
    def handle(self) -> int:
        if self._handle is None or state.runtime is None:
            raise make_error(-8, f"group {self.name!r} was freed")
        return self._handle

    def new_among(self, ranks: Sequence[int], name: Optional[str] = None) -> Group:
        """A group of these ranks of this one; only they call it."""
        out = ctypes.c_void_p()
        wait(library().ls_group_new_among, self.handle, (ctypes.c_int * len(ranks))(*ranks),
             len(ranks), name.encode() if name is not None else None, ctypes.byref(out))
        return Group(out.value)

    def split(self, color: Optional[int], key: int = 0,
              name: Optional[str] = None) -> Optional[Group]:
        """Ranks that give the same color (0 or more) become a group, in the order of their keys;
        with color None a rank gets None. Every rank of this group calls it."""
        out = ctypes.c_void_p()
        wait(library().ls_group_split, self.handle, -1 if color is None else color, key,
             name.encode() if name is not None else None, ctypes.byref(out))
        return Group(out.value) if out.value is not None else None

    def new(self, ranks: Optional[Sequence[int]] = None,
            name: Optional[str] = None) -> Optional[Group]:
        """A group of these ranks of this one, in that order; None: of all. Every rank of this group
        calls it; those not among `ranks` get None."""
        out = ctypes.c_void_p()
        numbers = (ctypes.c_int * len(ranks))(*ranks) if ranks is not None else None
        wait(library().ls_group_new, self.handle, numbers, len(ranks) if ranks is not None else 0,
             name.encode() if name is not None else None, ctypes.byref(out))
        return Group(out.value) if out.value is not None else None

    def over(self, backend: str, name: str) -> Group:
        """A group of all ranks whose data another backend moves; every rank calls it."""
        out = ctypes.c_void_p()
        options = GroupOptions(size=ctypes.sizeof(GroupOptions), name=name.encode(),
                               backend=backend.encode())
        wait(library().ls_group_create, self.handle, ctypes.byref(options), ctypes.byref(out))
        return Group(out.value)

    def set_channels(self, channels: int) -> None:
        """How many parts of one operation between hosts are under way at the same time, 1 to 4;
        every rank gives the same."""
        wait(library().ls_group_set_channels, self.handle, channels)

    def tuning(self) -> Dict[str, str]:
        """Which algorithms operations use by size: {"all_reduce": "0-64Ki:root,64Ki-:direct", ...};
        empty where nothing was measured, as on one host."""
        text = ctypes.create_string_buffer(1 << 14)
        call(library().ls_group_get_tuning, self.handle, text, len(text))
        return dict(line.split(maxsplit=1) for line in text.value.decode().splitlines())

    def free(self) -> None:
        """Frees the group; every rank of it calls this."""
        if self._handle is not None and self._owned and state.runtime is not None:
            if any(self in getattr(group, "groups", ()) for group in groups):
                call(library().ls_group_free, self.handle)  # is refused: a RoundRobin still uses it
            handle, self._handle = self._handle, None
            groups.discard(self)
            _starting.pop(handle, None)
            wait(library().ls_group_free, handle)

    def abort(self, why: str = "no reason was given") -> None:
        """Fails the group on every rank; who waits gets an AbortedError with `why`."""
        call(library().ls_group_abort, self.handle, why.encode())

    def check(self) -> None:
        """Raises the error with which the group failed, if it did."""
        call(library().ls_group_status, self.handle)

    def barrier(self, timeout: Optional[float] = None, async_op: bool = False) -> Any:
        """Returns when every rank has called it."""
        return run(library().ls_barrier, (self.handle,), make_options(timeout_ms=milliseconds(timeout)),
                   async_op=async_op)

    def monitored_barrier(self, timeout: Optional[float] = None) -> None:
        """A barrier that fails, on every rank, with the numbers of all ranks that had not come."""
        wait(library().ls_monitored_barrier, self.handle, milliseconds(timeout), None)

    def stop_agree(self) -> bool:
        """Whether any rank was asked to stop; the same answer on all."""
        stop = ctypes.c_bool()
        wait(library().ls_stop_agree, self.handle, ctypes.byref(stop))
        return stop.value

    def counters(self) -> Dict[str, int]:
        """What the engine has counted for this group: {name: number}."""
        out = Counters(size=ctypes.sizeof(Counters))
        call(library().ls_group_get_counters, self.handle, ctypes.byref(out))
        return {field[0]: getattr(out, field[0]) for field in Counters._fields_[1:]}


class RoundRobin(Group):
    """One group over several of the same ranks, such as duplicates: operation k runs on group
    k % count, so that several are in flight without waiting for each other. Letters go over the
    first. The groups are borrowed: free this one first."""

    def __init__(self, groups: Sequence[Group], name: Optional[str] = None) -> None:
        handles, out = (ctypes.c_void_p * len(groups))(*[g.handle for g in groups]), ctypes.c_void_p()
        call(library().ls_group_round_robin, handles, len(groups),
             name.encode() if name is not None else None, ctypes.byref(out))
        super().__init__(out.value)
        self.groups = list(groups)


def world() -> Group:
    """The group of all ranks."""
    if state.runtime is None:
        raise make_error(-8, "lockstep is not initialised in this process; call lockstep.init() "
                             "first")
    return state.world


# ---- types --------------------------------------------------------------------------------------

DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3, "int8": 4, "uint8": 5,
          "int32": 6, "int64": 7, "bool": 8, "int16": 9, "uint16": 10, "uint32": 11, "uint64": 12}
OPERATORS = {"sum": 0, "product": 1, "min": 2, "max": 3, "avg": 4, "band": 5, "bor": 6, "bxor": 7,
             "premul_sum": 8}
BYTES = DTYPES["uint8"]


def operator(name: Any) -> int:
    """The number of one of OPERATORS, or of a lockstep.numpy.Operator."""
    try:
        return OPERATORS[name] if isinstance(name, str) else name.number
    except (KeyError, AttributeError):
        raise make_error(-1, f"operator {name!r}; there are {', '.join(OPERATORS)}, and "
                             "lockstep.numpy.Operator makes one of a function") from None
