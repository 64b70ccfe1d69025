# SPDX-License-Identifier: Apache-2.0
"""A small classifier trained by several processes with PyTorch's DistributedDataParallel.

Nothing here is Lockstep's but the backend's name (give --backend gloo to compare):

    lockstep run -n 2 python python/examples/ddp.py
    torchrun --nproc-per-node 2 python/examples/ddp.py

PyTorch from 2.5 on knows the name once the package is installed (pip install ./python); for older
ones: lockstep run -n 2 python -m lockstep.torch python/examples/ddp.py
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def batches(count, seed):
    """Points in the plane, to be told apart by the circle that they lie in."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(64, 2, generator=generator)
        yield x, (x.norm(dim=1) > 1.2).long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="lockstep")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(batches(options.steps, seed=dist.get_rank()), 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"step {step:4}  loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
