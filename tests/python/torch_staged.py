# SPDX-License-Identifier: Apache-2.0
"""What every rank checks of tensors of another device: the order of copies, operations and streams;
with LATE_CUDA (late_device.py) of operations of NCCL.

The device is late_device.py: what is started in a stream happens later, so an operation that does
not wait for a copy, or a copy that nobody waits for, leaves other elements than those expected."""

import os
import pathlib
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager as manager
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
import late_device
from cases import case, raises, run
from torch_train import net, share, train

TIMES = 8  # orders that a delay decides are tried so often
LATE = late_device.NAME


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def begin():
    late_device.use()
    dist.init_process_group(os.environ.get("TEST_BACKEND", "cpu:lockstep,late:lockstep"))


def mine(of=None):
    return torch.full((7,), 1.0 + (rank() if of is None else of))


def total():
    return sum(1.0 + r for r in range(size()))


def is_all(tensor, value):
    return bool((tensor.cpu() == value).all())


# ---- streams ------------------------------------------------------------------------------------


@case
def an_operation_begins_after_what_the_callers_stream_has_to_do():
    for k in range(TIMES):
        tensor = torch.zeros(7)
        for _ in range(3):
            tensor.add_(k + rank())  # late
        dist.all_reduce(tensor)
        assert is_all(tensor, 3 * sum(k + r for r in range(size())))


@case
def an_operation_follows_the_stream_that_is_current():
    for k in range(TIMES):
        stream = late_device.Stream(LATE)
        with late_device.stream(stream):
            tensor = mine().mul_(k)
            dist.all_reduce(tensor)
            assert is_all(tensor, k * total())


@case
def wait_has_the_stream_that_is_current_wait():
    for _ in range(TIMES):
        tensor, stream = mine(), late_device.Stream(LATE)
        work = dist.all_reduce(tensor, async_op=True)
        with late_device.stream(stream):
            work.wait()
            assert is_all(tensor, total())
        work.wait()  # the default stream now does, too
        assert is_all(tensor, total())


@case
def outputs_are_written_after_what_their_stream_has_to_do():
    for _ in range(TIMES):
        out = torch.empty(size(), 7).fill_(-1)  # late: the result must not be overwritten
        work = dist.all_gather_into_tensor(out, mine(), async_op=True)
        work.wait()
        assert all(is_all(row, r + 1.0) for r, row in enumerate(out.cpu()))
        sent, received = mine().cpu(), torch.empty(7)
        for _ in range(8):
            received.fill_(-1)
        work = dist.irecv(received, (rank() - 1) % size())
        dist.send(sent, (rank() + 1) % size())
        work.wait()
        assert is_all(received, (rank() - 1) % size() + 1.0)


@case
def results_do_not_wait_for_what_their_stream_does_next():
    free, tensor = threading.Event(), mine()
    work = dist.all_reduce(tensor, async_op=True)
    late_device.default_stream().do(lambda: free.wait(60))
    begun = time.monotonic()
    while not work.is_completed():
        pass
    assert time.monotonic() - begun < 30
    free.set()
    assert is_all(tensor, total())


@case
def operations_that_are_started_together_are_waited_for_together():
    for _ in range(TIMES):
        tensors = [mine() for _ in range(3)]
        with manager(device=torch.device(LATE), async_ops=True) as works:
            for tensor in tensors:
                dist.broadcast(tensor, size() - 1, async_op=True)
        with late_device.stream(late_device.Stream(LATE)):
            works.wait()
            assert all(is_all(tensor, size()) for tensor in tensors)


@case
def a_call_waits_for_its_own_stream_only():
    free, busy = threading.Event(), late_device.Stream(LATE)
    busy.do(lambda: free.wait(60))
    tensor = mine()
    dist.all_reduce(tensor)
    assert is_all(tensor, total()) and not free.is_set()
    free.set()


@case
def a_work_that_is_completed_has_its_result_in_place():
    for _ in range(TIMES):
        tensor = mine()
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            pass
        assert is_all(tensor, total()) and work.is_success() and work.result()[0] is tensor


