# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch in bench/compare_ddp.py: steps of a network of contender_torch.py under gloo, with each way
of reducing gradients in turns; `lockstep bench ddp` does the same. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say
which rank.

    ddp_torch.py NAME BATCH MODES WARMUPS STEPS ROUNDS GATE JSON [channels_last]

MODES: local, naive, flat, default (DistributedDataParallel's own size of buckets), or a size in MB. Optimizers are
fused, gradients views of the buckets. Rank R waits for a byte from the pipe GATE/R before each turn, rank 0 writes
one to GATE/done after the warm-up and after each turn.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.parallel import DistributedDataParallel

import turns_torch
from contender_torch import build


class Module(torch.nn.Module):
    """A network of contender_torch.py, whose parameters DistributedDataParallel can find."""

    def __init__(self, net):
        super().__init__()
        self.loss = net.loss
        for name, parameter in net.p.items():
            parameter = torch.nn.Parameter(parameter.detach())
            net.p[name] = parameter
            self.register_parameter(name.replace(".", "_"), parameter)

    def forward(self, x, y):
        return self.loss(x, y)


def reduce_naive(parameters):
    """One all-reduce for each parameter."""
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def reduce_flat(parameters):
    """One all-reduce of all gradients."""
    gradients = [parameter.grad for parameter in parameters]
    flat = _flatten_dense_tensors(gradients)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, average in zip(parameters, _unflatten_dense_tensors(flat, gradients)):
        parameter.grad = average


REDUCE = {"naive": reduce_naive, "flat": reduce_flat}


class Contender(turns_torch.Contender):
    def __init__(self, mode, name, count, channels_last):
        super().__init__()
        net, optimizer = build(name, True, channels_last, True)
        self.mode, self.net = mode, Module(net)
        self.parameters = list(self.net.parameters())
        optimizer.param_groups[0]["params"] = self.parameters
        self.optimizer = optimizer
        self.x, self.y = net.batch(count)
        if channels_last:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        if mode == "default" or mode[0].isdigit():
            size = {} if mode == "default" else {"bucket_cap_mb": float(mode) * 1e6 / 2**20}
            self.net = DistributedDataParallel(self.net, gradient_as_bucket_view=True, **size)
        self.losses = []

    def step(self):
        """Seconds."""
        begin = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.net(self.x, self.y)
        loss.backward()
        REDUCE.get(self.mode, lambda _: None)(self.parameters)
        self.optimizer.step()
        self.losses.append(loss.item())
        return time.perf_counter() - begin

    def row(self):
        return {"mode": self.mode, "slowest_ms": self.rounds, "losses": self.losses,
                "parameters": sum(p.numel() for p in self.parameters)}


def main():
    name, count, modes, warmups, steps, rounds, gate, path, *flags = sys.argv[1:]
    turns_torch.run(lambda: [Contender(mode, name, int(count), "channels_last" in flags) for mode in modes.split(",")],
                    warmups, steps, rounds, gate, path)


main()
