# SPDX-License-Identifier: Apache-2.0
"""What every rank checks of the table in docs/python.md: each operation with each kind of tensor,
works and futures, groups and their options, as torch.distributed documents them for the CPU.
Expected values come from formulas of the ranks."""

import datetime
import os
import pathlib
import sys
import warnings

import torch
import torch.distributed as dist

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from cases import case, case_of_cpu, only, raises, run

import lockstep.torch

NEW = int(torch.__version__.split(".")[0]) >= 2
SEVERAL = range(2, 100)
SUMS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
        torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED = SUMS + COMPLEX + [torch.bool]
UNSIGNED = [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]

gather_one = (getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)
              or dist._all_gather_base)
scatter_one = (getattr(dist, "reduce_scatter_single", None)
               or getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base)


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def mine(*shape, dtype=torch.float32, of=None):
    """Small whole numbers (for bool: of both kinds), other ones on each rank."""
    count = torch.Size(shape).numel()
    numbers = torch.arange(count) % 3 + 1 + (rank() if of is None else of)
    return (numbers % 2 if dtype == torch.bool else numbers).to(dtype).view(shape)


def total(*shape, dtype=torch.float32):
    return sum(mine(*shape, dtype=torch.float64, of=r) for r in range(size())).to(dtype)


def begin():
    warnings.simplefilter("ignore")
    if os.environ.get("TEST_DEVICE") == "late":
        import late_device
        late_device.use()
    dist.init_process_group(os.environ.get("TEST_BACKEND", "lockstep"))


# ---- every operation, with every kind of tensor -------------------------------------------------


def check_moves(make, like=lambda tensor: tensor):
    """All operations that move elements, on tensors make(of) of the ranks; `like` makes an output
    with the shape, dtype and strides of its argument."""
    same = lambda got, of: torch.equal(got, make(of))
    root = size() - 1
    tensor = like(make(rank()))
    dist.broadcast(tensor, root)
    assert same(tensor, root)
    out = [like(torch.zeros_like(make(0))) for _ in range(size())]
    dist.all_gather(out, make(rank()))
    assert all(same(out[r], r) for r in range(size()))
    out = [like(torch.zeros_like(make(0))) for _ in range(size())] if rank() == root else None
    dist.gather(make(rank()), out, dst=root)
    assert out is None or all(same(out[r], r) for r in range(size()))
    tensor = like(torch.zeros_like(make(0)))
    dist.scatter(tensor, [make(r) for r in range(size())] if rank() == root else None, src=root)
    assert same(tensor, rank())
    out = [like(torch.zeros_like(make(0))) for _ in range(size())]
    dist.all_to_all(out, [make(rank() + r) for r in range(size())])
    assert all(same(out[r], rank() + r) for r in range(size()))
    right, left = (rank() + 1) % size(), (rank() - 1) % size()
    if size() > 1:
        work = dist.isend(make(rank()), right)
        tensor = like(torch.zeros_like(make(0)))
        dist.recv(tensor, left)
        work.wait()
        assert same(tensor, left)


def check_sums(make, expected, like=lambda tensor: tensor):
    """All operations that add up make(of)."""
    tensor = like(make(rank()))
    dist.all_reduce(tensor)
    assert torch.equal(tensor, expected), (tensor, expected)
    tensor = like(make(rank()))
    dist.reduce(tensor, 0)
    assert torch.equal(tensor, expected) or rank() != 0
    out = like(torch.zeros_like(expected))
    dist.reduce_scatter(out, [make(rank()) for _ in range(size())])
    assert torch.equal(out, expected)


@case
def every_operation_moves_every_dtype():
    for dtype in MOVED:
        check_moves(lambda of: mine(4, dtype=dtype, of=of))
        out = torch.zeros(2 * size(), dtype=dtype)
        gather_one(out, mine(2, dtype=dtype))
        assert torch.equal(out, torch.cat([mine(2, dtype=dtype, of=r) for r in range(size())]))
        dist.all_to_all_single(out, torch.cat([mine(2, dtype=dtype, of=rank() + r)
                                               for r in range(size())]))
        assert torch.equal(out[:2], mine(2, dtype=dtype, of=rank())), dtype


@case
def every_reduction_adds_up_every_dtype():
    for dtype in SUMS + COMPLEX:
        check_sums(lambda of: mine(5, dtype=dtype, of=of), total(5, dtype=dtype))
        out = torch.zeros(3, dtype=dtype)
        scatter_one(out, mine(3, dtype=dtype).repeat(size()))
        assert torch.equal(out, total(3, dtype=dtype)), dtype


