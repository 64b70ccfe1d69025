# SPDX-License-Identifier: Apache-2.0
"""What every rank checks of futures in DistributedDataParallel: several collectives in flight on
several groups, chains of callbacks that start others, and aborts while all that is under way. What
must hold: each future is set once, in order, with the right sum or an error that says why; backward
raises; other groups go on."""

import datetime
import pathlib
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from cases import case, only, raises, run

import lockstep.torch

NEW = int(torch.__version__.split(".")[0]) >= 2  # older ones have one bucket with a hook
STEPS, WIDTH = 4, 64
SEVERAL = range(2, 100)


def begin():
    dist.init_process_group("lockstep")


def end():
    dist.destroy_process_group()
    left = {t.name for t in threading.enumerate() if t.name.startswith("lockstep ")}
    assert left <= {"lockstep guard", "lockstep Ctrl-C"}, left  # they stay until the world is left


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)])


def data(step, of):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + of))


def train(model, steps, on):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps:
        optimizer.zero_grad()
        sum(model(data(step, r)).pow(2).mean() for r in on).div(len(on)).backward()
        optimizer.step()
    return model


def agrees(model):
    """With a net that one process has trained on everybody's data."""
    plain = train(net(), range(STEPS), range(size()))
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(ours, theirs, atol=1e-5), (ours - theirs).abs().max()


def wrapped(hook, group=None):
    model = DDP(net(), bucket_cap_mb=0.005, process_group=group)  # a bucket or two a layer
    model.register_comm_hook(None, hook)
    return model


# ---- what goes well -----------------------------------------------------------------------------


@case
def a_hook_chains_callbacks_that_start_and_wait_for_others():
    second, order = dist.new_group(), []

    def hook(_, bucket):
        index, buffer = bucket.index(), bucket.buffer()

        def scatter_and_gather(future):  # of what the first sum left, over another group
            order.append(index)
            total = future.value()[0] / size()
            copies = [torch.empty_like(total) for _ in range(size())]
            dist.all_gather(copies, total, group=second)
            assert all(torch.equal(c, copies[0]) for c in copies)
            return total
        first = dist.all_reduce(buffer, async_op=True).get_future()
        return first.then(scatter_and_gather).then(lambda f: f.value() * 2).then(
            lambda f: f.value() / 2)
    model = wrapped(hook)
    agrees(train(model, range(STEPS), [rank()]).module)
    several = len(set(order))
    assert several > (1 if NEW else 0), order
    assert order[-several:] == sorted(order[-several:])  # in the order of their starting


@case
def two_models_train_in_two_threads_with_futures_each():
    groups, models = [dist.new_group(), dist.new_group()], [None, None]

    def hook_of(group):
        return lambda _, bucket: dist.all_reduce(
            bucket.buffer(), group=group, async_op=True).get_future().then(
                lambda f: f.value()[0] / size())
    wraps = [wrapped(hook_of(group), group) for group in groups]

    def work(k):
        models[k] = train(wraps[k], range(STEPS), [rank()])
    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model in models:
        agrees(model.module)


@case
def futures_of_many_operations_are_set_in_order():
    group, seen, tensors = dist.new_group(), [], [torch.full((50,), float(k)) for k in range(200)]
    futures = []
    for k, tensor in enumerate(tensors):
        future = dist.all_reduce(tensor, group=group, async_op=True).get_future()
        futures.append(future.then(lambda f, k=k: seen.append(k) or f.value()[0].sum().item()))
    sums = [f.value() for f in torch.futures.wait_all(futures) and futures]
    assert sums == [50.0 * k * size() for k in range(200)]
    assert sorted(seen) == list(range(200))
    alone = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for _ in range(20)]
    chain = alone[0].get_future()
    for _ in range(100):
        chain = chain.then(lambda f: f.value())
    assert chain.wait()[0].sum().item() == 3 * size()
    assert all(work.wait() for work in alone)


