# SPDX-License-Identifier: Apache-2.0
"""What every rank checks of the torch.distributed backend: the collectives as PyTorch documents
them, for process groups on the CPU. Expected values come from formulas of the ranks."""

import datetime
import os
import pathlib
import sys
import threading

import torch
import torch.distributed as dist

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from cases import case, only, raises, run

import lockstep
import lockstep.torch

NEW = int(torch.__version__.split(".")[0]) >= 2
SEVERAL = range(2, 100)


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def mine(*shape, dtype=torch.float32, of=None):
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 5 + 1 + (rank() if of is None else of)).to(dtype).view(shape)


def total(*shape):
    return sum(mine(*shape, of=r) for r in range(size()))


def begin():
    dist.init_process_group(os.environ.get("TEST_BACKEND", "lockstep"))


left = []  # (group, what makes its address another one on each rank), until the end


def end():
    names, failed, free = {group._ls.name for group, _ in left}, [], lockstep.Group.free

    def noted(group):
        try:
            free(group)
        except lockstep.Error:
            failed.append(group.name)
            raise
    lockstep.Group.free = noted
    dist.destroy_process_group()
    lockstep.Group.free = free
    assert not dist.is_initialized()
    assert not names & set(failed), failed  # freed in another order than on other ranks


# ---- the group ----------------------------------------------------------------------------------


@case
def the_world_is_that_of_the_environment():
    assert (rank(), size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    assert dist.get_backend().lower() == "lockstep" and dist.is_initialized()
    assert (lockstep.rank(), lockstep.world_size()) == (rank(), size())


# ---- broadcast ----------------------------------------------------------------------------------


@case
def broadcast_from_every_rank():
    for root in range(size()):
        tensor = mine(3, 4)
        assert dist.broadcast(tensor, root) is None
        assert torch.equal(tensor, mine(3, 4, of=root))


@case
def broadcast_of_every_dtype():
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16,
                  torch.int32, torch.int64, torch.bool, torch.complex64):
        tensor = mine(6, dtype=dtype)
        dist.broadcast(tensor, 0)
        assert torch.equal(tensor, mine(6, dtype=dtype, of=0)), dtype


# ---- all_reduce and reduce ----------------------------------------------------------------------


@case
def all_reduce_with_every_operator():
    values = [mine(7, of=r) for r in range(size())]
    stack = torch.stack(values)
    cases = {"SUM": stack.sum(0), "PRODUCT": stack.prod(0), "MIN": stack.min(0).values,
             "MAX": stack.max(0).values, "AVG": stack.mean(0)}
    for name, expected in cases.items():
        tensor = mine(7)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        assert torch.equal(tensor, expected), name
    for name, fold in {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or,
                       "BXOR": torch.bitwise_xor}.items():
        tensor, expected = mine(7, dtype=torch.int32), mine(7, dtype=torch.int32, of=0)
        for r in range(1, size()):
            expected = fold(expected, mine(7, dtype=torch.int32, of=r))
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        assert torch.equal(tensor, expected), name


@case
def all_reduce_of_every_dtype():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8,
                  torch.uint8, torch.int32, torch.int64):
        tensor = mine(5, dtype=dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor.to(torch.float32), total(5)), dtype
    complex_one = torch.complex(mine(4), 2 * mine(4))
    dist.all_reduce(complex_one)
    assert torch.equal(complex_one, torch.complex(total(4), 2 * total(4)))


@case
def all_reduce_that_is_not_waited_for_at_once():
    tensors = [torch.full((1000,), float(k)) for k in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for k in (7, 0, 19):
        assert works[k].wait() and works[k].is_completed() and works[k].is_success()
    for k in range(20):
        works[k].wait()
        assert torch.equal(tensors[k], torch.full((1000,), float(k * size())))


@case
def futures_resolve_and_chain():
    tensor = mine(4)
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda fut: [t * 2 for t in fut.value()])
    assert torch.equal(doubled.wait()[0], total(4) * 2)
    assert work.get_future().done() and work.wait()
    futures = [dist.all_reduce(mine(3), async_op=True).get_future() for _ in range(10)]
    for future in torch.futures.wait_all(futures):
        assert torch.equal(future[0], total(3))


