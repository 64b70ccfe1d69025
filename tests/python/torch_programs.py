# SPDX-License-Identifier: Apache-2.0
"""What every rank checks of what programs that nobody here wrote do with a process group: threads
that share it, many sends, inference mode, profiles, forked children, lists as gloo takes them."""

import datetime
import os
import pathlib
import sys
import threading
import time
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from cases import case, only, raises, run
from torch_train import NEW, SHARE, batch, net, share

import lockstep
import lockstep.torch

SEVERAL = range(2, 100)


def begin():
    warnings.simplefilter("ignore")
    dist.init_process_group("lockstep")


def world():
    return dist.group.WORLD if dist.group.WORLD is not None else dist.distributed_c10d._get_default_group()


@case
def a_join_that_divides_by_the_ranks_that_are_left():
    model, plain, size = DDP(net()), net(), dist.get_world_size()
    with model.join(divide_by_initial_world_size=False):
        for step in range(1 + dist.get_rank()):
            x, y = share(step)
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
    last = size - 1  # only the last rank is left in the last step: its gradient is its own
    x, y = batch(last)
    part = slice(last * SHARE, (last + 1) * SHARE)
    torch.nn.functional.cross_entropy(plain(x[part]), y[part]).backward()
    if dist.get_rank() == last:
        for got, want in zip(model.module.parameters(), plain.parameters()):
            assert torch.allclose(got.grad, want.grad, atol=1e-5), (got.grad - want.grad).abs().max()


@only(SEVERAL)
def threads_share_a_group():
    """Each thread of a rank with its partner on the others, told apart by tags."""
    rank, size, failures = dist.get_rank(), dist.get_world_size(), []

    def talk(number):
        try:
            for turn in range(60):
                out = torch.full((number * 50 + turn + 1,), float(rank * 1000 + number))
                got = torch.empty_like(out)
                sent = dist.isend(out, (rank + 1) % size, tag=number)
                dist.recv(got, (rank - 1) % size, tag=number)
                sent.wait()
                assert torch.all(got == (rank - 1) % size * 1000 + number), (number, turn, got)
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=talk, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        tensor = torch.ones(20000)
        dist.all_reduce(tensor)
        assert torch.all(tensor == size)
    for thread in threads:
        thread.join()
    assert failures == [], failures


@only(SEVERAL)
def many_sends_before_any_receive():
    rank, size, count = dist.get_rank(), dist.get_world_size(), 4000
    begun = time.monotonic()
    if rank == 0:
        works = [dist.isend(torch.tensor([float(i)]), 1, tag=i % 7) for i in range(count)]
        for work in works:
            work.wait()
    dist.barrier()
    if rank == 1:
        for i in range(count):
            got = torch.empty(1)
            dist.recv(got, 0, tag=i % 7)
            assert got.item() == i
    dist.barrier()
    assert time.monotonic() - begun < 30, time.monotonic() - begun  # 4 times as many took 90 s


@case
def futures_of_inference_tensors():
    size = dist.get_world_size()
    with torch.inference_mode():
        outs = [torch.zeros(3) for _ in range(size)]
        work = dist.all_gather(outs, torch.full((3,), float(dist.get_rank())), async_op=True)
        work.get_future().wait()
        work.wait()
        for r, out in enumerate(outs):
            assert torch.all(out == r)
    tensor = torch.zeros(2, 4).t()  # written back into one that is not contiguous, in and out of it
    with torch.inference_mode():
        dist.broadcast(tensor[:, :1], 0)


@only(SEVERAL)
def a_monitored_barrier_takes_the_time_it_is_given():
    rank = dist.get_rank()
    group = dist.new_group()  # it fails
    for timeout in (0, -1.0, datetime.timedelta(0)):
        raises(ValueError, lambda: group.monitored_barrier(timeout), "timeout")
    if rank == 0:
        begun = time.monotonic()
        raises(RuntimeError, lambda: dist.monitored_barrier(group, 0.3), "timed out", "did not come within", "1")
        assert 0.2 < time.monotonic() - begun < 20
    dist.barrier()


@case
def all_ranks_may_abort_a_group():
    group = dist.new_group()
    dist.all_reduce(torch.ones(2), group=group)
    dist.barrier()
    group.abort()
    group.abort()
    raises(RuntimeError, lambda: dist.all_reduce(torch.ones(2), group=group), "aborted")


@case
def a_forked_child_destroys_the_group_and_ends():
    work = dist.all_reduce(torch.ones(4), async_op=True)
    work.get_future().wait()  # so that there is a thread which the child does not have
    child = os.fork()
    if child == 0:
        try:
            dist.destroy_process_group()
            lockstep.finalize()
        finally:
            os._exit(0)
    end = time.monotonic() + 30
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        assert time.monotonic() < end, os.kill(child, 9)
        time.sleep(0.01)
    dist.barrier()


