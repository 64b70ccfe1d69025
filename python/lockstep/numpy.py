"""Collectives on NumPy arrays, in their own memory: nothing is copied on the way to the library.

Arrays must be contiguous (C order), and writable where a result goes. Where `out` is left away,
all_reduce, reduce and broadcast work in place and the others make a new array. All ranks give equal
shapes; differences are a MismatchError on every rank, before any number is combined. With
`async_op=True` a call returns a Work at once; its wait() returns the result.
"""

import ctypes
import functools
import weakref

import numpy

from . import _core
from ._core import library, make_error

_OPERATIONS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather",
               "scatter", "send", "recv", "barrier", "empty")
__all__ = list(_OPERATIONS)


# ---- arrays -------------------------------------------------------------------------------------


def _dtype(what, array):
    number = _core.DTYPES.get(array.dtype.name)  # ml_dtypes' bfloat16 goes by that name, too
    if number is None or not array.dtype.isnative:
        raise make_error(-1, f"{what}: an array of dtype {array.dtype}; give one of "
                             f"{', '.join(_core.DTYPES)} in this machine's byte order")
    return number


def _check(what, array, writable):
    if not isinstance(array, numpy.ndarray):
        raise make_error(-1, f"{what}: {type(array).__name__} is no numpy array; give one")
    if not array.flags.c_contiguous:
        raise make_error(-1, f"{what}: an array of shape {array.shape} with strides {array.strides} "
                             "is not contiguous; give numpy.ascontiguousarray of it (a copy)")
    if writable and not array.flags.writeable:
        raise make_error(-1, f"{what}: the array is read-only; give one that may be written to")
    return array


def _same(what, array, out, shape):
    """Checks an output that the caller gave, or makes one."""
    if out is None:
        return numpy.empty(shape, array.dtype)
    _check(what, out, writable=True)
    if out.dtype != array.dtype or out.size != _count(shape):
        raise make_error(-1, f"{what}: out is {out.dtype} {out.shape}; give one of {array.dtype} "
                             f"{tuple(shape)}")
    return out


def _count(shape):
    return functools.reduce(lambda a, b: a * b, shape, 1)


def _at(array):
    return array.ctypes.data


def _options(common):
    unknown = set(common) - {"tag", "timeout", "algorithm"}
    if unknown:
        raise TypeError(f"unexpected arguments {', '.join(sorted(unknown))}")
    return _core.make_options(common.get("tag"), _core.milliseconds(common.get("timeout")),
                              common.get("algorithm"))


def _of(group):
    return group if group is not None else _core.world()


# ---- operations ---------------------------------------------------------------------------------


def all_reduce(array, op="sum", out=None, group=None, async_op=False, **common):
    """The reduction over ranks; in place, or in `out`."""
    group = _of(group)
    _check("all_reduce", array, writable=out is None)
    if out is not None and out is not array:
        numpy.copyto(_same("all_reduce", array, out, array.shape).reshape(array.shape), array)
        array = out
    return _core.run(library().ls_all_reduce,
                     (group.handle, _at(array), array.size, _dtype("all_reduce", array),
                      _core.operator(op)), _options(common), array, array, async_op)


def reduce(array, op="sum", out=None, root=0, group=None, async_op=False, **common):
    """The reduction over ranks, on `root` only: in place there, or in `out`."""
    group = _of(group)
    here = group.rank == root
    _check("reduce", array, writable=here and out is None)
    if here:
        out = _same("reduce", array, out, array.shape) if out is not None else array
    return _core.run(library().ls_reduce,
                     (group.handle, _at(array), _at(out) if here else None, array.size,
                      _dtype("reduce", array), _core.operator(op), root),
                     _options(common), (array, out), out if here else None, async_op)


def broadcast(array, root=0, group=None, async_op=False, **common):
    """Every rank's array becomes that of `root`."""
    group = _of(group)
    _check("broadcast", array, writable=group.rank != root)
    return _core.run(library().ls_broadcast,
                     (group.handle, _at(array), array.size, _dtype("broadcast", array), root),
                     _options(common), array, array, async_op)