@case
def all_reduce_of_what_is_not_contiguous():
    grid = torch.zeros(4, 6)
    grid[:, ::2] = 1.0 + rank()
    dist.all_reduce(grid[:, ::2])
    assert torch.equal(grid[:, ::2], torch.full((4, 3), float(sum(range(1, size() + 1)))))
    assert torch.equal(grid[:, 1::2], torch.zeros(4, 3))
    image = mine(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    dist.all_reduce(image)
    assert torch.equal(image, total(2, 3, 4, 5))
    assert image.is_contiguous(memory_format=torch.channels_last)
    transposed = mine(4, 6).t()
    dist.all_reduce(transposed)
    assert torch.equal(transposed, total(4, 6).t())


@case
def all_reduce_of_a_parameter_and_of_nothing():
    parameter = torch.nn.Parameter(mine(3))
    dist.all_reduce(parameter.data)
    assert torch.equal(parameter.data, total(3))
    for empty in (torch.zeros(0), torch.zeros(3, 0)):
        dist.all_reduce(empty)
    scalar = torch.tensor(2.0)
    dist.all_reduce(scalar)
    assert scalar.item() == 2 * size()


@case
def sparse_tensors_are_added_up():
    tensor = torch.sparse_coo_tensor([[0, rank() + 1]], [1.0, 2.0], (size() + 2,))
    dist.all_reduce(tensor)
    expected = torch.zeros(size() + 2)
    for r in range(size()):
        expected[0] += 1
        expected[r + 1] += 2
    assert torch.equal(tensor.to_dense(), expected)


@case
def coalesced_all_reduces():
    import warnings
    tensors = [mine(3), mine(5), mine(2, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_reduce_coalesced(tensors)
    for tensor in tensors:
        assert torch.equal(tensor, total(*tensor.shape))


@case
def reduce_to_every_rank():
    for root in range(size()):
        tensor = mine(4)
        dist.reduce(tensor, root)
        assert torch.equal(tensor, total(4) if rank() == root else mine(4))


# ---- gathers and scatters -----------------------------------------------------------------------


@case
def all_gather_into_lists():
    for out in ([torch.zeros(2, 3) for _ in range(size())],  # each for itself
                list(torch.zeros(size(), 2, 3).unbind()),    # one behind the other
                [torch.zeros(3, 2).t() for _ in range(size())]):  # not contiguous
        dist.all_gather(out, mine(2, 3))
        for r in range(size()):
            assert torch.equal(out[r], mine(2, 3, of=r))
    out = [torch.zeros(2, dtype=torch.complex64) for _ in range(size())]
    dist.all_gather(out, torch.complex(mine(2), mine(2)))
    assert torch.equal(out[-1].real, mine(2, of=size() - 1))


@case
def all_gather_into_one_tensor():
    gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    out = torch.zeros(size() * 2, 3)
    gather(out, mine(2, 3))
    assert torch.equal(out, torch.cat([mine(2, 3, of=r) for r in range(size())]))
    work = gather(out.zero_(), mine(2, 3), async_op=True)
    work.wait()
    assert torch.equal(out[:2], mine(2, 3, of=0))


@case
def gather_to_every_rank():
    for root in range(size()):
        out = [torch.zeros(3) for _ in range(size())] if rank() == root else None
        dist.gather(mine(3), out, dst=root)
        if rank() == root:
            assert all(torch.equal(out[r], mine(3, of=r)) for r in range(size()))


@case
def scatter_from_every_rank():
    for root in range(size()):
        parts = [mine(3, of=10 * r) for r in range(size())] if rank() == root else None
        out = torch.zeros(3)
        dist.scatter(out, parts, src=root)
        assert torch.equal(out, mine(3, of=10 * rank()))


@case
def reduce_scatter_of_lists_and_of_one_tensor():
    out = torch.zeros(3)
    dist.reduce_scatter(out, [mine(3, of=rank() + 10 * r) for r in range(size())])
    expected = sum(mine(3, of=s + 10 * rank()) for s in range(size()))
    assert torch.equal(out, expected)
    one = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
    one(out.zero_(), torch.cat([mine(3, of=rank() + 10 * r) for r in range(size())]))
    assert torch.equal(out, expected)


@case
def all_to_all_of_one_tensor():
    out = torch.zeros(size() * 2)
    dist.all_to_all_single(out, torch.arange(size() * 2.0) + 100 * rank())
    assert torch.equal(out, torch.cat([torch.arange(2.0) + 2 * rank() + 100 * r
                                       for r in range(size())]))
    given, taken = list(range(size())), [rank()] * size()  # rank r gets r rows from everybody
    out = torch.zeros(sum(taken), 2)
    dist.all_to_all_single(out, torch.full((sum(given), 2), float(rank())), taken, given)
    assert torch.equal(out, torch.arange(float(size())).repeat_interleave(rank())[:, None]
                       .expand(-1, 2))


@case
def all_to_all_of_lists():
    given = [torch.full((r + 1,), float(rank() * 10 + r)) for r in range(size())]
    taken = [torch.zeros(rank() + 1) for _ in range(size())]
    dist.all_to_all(taken, given)
    for r in range(size()):
        assert torch.equal(taken[r], torch.full((rank() + 1,), float(r * 10 + rank())))


# ---- between two --------------------------------------------------------------------------------


@only(SEVERAL)
def send_and_recv_between_all_pairs():
    for sender in range(size()):
        for receiver in range(size()):
            tensor = torch.zeros(4)
            if sender == receiver:
                continue
            if rank() == sender:
                dist.send(mine(4), receiver, tag=sender)
            elif rank() == receiver:
                assert dist.recv(tensor, sender, tag=sender) == sender
                assert torch.equal(tensor, mine(4, of=sender))


@only(SEVERAL)
def isend_and_irecv_by_tags():
    right, left = (rank() + 1) % size(), (rank() - 1) % size()
    inbox = [torch.zeros(3) for _ in range(5)]
    receives = [dist.irecv(inbox[k], left, tag=k) for k in range(5)]
    sends = [dist.isend(mine(3) + k, right, tag=k) for k in reversed(range(5))]
    for work in sends + receives:
        work.wait()
    for k in range(5):
        assert torch.equal(inbox[k], mine(3, of=left) + k)


@only(SEVERAL)
def batches_of_sends_and_receives():
    right, left = (rank() + 1) % size(), (rank() - 1) % size()
    inbox = torch.zeros(3)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, inbox, left),
                                        dist.P2POp(dist.isend, mine(3), right)]):
        work.wait()
    assert torch.equal(inbox, mine(3, of=left))