@case
def profiles_show_the_operations():
    if not NEW:
        return  # 1.13's profiles show no spans of a backend written in Python
    with torch.autograd.profiler.profile() as profile:
        dist.all_reduce(torch.ones(5))
        dist.broadcast(torch.ones(5), 0, async_op=True).wait()
        dist.barrier()
    counts = {event.key: event.count for event in profile.key_averages()}
    for name in ("all_reduce", "broadcast", "barrier"):
        assert counts.get(f"lockstep:{name}") == 1, counts
    tensor = torch.ones(3)
    dist.all_reduce(tensor)  # and without a profile there is none
    assert torch.all(tensor == dist.get_world_size())


@only(SEVERAL)
def a_future_that_waits_costs_little():
    group, rank = dist.new_group(), dist.get_rank()
    if rank == 0:
        future = dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future()
        shares = []
        for _ in range(8):  # the least: beside other work the same looks take longer
            begun, used = time.monotonic(), time.process_time()
            time.sleep(0.4)
            shares.append((time.process_time() - used) / (time.monotonic() - begun))
        dist.barrier()
        dist.all_reduce(torch.ones(1))
        future.wait()
        assert min(shares) < 0.1, shares  # one that does not sleep takes a core; looks take 1 to 4 % of one
    else:
        dist.barrier()
        dist.all_reduce(torch.ones(4), group=group)
        dist.all_reduce(torch.ones(1))


@case
def lists_are_taken_as_gloo_takes_them():
    size, group = dist.get_world_size(), world()
    a, b = torch.full((3,), 1.0), torch.full((3,), 10.0)
    group.allreduce([a, b]).wait()  # the tensors of a rank are added up, too
    assert torch.all(a == 11 * size) and torch.all(b == 11 * size), (a, b)
    a, b = torch.full((3,), 1.0), torch.full((3,), 10.0)
    opts = torch._C._distributed_c10d.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.MAX
    group.allreduce([a, b], opts).wait()
    assert torch.all(a == 10) and torch.all(b == 10)
    for name in ("allreduce", "allreduce_coalesced", "broadcast", "reduce"):
        raises(ValueError, lambda: getattr(group, name)([]), "tensors")
    for name in ("allgather", "scatter", "reduce_scatter"):
        raises(ValueError, lambda: getattr(group, name)([], [torch.ones(1)]), "tensors")


@case
def values_stand_in_the_place_of_options():
    rank, size, group = dist.get_rank(), dist.get_world_size(), world()
    last, minute = size - 1, datetime.timedelta(seconds=60)
    tensor = torch.full((2,), float(rank))
    group.broadcast(tensor, root=last).wait()
    assert torch.all(tensor == last)
    tensor = torch.full((2,), float(rank))
    group.broadcast(tensor, last, minute).wait()
    assert torch.all(tensor == last)
    tensor = torch.full((2,), float(rank))
    group.allreduce(tensor, dist.ReduceOp.MAX).wait()
    assert torch.all(tensor == last)
    tensor = torch.full((2,), float(rank))
    group.allreduce(tensor, op=dist.ReduceOp.MIN, timeout=minute).wait()
    assert torch.all(tensor == 0)
    tensor = torch.ones(2)
    group.reduce(tensor, last, op=dist.ReduceOp.SUM).wait()
    assert rank != last or torch.all(tensor == size)
    outs = [torch.empty(2) for _ in range(size)]
    group.allgather(outs, torch.full((2,), float(rank))).wait()
    assert [out[0].item() for out in outs] == list(range(size))
    group.gather(outs if rank == 0 else [], torch.full((2,), float(rank)), root=0).wait()
    tensor = torch.empty(2)
    group.scatter(tensor, [torch.full((2,), float(r)) for r in range(size)] if rank == 0 else [],
                  root=0).wait()
    assert torch.all(tensor == rank)
    group.reduce_scatter(tensor, [torch.full((2,), float(r)) for r in range(size)],
                         op=dist.ReduceOp.SUM).wait()
    assert torch.all(tensor == rank * size)
    group.barrier(timeout=minute).wait()


@case
def the_options_of_a_group_are_shown():
    group = dist.new_group(timeout=datetime.timedelta(seconds=123))
    assert group.options._timeout == datetime.timedelta(seconds=123)
    assert group.options.backend == "lockstep"


@case
def another_device_has_a_backend_of_its_own():
    """As "cpu:lockstep,cuda:nccl": nccl's place is taken by one that needs no device."""
    if not hasattr(dist.distributed_c10d, "BackendConfig") or not hasattr(dist, "get_process_group_ranks"):
        return
    made = []
    fake = "stub"

    class Stub(dist.ProcessGroup):
        def allreduce(self, tensors, opts=None):
            made.append(tensors[0].device.type)
            return lockstep.torch._work.Work(world(), (), tensors)

        def getBackendName(self):
            return fake
    if fake not in dist.Backend.backend_list:
        dist.Backend.register_backend(fake, lambda store, rank, size, timeout: Stub(rank, size),
                                      devices=["meta"])
    group = dist.new_group(backend=f"cpu:lockstep,meta:{fake}")
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    assert torch.all(tensor == dist.get_world_size()) and made == []
    dist.all_reduce(torch.ones(2, device="meta"), group=group)
    assert made == ["meta"], made
    raises(ValueError, lambda: dist.all_reduce(torch.ones(2, device="meta")), "meta", "CPU")


if __name__ == "__main__":
    run(begin, dist.destroy_process_group)
