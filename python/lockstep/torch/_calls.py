# SPDX-License-Identifier: Apache-2.0
"""Code around every operation of the group (_operations.py): PyTorch's two ways of giving options, its
profiler, and tensors of another device.
"""

import functools

import torch
import torch.distributed as dist

from ._direct import Refused, direct_for
from ._staging import can_copy, staged

_Record = getattr(torch._C._profiler, "_RecordFunctionFast", None) if hasattr(
    torch._C, "_profiler") else None
_profiling = torch.autograd._profiler_enabled


def asked(kind, opts, timeout=None, **values):
    """Options of PyTorch's `kind`: those given, or made of the values that a call gives instead, as in
    broadcast(tensor, root=0). The first value may stand in the place of the options."""
    if isinstance(opts, kind) or hasattr(opts, "timeout"):
        return opts
    if opts is None and timeout is None and all(value is None for value in values.values()):
        return kind() if "rootRank" in values else None
    made = kind()
    if opts is not None:
        values[next(iter(values))] = opts
    if timeout is not None:
        made.timeout = timeout
    for name, value in values.items():
        if value is not None:
            setattr(made, name, value)
    return made


def tensors_in(arguments):
    """The tensors among the arguments, which are tensors, lists of them, and lists of lists."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from tensors_in(argument)


def _record(name, arguments):
    """A span in PyTorch's profile, begun."""
    if _Record is None:  # before PyTorch 2.1
        span = torch.autograd.profiler.record_function(name)
    else:
        span = _Record(name, list(tensors_in(arguments)))
    span.__enter__()
    return span


def _recorded(group, name, inputs, function, arguments, named):
    """Runs an operation under the profiler; its span ends when the operation does."""
    span = _record(f"{group.called}:{name}", arguments[inputs:inputs + 1])
    group.recording = True  # so that it has a work, and what it is made of has no spans
    try:
        work = function(group, *arguments, **named)
    except BaseException:
        span.__exit__(None, None, None)
        raise
    finally:
        group.recording = False
    work.record(span)
    return work


def operation(name, inputs=0, copied=True, output=True):
    """Decorates a method of the group that starts an operation; `name` is shown in profiles, with
    the tensors of the argument number `inputs`. Not `copied`: it reads none of its tensors; no
    `output`: it changes none."""
    def decorate(function):
        by_host = staged(function, inputs, copied, output)

        def by_device(group, *arguments, **named):
            direct = direct_for(group, name, arguments[0])
            try:
                if direct is not None:
                    return direct.call(function, arguments, named)
            except Refused:
                pass
            return by_host(group, *arguments, **named)

        @functools.wraps(function)
        def method(group, *arguments, **named):
            first, start = next(tensors_in(arguments[:2]), None), function
            if first is not None and not first.is_cpu:
                other = group.for_device(first.device.type)
                if other is not None:
                    return getattr(other, function.__name__)(*arguments, **named)
                start = by_device if can_copy(first) else function
            if _profiling() and not group.recording:
                return _recorded(group, name, inputs, start, arguments, named)
            return start(group, *arguments, **named)
        return method
    return decorate


def backends_of(group):
    """{device: backend} of "cpu:lockstep,cuda:nccl", as the program asked for the group."""
    world = getattr(dist.distributed_c10d, "_world", None)
    asked_for = world.pg_backend_config.get(group) if world is not None else None
    pairs = [part.partition(":") for part in str(asked_for or "").split(",")]
    return {device: backend for device, _, backend in pairs if backend}