@only(SEVERAL)
def recv_from_any_rank():
    if rank() == 0:
        seen = set()
        for _ in range(1, size()):
            tensor = torch.zeros(2)
            source = dist.recv(tensor)
            assert torch.equal(tensor, mine(2, of=source))
            seen.add(source)
        assert seen == set(range(1, size()))
    else:
        dist.send(mine(2), 0)


# ---- barriers -----------------------------------------------------------------------------------


@case
def barriers():
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))


@only(SEVERAL)
def a_monitored_barrier_names_who_did_not_come():
    group = dist.new_group()
    if rank() == 0:
        raises(RuntimeError, lambda: dist.monitored_barrier(
            group, timeout=datetime.timedelta(seconds=0.5), wait_all_ranks=True),
            ": 1 (" if size() == 2 else f": 1-{size() - 1} (")
    dist.barrier()


# ---- objects ------------------------------------------------------------------------------------


@case
def objects_of_any_kind():
    thing = {"rank": rank(), "text": "x" * (100 * rank()), "list": [1, (2, 3)]}
    gathered = [None] * size()
    dist.all_gather_object(gathered, thing)
    assert [g["rank"] for g in gathered] == list(range(size()))
    assert [len(g["text"]) for g in gathered] == [100 * r for r in range(size())]
    for root in range(size()):
        out = [None] * size() if rank() == root else None
        dist.gather_object(thing, out, dst=root)
        assert out is None or [o["rank"] for o in out] == list(range(size()))
        things = ["a", {"b": root}, rank()] if rank() == root else [None] * 3
        dist.broadcast_object_list(things, src=root)
        assert things == ["a", {"b": root}, root]
        got = [None]
        dist.scatter_object_list(got, [("to", r) for r in range(size())] if rank() == root else None,
                                 src=root)
        assert got == [("to", rank())]


# ---- groups -------------------------------------------------------------------------------------


@case
def new_groups_of_some_ranks():
    even, odd = list(range(0, size(), 2)), list(range(1, size(), 2))
    groups = [dist.new_group(ranks) for ranks in (even, odd) if ranks]
    own = groups[rank() % 2] if len(groups) > 1 else groups[0]
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=own)
    assert tensor.item() == len(even if rank() % 2 == 0 else odd)
    assert dist.get_rank(own) == rank() // 2
    both = dist.new_group()
    dist.all_reduce(tensor.fill_(1), group=both)
    assert tensor.item() == size()
    first = min(even if rank() % 2 == 0 else odd)
    tensor.fill_(rank())
    dist.broadcast(tensor, first, group=own)  # roots are global ranks
    assert tensor.item() == first
    dist.destroy_process_group(own)
    raises((RuntimeError, ValueError), lambda: dist.all_reduce(tensor, group=own))


