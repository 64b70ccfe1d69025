"""What every rank checks of lockstep.numpy. Expected values are computed here from formulas of the
ranks, never from what the library returned."""

import pathlib
import sys

import numpy

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from cases import case, raises, run

import lockstep
import lockstep.numpy as ln

DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int32", "int64"]


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
    import os
    assert lockstep.is_initialized()
    assert (rank(), size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    assert lockstep.local_rank() == int(os.environ["LOCAL_RANK"])
    assert (lockstep.world().rank, lockstep.world().size) == (rank(), size())
    assert lockstep.version().startswith("0.1")


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
    raises(ValueError, lambda: ln.all_reduce([1, 2]), "list is no numpy array")
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
