# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's operations, each one call of the library.

Tensors are strided and lie on the CPU; those of other devices have twins there (_staging.py).
Contiguous ones are worked on where they are; of others a contiguous copy is, and the result is
copied back. Lists of tensors that lie one behind the other, as `list(out.unbind())` has them, count
as one tensor; others go through a buffer.

PyTorch knows two generations of names for some operations; both are here.
"""

import ctypes
import datetime
import functools

import torch

from .. import _core
from .._core import library, make_error
from ._calls import asked, operation
from ._tensors import (DTYPES, OPERATORS, Outputs, as_list, both, check_tensor, count_is, first_of,
                       in_place, in_place_output, joined, moved, only_one, operator_of, put,
                       same_sizes, sizes_fit, some, splits, summed)

_C10D = torch._C._distributed_c10d
_PACKED_MAX = 64 << 10  # bytes, on the average of a list
_BUFFERED_MAX = 64 << 10  # bytes
_COMBINE = {OPERATORS["SUM"]: torch.add, OPERATORS["PRODUCT"]: torch.mul,
            OPERATORS["MIN"]: torch.minimum, OPERATORS["MAX"]: torch.maximum}


class Operations:
    """The part of the process group that starts operations."""

    # ---- reductions ----

    def _all_reduce(self, tensor, opts, now):
        memory, finish = in_place(check_tensor("all_reduce", tensor))
        part = self._start("ls_all_reduce",
                           (memory.data_ptr(), memory.data_ptr(),
                            *summed("all_reduce", memory, opts)), opts, memory,
                           now)
        return part, finish

    @operation("all_reduce")
    def allreduce(self, tensors, opts=None, timeout=None, op=None):
        tensors = some("all_reduce", as_list(tensors))
        opts = asked(_C10D.AllreduceOptions, opts, timeout, reduceOp=op)
        if len(tensors) != 1:
            return self._all_reduce_together(tensors, opts)
        if tensors[0].layout == torch.sparse_coo:
            return self._sparse_all_reduce(tensors[0], opts)
        part, finish = self._all_reduce(tensors[0], opts, self._now(opts))
        return self._work([part], list(tensors), finish)

    def _all_reduce_together(self, tensors, opts):
        """Several tensors of one rank are combined with one another, too: all become the total."""
        combine = _COMBINE.get(operator_of("all_reduce", opts))
        if combine is None:
            raise make_error(-1, f"all_reduce: {len(tensors)} tensors and {opts.reduceOp}; a list of "
                                 "several takes SUM, PRODUCT, MIN or MAX")
        same_sizes("all_reduce", tensors, tensors[0])
        total = functools.reduce(combine, [t.detach() for t in tensors[1:]],
                                 tensors[0].detach().clone(memory_format=torch.contiguous_format))
        part, _ = self._all_reduce(total, opts, False)

        def finish(_):
            for tensor in tensors:
                put(tensor, total)
        return self._work([part], list(tensors), finish)

    @operation("all_reduce_coalesced")
    def allreduce_coalesced(self, tensors, opts=None):
        tensors = list(some("all_reduce_coalesced", as_list(tensors)))
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
        mine = tensor.cpu().coalesce()
        counts = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(self.size())]
        _wait(self.allgather([counts], [torch.tensor([mine._nnz()], device="cpu")], opts))
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
        put(tensor, total)
        return self._work((), [tensor])

    @operation("reduce")
    def reduce(self, tensors, opts=None, op=None, timeout=None, root=None):
        opts = asked(_C10D.ReduceOptions, opts, timeout, rootRank=root, reduceOp=op)
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

    @operation("reduce_scatter", inputs=1)
    def reduce_scatter(self, outputs, inputs, opts=None, timeout=None, op=None):
        opts = asked(_C10D.ReduceScatterOptions, opts, timeout, reduceOp=op)
        output = only_one("reduce_scatter", as_list(outputs))
        tensors = first_of("reduce_scatter", inputs, self.size())
        if len({t.numel() for t in tensors}) > 1:
            return self._reduce_scatter_v(output, tensors, opts)
        part, finish = self._reduce_scatter(output, joined("reduce_scatter", tensors, output),
                                            opts, self._now(opts))
        return self._work([part], [output], finish)

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

    @operation("_reduce_scatter_base", inputs=1)
    def reduce_scatter_single(self, output, tensor, opts=None, timeout=None):
        opts = asked(_C10D.ReduceScatterOptions, opts, timeout)
        return self._reduce_scatters([output], [tensor], opts)

    @operation("reduce_scatter_tensor_coalesced", inputs=1)
    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        return self._reduce_scatters(outputs, inputs, opts)

    def _reduce_scatters(self, outputs, inputs, opts):
        started, now = [], len(outputs) == 1 and self._now(opts)
        for output, tensor in zip(outputs, inputs):
            sizes_fit("reduce_scatter", tensor, output, self.size())
            started.append(self._reduce_scatter(output, tensor.detach().contiguous(), opts, now))
        parts, finishes = zip(*started)
        return self._work(parts, list(outputs), both(*finishes))

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- moving elements ----

    @operation("broadcast")
    def broadcast(self, tensors, opts=None, timeout=None, root=None):
        opts = asked(_C10D.BroadcastOptions, opts, timeout, rootRank=root)
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

    @operation("all_gather", inputs=1)
    def allgather(self, outputs, inputs, opts=None, timeout=None):
        opts = asked(_C10D.AllgatherOptions, opts, timeout)
        row = first_of("all_gather", outputs, self.size())
        return self._all_gathers([row], [only_one("all_gather", as_list(inputs))], opts)

    @operation("all_gather_coalesced", inputs=1)
    def allgather_coalesced(self, outputs, inputs, opts=None):
        some("all_gather_coalesced", outputs), some("all_gather_coalesced", inputs)
        if len(outputs) == self.size() and len(outputs[0]) == len(inputs):
            outputs = list(zip(*outputs))  # outputs[rank][k] for PyTorch
        return self._all_gathers(outputs, inputs, opts)

    def _all_gathers(self, outputs, inputs, opts):
        parts, finishes, now = [], [], len(inputs) == 1 and self._now(opts)
        for row, tensor in zip(outputs, inputs):
            count_is("all_gather", row, self.size())
            out = Outputs("all_gather", list(row), tensor)
            parts.append(self._all_gather(out.flat, tensor, opts, now))
            finishes.append(out.finish)
        return self._work(parts, [t for row in outputs for t in row], both(*finishes))

    @operation("_allgather_base", inputs=1)
    def all_gather_single(self, output, tensor, opts=None, timeout=None):
        opts = asked(_C10D.AllgatherOptions, opts, timeout)
        return self._all_gather_singles([output], [tensor], opts)

    @operation("allgather_into_tensor_coalesced", inputs=1)
    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        return self._all_gather_singles(outputs, inputs, opts)

    def _all_gather_singles(self, outputs, inputs, opts):
        parts, finishes, now = [], [], len(outputs) == 1 and self._now(opts)
        for output, tensor in zip(outputs, inputs):
            sizes_fit("all_gather", output, tensor, self.size())
            out, finish = in_place_output(output)
            parts.append(self._all_gather(out, tensor, opts, now))
            finishes.append(finish)
        return self._work(parts, list(outputs), both(*finishes))

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @operation("gather", inputs=1)
    def gather(self, outputs, inputs, opts=None, timeout=None, root=None):
        opts = asked(_C10D.GatherOptions, opts, timeout, rootRank=root)
        tensor = only_one("gather", as_list(inputs)).detach().contiguous()
        here, out = self.rank() == opts.rootRank, None
        if here:
            out = Outputs("gather", first_of("gather", outputs, self.size()), tensor)
        count, dtype = moved(tensor)
        part = self._start("ls_gather", (tensor.data_ptr(), out.flat.data_ptr() if here else None,
                                         count, dtype, opts.rootRank), opts,
                           (tensor, out.flat if here else None), self._now(opts))
        return self._work([part], out.tensors if here else [], out.finish if here else None)

    @operation("scatter", inputs=1)
    def scatter(self, outputs, inputs, opts=None, timeout=None, root=None):
        opts = asked(_C10D.ScatterOptions, opts, timeout, rootRank=root)
        output = only_one("scatter", as_list(outputs))
        here, flat = self.rank() == opts.rootRank, None
        if here:
            flat = joined("scatter", first_of("scatter", inputs, self.size()), output)
        out, finish = in_place_output(output)
        count, dtype = moved(out)
        part = self._start("ls_scatter", (flat.data_ptr() if here else None, out.data_ptr(), count,
                                          dtype, opts.rootRank), opts, (flat, out),
                           self._now(opts))
        return self._work([part], [output], finish)

    @operation("all_to_all", inputs=1)
    def all_to_all_single(self, output, tensor, output_splits=(), input_splits=(), opts=None,
                          timeout=None):
        opts = asked(_C10D.AllToAllOptions, opts, timeout)
        out, finish = in_place_output(check_tensor("all_to_all", output))
        flat = check_tensor("all_to_all", tensor).detach().contiguous()
        counts = [splits("all_to_all", given, t, self.size())
                  for given, t in ((input_splits, flat), (output_splits, out))]
        part = self._exchange(flat, counts[0], out, counts[1], opts,
                              even=not output_splits and not input_splits)
        return self._work([part], [output], finish)

    alltoall_base = all_to_all_single

    @operation("all_to_all", inputs=1)
    def alltoall(self, outputs, inputs, opts=None, timeout=None):
        opts = asked(_C10D.AllToAllOptions, opts, timeout)
        for tensors in (outputs, inputs):
            count_is("all_to_all", tensors, self.size())
        flat = torch.cat([check_tensor("all_to_all", t).detach().reshape(-1) for t in inputs])
        out = torch.empty(sum(t.numel() for t in outputs), dtype=outputs[0].dtype,
                          device=outputs[0].device)
        counts = [[t.numel() for t in tensors] for tensors in (inputs, outputs)]
        part = self._exchange(flat, counts[0], out, counts[1], opts)

        def finish(_):
            for tensor, piece in zip(outputs, out.split(counts[1])):
                put(tensor, piece.view(tensor.shape))
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

    @operation("send", output=False)
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

    @operation("recv", copied=False)
    def recv(self, tensors, peer, tag=0):
        out, finish = in_place_output(only_one("recv", as_list(tensors)))
        count, dtype = moved(out)
        work = self._letter("ls_recv", (out.data_ptr(), count, dtype, peer, tag), out, tensors,
                            finish)
        work._source = peer
        return work

    @operation("recvAnySource", copied=False)
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

    @operation("barrier")
    def barrier(self, opts=None, timeout=None):
        opts = asked(_C10D.BarrierOptions, opts, timeout)
        return self._work([self._start("ls_barrier", (), opts, None, self._now(opts))], [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """Fails with the names of all ranks that have not come in time, on every rank."""
        if isinstance(timeout, datetime.timedelta):
            timeout = timeout.total_seconds()
        self._ls.monitored_barrier(self._timeout if timeout is None else timeout)


def _wait(work):
    if work is not None:
        work.wait()


def _small_and_alike(tensors):
    """Whether these are better packed into one operation: then copying costs less than starting.
    The ranks agree, since dtypes and shapes are the same on all."""
    return len(tensors) > 1 and len({t.dtype for t in tensors}) == 1 and (
        sum(t.numel() * t.element_size() for t in tensors) <= _PACKED_MAX * len(tensors))
