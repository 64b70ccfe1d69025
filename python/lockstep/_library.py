# SPDX-License-Identifier: Apache-2.0
"""Finds liblockstep, loads it once, and says what its functions take.

It is looked for where LOCKSTEP_LIBRARY says (a file, or a folder that holds it); else among these
files, where a wheel may bring it; else where a source tree has its build; else where pkg-config and
the dynamic linker look. A library whose version does not fit this package is refused.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import threading
from typing import Any

from ._version import __version__

FILE = "liblockstep.so.0.2"

_library: Any = None
_lock = threading.Lock()


class Options(ctypes.Structure):
    """ls_collective_options; `size` tells the library how much of it we know."""

    _fields_ = [("size", ctypes.c_size_t), ("tag", ctypes.c_char_p),
                ("timeout_ms", ctypes.c_int64), ("stream", ctypes.c_void_p),
                ("divisor", ctypes.c_double), ("algorithm", ctypes.c_char_p),
                ("factor", ctypes.c_double)]


class GroupOptions(ctypes.Structure):
    """ls_group_options"""

    _fields_ = [("size", ctypes.c_size_t), ("ranks", ctypes.POINTER(ctypes.c_int)),
                ("count", ctypes.c_int), ("name", ctypes.c_char_p), ("backend", ctypes.c_char_p),
                ("canonical_sums", ctypes.c_bool)]


class InitOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("seed", ctypes.c_uint64),
                ("timeout_ms", ctypes.c_int64), ("threads", ctypes.c_int),
                ("graceful_stop", ctypes.c_bool)]


class Bytes(ctypes.Structure):
    """ls_bytes"""

    _fields_ = [("data", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Counters(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in ("operations", "messages", "bytes_sent", "bytes_received", "wait_ns")]


_P, _I, _N, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_Z, _O = ctypes.c_size_t, ctypes.POINTER(Options)
_END = (_O, ctypes.POINTER(_P))  # options, work

# name: (result, arguments). Pointers are plain addresses.
_FUNCTIONS = {
    "ls_version": (_S, ()),
    "ls_error_message": (_S, ()),
    "ls_status_name": (_S, (_I,)),
    "ls_site_set": (None, (_S, _I)),
    "ls_init": (_I, (ctypes.POINTER(InitOptions),)),
    "ls_finalize": (_I, ()),
    "ls_rank": (_I, ()),
    "ls_world_size": (_I, ()),
    "ls_local_rank": (_I, ()),
    "ls_local_world_size": (_I, ()),
    "ls_stop_requested": (ctypes.c_bool, ()),
    "ls_runtime_attach": (_I, (_P,)),
    "ls_runtime_current": (_P, ()),
    "ls_world": (_P, ()),
    "ls_group_rank": (_I, (_P,)),
    "ls_group_size": (_I, (_P,)),
    "ls_group_name": (_S, (_P,)),
    "ls_group_new": (_I, (_P, ctypes.POINTER(_I), _I, _S, ctypes.POINTER(_P))),
    "ls_group_create": (_I, (_P, ctypes.POINTER(GroupOptions), ctypes.POINTER(_P))),
    "ls_group_new_among": (_I, (_P, ctypes.POINTER(_I), _I, _S, ctypes.POINTER(_P))),
    "ls_group_split": (_I, (_P, _I, _I, _S, ctypes.POINTER(_P))),
    "ls_group_round_robin": (_I, (ctypes.POINTER(_P), _I, _S, ctypes.POINTER(_P))),
    "ls_group_set_channels": (_I, (_P, _I)),
    "ls_group_get_tuning": (_I, (_P, _S, _Z)),
    "ls_group_free": (_I, (_P,)),
    "ls_group_abort": (_I, (_P, _S)),
    "ls_group_status": (_I, (_P,)),
    "ls_group_alloc": (_I, (_P, ctypes.c_size_t, ctypes.POINTER(_P))),
    "ls_group_dealloc": (_I, (_P, _P)),
    "ls_group_get_counters": (_I, (_P, ctypes.POINTER(Counters))),
    "ls_reduce_op_new": (_I, (_P, _P, _S, ctypes.POINTER(_I))),
    "ls_reduce_op_free": (_I, (_I,)),
    "ls_reduce_op_fail": (_I, (_S,)),
    "ls_all_reduce": (_I, (_P, _P, _P, _N, _I, _I) + _END),
    "ls_reduce_scatter": (_I, (_P, _P, _P, _N, _I, _I) + _END),
    "ls_all_gather": (_I, (_P, _P, _P, _N, _I) + _END),
    "ls_broadcast": (_I, (_P, _P, _N, _I, _I) + _END),
    "ls_reduce": (_I, (_P, _P, _P, _N, _I, _I, _I) + _END),
    "ls_gather": (_I, (_P, _P, _P, _N, _I, _I) + _END),
    "ls_scatter": (_I, (_P, _P, _P, _N, _I, _I) + _END),
    "ls_all_to_all": (_I, (_P, _P, _P, _N, _I) + _END),
    "ls_all_to_all_v": (_I, (_P, _P, _P, _P, _P, _P, _P, _I) + _END),
    "ls_all_gather_v": (_I, (_P, _P, _N, _P, _P, _P, _I) + _END),
    "ls_reduce_scatter_v": (_I, (_P, _P, _P, _P, _P, _I, _I) + _END),
    "ls_gather_v": (_I, (_P, _P, _N, _P, _P, _P, _I, _I) + _END),
    "ls_scatter_v": (_I, (_P, _P, _P, _P, _P, _N, _I, _I) + _END),
    "ls_scan": (_I, (_P, _P, _P, _N, _I, _I) + _END),
    "ls_exscan": (_I, (_P, _P, _P, _N, _I, _I) + _END),
    "ls_all_reduce_many": (_I, (_P, _P, _P, _I, _I, _I) + _END),
    "ls_broadcast_many": (_I, (_P, _P, _P, _I, _I, _I) + _END),
    "ls_barrier": (_I, (_P,) + _END),
    "ls_monitored_barrier": (_I, (_P, _N, _O)),
    "ls_stop_agree": (_I, (_P, ctypes.POINTER(ctypes.c_bool))),
    "ls_send": (_I, (_P, _P, _N, _I, _I, _I) + _END),
    "ls_recv": (_I, (_P, _P, _N, _I, _I, _I) + _END),
    "ls_recv_up_to": (_I, (_P, _P, _N, _I, _I, _I) + _END),
    "ls_recv_any": (_I, (_P, _P, _N, _I, _I, _O, ctypes.POINTER(_I))),
    "ls_broadcast_bytes": (_I, (_P, ctypes.POINTER(_P), ctypes.POINTER(_Z), _I, _O)),
    "ls_all_gather_bytes": (_I, (_P, _P, _Z, _O, ctypes.POINTER(_P))),
    "ls_gather_bytes": (_I, (_P, _P, _Z, _I, _O, ctypes.POINTER(_P))),
    "ls_scatter_bytes": (_I, (_P, _P, _I, _O, ctypes.POINTER(_P), ctypes.POINTER(_Z))),
    "ls_bytes_free": (None, (_P,)),
    "ls_work_wait": (_I, (_P,)),
    "ls_work_test": (_I, (_P,)),
    "ls_work_wait_stream": (_I, (_P, _P)),
    "ls_work_wait_for": (_I, (_P, _N)),
    "ls_work_source": (_I, (_P,)),
    "ls_work_count": (_N, (_P,)),
    "ls_work_abort": (_I, (_P, _S)),
}


def _pkg_config_folder():
    try:
        done = subprocess.run(["pkg-config", "--variable=libdir", "lockstep"], text=True,
                              capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _beside():
    """Of a source tree: its build, when these files are used where they lie."""
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    return root / "build" / "src" if (root / "include" / "lockstep" / "comm.h").exists() else None


def _places():
    """(what to load, why), in the order in which they are tried."""
    given = os.environ.get("LOCKSTEP_LIBRARY")
    if given:
        path = pathlib.Path(given)
        yield (path / FILE if path.is_dir() else path), "LOCKSTEP_LIBRARY"
        return
    brought = pathlib.Path(__file__).resolve().parent / FILE
    if brought.exists():
        yield brought, "the wheel"
    beside = _beside()
    if beside is not None:
        yield beside / FILE, "the source tree's build"
    folder = _pkg_config_folder()
    if folder:
        yield pathlib.Path(folder) / FILE, "pkg-config"
    yield FILE, "the dynamic linker"
    for folder in ("/usr/local/lib", "/usr/lib"):
        yield pathlib.Path(folder) / FILE, "the usual place"


def _open():
    tried = []
    for path, why in _places():
        if isinstance(path, pathlib.Path) and not path.exists():
            tried.append(f"{path} ({why}): not there")
            continue
        try:
            return ctypes.CDLL(str(path)), path
        except OSError as error:
            tried.append(f"{path} ({why}): {error}")
    raise ImportError(
        f"lockstep: {FILE} was not found:\n  " + "\n  ".join(tried) +
        "\nBuild and install it (`make install`), or set LOCKSTEP_LIBRARY to the file or its folder.")


def _check_version(library, path):
    if not hasattr(library, "ls_version"):
        raise ImportError(f"lockstep: {path} is not Lockstep's library: it has no symbol ls_version; set "
                          f"LOCKSTEP_LIBRARY to {FILE} or its folder")
    library.ls_version.restype = ctypes.c_char_p
    found = library.ls_version().decode()
    if found.split(".")[:2] != __version__.split(".")[:2]:
        raise ImportError(
            f"lockstep: {path} has version {found}, but this package is for {__version__}: install "
            f"those of one release, or set LOCKSTEP_LIBRARY to a library of "
            f"{'.'.join(__version__.split('.')[:2])}")


def _declare(library, path):
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"lockstep: {path} has no {name}: it is older than this package; "
                              "build it anew, or set LOCKSTEP_LIBRARY") from None
        function.restype, function.argtypes = result, arguments


def library() -> Any:
    """The library; loaded at the first call."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                loaded, path = _open()
                _check_version(loaded, path)
                _declare(loaded, path)
                _library = loaded
    return _library
