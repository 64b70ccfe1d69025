"""The process group: torch.distributed's operations, each one call of the library.

Tensors lie on the CPU and are strided. Contiguous ones are worked on where they are; of others a
contiguous copy is, and the result is copied back. Lists of tensors that lie one behind the other,
as `list(out.unbind())` has them, count as one tensor; others go through a buffer.

PyTorch knows two generations of names for some operations; both are here.
"""

import ctypes
import itertools
import weakref

import torch
import torch.distributed as dist

from .. import _core
from .._core import library, make_error
from ._tensors import (DTYPES, OPERATORS, Outputs, as_list, both, check_tensor, count_is, factor_of,
                       in_place, in_place_output, joined, moved, only_one, operator_of, sizes_fit,
                       splits, summed)
from ._work import Completer, Work, seconds_of

_PACKED_MAX = 64 << 10  # bytes, on the average of a list
_BUFFERED_MAX = 64 << 10  # bytes
_KEPT_MAX = 4096  # works nobody waited for; so many are not under way at once


# ---- the group ----------------------------------------------------------------------------------


class ProcessGroup(dist.ProcessGroup):
    """A torch.distributed process group over a Lockstep group."""

    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, group, store, timeout, leave):
        super().__init__(group.rank, group.size)
        self._ls, self._store, self._leave = group, store, leave
        self._timeout = timeout
        self._completer = Completer(group.name)
        self._kept = {}  # in order
        self._batch, self._made_options = None, {}
        self._name, self._text = group.name, "undefined"
        self._number = next(_numbers)
        _living[self._number] = self

    # ---- starting operations ----

    def _options(self, opts=None):
        asked = seconds_of(getattr(opts, "timeout", None))
        # PyTorch fills in its own default, half an hour, where the caller gave nothing.
        seconds = self._timeout if asked in (None, _UNSET) else asked
        factor = factor_of(opts)
        if factor != 1.0:
            return _core.make_options(timeout_ms=_core.milliseconds(seconds), factor=factor)
        if seconds not in self._made_options:
            self._made_options[seconds] = _core.make_options(timeout_ms=_core.milliseconds(seconds))
        return self._made_options[seconds]

    def _now(self, opts):
        """Whether the caller waits for the end at once, as PyTorch says from 2.5 on: then an
        operation of one part is one call, and has no Work."""
        return self._batch is None and not getattr(opts, "asyncOp", True)

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

    # ---- reductions ----

    def _all_reduce(self, tensor, opts, now):
        memory, finish = in_place(check_tensor("all_reduce", tensor))
        part = self._start("ls_all_reduce",
                           (memory.data_ptr(), memory.data_ptr(),
                            *summed("all_reduce", memory, opts)), opts, memory,
                           now)
        return part, finish

    def allreduce(self, tensors, opts=None):
        tensors = as_list(tensors)
        if len(tensors) != 1:
            return self.allreduce_coalesced(tensors, opts)
        if tensors[0].layout == torch.sparse_coo:
            return self._sparse_all_reduce(tensors[0], opts)
        part, finish = self._all_reduce(tensors[0], opts, self._now(opts))
        return self._work([part], list(tensors), finish)

    def allreduce_coalesced(self, tensors, opts=None):
        tensors = list(as_list(tensors))
        if _small_and_alike(tensors):
            return self._all_reduce_many(tensors, opts)
        parts, finishes = zip(*[self._all_reduce(t, opts, False) for t in tensors])
        return self._work(parts, tensors, both(*finishes))

    def _all_reduce_many(self, tensors, opts):
        memories, finishes = zip(*[in_place(check_tensor("all_reduce", t)) for t in tensors])
        n, what = len(tensors), "all_reduce"
        part = self._start("ls_all_reduce_many",
                           ((ctypes.c_void_p * n)(*[m.data_ptr() for m in memories]),
                            (ctypes.c_int64 * n)(*[summed(what, m, opts)[0] for m in memories]), n,
                            *summed(what, memories[0], opts)[1:]),
                           opts, memories, self._now(opts))
        return self._work([part], tensors, both(*finishes))

    def _sparse_all_reduce(self, tensor, opts):
        """Indices and values of all ranks behind each other: their sum when coalesced. The lengths
        go first, so this waits for the other ranks to come."""
        if operator_of("all_reduce", opts) != OPERATORS["SUM"]:
            raise make_error(-1, "all_reduce: sparse tensors can only be added up (SUM)")
        mine = tensor.coalesce()
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size())]
        _wait(self.allgather([counts], [torch.tensor([mine._nnz()])], opts))
        most = max(int(c) for c in counts)
        gathered = []
        for part in (mine.indices().t(), mine.values()):  # [nnz, ...], padded to the longest
            padded = part.new_zeros((most,) + tuple(part.shape[1:]))
            padded[:part.shape[0]] = part
            gathered.append([torch.empty_like(padded) for _ in range(self.size())])
            _wait(self.allgather([gathered[-1]], [padded], opts))
        indices, values = (torch.cat([p[:int(c)] for p, c in zip(parts, counts)])
                           for parts in gathered)
        total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()
        with torch.no_grad():
            tensor.copy_(total)
        return self._work((), [tensor])

    def reduce(self, tensors, opts):
        tensor = only_one("reduce", as_list(tensors))
        memory, finish = in_place(tensor)
        at = memory.data_ptr()
        here = self.rank() == opts.rootRank
        part = self._start("ls_reduce",
                           (at, at if here else None, *summed("reduce", memory, opts),
                            opts.rootRank), opts, memory,
                           self._now(opts))
        return self._work([part], list(tensors), finish if here else None)

    def _reduce_scatter(self, output, flat, opts, now):
        out, finish = in_place_output(output)
        part = self._start("ls_reduce_scatter",
                           (flat.data_ptr(), out.data_ptr(), *summed("reduce_scatter", out, opts)),
                           opts, (flat, out), now)
        return part, finish

    def reduce_scatter(self, outputs, inputs, opts=None):
        output = only_one("reduce_scatter", as_list(outputs))
        count_is("reduce_scatter", inputs[0], self.size())
        if len({t.numel() for t in inputs[0]}) > 1:
            return self._reduce_scatter_v(output, inputs[0], opts)
        part, finish = self._reduce_scatter(output, joined("reduce_scatter", inputs[0], output),
                                            opts, self._now(opts))
        return self._work([part], list(outputs), finish)

    def _reduce_scatter_v(self, output, tensors, opts):
        what = "reduce_scatter"
        if output.numel() != tensors[self.rank()].numel():
            raise make_error(-1, f"{what}: an output of {tuple(output.shape)} for rank "
                                 f"{self.rank()}, whose share is "
                                 f"{tuple(tensors[self.rank()].shape)}")
        flat = torch.cat([check_tensor(what, t).detach().reshape(-1) for t in tensors])
        out, finish = in_place_output(output)
        counts = (ctypes.c_int64 * self.size())(*[summed(what, t, opts)[0] for t in tensors])
        part = self._start("ls_reduce_scatter_v",
                           (flat.data_ptr(), counts, None, out.data_ptr(),
                            *summed(what, out, opts)[1:]), opts, (flat, out), self._now(opts))
        return self._work([part], [output], finish)

    def reduce_scatter_single(self, output, tensor, opts=None):
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        started, now = [], len(outputs) == 1 and self._now(opts)
        for output, tensor in zip(outputs, inputs):
            sizes_fit("reduce_scatter", tensor, output, self.size())
            started.append(self._reduce_scatter(output, tensor.detach().contiguous(), opts, now))
        parts, finishes = zip(*started)
        return self._work(parts, list(outputs), both(*finishes))

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- moving elements ----

    def broadcast(self, tensors, opts):
        tensor = only_one("broadcast", as_list(tensors))
        memory, finish = in_place(tensor)
        count, dtype = moved(memory)
        part = self._start("ls_broadcast", (memory.data_ptr(), count, dtype, opts.rootRank), opts,
                           memory, self._now(opts))
        return self._work([part], list(tensors), finish)

    def _all_gather(self, flat, tensor, opts, now):
        tensor = check_tensor("all_gather", tensor).detach().contiguous()
        count, dtype = moved(tensor)
        return self._start("ls_all_gather", (tensor.data_ptr(), flat.data_ptr(), count, dtype), opts,
                           (tensor, flat), now)

    def allgather(self, outputs, inputs, opts=None):
        return self.allgather_coalesced([outputs[0]], [only_one("all_gather", as_list(inputs))], opts,
                                        nested=True)

    def allgather_coalesced(self, outputs, inputs, opts=None, nested=False):
        if not nested and len(outputs) == self.size() and len(outputs[0]) == len(inputs):
            outputs = list(zip(*outputs))  # outputs[rank][k] for PyTorch
        parts, finishes, now = [], [], len(inputs) == 1 and self._now(opts)
        for row, tensor in zip(outputs, inputs):
            count_is("all_gather", row, self.size())
            out = Outputs("all_gather", list(row), tensor)
            parts.append(self._all_gather(out.flat, tensor, opts, now))
            finishes.append(out.finish)
        return self._work(parts, [t for row in outputs for t in row], both(*finishes))

    def all_gather_single(self, output, tensor, opts=None):
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        parts, finishes, now = [], [], len(outputs) == 1 and self._now(opts)
        for output, tensor in zip(outputs, inputs):
            sizes_fit("all_gather", output, tensor, self.size())
            out, finish = in_place_output(output)
            parts.append(self._all_gather(out, tensor, opts, now))
            finishes.append(finish)
        return self._work(parts, list(outputs), both(*finishes))

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs, inputs, opts):
        tensor = only_one("gather", as_list(inputs)).detach().contiguous()
        here, out = self.rank() == opts.rootRank, None
        if here:
            count_is("gather", outputs[0], self.size())
            out = Outputs("gather", list(outputs[0]), tensor)
        count, dtype = moved(tensor)
        part = self._start("ls_gather", (tensor.data_ptr(), out.flat.data_ptr() if here else None,
                                         count, dtype, opts.rootRank), opts,
                           (tensor, out.flat if here else None), self._now(opts))
        return self._work([part], out.tensors if here else [], out.finish if here else None)

    def scatter(self, outputs, inputs, opts):
        output = only_one("scatter", as_list(outputs))
        here, flat = self.rank() == opts.rootRank, None
        if here:
            count_is("scatter", inputs[0], self.size())
            flat = joined("scatter", list(inputs[0]), output)
        out, finish = in_place_output(output)
        count, dtype = moved(out)
        part = self._start("ls_scatter", (flat.data_ptr() if here else None, out.data_ptr(), count,
                                          dtype, opts.rootRank), opts, (flat, out),
                           self._now(opts))
        return self._work([part], list(outputs), finish)

    def all_to_all_single(self, output, tensor, output_splits=(), input_splits=(), opts=None):
        out, finish = in_place_output(check_tensor("all_to_all", output))
        flat = check_tensor("all_to_all", tensor).detach().contiguous()
        counts = [splits("all_to_all", given, t, self.size())
                  for given, t in ((input_splits, flat), (output_splits, out))]
        part = self._exchange(flat, counts[0], out, counts[1], opts,
                              even=not output_splits and not input_splits)
        return self._work([part], [output], finish)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs, inputs, opts=None):
        for tensors in (outputs, inputs):
            count_is("all_to_all", tensors, self.size())
        flat = torch.cat([check_tensor("all_to_all", t).detach().reshape(-1) for t in inputs])
        out = torch.empty(sum(t.numel() for t in outputs), dtype=outputs[0].dtype)
        counts = [[t.numel() for t in tensors] for tensors in (inputs, outputs)]
        part = self._exchange(flat, counts[0], out, counts[1], opts)

        def finish(_):
            with torch.no_grad():
                for tensor, piece in zip(outputs, out.split(counts[1])):
                    tensor.copy_(piece.view(tensor.shape))
        return self._work([part], list(outputs), finish)

    def _exchange(self, flat, in_counts, out, out_counts, opts, even=False):
        """`even`: all ranks know that all shares are equal."""
        scale = 1 if out.dtype in DTYPES else out.element_size()
        if even:
            return self._start("ls_all_to_all",
                               (flat.data_ptr(), out.data_ptr(), in_counts[0] * scale,
                                DTYPES.get(out.dtype, _core.BYTES)), opts, (flat, out),
                               self._now(opts))
        numbers = [(ctypes.c_int64 * self.size())(*[c * scale for c in counts])
                   for counts in (in_counts, out_counts)]
        return self._start("ls_all_to_all_v",
                           (flat.data_ptr(), numbers[0], None, out.data_ptr(), numbers[1], None,
                            DTYPES.get(out.dtype, _core.BYTES)), opts, (flat, out),
                           self._now(opts))

    # ---- between two ----

    def send(self, tensors, peer, tag=0):
        """Short ones are copied and count as sent at once, as a socket's buffer would have it: with
        gloo two ranks may both send first."""
        given = only_one("send", as_list(tensors)).detach()
        tensor = given.contiguous()
        count, dtype = moved(tensor)
        if tensor.numel() * tensor.element_size() <= _BUFFERED_MAX:
            copy = tensor.clone() if tensor.data_ptr() == given.data_ptr() else tensor
            self._start("ls_send", (copy.data_ptr(), count, dtype, peer, tag), None, copy)
            return self._work((), list(tensors))
        return self._letter("ls_send", (tensor.data_ptr(), count, dtype, peer, tag), tensor, tensors)

    def recv(self, tensors, peer, tag=0):
        out, finish = in_place_output(only_one("recv", as_list(tensors)))
        count, dtype = moved(out)
        work = self._letter("ls_recv", (out.data_ptr(), count, dtype, peer, tag), out, tensors,
                            finish)
        work._source = peer
        return work

    def recv_anysource(self, tensors, tag=0):
        out, finish = in_place_output(only_one("recv", as_list(tensors)))
        count, dtype = moved(out)
        part = self._start("ls_recv", (out.data_ptr(), count, dtype, _core.ANY_SOURCE, tag), None, out)
        part.keep_source()

        def end(work):
            work._source = part.source
            if finish is not None:
                finish(work)
        work = self._work([part], list(tensors), end)
        work.letter = True
        return work

    def _letter(self, name, arguments, buffer, tensors, finish=None):
        work = self._work([self._start(name, arguments, None, buffer)], list(tensors), finish)
        work.letter = True
        return work

    # ---- barriers ----

    def barrier(self, opts=None):
        return self._work([self._start("ls_barrier", (), opts, None, self._now(opts))], [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """Fails with the names of all ranks that have not come in time, on every rank."""
        self._ls.monitored_barrier(seconds_of(timeout) or self._timeout)

    # ---- several as one ----

    def _start_coalescing(self, device=None):
        self._batch = []

    def _end_coalescing(self, *_):
        batch, self._batch = self._batch, None
        parts = [part for work in batch for part in work._parts]
        return self._work(parts, [], both(*[work._finish for work in batch]))

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
        return "lockstep"

    def name(self):
        return "lockstep"

    _get_backend_name = name

    # PyTorch keeps these with a backend in C++, which there is none of here.
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
        return self

    @property
    def _device_types(self):
        return [torch.device("cpu")]

    @property
    def lockstep_group(self):
        """The Lockstep group below."""
        return self._ls

    def set_timeout(self, timeout):
        self._timeout = seconds_of(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        pass  # the library numbers its operations itself

    def _get_sequence_number_for_group(self):
        return self._ls.counters()["operations"]

    # ---- the end ----

    def abort(self, why="torch.distributed aborted the process group"):
        self._ls.abort(why)

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


def _wait(work):
    if work is not None:
        work.wait()


def _small_and_alike(tensors):
    """Whether these are better packed into one operation: then copying costs less than starting.
    The ranks agree, since dtypes and shapes are the same on all."""
    return len(tensors) > 1 and len({t.dtype for t in tensors}) == 1 and (
        sum(t.numel() * t.element_size() for t in tensors) <= _PACKED_MAX * len(tensors))


# In the order in which they were made, which their members have in common: freeing one waits for
# the others.
_living, _numbers = weakref.WeakValueDictionary(), itertools.count()
_UNSET = (torch._C._distributed_c10d._DEFAULT_PG_TIMEOUT.total_seconds()
          if hasattr(torch._C._distributed_c10d, "_DEFAULT_PG_TIMEOUT") else 1800.0)