@case
def groups_that_are_left_are_freed_in_one_order():
    for _ in range(20):  # by destroy_process_group, at the end
        left.append((dist.new_group(), [bytes(8 * b) for b in os.urandom(os.urandom(1)[0])]))


@only(range(4, 100))
def several_groups_at_once_from_several_threads():
    groups = [dist.new_group() for _ in range(3)]
    results = {}

    def work(k):
        value = torch.zeros(100)
        for step in range(20):
            tensor = torch.full((100,), float(step + k))
            dist.all_reduce(tensor, group=groups[k])
            value += tensor
        results[k] = value

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads if rank() % 2 == 0 else threads[::-1]:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(3):
        assert torch.equal(results[k], torch.full((100,), float(size() * sum(
            step + k for step in range(20)))))


@only(SEVERAL)
def a_group_that_only_its_members_make():
    if NEW and rank() < 2:
        group = dist.new_group([0, 1], use_local_synchronization=True)
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 2


@only(SEVERAL)
def a_group_is_split():
    if NEW:
        from torch.distributed.distributed_c10d import _get_default_group
        part = _get_default_group().split_group([0, 1], group_name="pair")
        assert (part is not None) == (rank() < 2)
        if part is not None:
            tensor = torch.ones(2)
            part.allreduce([tensor]).wait()
            assert tensor.tolist() == [2, 2]
            part.shutdown()


# ---- functional collectives and device meshes ---------------------------------------------------


@case
def functional_collectives():
    if not NEW:
        return
    import torch.distributed._functional_collectives as fun
    group = dist.group.WORLD
    assert torch.equal(fun.all_reduce(mine(3), "sum", group) + 0, total(3))
    gathered = fun.all_gather_tensor(mine(2, 2), 0, group) + 0
    assert torch.equal(gathered, torch.cat([mine(2, 2, of=r) for r in range(size())]))
    share = fun.reduce_scatter_tensor(torch.ones(size() * 2), "sum", 0, group) + 0
    assert share.tolist() == [size()] * 2


@case
def tensors_on_a_mesh():
    if not NEW:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (size(),))
    whole = torch.arange(size() * 6.0).view(size() * 2, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.to_local(), whole[rank() * 2:rank() * 2 + 2])
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert torch.equal(sharded.sum().full_tensor(), whole.sum())


# ---- errors -------------------------------------------------------------------------------------


@only(SEVERAL)
def shapes_that_differ_are_an_error_on_every_rank():
    group = dist.new_group()
    raises(RuntimeError, lambda: dist.all_reduce(torch.zeros(4 if rank() == 0 else 8), group=group),
           "all_reduce", "float32[4]", "float32[8]", "rank 0")
    work = None
    group = dist.new_group()
    work = dist.all_reduce(torch.zeros(4 if rank() == 0 else 8), group=group, async_op=True)
    raises(RuntimeError, lambda: work.get_future().wait(), "float32[4]", "float32[8]")
    assert work.is_completed() and not work.is_success() and "float32[8]" in str(work.exception())
    dist.barrier()


@only(SEVERAL)
def a_rank_that_does_not_come_is_a_timeout():
    group = dist.new_group()
    group.set_timeout(datetime.timedelta(seconds=1))  # not that of making the group
    if rank() == 0:
        raises(RuntimeError, lambda: dist.barrier(group=group), "rank 1")
    dist.barrier()
    group = dist.new_group()
    group.set_timeout(datetime.timedelta(seconds=1))
    if rank() == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        raises(RuntimeError, lambda: work.get_future().wait(), "rank 1")
    dist.barrier()


@case
def what_cannot_be_is_refused_in_words():
    raises(ValueError, lambda: dist.all_gather([torch.zeros(2)] * (size() + 1), torch.zeros(2)),
           "one for each of the")
    if hasattr(torch, "float8_e5m2"):
        raises((ValueError, TypeError),
               lambda: dist.all_reduce(torch.zeros(2).to(torch.float8_e5m2)), "float8_e5m2")
    gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    raises(ValueError, lambda: gather(torch.zeros(size() * 2 + 1), torch.zeros(2)), "do not fit")
    dist.barrier()


if __name__ == "__main__":
    run(begin, end)