@case
def unsigned_types_are_added_where_torch_has_them():
    for dtype in UNSIGNED:  # torch itself adds none of them: compared as int64
        tensor = torch.arange(1, 6).mul(rank() + 1).to(dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor.to(torch.int64),
                           torch.arange(1, 6) * (size() * (size() + 1) // 2)), dtype
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        dist.broadcast(tensor, 0)
        assert tensor.dtype == dtype


@case
def truth_values_are_any_and_all():
    mixed, any_of = torch.tensor([True, rank() == 0, False]), torch.tensor([True, True, False])
    for op, expected in (("SUM", any_of), ("MAX", any_of), ("BOR", any_of),
                         ("MIN", torch.tensor([True, size() == 1, False])),
                         ("PRODUCT", torch.tensor([True, size() == 1, False])),
                         ("BAND", torch.tensor([True, size() == 1, False]))):
        tensor = mixed.clone()
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        assert torch.equal(tensor, expected), op


@case
def every_reduction_knows_every_operator():
    values = torch.stack([mine(4, of=r) for r in range(size())])
    for op, expected in {"SUM": values.sum(0), "AVG": values.mean(0), "PRODUCT": values.prod(0),
                         "MIN": values.min(0).values, "MAX": values.max(0).values}.items():
        op, tensor, out = getattr(dist.ReduceOp, op), mine(4), torch.zeros(4)
        dist.reduce(tensor, size() - 1, op)
        assert rank() != size() - 1 or torch.equal(tensor, expected)
        dist.reduce_scatter(out, [mine(4)] * size(), op)
        assert torch.equal(out, expected)
        scatter_one(out, mine(4).repeat(size()), op)
        assert torch.equal(out, expected)


@case
def premultiplied_sums():
    if not NEW:
        return
    factor = 0.5 * (rank() + 1)
    expected = sum(mine(4, of=r) * 0.5 * (r + 1) for r in range(size()))
    tensor = mine(4)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
    assert torch.equal(tensor, expected)
    out = torch.zeros(4)
    scatter_one(out, mine(4).repeat(size()), dist._make_nccl_premul_sum(factor))
    assert torch.equal(out, expected)


@case
def every_operation_takes_tensors_that_are_not_contiguous():
    def strided(tensor):  # of the same shape and values, every second element of a larger one
        wide = torch.zeros(tuple(tensor.shape) + (2,), dtype=tensor.dtype)
        wide[..., 0] = tensor
        return wide[..., 0]
    check_moves(lambda of: strided(mine(3, 2, of=of)), strided)
    check_sums(lambda of: strided(mine(3, 2, of=of)), total(3, 2), strided)
    turned = lambda tensor: tensor.t().contiguous().t()
    check_moves(lambda of: turned(mine(3, 2, of=of)), turned)
    check_sums(lambda of: turned(mine(3, 2, of=of)), total(3, 2), turned)


@case
def every_operation_takes_tensors_of_no_element():
    for shape in ((0,), (3, 0), (0, 2)):
        check_moves(lambda of: torch.zeros(shape))
        check_sums(lambda of: torch.zeros(shape), torch.zeros(shape))
    gather_one(torch.zeros(0), torch.zeros(0))
    scatter_one(torch.zeros(0), torch.zeros(0))
    dist.all_to_all_single(torch.zeros(0), torch.zeros(0))


@case
def tensors_of_large_and_odd_sizes():
    for count in (1, 4097, 300_001):
        check_sums(lambda of: mine(count, of=of), total(count))
    check_moves(lambda of: mine(300_001, of=of))


# ---- unequal shares -----------------------------------------------------------------------------


@case
def reduce_scatter_of_unequal_shares():
    out = torch.zeros(rank(), 2)  # rank 0 gets nothing
    dist.reduce_scatter(out, [mine(r, 2, of=rank() + r) for r in range(size())])
    assert torch.equal(out, sum(mine(rank(), 2, of=r + rank()) for r in range(size())))


@case
def all_to_all_with_splits_of_rows():
    given = [(rank() + r) % 3 for r in range(size())]
    taken = [(r + rank()) % 3 for r in range(size())]
    for dtype in (torch.float32, torch.int16, torch.complex64):
        tensor = torch.cat([mine(k, 2, dtype=dtype) for k in given])
        out = torch.zeros(sum(taken), 2, dtype=dtype)
        work = dist.all_to_all_single(out, tensor, taken, given, async_op=True)
        work.wait()
        assert torch.equal(out, torch.cat([mine(k, 2, dtype=dtype, of=r)
                                           for r, k in enumerate(taken)]))
    raises(ValueError, lambda: dist.all_to_all_single(torch.zeros(size()), torch.zeros(size()), None,
                                                      [5] * size()), "split sizes")


# ---- several as one -----------------------------------------------------------------------------


@case
def coalesced_operations():
    tensors = [mine(3), mine(2, 2), mine(40_000)]
    dist.all_reduce_coalesced(tensors)
    assert all(torch.equal(t, total(*t.shape)) for t in tensors)
    tensors = [mine(3), mine(2, 2)]
    dist.all_reduce_coalesced(tensors, async_op=True).wait()
    assert all(torch.equal(t, total(*t.shape)) for t in tensors)
    out = [[torch.zeros(3), torch.zeros(2, 2)] for _ in range(size())]
    dist.all_gather_coalesced(out, [mine(3), mine(2, 2)])
    for r in range(size()):
        assert torch.equal(out[r][0], mine(3, of=r)) and torch.equal(out[r][1], mine(2, 2, of=r))


@case
def the_coalescing_manager():
    if not NEW:
        return
    from torch.distributed.distributed_c10d import _coalescing_manager as manager
    sums, gathered, shares = ([torch.zeros(n) for _ in range(3)] for n in (4, 4 * size(), 4))
    for tensor in sums:
        tensor.copy_(mine(4))
    with manager():
        for tensor in sums:
            dist.all_reduce(tensor)
    with manager(async_ops=True) as works:
        for tensor in gathered:
            gather_one(tensor, mine(4))
    works.wait()
    with manager():
        for tensor in shares:
            scatter_one(tensor, mine(4).repeat(size()))
    for k in range(3):
        assert torch.equal(sums[k], total(4)) and torch.equal(shares[k], total(4))
        assert torch.equal(gathered[k], torch.cat([mine(4, of=r) for r in range(size())]))
    tensors = [mine(2) + k for k in range(3)]
    with manager(device=torch.device("cpu")):
        for tensor in tensors:
            dist.broadcast(tensor, 0)
    assert all(torch.equal(tensors[k], mine(2, of=0) + k) for k in range(3))


# ---- works and futures --------------------------------------------------------------------------


def started():
    """{name: (start, what its result has to be)}"""
    n, back = size(), size() - 1
    all_of = [mine(2, of=r) for r in range(n)]
    return {
        "all_reduce": (lambda: dist.all_reduce(mine(2), async_op=True), [total(2)]),
        "broadcast": (lambda: dist.broadcast(mine(2), back, async_op=True), [mine(2, of=back)]),
        "all_gather": (lambda: dist.all_gather([torch.zeros(2) for _ in range(n)], mine(2),
                                               async_op=True), all_of),
        "all_gather_single": (lambda: gather_one(torch.zeros(2 * n), mine(2), async_op=True),
                              [torch.cat(all_of)]),
        "reduce_scatter": (lambda: dist.reduce_scatter(torch.zeros(2), [mine(2)] * n,
                                                       async_op=True), [total(2)]),
        "gather": (lambda: dist.gather(mine(2), [torch.zeros(2) for _ in range(n)]
                                       if rank() == 0 else None, async_op=True),
                   all_of if rank() == 0 else []),
        "scatter": (lambda: dist.scatter(torch.zeros(2), [mine(2, of=r) for r in range(n)]
                                         if rank() == 0 else None, async_op=True), [mine(2)]),
        "all_to_all_single": (lambda: dist.all_to_all_single(
            torch.zeros(n), torch.full((n,), float(rank())), async_op=True),
            [torch.arange(float(n))]),
        "barrier": (lambda: dist.barrier(async_op=True), []),
    }


def equal(got, expected):
    return len(got) == len(expected) and all(map(torch.equal, got, expected))


@case
def every_operation_has_a_work_and_a_future():
    for name, (start, expected) in started().items():
        work = start()
        assert work.wait() and work.wait(), name  # as often as one likes
        assert work.is_completed() and work.is_success() and work.exception() is None, name
        assert equal(work.result(), expected), (name, work.result())
        value = start().get_future().wait()
        assert equal(value, expected), (name, value)


@case
def works_wait_with_a_time_of_their_own():
    assert dist.all_reduce(mine(2), async_op=True).wait(datetime.timedelta(seconds=60))
    if size() == 1:
        return
    other, tensor = (rank() + 1) % size(), torch.zeros(30_000)  # too long to be sent at once
    work = dist.irecv(tensor, (rank() - 1) % size(), tag=3)
    raises(RuntimeError, lambda: work.wait(datetime.timedelta(milliseconds=20)))
    assert not work.is_completed()
    dist.barrier()
    sent = dist.isend(mine(30_000), other, tag=3)
    assert work.wait() and sent.wait()  # what ran out of time goes on
    assert torch.equal(tensor, mine(30_000, of=(rank() - 1) % size()))


@case
def many_works_in_flight_end_right():
    roots = [k % size() for k in range(60)]
    tensors = [torch.full((50,), float(k)) * (1 + rank()) for k in range(60)]
    works = [dist.broadcast(tensors[k], roots[k], async_op=True) if k % 2 else
             dist.all_reduce(tensors[k], dist.ReduceOp.MAX, async_op=True) for k in range(60)]
    for k in list(range(0, 60, 3)) + list(range(1, 60, 3)) + list(range(2, 60, 3)):
        works[k].wait()
        assert torch.equal(tensors[k], torch.full((50,), float(k)) *
                           (1 + roots[k] if k % 2 else size()))


@case
def a_barrier_ends_what_was_started_before():
    tensors = [mine(1000) for _ in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.barrier()
    for work, tensor in zip(works, tensors):
        work.wait()
        assert torch.equal(tensor, total(1000))


# ---- between two --------------------------------------------------------------------------------


@only(SEVERAL)
def both_may_send_before_they_receive():
    for other in range(size()):
        if other != rank():
            tensor = mine(5)
            dist.send(tensor, other)
            tensor.zero_()  # it has been sent
    for other in range(size()):
        if other != rank():
            tensor = torch.zeros(5)
            dist.recv(tensor, other)
            assert torch.equal(tensor, mine(5, of=other))
    dist.barrier()


@only(SEVERAL)
def batches_with_everybody():
    inbox = [torch.zeros(20_000) for _ in range(size())]
    others = [r for r in range(size()) if r != rank()]
    batch = [dist.P2POp(dist.isend, mine(20_000) + r, r) for r in others]
    batch += [dist.P2POp(dist.irecv, inbox[r], r) for r in others]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    for r in others:
        assert torch.equal(inbox[r], mine(20_000, of=r) + rank())


@only(SEVERAL)
def lists_of_objects_from_one_to_another():
    if not hasattr(dist, "send_object_list"):
        return
    if rank() == 0:
        dist.send_object_list(["text", {"a": [1, 2]}, None], dst=1)
    elif rank() == 1:
        things = [None] * 3
        dist.recv_object_list(things, src=0)
        assert things == ["text", {"a": [1, 2]}, None]


# ---- sparse tensors -----------------------------------------------------------------------------


def sparse(of, dtype=torch.float32):
    """Rows `of` and 0 of [size, 2], of which 0 is named twice: not coalesced."""
    return torch.sparse_coo_tensor([[of, 0, 0]], torch.ones(3, 2, dtype=dtype), (size(), 2))


@case_of_cpu
def sparse_sums_of_rows():
    for dtype in (torch.float32, torch.float64, torch.int64):
        expected = sum(sparse(r, dtype).to_dense() for r in range(size()))
        tensor = sparse(rank(), dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor.to_dense(), expected)
        tensor = sparse(rank(), dtype).coalesce()
        assert dist.all_reduce(tensor, async_op=True).wait()
        assert torch.equal(tensor.to_dense(), expected)
    nothing = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), (3,))
    dist.all_reduce(nothing)
    assert not nothing.to_dense().any()
    raises(ValueError, lambda: dist.all_reduce(sparse(0), dist.ReduceOp.MAX), "SUM")


# ---- groups -------------------------------------------------------------------------------------


@case
def groups_of_neighbours_and_by_list():
    if not NEW:
        return
    own, all_groups = dist.new_subgroups(1)
    assert dist.get_world_size(own) == 1 and len(all_groups) == size()
    own, _ = dist.new_subgroups_by_enumeration([[r] for r in range(size())])
    tensor = mine(2)
    dist.all_reduce(tensor, group=own)
    assert torch.equal(tensor, mine(2))
    dist.destroy_process_group(own)


@only(SEVERAL)
def a_group_has_options_of_its_own():
    more = {"group_desc": "the last two"} if NEW else {}
    ranks = [size() - 1, size() - 2]
    group = dist.new_group(ranks, timeout=datetime.timedelta(seconds=50), **more)
    if rank() not in ranks:
        assert dist.get_rank(group) == -1
        return
    if NEW:
        assert group.group_desc == "the last two"
        assert dist.get_process_group_ranks(group) == sorted(ranks)
        assert dist.get_global_rank(group, dist.get_group_rank(group, rank())) == rank()
        assert group.lockstep_group.size == 2
    tensor = mine(3)
    dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, sum(mine(3, of=r) for r in ranks))
    other = sum(ranks) - rank()
    dist.send(mine(3), other, group=group)
    dist.recv(tensor, other, group=group)
    assert torch.equal(tensor, mine(3, of=other))
    dist.barrier(group=group)


