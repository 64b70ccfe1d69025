# SPDX-License-Identifier: Apache-2.0
"""Shared by ddp_torch.py, pipeline_torch.py, tensor_torch.py and zero_torch.py: the contenders of a rank, which take turns when bench/turns.py says."""

import ctypes
import json
import os
import statistics

import torch
import torch.distributed as dist

from contender_torch import others_mb, peak_mb, reset_peak, status_mb


class Contender:
    """One has step(), which returns its seconds, and row(), which all ranks call."""

    def __init__(self):
        self.rounds = []

    def turn(self, steps):
        """Keeps the median over the steps of the slowest rank's time, in milliseconds."""
        dist.barrier()
        self.step()  # the caches have another contender's numbers
        times = torch.tensor([self.step() * 1e3 for _ in range(steps)], dtype=torch.float64)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        self.rounds.append(statistics.median(times.tolist()))


def wait_for_turn(gate):
    dist.barrier()
    if dist.get_rank() == 0:
        with open(f"{gate}/done", "wb") as file:
            file.write(b".")
    with open(f"{gate}/{dist.get_rank()}", "rb", buffering=0) as file:
        file.read(1)


def forget():
    """Memory that making the networks took for a while goes back to the system, and the peak begins anew."""
    ctypes.CDLL(None).malloc_trim(0)
    reset_peak()


def load():
    """A step of one layer, so that the libraries' memory is there before that of the networks."""
    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    layer(torch.ones(8, 8)).sum().backward()
    optimizer.step()


def run(make, warmups, steps, rounds, gate, path):
    """`make()` returns the contenders, whose rows rank 0 writes to the path, each with the peak memory of all in the turns,
    less what there was before them; of the larger rank."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    load()
    before, others_before = status_mb("VmRSS"), others_mb()
    contenders = make()
    for contender in contenders:
        for _ in range(int(warmups)):
            contender.step()
    forget()
    for turn in range(int(rounds)):
        wait_for_turn(gate)
        for i in range(len(contenders)):
            contenders[(i + turn) % len(contenders)].turn(int(steps))
    wait_for_turn(gate)
    peak = peak_mb() - before
    peaks = torch.tensor([peak, peak - (others_mb() - others_before)])
    dist.all_reduce(peaks, dist.ReduceOp.MAX)
    found = [{**contender.row(), "peak_mb": peaks[0].item(), "share_mb": peaks[1].item()} for contender in contenders]
    if dist.get_rank() == 0:
        with open(path, "w") as file:
            json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()
