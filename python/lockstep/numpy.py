# SPDX-License-Identifier: Apache-2.0
"""Collectives on NumPy arrays, in their own memory: nothing is copied on the way to the library.

Arrays must be contiguous (C order), and writable where a result goes. Where `out` is left away,
all_reduce, reduce, broadcast and the scans work in place and the others make a new array. All ranks
give equal shapes; differences are a MismatchError on every rank, before any number is combined. With
`async_op=True` a call returns a Work at once; its wait() returns the result.

Those whose name ends in _v share unequal parts out: counts are of rows along the first dimension,
one for each rank, the same on all ranks (of all_to_all_v: each its own).
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple, Union

try:
    import numpy
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("lockstep.numpy needs NumPy: pip install numpy", name="numpy") from missing

from . import _core
from ._core import Group, library, make_error
from ._operators import Operator

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from typing_extensions import TypedDict, Unpack

    class Common(TypedDict, total=False):
        """What every collective takes beside its own arguments."""

        tag: Optional[str]
        timeout: Optional[float]  # seconds
        algorithm: Optional[str]
        factor: float

Array = numpy.ndarray
Result = Any  # the output array, or None on a rank without output; with async_op=True a lockstep.Work

_OPERATIONS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather",
               "scatter", "all_to_all", "all_gather_v", "reduce_scatter_v", "gather_v", "scatter_v",
               "all_to_all_v", "scan", "exscan", "all_reduce_many", "broadcast_many", "send", "recv",
               "recv_any", "barrier", "empty")
__all__ = [*_OPERATIONS, "Operator"]


# ---- arrays -------------------------------------------------------------------------------------


def _dtype(what: str, array: Array) -> int:
    number = _core.DTYPES.get(array.dtype.name)  # ml_dtypes' bfloat16 goes by that name, too
    if number is None or not array.dtype.isnative:
        raise make_error(-1, f"{what}: an array of dtype {array.dtype}; give one of "
                             f"{', '.join(_core.DTYPES)} in this machine's byte order")
    return number


def _check(what: str, array: Any, writable: bool) -> Array:
    if not isinstance(array, numpy.ndarray):
        raise make_error(-1, f"{what}: {type(array).__name__} is not a numpy array; give one")
    if not array.flags.c_contiguous:
        raise make_error(-1, f"{what}: an array of shape {array.shape} with strides {array.strides} "
                             "is not contiguous; give numpy.ascontiguousarray of it (a copy)")
    if writable and not array.flags.writeable:
        raise make_error(-1, f"{what}: the array is read-only; give one that may be written to")
    return array


def _same(what: str, array: Array, out: Optional[Array], shape: Sequence[int]) -> Array:
    """Checks an output that the caller gave, or makes one."""
    if out is None:
        return numpy.empty(shape, array.dtype)
    _check(what, out, writable=True)
    if out.dtype != array.dtype or out.size != _count(shape):
        raise make_error(-1, f"{what}: out is {out.dtype} {out.shape}; give one of {array.dtype} "
                             f"{tuple(shape)}")
    return out


def _count(shape: Sequence[int]) -> int:
    return functools.reduce(lambda a, b: a * b, shape, 1)


def _at(array: Array) -> int:
    return array.ctypes.data


def _options(common):
    unknown = set(common) - {"tag", "timeout", "algorithm", "factor"}
    if unknown:
        raise TypeError(f"unexpected arguments {', '.join(sorted(unknown))}")
    return _core.make_options(common.get("tag"), _core.milliseconds(common.get("timeout")),
                              common.get("algorithm"), factor=common.get("factor", 1.0))


def _of(group: Optional[Group]) -> Group:
    return group if group is not None else _core.world()


# ---- operations ---------------------------------------------------------------------------------


def all_reduce(array: Array, op: Union[str, Operator] = "sum", out: Optional[Array] = None,
               group: Optional[Group] = None, async_op: bool = False,
               **common: Unpack[Common]) -> Result:
    """The reduction over ranks; in place, or in `out`."""
    group = _of(group)
    _check("all_reduce", array, writable=out is None)
    out = array if out is None else _same("all_reduce", array, out, array.shape)
    return _core.run(library().ls_all_reduce,
                     (group.handle, _at(array), _at(out), array.size, _dtype("all_reduce", array),
                      _core.operator(op)), _options(common), (array, out, op), out, async_op)


def reduce(array: Array, op: Union[str, Operator] = "sum", out: Optional[Array] = None,
           root: int = 0, group: Optional[Group] = None, async_op: bool = False,
           **common: Unpack[Common]) -> Result:
    """The reduction over ranks, on `root` only: in place there, or in `out`."""
    group = _of(group)
    here = group.rank == root
    _check("reduce", array, writable=here and out is None)
    given = None if not here else array if out is None else _same("reduce", array, out, array.shape)
    return _core.run(library().ls_reduce,
                     (group.handle, _at(array), None if given is None else _at(given), array.size,
                      _dtype("reduce", array), _core.operator(op), root),
                     _options(common), (array, given, op), given, async_op)


def broadcast(array: Array, root: int = 0, group: Optional[Group] = None, async_op: bool = False,
              **common: Unpack[Common]) -> Result:
    """Every rank's array becomes that of `root`."""
    group = _of(group)
    _check("broadcast", array, writable=group.rank != root)
    return _core.run(library().ls_broadcast,
                     (group.handle, _at(array), array.size, _dtype("broadcast", array), root),
                     _options(common), array, array, async_op)