@case
def a_group_over_gloo_stands_beside():
    group = dist.new_group(backend="gloo")
    tensor = mine(3)
    dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, total(3)) and dist.get_backend(group).lower() == "gloo"
    dist.destroy_process_group(group)


# ---- what stands above --------------------------------------------------------------------------


@case
def collectives_that_are_differentiated():
    from torch.distributed.nn import functional as f

    def gradient(call):
        x = mine(3).requires_grad_()
        out = call(x)
        (out if isinstance(out, torch.Tensor) else torch.stack(list(out))).sum().backward()
        return x.grad
    n = float(size())
    assert torch.equal(gradient(f.all_reduce), torch.full((3,), n))
    assert torch.equal(gradient(f.all_gather), torch.full((3,), n))
    assert torch.equal(gradient(lambda x: f.broadcast(x, 0)),
                       torch.full((3,), n if rank() == 0 else 0.0))
    assert torch.equal(gradient(lambda x: f.all_to_all([torch.zeros(3) for _ in range(size())],
                                                       [x] * size())), torch.full((3,), n))


@case
def functional_collectives_of_lists():
    if not NEW:
        return
    import torch.distributed._functional_collectives as fun
    group, n = dist.group.WORLD, size()
    sums = fun.all_reduce_coalesced([mine(2), mine(3)], "sum", group)
    assert torch.equal(sums[0] + 0, total(2)) and torch.equal(sums[1] + 0, total(3))
    gathered = fun.all_gather_into_tensor_coalesced([mine(2), mine(3)], group)
    assert torch.equal(gathered[1] + 0, torch.cat([mine(3, of=r) for r in range(n)]))
    shares = fun.reduce_scatter_tensor_coalesced([mine(2).repeat(n), mine(3).repeat(n)], "avg",
                                                 [0, 0], group)
    assert torch.allclose(shares[1] + 0, total(3) / n)
    out = fun.all_to_all_single(torch.arange(float(n)) + 10 * rank(), None, None, group) + 0
    assert torch.equal(out, torch.arange(float(n)) * 10 + rank())
    assert torch.equal(fun.broadcast(mine(2), n - 1, group) + 0, mine(2, of=n - 1))