def all_gather(array, out=None, group=None, async_op=False, **common):
    """The arrays of all ranks in rank order: shape [size, ...]. In place where `array` is the
    rank's own part of `out`."""
    group = _of(group)
    _check("all_gather", array, writable=False)
    out = _same("all_gather", array, out, (group.size,) + array.shape)
    return _core.run(library().ls_all_gather,
                     (group.handle, _at(array), _at(out), array.size, _dtype("all_gather", array)),
                     _options(common), (array, out), out, async_op)


def reduce_scatter(array, op="sum", out=None, group=None, async_op=False, **common):
    """array [size, ...]: row r of the reduction over ranks goes to rank r."""
    group = _of(group)
    _check("reduce_scatter", array, writable=False)
    out = _same("reduce_scatter", array, out, _row("reduce_scatter", array, group))
    return _core.run(library().ls_reduce_scatter,
                     (group.handle, _at(array), _at(out), out.size, _dtype("reduce_scatter", array),
                      _core.operator(op)), _options(common), (array, out), out, async_op)


def _row(what, array, group):
    """The shape of a rank's share of [size, ...] or of [size * n, ...]."""
    if array.ndim == 0 or array.shape[0] % group.size != 0:
        raise make_error(-1, f"{what}: an array of shape {array.shape} cannot be shared out to "
                             f"{group.size} ranks; give one whose first dimension is a multiple")
    if array.shape[0] == group.size:
        return array.shape[1:]
    return (array.shape[0] // group.size,) + array.shape[1:]


def gather(array, out=None, root=0, group=None, async_op=False, **common):
    """On `root` the arrays of all ranks, shape [size, ...]; None elsewhere."""
    group = _of(group)
    here = group.rank == root
    _check("gather", array, writable=False)
    out = _same("gather", array, out, (group.size,) + array.shape) if here else None
    return _core.run(library().ls_gather,
                     (group.handle, _at(array), _at(out) if here else None, array.size,
                      _dtype("gather", array), root), _options(common), (array, out), out, async_op)


def scatter(array, out=None, root=0, group=None, async_op=False, **common):
    """Row r of `array` [size, ...] of the root goes to rank r's `out`. Other ranks give None and
    must give `out`, whose shape they alone know."""
    group = _of(group)
    if group.rank == root:
        _check("scatter", array, writable=False)
        out = _same("scatter", array, out, _row("scatter", array, group))
    elif out is None:
        raise make_error(-1, f"scatter: rank {group.rank} gives no out; ranks other than the root "
                             "give the array that takes their share")
    _check("scatter", out, writable=True)
    return _core.run(library().ls_scatter,
                     (group.handle, _at(array) if group.rank == root else None, _at(out), out.size,
                      _dtype("scatter", out), root), _options(common), (array, out), out, async_op)


def send(array, peer, tag=0, group=None, async_op=False, timeout=None):
    """Sends to rank `peer`, whose recv with the same tag takes it, in order."""
    group = _of(group)
    _check("send", array, writable=False)
    return _core.run(library().ls_send,
                     (group.handle, _at(array), array.size, _dtype("send", array), peer, tag),
                     _options({"timeout": timeout}), array, None, async_op)


def recv(array, peer, tag=0, group=None, async_op=False, timeout=None):
    """Receives from rank `peer` into `array`."""
    group = _of(group)
    _check("recv", array, writable=True)
    return _core.run(library().ls_recv,
                     (group.handle, _at(array), array.size, _dtype("recv", array), peer, tag),
                     _options({"timeout": timeout}), array, array, async_op)


def barrier(group=None, timeout=None, async_op=False):
    """Returns when every rank has called it."""
    return _of(group).barrier(timeout, async_op)


# ---- registered memory --------------------------------------------------------------------------


def _give_back(runtime, group, address):
    if _core.state.runtime == runtime:
        _core.call(library().ls_group_dealloc, group, address)


def empty(shape, dtype="float32", group=None):
    """An array, zeroed, in memory that ranks of this host read in place: operations on it copy
    nothing. It must not be used after finalize."""
    group = _of(group)
    dtype = numpy.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    count = _count(shape)
    if count == 0:
        return numpy.zeros(shape, dtype)
    address = ctypes.c_void_p()
    _core.call(library().ls_group_alloc, group.handle, count * dtype.itemsize,
               ctypes.byref(address))
    memory = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(address.value)
    weakref.finalize(memory, _give_back, _core.state.runtime, group.handle,
                     address.value).atexit = False
    return numpy.frombuffer(memory, numpy.uint8).view(dtype).reshape(shape)