@case
def a_future_is_set_when_its_result_is_in_place():
    for _ in range(TIMES):
        tensor = mine()
        future = dist.all_reduce(tensor, async_op=True).get_future()
        doubled = future.then(lambda f: f.value()[0].mul_(2) if f.value()[0] is tensor else None)
        assert is_all(doubled.wait(), 2 * total())
        with late_device.stream(late_device.Stream(LATE)):
            tensor = mine()
            dist.all_reduce(tensor, async_op=True).get_future().wait()
        assert is_all(tensor, total())


# ---- tensors ------------------------------------------------------------------------------------


@case
def tensors_of_the_host_and_of_a_device_use_one_group():
    host, device = mine().cpu(), mine()
    works = [dist.all_reduce(t, async_op=True) for t in (device, host)]
    for work in works:
        work.wait()
    assert is_all(device, total()) and torch.equal(host, torch.full((7,), total(), device="cpu"))
    group = dist.new_group(backend="lockstep")
    device = mine()
    dist.all_reduce(device, group=group)
    assert is_all(device, total())


@case
def results_reach_views_of_a_tensor():
    whole = torch.zeros(7, 4)
    whole[:, 1].add_(rank() + 1)
    dist.all_reduce(whole[:, 1])
    whole.t()[2].add_(1)
    dist.broadcast(whole.t(), 0)
    assert [is_all(whole[:, c], v) for c, v in enumerate((0, total(), 1, 0))] == [True] * 4


@case
def what_cannot_be_copied_is_refused_in_words():
    raises(ValueError, lambda: dist.all_reduce(torch.ones(2, device="meta")), "meta", "tensor.cpu()")
    raises(ValueError, lambda: dist.all_gather_into_tensor(torch.ones(2 * size(), device="cpu"),
                                                           torch.ones(2)), "late", "tensor.cpu()")


@case
def objects_go_by_the_host():
    objects = [None] * size()
    dist.all_gather_object(objects, {"rank": rank()})
    assert [o["rank"] for o in objects] == list(range(size()))


@case
def nccl_moves_them_where_it_can():
    """Types and operators that it lacks go by the host, and so do messages."""
    dist.all_reduce(mine())
    assert bool(dist.group.WORLD.direct) == (late_device.DRIVER is not None)
    short = torch.full((5,), rank() + 1, dtype=torch.int16)
    dist.all_reduce(short)
    assert is_all(short, total())
    bits = torch.full((5,), 1 << rank())
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    assert is_all(bits, (1 << size()) - 1)


@case
def every_way_of_nccl_moves_rows():
    for _ in range(TIMES):
        rows, whole = [torch.empty(7) for _ in range(size())], torch.empty(size(), 7)
        dist.all_gather(rows, mine())
        dist.all_gather_into_tensor(whole, mine())
        assert all(is_all(row, r + 1.0) for r, row in enumerate(rows)) and torch.equal(
            whole.cpu(), torch.stack(rows).cpu())
        part = torch.empty(7)
        dist.reduce_scatter_tensor(part, whole.add_(rank()))
        assert is_all(part, size() * (rank() + 1.0) + total() - size())
        turned = torch.empty(size(), 7)
        dist.all_to_all_single(turned, torch.stack([mine() * 10 + r for r in range(size())]))
        assert all(is_all(row, 10.0 * (r + 1) + rank()) for r, row in enumerate(turned))
        dist.broadcast(part, size() - 1)
        dist.reduce(turned.t(), 0)
        whole = torch.zeros(7, 4)
        dist.all_reduce(whole.add_(rank() + 1)[:, 1:3])
        assert is_all(whole[:, 1:3], total()) and is_all(whole[:, 0], rank() + 1.0)


# ---- training -----------------------------------------------------------------------------------


@case
def ddp_on_the_device_learns_as_on_the_host():
    torch.set_default_device("cpu")
    on_host, data = DDP(net()), lambda step: [t.to(LATE) for t in share(step)]
    expected = train(on_host, share)
    for options in ({}, {"bucket_cap_mb": 0.002}, {"gradient_as_bucket_view": True}):
        on_device = DDP(net().to(LATE), **options)
        losses = train(on_device, data)
        for got, loss in zip(losses, expected):
            assert torch.equal(got.cpu(), loss), (options, losses, expected)
        for ours, theirs in zip(on_device.parameters(), on_host.parameters()):
            assert torch.equal(ours.detach().cpu(), theirs.detach()), options
    torch.set_default_device(late_device.NAME)


if __name__ == "__main__":
    run(begin, dist.destroy_process_group)