@only(range(4, 100, 2))
def a_mesh_of_two_dimensions():
    if not NEW:
        return
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2, size() // 2), mesh_dim_names=("outer", "inner"))
    tensor = torch.tensor([float(rank())])
    dist.all_reduce(tensor, group=mesh.get_group("inner"))
    half = size() // 2
    first = rank() // half * half
    assert tensor.item() == sum(range(first, first + half))
    dist.all_reduce(tensor, group=mesh.get_group("outer"))
    assert tensor.item() == sum(range(size()))


# ---- what is refused ----------------------------------------------------------------------------


@case
def what_gloo_refuses_is_refused_in_words():
    wrong = (ValueError, TypeError, RuntimeError)
    n, bits = size(), dist.ReduceOp.BAND
    raises(wrong, lambda: dist.all_reduce(mine(2), bits), "float32")
    raises(wrong, lambda: dist.all_reduce(mine(2, dtype=torch.complex64), dist.ReduceOp.MAX))
    raises(wrong, lambda: dist.all_gather([mine(k + 1) for k in range(n)] + [mine(1)], mine(1)))
    raises(wrong, lambda: dist.gather(mine(2), [mine(2)] * (n + 1) if rank() == 0 else [mine(2)]))
    raises(wrong, lambda: scatter_one(torch.zeros(2), torch.zeros(2 * n + 1)), "do not fit")
    raises(wrong, lambda: dist.reduce_scatter(torch.zeros(2), [mine(2)] * (n + 1)), "one for each")
    raises(wrong, lambda: dist.all_to_all([mine(2)] * n, [mine(2)] * (n + 1)), "one for each")
    raises(wrong, lambda: dist.broadcast(mine(2), n))
    raises(wrong, lambda: dist.broadcast(sparse(0), 0), "sparse")
    assert_ends_well()


def assert_ends_well():
    tensor = mine(2)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, total(2))


if __name__ == "__main__":
    run(begin, dist.destroy_process_group)
