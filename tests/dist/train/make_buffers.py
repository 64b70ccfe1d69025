#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the table of test_buffers.c: running statistics under PyTorch's DistributedDataParallel.

    python3 tests/dist/train/make_buffers.py        needs PyTorch; the stored numbers are 2.13's

Two ranks (gloo), three steps of two micro-batches, the first of each in no_sync. Each row is what a rank's
batch norm holds when a forward pass reaches it: running_mean, running_var, num_batches_tracked.
"""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

STEPS, MICRO, RANKS, BATCH, CHANNELS, EDGE = 3, 2, 2, 2, 2, 2


def batch(rank, step, micro):
    """test_buffers.c has the same formula."""
    count = BATCH * CHANNELS * EDGE * EDGE
    first = 13 * step + 29 * micro + 31 * rank
    values = [((7 * i * i + first) % 17) / 4.0 + rank for i in range(count)]
    return torch.tensor(values).reshape(BATCH, CHANNELS, EDGE, EDGE)


def work(rank, port, rows):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(rank)
    norm = torch.nn.BatchNorm2d(CHANNELS)
    net = torch.nn.Sequential(norm, torch.nn.Conv2d(CHANNELS, 1, 1))
    seen = []
    norm.register_forward_pre_hook(lambda m, _: seen.append(
        [*m.running_mean.tolist(), *m.running_var.tolist(), m.num_batches_tracked.item()]))
    ddp = DistributedDataParallel(net)
    for step in range(STEPS):
        for micro in range(MICRO):
            with contextlib.nullcontext() if micro + 1 == MICRO else ddp.no_sync():
                ddp(batch(rank, step, micro)).square().mean().backward()
    rows[rank] = seen
    dist.destroy_process_group()


def main():
    with mp.Manager() as manager:
        rows = manager.dict()
        mp.spawn(work, args=(29500 + os.getpid() % 1000, rows), nprocs=RANKS)
        for rank in range(RANKS):
            print("    {" + ",\n     ".join(
                "{" + ", ".join(f"{v:.7g}" for v in row) + "}" for row in rows[rank]) + "},")


if __name__ == "__main__":
    main()
