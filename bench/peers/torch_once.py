# SPDX-License-Identifier: Apache-2.0
"""A rank of a launch that launches.py times: one small sum; rank 0 prints when the last rank had it
(monotonic clock, nanoseconds). torch_once.py BACKEND, under torchrun or `lockstep run`."""

import sys
import time

import torch
import torch.distributed as dist


def main():
    torch.set_num_threads(1)
    dist.init_process_group(sys.argv[1])
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == dist.get_world_size()
    at = torch.tensor([time.monotonic()], dtype=torch.float64)
    dist.all_reduce(at, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(int(at.item() * 1e9), flush=True)
    dist.destroy_process_group()


main()
