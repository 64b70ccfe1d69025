# SPDX-License-Identifier: Apache-2.0
"""A device of PyTorch's for tests, "late": what is started in a stream happens some time later.

A tensor of the device wraps one of the CPU, its *twin*. Each stream is a thread that does what it is
given in order, after random delays: copies, and operations that change a tensor. An operation with
a new result waits for the current stream and for no other. So a program that lacks a wait between
streams, or between a stream and the host, sees old elements, which are poisoned.

As CUDA has them: current_stream is the calling thread's, a copy is ordered in the current stream,
and one with non_blocking=True returns at once.

With LATE_CUDA, the path of the driver of tests/fake_cuda, streams are that driver's, which can be
given to its NCCL, and a tensor's address is its twin's.
"""

import ctypes
import itertools
import os
import queue
import random
import sys
import threading
import time

import torch
import torch.utils._device
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "late"
DELAY_MAX = 2e-3  # seconds before what a stream is given
aten = torch.ops.aten


# ---- streams and events -------------------------------------------------------------------------

DRIVER = ctypes.CDLL(os.environ["LATE_CUDA"]) if "LATE_CUDA" in os.environ else None
_calls, _numbers = {}, itertools.count(1)  # what streams of the driver are to do


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _run_call(number):
    stream, function = _calls.pop(number)
    stream.run(function)


def _driver_stream():
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    codes = (DRIVER.cuInit(0),
             DRIVER.cuDevicePrimaryCtxRetain(ctypes.byref(context), int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", 0)))),
             DRIVER.cuCtxSetCurrent(context), DRIVER.cuStreamCreate(ctypes.byref(stream), 1))
    assert codes == (0, 0, 0, 0), codes
    return stream.value


class Event:
    def __init__(self, **_):
        self._reached = None

    def record(self, stream=None):
        self._reached = reached = threading.Event()
        (stream or current_stream()).do(reached.set)

    def wait(self, stream=None):
        (stream or current_stream()).wait_event(self)

    def query(self):
        return self._reached is None or self._reached.is_set()

    def synchronize(self):
        if self._reached is not None:
            assert self._reached.wait(60), "a stream of the late device waits for itself"


class Stream:
    def __init__(self, device=None, **_):
        self._queue, self._thread, self._error = queue.Queue(), None, None
        if DRIVER is not None:
            self.cuda_stream = _driver_stream()
        self._delays = random.Random(id(self))

    def do(self, function):
        if DRIVER is not None:
            number = next(_numbers)
            _calls[number] = (self, function)
            DRIVER.cuLaunchHostFunc(ctypes.c_void_p(self.cuda_stream), _run_call, ctypes.c_void_p(number))
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._queue.put(function)

    def run(self, function):
        with torch.inference_mode():
            try:
                function()
            except BaseException as error:
                self._error = self._error or error

    def _run(self):
        while True:
            function = self._queue.get()
            time.sleep(self._delays.uniform(0, DELAY_MAX))
            self.run(function)
            del function

    def wait_event(self, event):
        reached = event._reached
        if reached is not None:
            self.do(lambda: reached.wait(60))

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self):
        self.record_event().synchronize()
        if self._error is not None:
            raise self._error


class _Current(threading.local):
    stream = None  # the default one


_default, _current = Stream(), _Current()


def current_stream(device=None):
    return _current.stream or _default


def default_stream(device=None):
    return _default


class stream:
    """Makes a stream the current one of the calling thread."""

    def __init__(self, given):
        self._given = given

    def __enter__(self):
        self._before, _current.stream = _current.stream, self._given

    def __exit__(self, *_):
        _current.stream = self._before


# ---- tensors ------------------------------------------------------------------------------------


_memory = []  # which streams of the driver may use when a tensor is dropped: CUDA's allocator gives it to
              # others in the order of the stream, here they get none of it


class LateTensor(torch.Tensor):
    @staticmethod
    def __new__(cls, twin):
        made = torch.Tensor._make_wrapper_subclass(
            cls, twin.size(), strides=twin.stride(), storage_offset=twin.storage_offset(),
            dtype=twin.dtype, device=torch.device(NAME, 0))
        made.twin = twin
        if DRIVER is not None:
            _memory.append(twin)
        return made

    def __repr__(self):
        return f"late({self.cpu()!r})"

    def data_ptr(self):
        return self.twin.data_ptr() if DRIVER is not None else super().data_ptr()

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        named = dict(named or {})
        if function is aten.copy_.default:
            return _copy(*arguments, **named)
        if function is aten._to_copy.default:
            return _to_copy(*arguments, **named)
        if function is aten.record_stream.default:
            return None
        away = named.pop("device", None)
        if away is not None:
            named["device"] = torch.device("cpu")
        _refuse_others(function, arguments)
        theirs, given = _twins(arguments), _twins(named)
        if function.is_view:
            return _wrapped(function(*theirs, **given))
        if function._schema.is_mutable:
            return _change(function, arguments, named, theirs, given)
        if "empty" not in function.name():
            current_stream().synchronize()
        result = function(*theirs, **given)
        return result if away is not None and away.type == "cpu" else _wrapped(result)


