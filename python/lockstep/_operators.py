# SPDX-License-Identifier: Apache-2.0
"""Operators of the user's: a function of two arrays, which the library applies in the order of ranks.

The library calls one C function for all of them, on whatever thread moves operations on, often one
that Python has never seen; its argument is the operator's key in a table that does not keep it alive
(an operation under way does). An exception in the function must not go through C: it fails the
operation's group on every rank, with its text, and is the cause of the error that this rank raises.
"""

from __future__ import annotations

import ctypes
import threading
import traceback
import weakref
from typing import Any, Callable, Optional

import numpy

from . import _core
from ._core import library, make_error

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int,
                             ctypes.c_void_p)
_NUMPY = {number: numpy.dtype(name) for name, number in _core.DTYPES.items() if name != "bfloat16"}
_made: weakref.WeakValueDictionary[int, Operator] = weakref.WeakValueDictionary()  # by key


class _Memory:
    """What numpy.asarray makes an array of without a copy."""

    def __init__(self, address, count, dtype, constant):
        self.__array_interface__ = {"data": (address, constant), "shape": (count,),
                                    "typestr": dtype.str, "version": 3}


def _combine(operator, into, right, count, dtype):
    dtype = _NUMPY[dtype]
    left = numpy.asarray(_Memory(into, count, dtype, False))
    result = operator.function(left, numpy.asarray(_Memory(right, count, dtype, True)))
    if numpy.shape(result) != (count,):
        got = "None" if result is None else f"shape {numpy.shape(result)}"
        raise ValueError(f"it returned {got} for two arrays of {count} elements; return an element "
                         "for each pair")
    if result is not left:
        numpy.copyto(left, result, casting="same_kind")


@_FUNCTION
def _call(into, right, count, dtype, key):
    here = threading.get_ident()
    within = here in _core.combining
    try:
        _core.combining.add(here)
        operator = _made.get(key or 0)
        if operator is None:
            raise RuntimeError("nothing keeps it any more: hold the Operator until its operations "
                               "have ended")
        _combine(operator, into, right, count, dtype)
    except BaseException as error:  # whatever it is, it must not go through C
        traceback.clear_frames(error.__traceback__)  # whose arrays end with this call
        text = "".join(traceback.format_exception_only(type(error), error)).strip()[:200]
        _core.note_failure(text, error)
        library().ls_reduce_op_fail(text.encode("utf-8", "replace"))
    finally:
        if not within:
            _core.combining.discard(here)


class Operator:
    """An operator for every call that takes `op`: function(left, right) gets two arrays, of ranks
    before and after, and returns an array with an element for each pair (it may be `left`, changed).
    It must be associative; it need not be commutative. All ranks give the same name.

    The function is called on any thread, on pieces of the arrays, flat; float16 and bfloat16 come as
    float32. The arrays are good for this one call. It must not call lockstep."""

    _keys = iter(range(1, 1 << 62))

    def __init__(self, function: Callable[[numpy.ndarray, numpy.ndarray], Any],
                 name: Optional[str] = None) -> None:
        if not callable(function):
            raise make_error(-1, f"Operator: {type(function).__name__} is not a function; give one of "
                                 "two arrays")
        self.function: Callable[..., Any] = function
        self.name = str(name or getattr(function, "__name__", ""))
        self._runtime, self._key, number = _core.state.runtime, next(self._keys), ctypes.c_int()
        self._number = None
        _core.call(library().ls_reduce_op_new, ctypes.cast(_call, ctypes.c_void_p), self._key,
                   self.name.encode(), ctypes.byref(number))
        self._number = number.value
        _made[self._key] = self

    @property
    def number(self) -> int:
        if self._number is None or self._runtime != _core.state.runtime:
            raise make_error(-8, f"operator {self.name!r} was freed")
        return self._number

    def free(self) -> None:
        """Frees it; operations under way keep it. One that is dropped is freed by itself."""
        number, self._number = self._number, None
        if number is not None and self._runtime == _core.state.runtime:
            _core.now_or_later(library().ls_reduce_op_free, number)

    def __del__(self):
        if getattr(self, "_number", None) is not None:
            self.free()

    def __repr__(self) -> str:
        return f"<lockstep.numpy.Operator {self.name!r}>"
