"""Shared by ddp_torch.py, pipeline_torch.py and tensor_torch.py: the contenders of a rank, which take turns when bench/turns.py says."""

import json
import os
import statistics

import torch
import torch.distributed as dist


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


def run(make, warmups, steps, rounds, gate, path):
    """`make()` returns the contenders, whose rows rank 0 writes to the path."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    contenders = make()
    for contender in contenders:
        for _ in range(int(warmups)):
            contender.step()
    for turn in range(int(rounds)):
        wait_for_turn(gate)
        for i in range(len(contenders)):
            contenders[(i + turn) % len(contenders)].turn(int(steps))
    wait_for_turn(gate)
    found = [contender.row() for contender in contenders]
    if dist.get_rank() == 0:
        with open(path, "w") as file:
            json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()