@only(SEVERAL)
def a_callback_waits_for_that_of_an_earlier_operation():
    """Though its own operation had ended when the future was asked for."""
    order, may_end = [], threading.Event()

    def first_ends(future):
        if rank() == 0:
            may_end.wait(20)
        order.append(0)
    if rank() != 0:
        time.sleep(0.3)  # rank 0 asks for a future that is not set yet
    first = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(first_ends)
    second = dist.all_reduce(torch.ones(3), async_op=True)
    while not second.is_completed():
        time.sleep(0.001)
    last = second.get_future().then(lambda future: order.append(1))
    may_end.set()
    torch.futures.wait_all([first, last])
    assert order == [0, 1], order


# ---- an abort in between ------------------------------------------------------------------------


@only(SEVERAL)
def an_abort_reaches_every_chain_and_backward_and_leaves_other_groups():
    for when in (0, 1):
        group, ended = dist.new_group(), []
        calls = [0]

        def hook(_, bucket):
            calls[0] += 1
            future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
            if rank() == 0 and calls[0] == (8 if NEW else 2) + when:  # one of several in flight
                group.abort(f"enough, at {when}")

            def note(f):
                try:
                    result = f.value()[0] / size()
                    ended.append("sum")
                    return result
                except Exception as error:
                    ended.append(str(error))
                    raise
            return future.then(note).then(lambda f: f.value())
        model = wrapped(hook, group)
        beside = dist.all_reduce(torch.ones(5), async_op=True).get_future().then(
            lambda f: f.value()[0].tolist())
        raises(RuntimeError, lambda: train(model, range(STEPS), [rank()]), f"enough, at {when}")
        raises(RuntimeError, lambda: dist.all_reduce(torch.ones(1), group=group), "enough")
        assert beside.wait() == [float(size())] * 5
        assert all("sum" == e or f"enough, at {when}" in e for e in ended), ended
        del model
        agrees(train(wrapped(lambda _, bucket: dist.all_reduce(
            bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0] / size())),
            range(STEPS), [rank()]).module)


@only(SEVERAL)
def futures_in_flight_are_all_set_after_an_abort():
    group = dist.new_group()
    tensors = [torch.ones(1000) for _ in range(100)]
    futures = [dist.all_reduce(t, group=group, async_op=True).get_future() for t in tensors[:50]]
    chains = [f.then(lambda f: f.value()[0][0].item()) for f in futures]
    torch.futures.wait_all(chains)
    for f in chains:
        assert f.value() == size()
    # Rank 0 does not come to these; it aborts instead.
    if rank() > 0:
        works = [dist.all_reduce(t, group=group, async_op=True) for t in tensors[50:]]
        futures = [work.get_future() for work in works]
        chains = [f.then(lambda f: f.value()[0][0].item()) for f in futures]
    dist.barrier()
    if rank() == 0:
        group.abort("rank 0 does not come")
    else:
        for chain in chains:
            raises(RuntimeError, chain.wait, "rank 0 does not come")
        assert all(f.done() for f in futures + chains)
        for work in works:
            raises(RuntimeError, work.wait, "rank 0 does not come")
            assert work.is_completed() and not work.is_success()
    dist.barrier()


@only(SEVERAL)
def a_callback_may_abort_and_others_hear_of_it():
    group = dist.new_group()

    def stop(future):
        group.abort("a callback has seen enough")
        return future.value()
    if rank() == 0:
        chain = dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future().then(stop)
        chain.wait()
        raises(RuntimeError, lambda: dist.all_reduce(torch.ones(4), group=group), "seen enough")
    else:
        def two_sums():  # the abort may come before the first one has ended here
            dist.all_reduce(torch.ones(4), group=group)
            dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future().wait()
        raises(RuntimeError, two_sums, "a callback has seen enough")
    dist.barrier()


@only(SEVERAL)
def a_timeout_in_a_hook_is_an_error_of_backward():
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    model = wrapped(lambda _, bucket: dist.all_reduce(
        bucket.buffer(), group=group, async_op=True).get_future().then(lambda f: f.value()[0]))
    if rank() == 0:
        raises(RuntimeError, lambda: model(data(0, 0)).sum().backward(), "all_reduce", "did not finish within ")
    dist.barrier()


if __name__ == "__main__":
    run(begin, end)
