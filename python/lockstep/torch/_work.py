# SPDX-License-Identifier: Apache-2.0
"""What an operation gives back: torch.distributed's Work over those of the library.

`wait` waits in the library. A future, which DDP asks for, is resolved by a thread of the group that
waits for one operation after the other; most programs never start it.
"""

import datetime
import os
import queue
import threading
import time

import torch
import torch.distributed as dist

from .. import _core
from ._tensors import both

_Work = torch._C._distributed_c10d.Work
# Before PyTorch 2 nothing holds the Python object of a work that C++ code was given.
KEEP = int(torch.__version__.split(".")[0]) < 2


def seconds_of(timeout):
    """Of a timedelta; None for those that mean the default (kNoTimeout is 0, kUnset negative)."""
    if isinstance(timeout, datetime.timedelta) and timeout.total_seconds() > 0:
        return timeout.total_seconds()
    return None


class Work(_Work):
    """An operation made of `parts`, works of the library. `result` is what PyTorch's callers see;
    `finish` runs once, when all parts have ended well, before anybody sees the result."""

    def __init__(self, group, parts, result, finish=None):
        super().__init__()
        self._group, self._parts, self._result, self._finish = group, parts, result, finish
        self._error, self._ended, self._future, self._source = None, False, None, None
        self._mutex, self._span = threading.RLock(), None
        self.stages = ()  # for tensors of another device
        if KEEP:
            group.keep(self)

    def stage(self, stage):
        """The operation works on twins: their tensors are its result."""
        self._finish, self.stages = both(self._finish, stage.back), (stage,)
        self._result = stage.tensors_of(self._result)

    # ---- waiting ----

    def record(self, span):
        """Has the group's thread end this span of PyTorch's profile when the operation ends."""
        self._span = span
        self.get_future()

    def _wait(self, timeout=None):
        """Has the work ended; its error is kept."""
        if self._span is None:
            self._end(timeout)
            return
        end = None if timeout is None else time.monotonic() + timeout
        while not self._ended:  # the group's thread ends it
            if end is not None and time.monotonic() > end:
                raise _core.still_running(timeout)
            time.sleep(2e-5)

    def _end(self, timeout=None):
        with self._mutex:
            if self._ended:
                return
            try:
                end = time.monotonic() + timeout if timeout is not None else None
                for part in self._parts:
                    part.wait(None if end is None else max(0.0, end - time.monotonic()))
                if self._finish is not None:
                    self._finish(self)
            except _core.StillRunning:
                raise
            except Exception as error:
                self._error = error
            if self._span is not None:
                self._span.__exit__(None, None, None)
            self._ended, self._parts, self._finish = True, (), None

    def wait(self, timeout=None):
        self._wait(seconds_of(timeout))
        self._group.drop(self)
        if self._error is not None:
            raise self._error
        for stage in self.stages:
            stage.join()
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        if not self._ended and self._span is None and all(part.done() for part in self._parts):
            self._end()
        if self._ended:
            self._synchronize()
        return self._ended

    def _synchronize(self):
        for stage in self.stages:
            stage.synchronize()

    def is_success(self):
        return self.is_completed() and self._error is None

    def exception(self):
        return self._error if self.is_completed() else None

    def result(self):
        return self._result

    def source_rank(self):
        if self._source is None:
            raise RuntimeError("source_rank: only a receive that has ended has one")
        return self._source

    _source_rank = source_rank

    # ---- futures ----

    def _resolved(self, _):
        """Runs when the future is set: an exception here becomes the error of the future that
        callers have, in C++, too."""
        if self._error is not None:
            raise self._error
        return self._result

    def get_future(self):
        with self._mutex:
            if self._future is None:
                devices = list(dict.fromkeys(d for stage in self.stages for d in stage.devices))
                of = {"devices": devices} if devices else {}
                self._inner = torch.futures.Future(**of)
                self._future = self._inner.then(self._resolved)
                self._group.complete(self, self.is_completed())
                self._group.drop(self)
        return self._future

    def settle(self):
        """Waits and sets the future: for the group's thread. It looks from time to time: a thread
        that waits in the library takes turns in moving operations on, and so the processor from
        the backward pass (with 2 and 4 ranks on 2 cores and 13 MB of gradients a step took 1.2 and
        1.3 times as long)."""
        begun = time.monotonic()
        while not all(part.done() for part in self._parts):
            time.sleep(min(max(2e-5, 0.05 * (time.monotonic() - begun)), 5e-3))
        self._end()
        self._synchronize()  # callbacks use the tensors in streams of their own
        self._inner.set_result(None)


class Completer:
    """Resolves futures, in the order in which the operations were started. Operations of a group
    end in that order, so nobody waits for one behind it; sends and receives, which do not, get a
    thread each. So does what a callback of a future starts: it may wait for that at once, as
    PowerSGD's does, and the thread it runs on would be the one to resolve it."""

    _here = threading.local()  # .ours: a thread that runs callbacks

    @classmethod
    def here(cls):
        """Whether the calling thread is one that resolves futures."""
        return getattr(cls._here, "ours", False)

    def __init__(self, name):
        self._queue, self._thread, self._name = queue.Queue(), None, name
        self._pid = os.getpid()

    def add(self, work, alone, ended):
        """A work that has ended is resolved here and now, unless an earlier one's callbacks are still
        to run or running: ranks whose callbacks start collectives would start them in different
        orders."""
        apart = alone or self.here()
        if ended and (apart or self._queue.unfinished_tasks == 0):
            work.settle()
            return
        if apart:
            self._start(work.settle)
            return
        if self._thread is None:
            self._thread = self._start(self._run)
        self._queue.put(work)

    def _start(self, function):
        def run():
            self._here.ours = True
            try:
                function()
            finally:
                with _core.state.lock:
                    _core.state.helpers -= 1
        with _core.state.lock:
            _core.state.helpers += 1
        thread = threading.Thread(target=run, name=f"lockstep {self._name}", daemon=True)
        thread.start()
        return thread

    def _run(self):
        while True:
            work = self._queue.get()
            if work is None:
                self._queue.task_done()
                return
            work.settle()
            del work
            self._queue.task_done()

    def stop(self):
        if self._pid != os.getpid():
            return  # the thread is of the process that this one was forked from
        if self._thread is not None and self._thread is not threading.current_thread():
            self._queue.put(None)
            self._thread.join()
            self._thread = None
