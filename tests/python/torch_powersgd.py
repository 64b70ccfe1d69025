# SPDX-License-Identifier: Apache-2.0
"""A rank of PyTorch's DDP with powerSGD_hook, on the gradients that powersgd_steps.c wrote, from the same first Q.

    torch_powersgd.py FOLDER RANK START

Prints the largest difference of an average from Lockstep's, and the largest average.
"""

import datetime
import math
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel as DDP

SHAPES = {"a": (24, 16), "bias": (7,), "b": (10, 30), "c": (12, 2, 3, 3)}
COUNTS = [math.prod(shape) for shape in SHAPES.values()]
STEPS = 20


def numbers(path):
    return torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.float64)


class Net(torch.nn.Module):
    """Its gradients are what it is given."""

    def __init__(self):
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)))

    def forward(self, gradients):
        return sum((value * gradient.view_as(value)).sum() for value, gradient in zip(self.parameters(), gradients))


def first_q(folder, rank):
    """{(columns, rank): Q} of each matrix, in place of torch.randn's in the hook."""
    file, found = numbers(folder / "q"), {}
    for shape in (shape for shape in SHAPES.values() if len(shape) > 1):
        columns = math.prod(shape[1:])
        of_rank = min(rank, shape[0], columns)
        if shape[0] * columns > of_rank * (shape[0] + columns):
            found[columns, of_rank], file = file[:of_rank * columns].view(of_rank, columns).t(), file[of_rank * columns:]
    assert len(file) == 0
    return found


def main(folder, rank, start):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    given = first_q(folder, rank)

    class Random:
        """The module torch, but for randn."""

        def __getattr__(self, name):
            return (lambda batch, *shape, **_: given[shape].unsqueeze(0)) if name == "randn" else getattr(torch, name)

    powersgd.torch = Random()
    net = DDP(Net(), bucket_cap_mb=100)
    net.register_comm_hook(powersgd.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=start,
                                                  min_compression_rate=1), powersgd.powerSGD_hook)
    gradients = numbers(folder / f"gradients-{dist.get_rank()}").view(STEPS, -1)
    averages = numbers(folder / "averages").view(STEPS, -1)
    worst = 0.0
    for step in range(STEPS):
        net.zero_grad()
        net(gradients[step].split(COUNTS)).backward()
        found = torch.cat([value.grad.reshape(-1) for value in net.module.parameters()])
        worst = max(worst, (found - averages[step]).abs().max().item())
    # In one write: the ranks share the output.
    sys.stdout.write(f"WORST {worst:.3g} OF {averages.abs().max().item():.3g}\n")
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # PyTorch 2.13 sometimes ends in std::terminate when it joins gloo's threads at its end


main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