def _twins(tree):
    return tree_map_only(LateTensor, lambda t: t.twin, tree)


def _wrapped(tree):
    return tree_map_only(torch.Tensor, LateTensor, tree)


def _refuse_others(function, arguments):
    """As CUDA refuses tensors of the CPU, but for numbers."""
    for tensor in arguments:
        if type(tensor) is torch.Tensor and tensor.dim() > 0 and "index" not in function.name():
            raise RuntimeError(f"{function}: Expected all tensors to be on the same device")


def _change(function, arguments, named, theirs, given):
    """Starts an operation that writes to arguments, and returns those."""
    written = []
    for k, argument in enumerate(function._schema.arguments):
        value = arguments[k] if k < len(arguments) else named.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(value)
    current_stream().do(lambda: function(*theirs, **given))
    if not function._schema.returns:
        return None
    return written[0] if len(function._schema.returns) == 1 else tuple(written)


def _copy(to, values, non_blocking=False):
    ours, theirs = getattr(to, "twin", to), getattr(values, "twin", values)
    if theirs is values and not non_blocking:
        theirs = values.clone()  # a blocking copy has read the host's memory when it returns
    current_stream().do(lambda: ours.copy_(theirs))
    if ours is to and not non_blocking:
        current_stream().synchronize()
    return to


def _to_copy(tensor, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False,
             memory_format=None):
    result = torch.empty_like(tensor.twin, dtype=dtype, device="cpu",
                              memory_format=memory_format or torch.preserve_format)
    result = result if device is not None and device.type == "cpu" else LateTensor(result)
    return _copy(result, tensor, non_blocking)


def _copy_from(values, to, non_blocking=False):
    return _copy(to, values, non_blocking)


class Future(torch.futures.Future):
    """PyTorch's `then` takes a stream from a pool, and devices in Python have none."""

    def __init__(self, *, devices=None):
        super().__init__(devices=devices)
        self._devices, self._chained, self._lock = devices, [], threading.Lock()

    def then(self, callback):
        child = Future(devices=self._devices)
        with self._lock:
            if not self.done():
                self._chained.append((callback, child))
                return child
        self._run(callback, child)
        return child

    def set_result(self, result):
        if DRIVER is not None:  # in place of an event of this stream, for which waiting streams wait
            current_stream().synchronize()
        with self._lock:
            super().set_result(result)
        for callback, child in self._chained:
            self._run(callback, child)

    def _run(self, callback, child):
        try:
            child.set_result(callback(self))
        except Exception as error:
            child.set_exception(error)


# ---- what PyTorch asks of a device --------------------------------------------------------------


def _poisoned(made):
    return made.fill_(float("nan")) if made.is_floating_point() else made.fill_(1)


def _empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return LateTensor(_poisoned(torch.empty(
        size, dtype=dtype, device="cpu", memory_format=memory_format or torch.contiguous_format)))


def _empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    return LateTensor(_poisoned(torch.empty_strided(size, stride, dtype=dtype, device="cpu")))


def _made_by(function):
    def make(*arguments, dtype=None, layout=None, device=None, pin_memory=None):
        return LateTensor(function(*arguments, dtype=dtype, device="cpu"))
    return make


_library = torch.library.Library("aten", "IMPL")


def use():
    """From now on new tensors are made on the device."""
    module = sys.modules[__name__]
    _setup_privateuseone_for_python_backend(NAME, backend_module=module)
    for name, function in {"empty.memory_format": _empty, "empty_strided": _empty_strided,
                           "_copy_from": _copy_from,
                           **{f"arange{kind}": _made_by(torch.arange)
                              for kind in ("", ".start", ".start_step")},
                           "eye": _made_by(torch.eye), "eye.m": _made_by(torch.eye)}.items():
        _library.impl(name, function, "PrivateUse1")
    torch.futures.Future = Future
    torch.utils._device._device_constructors()  # those of now
    torch.empty, torch.empty_like = _unpinned(torch.empty), _unpinned(torch.empty_like)
    torch.set_default_device(NAME)


def _unpinned(function):
    """Such memory is promised: copies to and from any of the host's may end after their call."""
    return lambda *arguments, pin_memory=False, **named: function(*arguments, **named)


def is_initialized():
    return True


is_available = is_initialized


def current_device():
    return 0


def device_count():
    return 1


def set_device(_):
    pass


def synchronize(device=None):
    current_stream().synchronize()


def manual_seed_all(_):
    pass


def _is_in_bad_fork():
    return False
