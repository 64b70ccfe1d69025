# SPDX-License-Identifier: Apache-2.0
"""Objects from rank to rank: bytes of any length, and whatever pickle knows.

    import lockstep.objects as lo
    config = lo.broadcast(config if lockstep.rank() == 0 else None)
    results = lo.all_gather({"rank": lockstep.rank(), "loss": loss})

Only the giver knows a length; nobody has to agree about it before. Calls block. Functions whose name
ends in _bytes take bytes-like objects and return bytes; the others pickle, and what comes out of a
pickle is code of the rank that sent it: ranks of a job trust each other (docs/launching.md says how
others are kept out).
"""

from __future__ import annotations

import ctypes
import pickle
from typing import Any, Iterable, List, Optional, Union

from . import _core
from ._core import Group, library, make_error
from ._library import Bytes

__all__ = ["all_gather", "all_gather_bytes", "broadcast", "broadcast_bytes", "gather",
           "gather_bytes", "scatter", "scatter_bytes"]

Buffer = Union[bytes, bytearray, memoryview]


def _of(group: Optional[Group]) -> Group:
    return group if group is not None else _core.world()


def _options(timeout, tag):
    return _core.make_options(tag, _core.milliseconds(timeout))


def _call(function, *arguments):
    _core.wait(function, *arguments)


def _given(data):
    """(what keeps the memory alive, its address, its length); read only."""
    data = bytes(data)
    return data, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value, len(data)


def _taken(address: Any, length: int) -> bytes:
    """The bytes in memory of the library's, which is freed."""
    try:
        return ctypes.string_at(address, length)
    finally:
        library().ls_bytes_free(address)


def _list(out: ctypes.c_void_p, size: int) -> Any:
    """The list in memory of the library's, which is freed at once."""
    if out.value is None:
        return None
    try:
        return [ctypes.string_at(part.data, part.length)
                for part in (Bytes * size).from_address(out.value)]
    finally:
        library().ls_bytes_free(out)


# ---- bytes --------------------------------------------------------------------------------------


def broadcast_bytes(data: Optional[Buffer] = None, root: int = 0, group: Optional[Group] = None,
                    timeout: Optional[float] = None, tag: Optional[str] = None) -> bytes:
    """The bytes of `root`, on every rank; what others give is not looked at."""
    group = _of(group)
    here = group.rank == root
    keep, address, length = _given(data if here else b"")
    at = ctypes.c_void_p(address if here else None)
    number = ctypes.c_size_t(length if here else 0)
    _call(library().ls_broadcast_bytes, group.handle, ctypes.byref(at), ctypes.byref(number), root,
          _options(timeout, tag))
    return keep if here else _taken(at, number.value)


def all_gather_bytes(data: Buffer, group: Optional[Group] = None, timeout: Optional[float] = None,
                     tag: Optional[str] = None) -> List[bytes]:
    """What each rank gave, in rank order."""
    group, out = _of(group), ctypes.c_void_p()
    keep, address, length = _given(data)
    _call(library().ls_all_gather_bytes, group.handle, address, length,
          _options(timeout, tag), ctypes.byref(out))
    del keep  # until here
    return _list(out, group.size)


def gather_bytes(data: Buffer, root: int = 0, group: Optional[Group] = None,
                 timeout: Optional[float] = None,
                 tag: Optional[str] = None) -> Optional[List[bytes]]:
    """The same on `root`; None elsewhere."""
    group, out = _of(group), ctypes.c_void_p()
    keep, address, length = _given(data)
    _call(library().ls_gather_bytes, group.handle, address, length, root,
          _options(timeout, tag), ctypes.byref(out))
    del keep
    return _list(out, group.size)


def scatter_bytes(parts: Optional[Iterable[Buffer]] = None, root: int = 0,
                  group: Optional[Group] = None, timeout: Optional[float] = None,
                  tag: Optional[str] = None) -> bytes:
    """parts[rank] of the root's list, which only the root gives."""
    group = _of(group)
    given, table = [], None
    if group.rank == root:
        given = [_given(part) for part in parts or ()]
        if len(given) != group.size:
            raise make_error(-1, f"scatter_bytes: {len(given)} parts; the root gives one for each of "
                                 f"the {group.size} ranks")
        table = (Bytes * group.size)(*[Bytes(address, length) for _, address, length in given])
    at, number = ctypes.c_void_p(), ctypes.c_size_t()
    _call(library().ls_scatter_bytes, group.handle, table, root,
          _options(timeout, tag), ctypes.byref(at), ctypes.byref(number))
    del given
    return _taken(at, number.value)


# ---- whatever pickle knows ----------------------------------------------------------------------


def broadcast(thing: Any = None, root: int = 0, group: Optional[Group] = None,
              timeout: Optional[float] = None, tag: Optional[str] = None) -> Any:
    """The object of `root`, on every rank; the root gets its own."""
    group = _of(group)
    if group.rank == root:
        broadcast_bytes(pickle.dumps(thing), root, group, timeout, tag)
        return thing
    return pickle.loads(broadcast_bytes(None, root, group, timeout, tag))


def all_gather(thing: Any, group: Optional[Group] = None, timeout: Optional[float] = None,
               tag: Optional[str] = None) -> List[Any]:
    """The objects of all ranks, in rank order."""
    return [pickle.loads(b) for b in all_gather_bytes(pickle.dumps(thing), group, timeout, tag)]


def gather(thing: Any, root: int = 0, group: Optional[Group] = None,
           timeout: Optional[float] = None, tag: Optional[str] = None) -> Optional[List[Any]]:
    """The same on `root`; None elsewhere."""
    parts = gather_bytes(pickle.dumps(thing), root, group, timeout, tag)
    return None if parts is None else [pickle.loads(b) for b in parts]


def scatter(things: Optional[Iterable[Any]] = None, root: int = 0, group: Optional[Group] = None,
            timeout: Optional[float] = None, tag: Optional[str] = None) -> Any:
    """things[rank] of the root's list, which only the root gives."""
    parts = None if things is None else [pickle.dumps(thing) for thing in things]
    return pickle.loads(scatter_bytes(parts, root, group, timeout, tag))
