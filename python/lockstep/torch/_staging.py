# SPDX-License-Identifier: Apache-2.0
"""Tensors of another device, by way of the host's memory, which the library moves.

Each tensor of a call has a *twin* on the host, in pinned memory where the device has such:

    the caller's stream   kernels | copies to twins | kernels ...              | waits | kernels
    the caller                      waits for them, starts the operation   wait()
    the library                                     the operation
    the stream of copies                                          copies back |

An operation begins when the copies to its twins have ended, and so after all that the caller's
stream had to do with the tensors. `wait` has the stream that is current then wait for the copies
back; the host waits for the operation only.
"""

import functools

import torch

from ._tensors import put


def can_copy(tensor):
    """Whether the host can have a twin of this tensor of another device."""
    return tensor.layout == torch.strided and not tensor.is_meta


@functools.lru_cache(None)
def streams_of(kind):
    """torch.cuda, or the same module of another device; None: the device has no streams."""
    module = getattr(torch, kind, None)
    names = ("current_stream", "stream", "Stream", "Event")
    return module if all(hasattr(module, name) for name in names) else None


@functools.lru_cache(None)
def _copy_stream(device):
    """For copies back: with the caller's they would wait for the kernels that are queued there."""
    return streams_of(device.type).Stream(device)


@functools.lru_cache(None)
def _has_pinned_memory():
    try:
        torch.empty(1, device="cpu", pin_memory=True)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _twin(tensor):
    return torch.empty_like(tensor, device="cpu", pin_memory=_has_pinned_memory())


def _row_of_twins(tensors):
    """Twins one behind the other: the operation takes them as one piece of memory."""
    return list(torch.empty((len(tensors), *tensors[0].shape), dtype=tensors[0].dtype, device="cpu",
                            pin_memory=_has_pinned_memory()).unbind())


class Stage:
    """The tensors of one call with their twins, and the copies between them."""

    def __init__(self):
        self._pairs = {}  # {id of the twin: (tensor, twin)}
        self._outputs = []  # of these
        self._ready, self._ends = {}, {}  # {device: event}

    # ---- before the operation ----

    def twins(self, argument, copied, output):
        """The argument of an operation with twins in the place of tensors; `copied` to begin with,
        and copied back, if it is an `output`."""
        if isinstance(argument, torch.Tensor):
            return self._add([argument], copied, output)[0]
        if not isinstance(argument, (list, tuple)):
            return argument
        if len(argument) > 0 and all(isinstance(t, torch.Tensor) for t in argument):
            return self._add(argument, copied, output)
        return [self.twins(part, copied, output) for part in argument]

    def _add(self, tensors, copied, output):
        away = [t for t in tensors if not t.is_cpu and can_copy(t)]
        alike = len(away) > 1 and len({(t.dtype, t.shape) for t in away}) == 1 and all(
            t.is_contiguous() for t in away)
        made = dict(zip(map(id, away), _row_of_twins(away) if alike else map(_twin, away)))
        for tensor in away:
            twin = made[id(tensor)]
            self._pairs[id(twin)] = (tensor, twin)
            self._ready.setdefault(tensor.device)
            if copied:
                put(twin, tensor.detach(), self._copies_later(tensor.device))
            if output:
                self._outputs.append((tensor, twin))
        return [made.get(id(tensor), tensor) for tensor in tensors]

    @staticmethod
    def _copies_later(device):
        """Whether a copy may end after the call that starts it."""
        return streams_of(device.type) is not None and _has_pinned_memory()

    def begin(self, copied):
        """Called after the last of twins(): waits for its copies."""
        for device in self._ready:
            streams = streams_of(device.type)
            if streams is not None:
                event = self._ready[device] = streams.Event()
                event.record(streams.current_stream(device))
                if copied:
                    event.synchronize()

    # ---- after it ----

    def back(self, _=None):
        """Starts the copies of the results, on whatever thread."""
        for device, ready in self._ready.items():
            outputs = [pair for pair in self._outputs if pair[0].device == device]
            if ready is None:
                for tensor, twin in outputs:
                    put(tensor, twin)
            elif outputs:
                self._ends[device] = self._start_back(device, ready, outputs)

    def _start_back(self, device, ready, outputs):
        streams, stream = streams_of(device.type), _copy_stream(device)
        with streams.stream(stream):
            stream.wait_event(ready)
            for tensor, twin in outputs:
                put(tensor, twin, self._copies_later(device))
            end = streams.Event()
            end.record(stream)
        return end

    def join(self):
        """Has the current stream wait for the copies back."""
        for device, end in self._ends.items():
            streams_of(device.type).current_stream(device).wait_event(end)

    def synchronize(self):
        """Waits for the copies back."""
        for end in self._ends.values():
            end.synchronize()

    # ---- for the work ----

    def tensors_of(self, twins):
        return [self._pairs[id(t)][0] if id(t) in self._pairs else t for t in twins]

    @property
    def devices(self):
        return list(self._ready)


def staged(function, inputs, copied, output):
    """The operation `function` for tensors of another device. The caller's tensors are the first
    argument, and the one with the number `inputs`, if that is another."""
    def method(group, *arguments, **named):
        stage, given = Stage(), list(arguments)
        given[0] = stage.twins(arguments[0], copied and inputs == 0, output)
        if inputs > 0:
            given[inputs] = stage.twins(arguments[inputs], True, False)
        stage.begin(copied)
        work = function(group, *given, **named)
        if work is None:  # it has ended
            stage.back()
            stage.join()
            return None
        work.stage(stage)
        return work
    return method
