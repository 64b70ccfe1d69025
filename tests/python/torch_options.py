# SPDX-License-Identifier: Apache-2.0
"""What every rank checks of the options of DistributedDataParallel and of sharded training, each
against plain PyTorch in one process on the whole batch (torch_train.py has the rest)."""

import copy
import pathlib
import sys
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from cases import case, only, run
from torch_train import NEW, SHARE, agrees, batch, mean_over_ranks, net, share, train

import lockstep.torch


def begin():
    warnings.simplefilter("ignore")
    dist.init_process_group("lockstep")


def learns(model, inner=None, tolerance=1e-5):
    agrees(inner if inner is not None else model.module, train(model, share), tolerance=tolerance)


# ---- DistributedDataParallel --------------------------------------------------------------------


@case
def ddp_options_of_every_pytorch():
    for options in ({"bucket_cap_mb": 1e-6}, {"broadcast_buffers": False},
                    {"gradient_as_bucket_view": True, "find_unused_parameters": True},
                    {"gradient_as_bucket_view": True, "static_graph": True}):
        learns(DDP(net(), **options))


@case
def ddp_options_of_new_ones():
    if not NEW:
        return
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    known = DDP.__init__.__code__.co_varnames
    for options in ({"init_sync": False}, {"device_mesh": mesh},
                    {"find_unused_parameters": True, "skip_all_reduce_unused_params": True},
                    {"bucket_cap_mb_list": [1e-6, 1.0]}, {"batched_grad_copy": True}):
        if set(options) <= set(known):
            learns(DDP(net(), **options))


@case
def ddp_ignores_what_it_is_told_to():
    model = net()
    names = [name for name, _ in model.named_parameters()][-2:]
    DDP._set_params_and_buffers_to_ignore_for_model(model, names)
    wrapped = DDP(model)
    x, y = share(0)
    torch.nn.functional.cross_entropy(wrapped(x), y).backward()
    grads = [model.get_parameter(name).grad for name in names]
    alone = net()
    torch.nn.functional.cross_entropy(alone(x), y).backward()
    for name, grad in zip(names, grads):  # the rank's own, no mean
        assert torch.allclose(grad, alone.get_parameter(name).grad, atol=1e-6)


@case
def ddp_with_hooks_of_pytorchs():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    model = DDP(net())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2,
                                        min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    assert torch.isfinite(torch.stack(train(model, share, 5))).all()
    same_everywhere(model.module)
    if NEW:
        model = DDP(net())
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        learns(model)


def same_everywhere(model):
    for parameter in model.parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, parameter.detach())


@case
def ddp_averages_models_now_and_then():
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averager = PeriodicModelAverager(period=2, warmup_steps=0)
    for step in range(3):
        x, y = share(step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    same_everywhere(model)


@case
def ddp_runs_twice_forward_before_backward():
    if not NEW:  # 1.13 says itself that the graph has changed, over gloo, too
        return
    model, plain = DDP(net(), static_graph=True), net()
    for run_of, data in ((model, share), (plain, batch)):
        x, y = data(0)
        loss = torch.nn.functional.cross_entropy
        (loss(run_of(x), y) + loss(run_of(2 * x), y)).backward()
    for got, want in zip(model.module.parameters(), plain.parameters()):
        assert torch.allclose(got.grad, want.grad, atol=1e-5)


# ---- sharded training ---------------------------------------------------------------------------


@case
def fsdp_1_with_every_strategy():
    if not NEW:
        return
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
    from torch.distributed.fsdp import ShardingStrategy as S
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    expected = torch.stack(train(net(), batch))
    for options in ({"sharding_strategy": S.SHARD_GRAD_OP}, {"sharding_strategy": S.NO_SHARD},
                    {"auto_wrap_policy": ModuleWrapPolicy({torch.nn.Linear})},
                    {"forward_prefetch": True, "limit_all_gathers": False}):
        model = FSDP(net(), device_id=torch.device("cpu"), use_orig_params=True, **options)
        losses = mean_over_ranks(train(model, share))
        assert torch.allclose(losses, expected, atol=1e-5), (options, losses, expected)
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model = FSDP(net(), device_id=torch.device("cpu"), mixed_precision=half)
    losses = mean_over_ranks([loss.float() for loss in train(model, share)])
    assert torch.allclose(losses, expected, atol=0.1), (losses, expected)


@case
def fully_shard_with_its_options():
    if not NEW:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    size = dist.get_world_size()
    meshes = [init_device_mesh("cpu", (size,))]
    if size % 2 == 0:  # replicas of shards
        meshes.append(init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("copies", "shards")))
    expected = torch.stack(train(net(), batch))
    for mesh in meshes:
        for options in ({"reshard_after_forward": False}, {"reshard_after_forward": True}):
            model = net()
            for layer in [l for l in model if isinstance(l, torch.nn.Linear)] + [model]:
                fully_shard(layer, mesh=mesh, **options)
            losses = mean_over_ranks(train(model, share))
            assert torch.allclose(losses, expected, atol=1e-5), (options, losses, expected)
    model = fully_shard(net(), mesh=meshes[0], mp_policy=MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    losses = mean_over_ranks([loss.float() for loss in train(model, share)])
    assert torch.allclose(losses, expected, atol=0.1), (losses, expected)


@case
def tensor_parallel_layers():
    if not NEW:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)
    size = dist.get_world_size()
    torch.manual_seed(1)
    plain = torch.nn.Sequential(torch.nn.Linear(6, 4 * size), torch.nn.Tanh(),
                                torch.nn.Linear(4 * size, 3))
    model = parallelize_module(copy.deepcopy(plain), init_device_mesh("cpu", (size,)),
                               {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(4))
    assert torch.allclose(model(x), plain(x), atol=1e-5)
    model(x).pow(2).sum().backward()
    plain(x).pow(2).sum().backward()
    for got, want in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(got.grad.full_tensor(), want.grad, atol=1e-4)


@case
def checkpoints_of_pytorchs():
    if not NEW:
        return
    import shutil
    import tempfile
    import torch.distributed.checkpoint as dcp
    folder = [tempfile.mkdtemp(prefix="lockstep-dcp-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    model = DDP(net())
    train(model, share, 2)
    dcp.save({"model": model.module.state_dict()}, checkpoint_id=folder[0])
    other = net(seed=9)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=folder[0])
    for name, value in model.module.state_dict().items():
        assert torch.equal(state["model"][name], value)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])


if __name__ == "__main__":
    run(begin, dist.destroy_process_group)
