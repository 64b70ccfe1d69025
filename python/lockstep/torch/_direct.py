# SPDX-License-Identifier: Apache-2.0
"""Tensors of a GPU by NCCL, whose kernels read and write them where they are.

A process group has a group of the backend `nccl` beside its own, made at the first operation that
asks for it, where every rank can load NCCL and has a GPU of its own. An operation begins in a stream
of that group's after what the caller's stream has to do; `wait` has the stream that is current wait
for the end, and the host waits for no kernel. Operations that NCCL lacks go by the host
(_staging.py); which ones do not depend on the rank.
"""

import contextlib
import warnings

from .. import _core
from . import _staging
from ._tensors import of_device
from ._work import Work

_UNSUPPORTED = -9
# Of one tensor, or of one for all ranks; sends and receives have a group of their own in NCCL.
_NAMES = {"all_reduce", "broadcast", "reduce", "all_gather", "_allgather_base", "reduce_scatter",
          "_reduce_scatter_base", "gather", "scatter", "all_to_all"}


class Refused(Exception):
    """NCCL does not do it, for these types or this operator: before anything was sent."""


class Direct:
    """What the operations ask of a process group, over the group of NCCL's beside it."""

    def __init__(self, group, over, device):
        self._group, self._ls, self.device = group, over, device
        self.streams = _staging.streams_of(device.type)
        self.stream = self.streams.Stream(device)  # in which results are brought to their tensors

    def rank(self):
        return self._group.rank()

    def size(self):
        return self._group.size()

    def __getattr__(self, name):
        """The functions of an operation that its method calls."""
        return getattr(type(self._group), name).__get__(self)

    def call(self, function, arguments, named):
        with of_device(self.device):
            return function(self, *arguments, **named)

    def _now(self, _):
        return False

    def _start(self, name, arguments, opts, buffers, now=False):
        options = self._group._options(opts, self.streams.current_stream(self.device).cuda_stream)
        try:
            return _core.start(getattr(_core.library(), name), (self._ls.handle, *arguments), options, buffers)
        except _core.Error as error:
            if error.status == _UNSUPPORTED:
                raise Refused() from error
            raise

    def _work(self, parts, result, finish=None):
        return DirectWork(self, self._group, parts, result, finish)

    @property
    def devices(self):
        """Of the futures of its works."""
        return [self.device]

    def free(self):
        self._ls.free()

    def abort(self, why):
        self._ls.abort(why)


class DirectWork(Work):
    """An operation of NCCL's. Once it has been given to the device it is over for the host, but for
    an event behind its end."""

    def __init__(self, direct, group, parts, result, finish):
        super().__init__(group, parts, result, finish)
        self._direct, self._end_event, self._kept = direct, None, parts  # which keep the buffers
        self.stages = (direct,)

    def _follow(self):
        """Blocks until all ranks have called the operation."""
        with self._mutex:
            if self._end_event is not None or self._error is not None:
                return
            direct, streams = self._direct, self._direct.streams
            try:
                for part in self._parts:
                    part.follow(direct.stream.cuda_stream)
                with streams.stream(direct.stream):
                    if self._finish is not None:
                        self._finish(self)
                    event = streams.Event()
                    event.record(direct.stream)
                self._end_event = event
            except Exception as error:
                self._error = error
            if self._span is not None:
                self._span.__exit__(None, None, None)
            self._parts, self._finish = (), None

    def wait(self, timeout=None):
        self._follow()
        self._group.drop(self)
        if self._error is not None:
            raise self._error
        self._direct.streams.current_stream(self._direct.device).wait_event(self._end_event)
        return True

    def is_completed(self):
        if self._end_event is None and self._error is None:
            if not all(part.done() for part in self._parts):
                return False
            self._follow()
        return self._error is not None or self._end_event.query()

    def settle(self):
        """Sets the future when the operation has been given to the device: PyTorch's future has
        those who wait for it wait for the stream that is current here."""
        self._follow()
        with self._direct.streams.stream(self._direct.stream):
            self._inner.set_result(None)


# ---- making one ---------------------------------------------------------------------------------


def _make(group, device):
    """None, on all ranks alike, where one of them cannot."""
    of = getattr(_staging.streams_of(device.type), "device", contextlib.nullcontext)
    try:
        with of(device):  # the group takes the GPU that is the calling thread's
            over = group.lockstep_group.over("nccl", f"{group.getGroupName()} by nccl")
    except _core.Error as error:
        if error.status not in (_UNSUPPORTED, -1, -11):
            raise
        if group.rank() == 0:
            warnings.warn(f"tensors of {device} pass through memory of the host: {error}", stacklevel=2)
        return None
    return Direct(group, over, device)


def direct_for(group, name, tensors):
    """The way by NCCL for an operation whose first argument is `tensors`; None: by the host."""
    first = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
    while isinstance(first, (list, tuple)):
        first = first[0]
    streams = _staging.streams_of(first.device.type)
    if name not in _NAMES or group.batching or streams is None or not hasattr(
            streams.current_stream(first.device), "cuda_stream") or (
                name == "all_reduce" and isinstance(tensors, (list, tuple)) and len(tensors) > 1):
        return None
    with group.direct_lock:
        if group.direct is False:
            group.direct = _make(group, first.device)
    direct = group.direct
    return direct if direct is not None and direct.device == first.device else None