def all_gather(array: Array, out: Optional[Array] = None, group: Optional[Group] = None,
               async_op: bool = False, **common: Unpack[Common]) -> Result:
    """The arrays of all ranks in rank order: shape [size, ...]. In place where `array` is the
    rank's own part of `out`."""
    group = _of(group)
    _check("all_gather", array, writable=False)
    out = _same("all_gather", array, out, (group.size,) + array.shape)
    return _core.run(library().ls_all_gather,
                     (group.handle, _at(array), _at(out), array.size, _dtype("all_gather", array)),
                     _options(common), (array, out), out, async_op)


def reduce_scatter(array: Array, op: Union[str, Operator] = "sum", out: Optional[Array] = None,
                   group: Optional[Group] = None, async_op: bool = False,
                   **common: Unpack[Common]) -> Result:
    """array [size, ...]: row r of the reduction over ranks goes to rank r."""
    group = _of(group)
    _check("reduce_scatter", array, writable=False)
    out = _same("reduce_scatter", array, out, _row("reduce_scatter", array, group))
    return _core.run(library().ls_reduce_scatter,
                     (group.handle, _at(array), _at(out), out.size, _dtype("reduce_scatter", array),
                      _core.operator(op)), _options(common), (array, out, op), out, async_op)


def _row(what, array, group):
    """The shape of a rank's share of [size, ...] or of [size * n, ...]."""
    if array.ndim == 0 or array.shape[0] % group.size != 0:
        raise make_error(-1, f"{what}: an array of shape {array.shape} cannot be shared out to "
                             f"{group.size} ranks; give one whose first dimension is a multiple")
    if array.shape[0] == group.size:
        return array.shape[1:]
    return (array.shape[0] // group.size,) + array.shape[1:]


def gather(array: Array, out: Optional[Array] = None, root: int = 0, group: Optional[Group] = None,
           async_op: bool = False, **common: Unpack[Common]) -> Result:
    """On `root` the arrays of all ranks, shape [size, ...]; None elsewhere."""
    group = _of(group)
    here = group.rank == root
    _check("gather", array, writable=False)
    out = _same("gather", array, out, (group.size,) + array.shape) if here else None
    return _core.run(library().ls_gather,
                     (group.handle, _at(array), None if out is None else _at(out), array.size,
                      _dtype("gather", array), root), _options(common), (array, out), out, async_op)


def scatter(array: Optional[Array], out: Optional[Array] = None, root: int = 0,
            group: Optional[Group] = None, async_op: bool = False,
            **common: Unpack[Common]) -> Result:
    """Row r of `array` [size, ...] of the root goes to rank r's `out`. Other ranks give None and
    must give `out`, whose shape they alone know."""
    group, at = _of(group), None
    if group.rank == root:
        array = _check("scatter", array, writable=False)
        out, at = _same("scatter", array, out, _row("scatter", array, group)), _at(array)
    elif out is None:
        raise make_error(-1, f"scatter: rank {group.rank} gives no out; ranks other than the root "
                             "give the array that takes their share")
    out = _check("scatter", out, writable=True)
    return _core.run(library().ls_scatter,
                     (group.handle, at, _at(out), out.size,
                      _dtype("scatter", out), root), _options(common), (array, out), out, async_op)


def all_to_all(array: Array, out: Optional[Array] = None, group: Optional[Group] = None,
               async_op: bool = False, **common: Unpack[Common]) -> Result:
    """array [size, ...]: row j becomes row `rank` of rank j's output. In place where out is
    array."""
    group = _of(group)
    _check("all_to_all", array, writable=out is array)
    _row("all_to_all", array, group)
    out = _same("all_to_all", array, out, array.shape)
    return _core.run(library().ls_all_to_all,
                     (group.handle, _at(array), _at(out), array.size // group.size,
                      _dtype("all_to_all", array)), _options(common), (array, out), out, async_op)


def scan(array: Array, op: Union[str, Operator] = "sum", out: Optional[Array] = None,
         group: Optional[Group] = None, async_op: bool = False, **common: Unpack[Common]) -> Result:
    """The reduction over ranks 0 ... rank; in place, or in `out`."""
    return _scan("scan", library().ls_scan, array, op, out, group, async_op, common)


def exscan(array: Array, op: Union[str, Operator] = "sum", out: Optional[Array] = None,
           group: Optional[Group] = None, async_op: bool = False,
           **common: Unpack[Common]) -> Result:
    """The reduction over ranks 0 ... rank-1; in place, or in `out`. Rank 0's result is left as it
    is."""
    return _scan("exscan", library().ls_exscan, array, op, out, group, async_op, common)


def _scan(what, function, array, op, out, group, async_op, common):
    group = _of(group)
    _check(what, array, writable=out is None)
    out = array if out is None else _same(what, array, out, array.shape)
    return _core.run(function, (group.handle, _at(array), _at(out), array.size, _dtype(what, array),
                                _core.operator(op)), _options(common), (array, out, op), out, async_op)


# ---- unequal parts ------------------------------------------------------------------------------


def _elements(what: str, counts: Optional[Sequence[int]], group: Group,
              array: Array) -> Tuple[List[int], Any, Tuple[int, ...]]:
    """(rows of each rank, the C array of elements for each rank, the shape of a row)"""
    rows = [int(c) for c in counts] if counts is not None else []
    if len(rows) != group.size or min(rows) < 0:
        raise make_error(-1, f"{what}: counts {rows if counts is not None else None}; give {group.size}, one for each rank, of 0 or "
                             "more rows")
    shape = array.shape[1:]
    return rows, (ctypes.c_int64 * len(rows))(*[r * _count(shape) for r in rows]), shape


def _rows_are(what: str, array: Array, rows: int) -> None:
    if array.ndim == 0 or array.shape[0] != rows:
        raise make_error(-1, f"{what}: an array of shape {array.shape} where the counts say {rows} "
                             "rows")


def all_gather_v(array: Array, counts: Sequence[int], out: Optional[Array] = None,
                 group: Optional[Group] = None, async_op: bool = False,
                 **common: Unpack[Common]) -> Result:
    """The arrays of all ranks behind each other; rank r gives counts[r] rows."""
    group, what = _of(group), "all_gather_v"
    _check(what, array, writable=False)
    rows, numbers, shape = _elements(what, counts, group, array)
    _rows_are(what, array, rows[group.rank])
    out = _same(what, array, out, (sum(rows),) + shape)
    return _core.run(library().ls_all_gather_v,
                     (group.handle, _at(array), array.size, _at(out), numbers, None,
                      _dtype(what, array)), _options(common), (array, out), out, async_op)


def reduce_scatter_v(array: Array, counts: Sequence[int], op: Union[str, Operator] = "sum",
                     out: Optional[Array] = None, group: Optional[Group] = None,
                     async_op: bool = False, **common: Unpack[Common]) -> Result:
    """counts[r] rows of the reduction over ranks go to rank r, those of rank 0 first."""
    group, what = _of(group), "reduce_scatter_v"
    _check(what, array, writable=False)
    rows, numbers, shape = _elements(what, counts, group, array)
    _rows_are(what, array, sum(rows))
    out = _same(what, array, out, (rows[group.rank],) + shape)
    return _core.run(library().ls_reduce_scatter_v,
                     (group.handle, _at(array), numbers, None, _at(out), _dtype(what, array),
                      _core.operator(op)), _options(common), (array, out, op), out, async_op)


def gather_v(array: Array, counts: Optional[Sequence[int]] = None, out: Optional[Array] = None,
             root: int = 0, group: Optional[Group] = None, async_op: bool = False,
             **common: Unpack[Common]) -> Result:
    """On `root`, who alone needs counts, the arrays of all ranks behind each other; None
    elsewhere."""
    group, what = _of(group), "gather_v"
    here, numbers, out_at = group.rank == root, None, None
    _check(what, array, writable=False)
    if here:
        rows, numbers, shape = _elements(what, counts, group, array)
        _rows_are(what, array, rows[root])
        out = _same(what, array, out, (sum(rows),) + shape)
        out_at = _at(out)
    return _core.run(library().ls_gather_v,
                     (group.handle, _at(array), array.size, out_at, numbers, None,
                      _dtype(what, array), root), _options(common), (array, out),
                     out if here else None, async_op)


def scatter_v(array: Optional[Array], counts: Optional[Sequence[int]] = None,
              out: Optional[Array] = None, root: int = 0, group: Optional[Group] = None,
              async_op: bool = False, **common: Unpack[Common]) -> Result:
    """counts[r] rows of the root's array go to rank r's `out`. Other ranks give None for both and
    must give `out`, whose shape they alone know."""
    group, what = _of(group), "scatter_v"
    numbers, at = None, None
    if group.rank == root:
        array = _check(what, array, writable=False)
        rows, numbers, shape = _elements(what, counts, group, array)
        _rows_are(what, array, sum(rows))
        out, at = _same(what, array, out, (rows[root],) + shape), _at(array)
    elif out is None:
        raise make_error(-1, f"scatter_v: rank {group.rank} gives no out; ranks other than the root "
                             "give the array that takes their share")
    out = _check(what, out, writable=True)
    return _core.run(library().ls_scatter_v,
                     (group.handle, at, numbers, None, _at(out), out.size, _dtype(what, out), root),
                     _options(common), (array, out), out, async_op)


def all_to_all_v(array: Array, in_counts: Sequence[int], out_counts: Sequence[int],
                 out: Optional[Array] = None, group: Optional[Group] = None, async_op: bool = False,
                 **common: Unpack[Common]) -> Result:
    """in_counts[j] rows of array go to rank j, of whom out_counts[j] rows come; both lie in rank
    order."""
    group, what = _of(group), "all_to_all_v"
    _check(what, array, writable=False)
    given, in_numbers, shape = _elements(what, in_counts, group, array)
    taken, out_numbers, _ = _elements(what, out_counts, group, array)
    _rows_are(what, array, sum(given))
    out = _same(what, array, out, (sum(taken),) + shape)
    return _core.run(library().ls_all_to_all_v,
                     (group.handle, _at(array), in_numbers, None, _at(out), out_numbers, None,
                      _dtype(what, array)), _options(common), (array, out), out, async_op)


# ---- many arrays, one operation -----------------------------------------------------------------


def _many(what, arrays, writable):
    """(addresses, counts, number, dtype) for the library, of arrays of one dtype."""
    arrays = [_check(what, array, writable) for array in arrays]
    dtypes = {array.dtype.name for array in arrays}
    if len(dtypes) > 1:
        raise make_error(-1, f"{what}: arrays of {', '.join(sorted(dtypes))}; give one dtype a call")
    n = len(arrays)
    return ((ctypes.c_void_p * n)(*map(_at, arrays)),
            (ctypes.c_int64 * n)(*[array.size for array in arrays]), n,
            _dtype(what, arrays[0]) if arrays else _core.BYTES)


def all_reduce_many(arrays: Sequence[Array], op: Union[str, Operator] = "sum",
                    group: Optional[Group] = None, async_op: bool = False,
                    **common: Unpack[Common]) -> Result:
    """all_reduce of each array, in place, as one operation; all of one dtype."""
    group = _of(group)
    return _core.run(library().ls_all_reduce_many,
                     (group.handle, *_many("all_reduce_many", arrays, True), _core.operator(op)),
                     _options(common), (list(arrays), op), arrays, async_op)


def broadcast_many(arrays: Sequence[Array], root: int = 0, group: Optional[Group] = None,
                   async_op: bool = False, **common: Unpack[Common]) -> Result:
    """Every rank's arrays become those of `root`, as one operation; all of one dtype."""
    group = _of(group)
    many = _many("broadcast_many", arrays, group.rank != root)
    return _core.run(library().ls_broadcast_many, (group.handle, *many, root), _options(common),
                     list(arrays), arrays, async_op)


# ---- between two --------------------------------------------------------------------------------


def send(array: Array, peer: int, tag: int = 0, group: Optional[Group] = None,
         async_op: bool = False, timeout: Optional[float] = None) -> Result:
    """Sends to rank `peer`, whose recv with the same tag takes it, in order."""
    group = _of(group)
    _check("send", array, writable=False)
    return _core.run(library().ls_send,
                     (group.handle, _at(array), array.size, _dtype("send", array), peer, tag),
                     _options({"timeout": timeout}), array, None, async_op)


def recv(array: Array, peer: int, tag: int = 0, group: Optional[Group] = None,
         async_op: bool = False, timeout: Optional[float] = None) -> Result:
    """Receives from rank `peer` into `array`. With peer lockstep.ANY_SOURCE from whoever sends with
    this tag first; the Work's `source` holds the rank after its wait."""
    group = _of(group)
    _check("recv", array, writable=True)
    work = _core.start(library().ls_recv,
                       (group.handle, _at(array), array.size, _dtype("recv", array), peer, tag),
                       _options({"timeout": timeout}), array, array)
    if peer == _core.ANY_SOURCE:
        work.keep_source()
    return work if async_op else work.wait()


def recv_any(array: Array, tag: int = 0, group: Optional[Group] = None,
             timeout: Optional[float] = None) -> int:
    """Receives into `array` from whoever sends with this tag first; returns that rank."""
    group, source = _of(group), ctypes.c_int()
    _check("recv_any", array, writable=True)
    _core.wait(library().ls_recv_any, group.handle, _at(array), array.size,
               _dtype("recv_any", array), tag, _options({"timeout": timeout}), ctypes.byref(source))
    return source.value


def barrier(group: Optional[Group] = None, timeout: Optional[float] = None,
            async_op: bool = False) -> Result:
    """Returns when every rank has called it."""
    return _of(group).barrier(timeout, async_op)


# ---- registered memory --------------------------------------------------------------------------


def _give_back(runtime, group, address):
    if _core.state.runtime == runtime:
        _core.now_or_later(library().ls_group_dealloc, group, address)


def empty(shape: Union[int, Sequence[int]], dtype: DTypeLike = "float32",
          group: Optional[Group] = None) -> Array:
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
    memory = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(address.value or 0)
    weakref.finalize(memory, _give_back, _core.state.runtime, group.handle,
                     address.value).atexit = False
    return numpy.frombuffer(memoryview(memory), numpy.uint8).view(dtype).reshape(shape)
