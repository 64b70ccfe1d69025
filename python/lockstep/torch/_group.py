# SPDX-License-Identifier: Apache-2.0
"""The process group: what PyTorch asks of one, beside the operations (_operations.py)."""

from __future__ import annotations

import datetime
import itertools
import threading
import types
import weakref

import torch
import torch.distributed as dist

from .. import _core
from .._core import library, make_error
from . import _alias
from ._calls import backends_of
from ._operations import Operations
from ._tensors import both, factor_of
from ._work import Completer, Work, seconds_of

_KEPT_MAX = 4096  # works nobody waited for; so many are not under way at once
_C10D = torch._C._distributed_c10d


# ---- the group ----------------------------------------------------------------------------------


class ProcessGroup(Operations, dist.ProcessGroup):
    """A torch.distributed process group over a Lockstep group."""

    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, group, store, timeout, leave):
        super().__init__(group.rank, group.size)
        self._ls, self._store, self._leave = group, store, leave
        self._timeout = timeout
        self._completer = Completer(group.name)
        self.recording = False  # of an operation for PyTorch's profile
        self._others = {}  # {device: the group of another backend}
        self._kept = {}  # in order
        self._batch, self._made_options = None, {}
        self.direct = False  # the way of tensors of a GPU, once one has come; None: by the host
        self.direct_lock = threading.Lock()
        self._name, self._text = group.name, "undefined"
        self._number = next(_numbers)
        _living[self._number] = self

    # ---- starting operations ----

    def _options(self, opts=None, stream=None):
        asked = seconds_of(getattr(opts, "timeout", None))
        # PyTorch fills in its own default, half an hour, where the caller gave nothing.
        seconds = self._timeout if asked in (None, _UNSET) else asked
        factor = factor_of(opts)
        if factor != 1.0 or stream is not None:
            return _core.make_options(timeout_ms=_core.milliseconds(seconds), factor=factor,
                                      stream=stream)
        if seconds not in self._made_options:
            self._made_options[seconds] = _core.make_options(timeout_ms=_core.milliseconds(seconds))
        return self._made_options[seconds]

    def _now(self, opts):
        """Whether the caller waits for the end at once, as PyTorch says from 2.5 on: then an
        operation of one part is one call, and has no Work."""
        return self._batch is None and not self.recording and not getattr(opts, "asyncOp", True)

    def _start(self, name, arguments, opts, buffers, now=False):
        function, arguments = getattr(library(), name), (self._ls.handle, *arguments)
        if now:
            return _core.run(function, arguments, self._options(opts))
        return _core.start(function, arguments, self._options(opts), buffers)

    def _work(self, parts, result, finish=None):
        if len(parts) == 1 and parts[0] is None:  # it has ended
            if finish is not None:
                finish(None)
            return None
        work = Work(self, parts, result, finish)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def keep(self, work):
        """Until it was waited for, or its future asked for: C++ may hold it without us knowing."""
        self._kept[work] = None
        if len(self._kept) > _KEPT_MAX:
            for old in list(self._kept)[:_KEPT_MAX // 2]:
                if old.is_completed():
                    self.drop(old)

    def drop(self, work):
        self._kept.pop(work, None)

    def complete(self, work, ended):
        self._completer.add(work, getattr(work, "letter", False), ended)

    # ---- several as one ----

    @property
    def batching(self):
        return self._batch is not None

    def _start_coalescing(self, device=None):
        self._batch = []

    def _end_coalescing(self, *_):
        batch, self._batch = self._batch, None
        parts = [part for work in batch for part in work._parts]
        together = self._work(parts, [], both(*[work._finish for work in batch]))
        together.stages = tuple(stage for work in batch for stage in work.stages)
        return together

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    # ---- other groups ----

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None,
                    device_types=None):
        """A group of these ranks of this one, for them; None for others, who call it as well."""
        if self.rank() not in ranks:
            return None
        part = ProcessGroup(self._ls.new_among(list(ranks), group_name), self._store,
                            seconds_of(timeout) or self._timeout, leave=False)
        if group_name is not None:
            part._set_group_name(group_name)
        return part

    splitGroup = split_group

    # ---- what PyTorch asks ----

    def getBackendName(self):
        return "lockstep"  # also in the place of another one: for "gloo" DDP calls functions in C++

    name = _get_backend_name = getBackendName

    @property
    def called(self):
        """What the program calls the backend: another name when it stands in for it (_alias.py)."""
        asked = _alias.groups_of(dist.distributed_c10d).get(self, ["lockstep"])[0]
        return str(asked).partition(",")[0].rpartition(":")[2]  # of "cpu:gloo,cuda:nccl" gloo

    # PyTorch keeps these with a backend in C++; here there is none.
    def setGroupName(self, name):
        self._name = name

    def getGroupName(self):
        return self._name

    def setGroupDesc(self, text):
        self._text = text

    def getGroupDesc(self):
        return self._text

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    def get_group_store(self):
        return self._store

    def _get_backend(self, device=None):
        other = self.for_device(torch.device(device).type) if device is not None else None
        return self if other is None else other._get_backend(device)

    get_backend = _get_backend

    def for_device(self, kind):
        """The group of the backend that the program named for a device, as in
        "cpu:lockstep,cuda:nccl", made at its first use; None: this one."""
        name = None if kind == "cpu" else backends_of(self).get(kind)
        if name in (None, "lockstep"):
            return None
        if kind not in self._others:
            self._others[kind], _ = dist.distributed_c10d._new_process_group_helper(
                self.size(), self.rank(), dist.get_process_group_ranks(self), f"{kind}:{name}",
                self._store, group_name=f"{self._name}/{kind}",
                timeout=datetime.timedelta(seconds=self._timeout))
        return self._others[kind]

    def eager_connect_single_device(self, device=None):
        pass  # the links are there since the group was made

    @property
    def _device_types(self):
        """Empty until PyTorch has listed the group: before that PyTorch 2.15 looks for a backend in
        C++ behind each device, to record its operations, and fails without one."""
        world = getattr(dist.distributed_c10d, "_world", None)  # PyTorch 1 has none, and does not ask
        if world is not None and self not in world.pg_map:
            return []
        return [torch.device(kind) for kind in {"cpu": None, **backends_of(self)}]

    @property
    def options(self):
        """What the group was made with, as the groups of backends in C++ have it."""
        timeout = datetime.timedelta(seconds=self._timeout)
        options = getattr(getattr(_C10D, "Backend", None), "Options", None)
        if options is None:  # before PyTorch 2.0
            return types.SimpleNamespace(backend="lockstep", _timeout=timeout)
        return options("lockstep", timeout)

    @property
    def lockstep_group(self) -> _core.Group:
        """The Lockstep group below."""
        return self._ls

    def set_timeout(self, timeout):
        self._timeout = seconds_of(timeout) or self._timeout

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        pass  # the library numbers its operations itself

    def _get_sequence_number_for_group(self):
        return self._ls.counters()["operations"]

    # ---- the end ----

    def abort(self, why="torch.distributed aborted the process group"):
        """Called by one rank or by all; a group that has failed keeps its first cause."""
        for group in (self._ls, self.direct):
            try:
                if group:
                    group.abort(why)
            except _core.Error:
                pass

    def shutdown(self):
        """Frees the group, when all ranks do; the default group's also leaves the world."""
        if self._ls is None:
            return
        group, self._ls = self._ls, _Gone(self._ls)
        _living.pop(self._number, None)
        self._completer.stop()
        self._kept.clear()
        if _core.is_initialized():
            try:
                if self.direct:
                    self.direct.free()
                group.free()
            except _core.Error:
                pass  # it failed before, which its operations have said, or ranks left without this
            if self._leave:
                for other in list(_living.values()):
                    other.shutdown()
                _core.finalize()

    def __del__(self):
        if _core is not None and isinstance(self.__dict__.get("_ls"), _core.Group):
            try:
                self._completer.stop()
            except Exception:
                pass


class _Gone:
    """In the place of a group that was freed."""

    def __init__(self, group):
        self.name = group.name

    def __getattr__(self, _):
        raise make_error(-8, f"process group {self.name!r} was destroyed")


# In the order in which they were made, which their members have in common: freeing one waits for
# the others.
_living: weakref.WeakValueDictionary[int, ProcessGroup] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_UNSET = (torch._C._distributed_c10d._DEFAULT_PG_TIMEOUT.total_seconds()
          if hasattr(torch._C._distributed_c10d, "_DEFAULT_PG_TIMEOUT") else 1800.0)
