# SPDX-License-Identifier: Apache-2.0
"""What every rank checks of lockstep.numpy. Expected values are computed here from formulas of the
ranks, never from what the library returned."""

import os
import pathlib
import sys

import numpy

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from cases import case, only, raises, run

import lockstep
import lockstep.numpy as ln
import lockstep.objects as lo

DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32",
          "uint32", "int64", "uint64"]
SEVERAL = range(2, 100)  # numbers of ranks


def rank():
    return lockstep.rank()


def size():
    return lockstep.world_size()


def mine(dtype="float32", count=5, of=None):
    """Small whole numbers that every dtype holds, other ones on each rank."""
    of = rank() if of is None else of
    return (numpy.arange(count) % 7 + of + 1).astype(dtype)


def all_of(dtype="float32", count=5):
    return [mine(dtype, count, r).astype("float64") for r in range(size())]


@case
def the_world_is_that_of_the_launcher():
    assert lockstep.is_initialized()
    assert (rank(), size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    assert lockstep.local_rank() == int(os.environ["LOCAL_RANK"])
    assert (lockstep.world().rank, lockstep.world().size) == (rank(), size())
    assert lockstep.version().startswith("0.2")


@case
def all_reduce_in_place_for_every_operator_and_dtype():
    folds = {"sum": numpy.add, "product": numpy.multiply, "min": numpy.minimum,
             "max": numpy.maximum}
    for dtype in DTYPES:
        for op, fold in folds.items():
            array = mine(dtype, 11 if op != "product" else 2)
            expected = fold.reduce(all_of(dtype, array.size))
            if expected.max() > 120:
                continue
            assert ln.all_reduce(array, op) is array
            assert array.dtype == dtype and (array == expected).all(), (dtype, op, array)
    for op, fold in {"band": numpy.bitwise_and, "bor": numpy.bitwise_or,
                     "bxor": numpy.bitwise_xor}.items():
        array = mine("int32")
        expected = fold.reduce([mine("int32", of=r) for r in range(size())])
        assert (ln.all_reduce(array, op) == expected).all(), op
    assert (ln.all_reduce(mine(), "avg") == numpy.mean(all_of(), axis=0)).all()


@case
def premultiplied_sums():
    factor = 0.5 * (rank() + 1)
    expected = sum(0.5 * (r + 1) * mine(of=r) for r in range(size()))
    assert (ln.all_reduce(mine(), "premul_sum", factor=factor) == expected).all()
    assert (ln.reduce_scatter(numpy.tile(mine(), size()), "premul_sum", factor=factor)
            == expected).all()


def affine(left, right):
    """x -> ax + b is a pair of numbers; after each other, in an order that matters."""
    left, right = left.reshape(-1, 2), right.reshape(-1, 2)
    return numpy.stack([left[:, 0] * right[:, 0], left[:, 1] * right[:, 0] + right[:, 1]], 1).ravel()


@case
def operators_of_the_users_are_applied_in_the_order_of_ranks():
    first = ln.Operator(lambda left, right: left, "first")
    for op, expected in ((first, mine(of=0)), (ln.Operator(numpy.maximum), mine(of=size() - 1))):
        assert (ln.all_reduce(mine(), op) == expected).all(), op
        array = mine()
        ln.reduce(array, op, root=size() - 1)
        assert rank() != size() - 1 or (array == expected).all()
        assert (ln.reduce_scatter(numpy.tile(mine(), size()), op) == expected).all()
        assert (ln.reduce_scatter_v(numpy.tile(mine(), size()), [5] * size(), op) == expected).all()
        assert (ln.scan(mine(), op) == (expected if op is first else mine())).all()
        arrays = ln.all_reduce_many([mine(), mine(count=100)], op)
        assert (arrays[0] == expected).all()
        assert (ln.all_reduce(mine(), op, async_op=True).wait() == expected).all()
    op = ln.Operator(affine)
    pairs = [numpy.tile(numpy.array([r + 2, r + 1], "int64"), 3000) for r in range(size())]
    expected = pairs[0]
    for r in range(1, size()):
        expected = affine(expected, pairs[r])
    assert (ln.all_reduce(pairs[rank()].copy(), op, algorithm="direct") == expected).all()


@case
def operators_of_the_users_know_every_dtype():
    seen = set()
    def larger(left, right):
        seen.add(left.dtype.name)
        assert left.flags.writeable and not right.flags.writeable and left.shape == right.shape
        left[:] = numpy.maximum(left, right)
        return left
    op = ln.Operator(larger)
    for dtype in DTYPES + ["bool"]:
        expected = numpy.max([mine(dtype, 3000, r) for r in range(size())], axis=0)
        assert (ln.all_reduce(mine(dtype, 3000), op) == expected).all(), dtype
    assert seen <= set(DTYPES) | {"bool"} and "float16" not in seen  # these come as float32
    assert size() == 1 or "int64" in set().union(*lo.all_gather(seen))  # on one rank at least
    for _ in range(200):  # at most 64 at a time: those that are dropped are freed
        assert ln.all_reduce(mine(), ln.Operator(numpy.minimum))[0] == 1
    work = ln.all_reduce(mine(count=3000), ln.Operator(numpy.minimum), async_op=True)  # kept by it
    assert (work.wait() == mine(count=3000, of=0)).all()


@only(SEVERAL)
def an_exception_in_an_operator_is_an_error_on_every_rank():
    last = size() - 1
    def picky(left, right):
        if rank() == last:
            raise ArithmeticError("no number is good enough")
        return left
    def nothing(left, right):
        numpy.add(left, right)
    def one(left, right):
        return numpy.max(left)
    def calls(left, right):
        return ln.all_reduce(numpy.ones(3)) if rank() == last else left
    def leaves(left, right):
        sys.exit("nobody leaves from here")
    for function, words in ((picky, f"failed on rank {last}: ArithmeticError: no number is good"),
                            (nothing, "it returned None"), (one, "it returned shape ()"),
                            (calls, "must not call lockstep"), (leaves, "nobody leaves")):
        op, group = ln.Operator(function), lockstep.world().new()
        causes = []
        def attempt():
            try:  # direct: every rank combines a part of it
                ln.all_reduce(mine(count=5000), op, group=group, algorithm="direct")
                group.barrier()
            except lockstep.Error as error:
                causes.append(error.__cause__)
                raise
        raises(lockstep.AbortedError, attempt, f'the operator "{function.__name__}" failed on rank',
               words)
        if function is picky:
            assert isinstance(causes[0], ArithmeticError if rank() == last else type(None)), causes
    assert ln.all_reduce(numpy.array(1)) == size()


@case
def what_is_no_operator_is_refused_in_words():
    raises(lockstep.InvalidError, lambda: ln.Operator(3), "int is not a function")
    raises(lockstep.InvalidError, lambda: ln.Operator(numpy.add, "x" * 24), "1 to 23 bytes")
    raises(lockstep.InvalidError, lambda: ln.all_reduce(mine(), numpy.add), "ufunc 'add'", "Operator")
    op = ln.Operator(numpy.add)
    op.free()
    op.free()
    raises(lockstep.Error, lambda: ln.all_reduce(mine(), op), "'add' was freed")


@case
def a_group_tells_how_it_is_tuned():
    group = lockstep.world().new()
    for _ in range(12):
        ln.all_reduce(mine(), group=group)
    tuning = group.tuning()
    far = "LOCKSTEP_HOSTS" in os.environ
    if far and size() > 1:
        assert tuning["all_reduce"].startswith("0-") and "direct" in tuning["all_to_all"], tuning
    else:
        assert tuning == {}
    group.free()


@case
def all_reduce_into_another_array_leaves_the_first():
    array, out = mine(), numpy.zeros(5, "float32")
    before = array.copy()
    assert ln.all_reduce(array, out=out) is out
    assert (array == before).all() and (out == sum(all_of())).all()


@case
def bool_and_bfloat16_are_known():
    flags = numpy.array([True, rank() == 0, False])
    assert (ln.all_reduce(flags, "bor") == [True, True, False]).all()
    try:
        import ml_dtypes
    except ImportError:
        return
    array = mine(ml_dtypes.bfloat16)
    assert (ln.all_reduce(array).astype("float64") == sum(all_of())).all()


@case
def shapes_of_any_dimension_and_of_no_element():
    cube = numpy.full((2, 3, 4), rank(), "float64")
    assert (ln.all_reduce(cube) == sum(range(size()))).all() and cube.shape == (2, 3, 4)
    assert ln.all_reduce(numpy.zeros((0, 3))).shape == (0, 3)
    assert ln.all_reduce(numpy.array(1.0)) == size()


@case
def broadcast_from_every_root():
    for root in range(size()):
        array = mine("int64")
        ln.broadcast(array, root)
        assert (array == mine("int64", of=root)).all()
    constant = mine()
    constant.flags.writeable = rank() != 0
    ln.broadcast(constant, 0)  # a root's array is only read


@case
def reduce_to_every_root():
    for root in range(size()):
        array = mine()
        result = ln.reduce(array, root=root)
        if rank() == root:
            assert result is array and (array == sum(all_of())).all()
        else:
            assert result is None and (array == mine()).all()


@case
def gather_and_all_gather_stack_the_arrays():
    rows = numpy.stack([mine(of=r) for r in range(size())])
    assert (ln.all_gather(mine()) == rows).all()
    out = numpy.zeros((size(), 5), "float32")
    out[rank()] = mine()
    assert ln.all_gather(out[rank()], out=out) is out and (out == rows).all()  # in place
    for root in range(size()):
        result = ln.gather(mine(), root=root)
        assert (result == rows).all() if rank() == root else result is None


@case
def scatter_and_reduce_scatter_share_out():
    table = numpy.arange(size() * 6, dtype="float32").reshape(size(), 2, 3)
    for root in range(size()):
        out = numpy.zeros((2, 3), "float32")
        ln.scatter(table if rank() == root else None, out, root)
        assert (out == table[rank()]).all()
    share = ln.reduce_scatter(table + rank())
    assert share.shape == (2, 3)
    assert (share == table[rank()] * size() + sum(range(size()))).all()
    flat = ln.reduce_scatter(numpy.ones(size() * 4, "int32"))
    assert (flat == numpy.full(4, size())).all()


@case
def send_and_recv_go_round():
    right, left = (rank() + 1) % size(), (rank() - 1) % size()
    inbox = numpy.zeros(5, "float32")
    work = ln.send(mine(), right, tag=3, async_op=True)
    ln.recv(inbox, left, tag=3)
    work.wait()
    assert (inbox == mine(of=left)).all()


@case
def all_to_all_exchanges_rows():
    table = numpy.stack([mine(of=10 * rank() + r) for r in range(size())])
    expected = numpy.stack([mine(of=10 * r + rank()) for r in range(size())])
    assert (ln.all_to_all(table) == expected).all()
    assert ln.all_to_all(table, out=table) is table and (table == expected).all()
    flat = ln.all_to_all(numpy.full(2 * size(), rank(), "int32"))  # two rows for each
    assert (flat == numpy.repeat(numpy.arange(size()), 2)).all()


@case
def scans_reduce_the_ranks_before():
    for op, fold in {"sum": numpy.add, "max": numpy.maximum}.items():
        before = [mine(of=r) for r in range(rank() + 1)]
        array, out = mine(), numpy.zeros(5, "float32")
        assert ln.scan(array, op, out=out) is out and (array == mine()).all()
        assert (out == fold.reduce(before)).all(), op
        assert ln.scan(array, op) is array and (array == out).all()
        array = mine()
        assert ln.exscan(array, op) is array
        assert (array == (fold.reduce(before[:-1]) if rank() > 0 else mine())).all(), op


def rows(count, of=None):
    """`count` rows of two numbers that name their rank and place."""
    of = rank() if of is None else of
    return (numpy.arange(2 * count).reshape(count, 2) + 100 * of).astype("float64")


@case
def unequal_parts_are_gathered_and_scattered():
    counts = [r % 3 for r in range(size())]  # rank 0 and 3 give nothing
    everything = numpy.concatenate([rows(c, r) for r, c in enumerate(counts)])
    begin = sum(counts[:rank()])
    assert (ln.all_gather_v(rows(counts[rank()]), counts) == everything).all()
    for root in range(size()):
        out = ln.gather_v(rows(counts[rank()]), counts if rank() == root else None, root=root)
        assert (out == everything).all() if rank() == root else out is None
        share = numpy.zeros((counts[rank()], 2))
        ln.scatter_v(*((everything, counts) if rank() == root else (None, None)), share, root)
        assert (share == everything[begin:begin + counts[rank()]]).all()
    share = ln.reduce_scatter_v(everything + rank(), counts)
    expected = everything * size() + sum(range(size()))
    assert share.shape == (counts[rank()], 2)
    assert (share == expected[begin:begin + counts[rank()]]).all()


@case
def unequal_parts_are_exchanged():
    given = [(rank() + j) % 3 for j in range(size())]  # rows for rank j: named by both ranks
    parts = [numpy.full((c, 2), 10 * rank() + j, "int32") for j, c in enumerate(given)]
    taken = [(r + rank()) % 3 for r in range(size())]
    out = ln.all_to_all_v(numpy.concatenate(parts), given, taken)
    expected = numpy.concatenate([numpy.full((c, 2), 10 * r + rank()) for r, c in enumerate(taken)])
    assert out.shape == expected.shape and (out == expected).all()
    wrong = list(given) + [1]
    raises(lockstep.InvalidError, lambda: ln.all_to_all_v(rows(1), wrong, taken), "one for each")
    raises(lockstep.InvalidError, lambda: ln.all_gather_v(rows(1), [2] * size()), "the counts say 2")


@case
def many_arrays_are_one_operation():
    arrays = [mine(count=c) for c in (3, 0, 1000, 7)]
    group = lockstep.world().new()
    assert ln.all_reduce_many(arrays, group=group) == arrays
    for array in arrays:
        assert (array == sum(all_of(count=array.size))).all()
    assert group.counters()["operations"] == 1
    arrays = [mine("int64", c) for c in (5, 2)]
    work = ln.broadcast_many(arrays, root=size() - 1, group=group, async_op=True)
    work.wait()
    assert all((a == mine("int64", a.size, size() - 1)).all() for a in arrays)
    raises(lockstep.InvalidError, lambda: ln.all_reduce_many([mine(), mine("int32")]), "one dtype")
    assert ln.all_reduce_many([]) == []
    group.free()


@case
def a_receive_from_any_rank_tells_which():
    if rank() > 0:
        ln.send(mine(), 0, tag=5)
        ln.send(mine(count=2), 0, tag=6)
    else:
        seen = set()
        for _ in range(1, size()):
            array = numpy.zeros(5, "float32")
            source = ln.recv_any(array, tag=5)
            assert (array == mine(of=source)).all()
            seen.add(source)
        assert seen == set(range(1, size()))
        works = [ln.recv(numpy.zeros(2, "float32"), lockstep.ANY_SOURCE, tag=6, async_op=True)
                 for _ in range(1, size())]
        for work in works:
            array = work.wait()
            seen.remove(work.source)
            assert (array == mine(count=2, of=work.source)).all()
        assert not seen


@case
def objects_and_bytes_of_any_length():
    thing = {"rank": rank(), "text": "x" * (rank() * 1000)}
    def expected(r): return {"rank": r, "text": "x" * (r * 1000)}
    everything = [expected(r) for r in range(size())]
    assert lo.all_gather(thing) == everything
    assert lo.all_gather_bytes(bytes([rank()]) * rank()) == [bytes([r]) * r for r in range(size())]
    for root in range(size()):
        here = rank() == root
        assert lo.broadcast(thing if here else None, root) == expected(root)
        assert lo.broadcast_bytes(b"a\0b" * 5000 if here else None, root) == b"a\0b" * 5000
        assert lo.gather(thing, root) == (everything if here else None)
        assert lo.gather_bytes(b"", root) == ([b""] * size() if here else None)
        assert lo.scatter(everything if here else None, root) == thing
        parts = [memoryview(bytes([r]) * r) for r in range(size())]
        assert lo.scatter_bytes(parts if here else None, root) == bytes([rank()]) * rank()
    if size() > 1:
        raises(lockstep.InvalidError, lambda: lo.scatter([1], rank()), "one for each")


@case
def works_end_in_any_order_and_may_be_dropped():
    arrays = [numpy.full(1000, k, "float32") for k in range(8)]
    works = [ln.all_reduce(a, async_op=True) for a in arrays]
    for k in reversed(range(8)):
        assert works[k].wait() is arrays[k] and (arrays[k] == k * size()).all()
        assert works[k].done() and works[k].wait() is arrays[k]
    for k in range(50):  # the buffers live on until the operations have ended
        ln.all_reduce(numpy.ones(10000, "float32"), async_op=True)
    assert ln.all_reduce(numpy.array(1)) == size()


@case
def nothing_is_copied_on_the_way():
    array = numpy.ones(1 << 20, "float32")
    address = array.ctypes.data
    view = array[1000:2000]  # contiguous: part of another array
    ln.all_reduce(view)
    assert array.ctypes.data == address and (array[1000:2000] == size()).all()
    assert array[999] == 1 and array[2000] == 1


@case
def registered_memory_is_an_array():
    array = ln.empty((3, 4), "float64")
    assert array.shape == (3, 4) and (array == 0).all()
    array += rank()
    part = array[1]
    del array
    assert (ln.all_reduce(part) == sum(range(size()))).all()
    for _ in range(100):
        ln.empty(1 << 20)  # given back when dropped
    assert ln.empty((0, 2)).shape == (0, 2)


@case
def what_is_no_contiguous_array_is_refused_in_words():
    grid = numpy.zeros((4, 4), "float32")
    raises(lockstep.InvalidError, lambda: ln.all_reduce(grid[:, 1]), "not contiguous", "strides",
           "ascontiguousarray")
    raises(ValueError, lambda: ln.all_reduce([1, 2]), "list is not a numpy array")
    raises(lockstep.InvalidError, lambda: ln.all_reduce(numpy.zeros(3, "complex64")), "complex64")
    raises(lockstep.InvalidError, lambda: ln.all_reduce(numpy.zeros(3, ">f4")), "byte order")
    raises(lockstep.InvalidError, lambda: ln.all_reduce(grid, "mean"), "'mean'", "avg")
    raises(lockstep.InvalidError, lambda: ln.all_reduce(grid, out=grid[:2]), "out is")
    raises(lockstep.InvalidError, lambda: ln.reduce_scatter(numpy.array(1.0)),
           "cannot be shared out")
    fixed = numpy.zeros(3)
    fixed.flags.writeable = False
    raises(lockstep.InvalidError, lambda: ln.all_reduce(fixed), "read-only")


@case
def sub_groups_of_ranks():
    ranks = list(range(0, size(), 2))
    group = lockstep.world().new(ranks, "even")
    if rank() % 2 == 0:
        assert (group.rank, group.size, group.name) == (ranks.index(rank()), len(ranks), "even")
        assert ln.all_reduce(numpy.array(1), group=group) == len(ranks)
        assert group.counters()["operations"] >= 1
        group.free()
        raises(lockstep.Error, lambda: ln.barrier(group), "was freed")
    else:
        assert group is None
    copy = lockstep.world().new()
    assert copy.size == size()
    copy.free()


@case
def a_mismatch_is_an_error_on_every_rank_and_ends_only_its_group():
    group = lockstep.world().new(name="apart")
    array = numpy.zeros(4 if rank() == 0 else 8, "float32")
    if size() > 1:
        raises(lockstep.MismatchError, lambda: ln.all_reduce(array, group=group), "all_reduce",
               '"apart"', "4", "8")
        raises(lockstep.MismatchError, lambda: group.check())
    group.free() if size() == 1 else None
    assert ln.all_reduce(numpy.array(1)) == size()


@case
def an_abort_reaches_who_waits():
    group = lockstep.world().new(name="short")
    if size() > 1:
        if rank() == 0:
            group.abort("enough of it")
        raises(lockstep.AbortedError, lambda: ln.barrier(group), "enough of it")


@case
def an_abort_of_a_work_ends_its_wait_on_every_rank():
    group = lockstep.world().new(name="given up")
    if size() > 1:
        if rank() == 0:
            work = ln.all_reduce(mine(), group=group, async_op=True)
            raises(lockstep.StillRunning, lambda: work.wait(timeout=0.001), "goes on")
            raises(TimeoutError, lambda: work.wait(timeout=0))
            work.abort("nobody comes")
            raises(lockstep.AbortedError, work.wait, "nobody comes")
        else:
            raises(lockstep.AbortedError, lambda: ln.recv(mine(), 0, group=group), "nobody comes")
    ln.barrier()


@case
def a_monitored_barrier_names_who_did_not_come():
    lockstep.world().monitored_barrier(timeout=60)
    group = lockstep.world().new(name="not all")
    if size() > 1 and rank() == 0:
        raises(lockstep.TimeoutError, lambda: group.monitored_barrier(timeout=0.2),
               *[str(r) for r in range(1, size())])
    ln.barrier()


@case
def groups_are_split_by_color_and_key():
    part = lockstep.world().split(rank() % 2, key=-rank(), name="half")
    members = [r for r in reversed(range(size())) if r % 2 == rank() % 2]
    assert (part.rank, part.size, part.name) == (members.index(rank()), len(members), "half")
    assert ln.all_reduce(numpy.array(rank()), group=part) == sum(members)
    part.free()
    only = lockstep.world().split(0 if rank() == 0 else None)
    assert (only is None) == (rank() != 0)
    if only is not None:
        assert only.size == 1
        only.free()


@case
def several_groups_take_turns_behind_one_handle():
    groups = [lockstep.world().new() for _ in range(3)]
    several = lockstep.RoundRobin(groups, "turns")
    assert (several.rank, several.size, several.name) == (rank(), size(), "turns")
    works = [ln.all_reduce(mine(), group=several, async_op=True) for _ in range(6)]
    assert all((work.wait() == sum(all_of())).all() for work in works)
    assert [g.counters()["operations"] for g in groups] == [2, 2, 2]
    raises(lockstep.Error, groups[0].free, "still used by a handle of ls_group_round_robin; free that first")
    several.free()
    for group in groups:
        group.set_channels(2)
        assert ln.all_reduce(numpy.array(1), group=group) == size()
        group.free()


@case
def threads_may_call_and_wait():
    import threading
    groups = [lockstep.world().new(name=f"thread {k}") for k in range(3)]
    sums = {}

    def work(k):
        total = numpy.zeros(100)
        for step in range(20):
            total += ln.all_reduce(numpy.full(100, step + k, "float64"), group=groups[k])
        sums[k] = total

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    order = threads if rank() % 2 == 0 else threads[::-1]
    for thread in order:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(3):
        assert (sums[k] == size() * sum(step + k for step in range(20))).all()
        groups[k].free()


@case
def options_reach_the_library():
    ln.all_reduce(mine(), tag="a name", timeout=60, algorithm="direct")
    if size() > 1:
        raises(lockstep.InvalidError, lambda: ln.all_reduce(mine(), algorithm="none such"),
               "none such")
    raises(TypeError, lambda: ln.all_reduce(mine(), colour=1), "colour")
    raises(lockstep.InvalidError, lambda: ln.all_reduce(mine(), timeout=-1), "timeout")


@case
def a_second_init_is_refused():
    raises(lockstep.Error, lockstep.init, "initialised already")


run(lockstep.init, lockstep.finalize)
