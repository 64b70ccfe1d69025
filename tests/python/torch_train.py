# SPDX-License-Identifier: Apache-2.0
"""What every rank checks of training through the backend: DistributedDataParallel with its options
and FSDP, against plain PyTorch in one process on the whole batch.

With a world of R ranks and equal shares, the mean of the ranks' gradients is that of the whole
batch, so parameters must agree up to rounding."""

import copy
import datetime
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from cases import case, only, run

import lockstep.torch

NEW = int(torch.__version__.split(".")[0]) >= 2
SHARE, STEPS = 4, 4


def begin():
    dist.init_process_group("lockstep")


def net(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.Tanh(), torch.nn.Linear(40, 24),
                               torch.nn.Tanh(), torch.nn.Linear(24, 5))


def batch(step):
    generator = torch.Generator().manual_seed(100 + step)
    count = SHARE * dist.get_world_size()
    return (torch.randn(count, 12, generator=generator),
            torch.randint(0, 5, (count,), generator=generator))


def share(step):
    x, y = batch(step)
    at = slice(dist.get_rank() * SHARE, (dist.get_rank() + 1) * SHARE)
    return x[at], y[at]


def train(model, data, steps=STEPS, parameters=None):
    """Losses of each step."""
    optimizer = torch.optim.SGD(parameters or model.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for step in range(steps):
        x, y = data(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def mean_over_ranks(losses):
    total = torch.stack(losses)
    dist.all_reduce(total, dist.ReduceOp.SUM)
    return total / dist.get_world_size()


def agrees(model, losses, reference=None, tolerance=1e-5):
    """The same losses and parameters as one process with the whole batch; equal on all ranks."""
    plain = reference if reference is not None else net()
    expected = torch.stack(train(plain, batch, len(losses)))
    assert torch.allclose(mean_over_ranks(losses), expected, atol=tolerance), (losses, expected)
    for got, want in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(got, want, atol=tolerance), (got - want).abs().max()
        first = got.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, got.detach())


@case
def ddp_learns_as_one_process_does():
    model = DDP(net(seed=dist.get_rank() + 1))  # rank 0's parameters count
    agrees(model.module, train(model, share))


@case
def ddp_with_many_buckets_as_views():
    model = DDP(net(), bucket_cap_mb=0.001, gradient_as_bucket_view=True)
    agrees(model.module, train(model, share))


@case
def ddp_with_a_static_graph():
    model = DDP(net(), static_graph=True)
    agrees(model.module, train(model, share))


class Branches(torch.nn.Module):
    """The second branch is used on some ranks, the third by nobody."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.all, self.some, self.none = (torch.nn.Linear(12, 5) for _ in range(3))

    def forward(self, x, some):
        return self.all(x) + (self.some(x) if some else 0)


@case
def ddp_finds_unused_parameters():
    model, plain = DDP(Branches(), find_unused_parameters=True), Branches()
    x, _ = share(0)
    for _ in range(2):
        model.zero_grad()
        model(x, dist.get_rank() == 0).pow(2).mean().backward()
    whole, _ = batch(0)
    size = dist.get_world_size()
    outs = [plain(whole[r * SHARE:(r + 1) * SHARE], r == 0).pow(2).mean() for r in range(size)]
    (sum(outs) / size).backward()
    assert torch.allclose(model.module.all.weight.grad, plain.all.weight.grad, atol=1e-6)
    assert torch.allclose(model.module.some.weight.grad, plain.some.weight.grad, atol=1e-6)
    assert model.module.none.weight.grad is None or not model.module.none.weight.grad.any()


@case
def ddp_without_synchronisation_adds_up():
    model, plain = DDP(net()), net()
    for step in range(3):
        x, y = share(step)
        if step < 2:
            with model.no_sync():
                torch.nn.functional.cross_entropy(model(x), y).backward()
        else:
            torch.nn.functional.cross_entropy(model(x), y).backward()
        torch.nn.functional.cross_entropy(plain(batch(step)[0]), batch(step)[1]).backward()
    for got, want in zip(model.module.parameters(), plain.parameters()):
        assert torch.allclose(got.grad, want.grad, atol=1e-5)


@only(range(2, 100))
def ddp_joins_ranks_with_fewer_batches():
    model, plain = DDP(net()), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = torch.optim.SGD(plain.parameters(), lr=0.1)
    size = dist.get_world_size()
    with model.join():
        for step in range(1 + dist.get_rank()):
            x, y = share(step)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    for step in range(size):  # what is not there counts as a gradient of zero
        x, y = batch(step)
        losses = [torch.nn.functional.cross_entropy(plain(x[r * SHARE:(r + 1) * SHARE]),
                                                    y[r * SHARE:(r + 1) * SHARE])
                  for r in range(size) if r >= step]
        own.zero_grad()
        (sum(losses) / size).backward()
        own.step()
    for got, want in zip(model.module.parameters(), plain.parameters()):
        assert torch.allclose(got, want, atol=1e-5), (got - want).abs().max()


@case
def ddp_runs_hooks_of_its_own():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    model = DDP(net())
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    agrees(model.module, train(model, share))
    model = DDP(net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    agrees(model.module, train(model, share), tolerance=5e-2)

    calls = []

    def hook(state, bucket):
        calls.append(bucket.index())
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda fut: fut.value()[0] / dist.get_world_size())
    model = DDP(net(), bucket_cap_mb=0.001)
    model.register_comm_hook(None, hook)
    agrees(model.module, train(model, share))
    assert len(set(calls)) > (1 if NEW else 0)


@case
def ddp_keeps_the_buffers_of_rank_0():
    model = DDP(torch.nn.Sequential(torch.nn.Linear(12, 6), torch.nn.BatchNorm1d(6)))
    for step in range(2):
        model(share(step)[0]).sum().backward()
    model(share(2)[0])  # buffers are sent before a forward
    seen = model.module[1].running_mean.clone()
    dist.all_reduce(seen, dist.ReduceOp.MAX)
    assert seen.shape == (6,)


@case
def ddp_with_sparse_gradients():
    torch.manual_seed(2)
    model = torch.nn.Embedding(20, 4, sparse=True)
    plain = copy.deepcopy(model)
    wrapped = DDP(model)
    size = dist.get_world_size()
    for _ in range(2):
        model.zero_grad()
        wrapped(torch.tensor([dist.get_rank(), 7])).pow(2).sum().backward()
    (sum(plain(torch.tensor([r, 7])).pow(2).sum() for r in range(size)) / size).backward()
    assert torch.allclose(model.weight.grad.to_dense(), plain.weight.grad.to_dense(), atol=1e-6)


@only(range(2, 100))
def ddp_compares_the_models():
    """The ranks that differ from rank 0 say so. Nobody tells rank 0: its broadcast waits for them
    until the deadline, or has ended as soon as its bytes are on their way (between hosts)."""
    group = dist.new_group()
    group.set_timeout(datetime.timedelta(seconds=1))
    try:
        DDP(torch.nn.Linear(3, 3 + dist.get_rank()), process_group=group)
    except RuntimeError:
        pass
    else:
        assert dist.get_rank() == 0, "no RuntimeError was raised"
    dist.barrier()


@only(range(2, 100))
def ddp_in_a_sub_group():
    groups = [dist.new_group([r]) for r in range(dist.get_world_size())]
    model = DDP(net(), process_group=groups[dist.get_rank()])
    assert len(train(model, share)) == STEPS


@case
def zero_redundancy_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model, plain = DDP(net()), net()
    sharded = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    whole = torch.optim.Adam(plain.parameters(), lr=0.01)
    for step in range(3):
        for network, optimizer, data in ((model, sharded, share), (plain, whole, batch)):
            x, y = data(step)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    for got, want in zip(model.module.parameters(), plain.parameters()):
        assert torch.allclose(got, want, atol=1e-4)


@case
def fsdp_1_learns_as_one_process_does():
    if not NEW:
        return
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
    model = FSDP(net(), device_id=torch.device("cpu"), use_orig_params=True)
    losses, plain = train(model, share), net()
    expected = torch.stack(train(plain, batch))
    assert torch.allclose(mean_over_ranks(losses), expected, atol=1e-5)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = model.state_dict()
    for name, want in plain.state_dict().items():
        assert torch.allclose(state[name], want, atol=1e-5), name


@case
def fully_shard_learns_as_one_process_does():
    if not NEW:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model, plain = net(), net()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = train(model, share)
    expected = torch.stack(train(plain, batch))
    assert torch.allclose(mean_over_ranks(losses), expected, atol=1e-5)
    for got, want in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(got.full_tensor(), want, atol=1e-5)


if __name__ == "__main__":
    run(begin, dist.destroy_process_group)
