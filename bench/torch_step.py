# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/compare_torch_backend.py. Several models are trained in one process, each by
DistributedDataParallel over a group of its own backend, and one by itself without communication;
they take turns, a few steps each. Rank 0 prints a line of JSON for each model size."""

import argparse
import datetime
import json
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LAYERS, BATCH, WARM_UP = 3, 16, 5


def network(width):
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS)
              for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


class Contender:
    def __init__(self, name, width, group):
        self.name = name
        net = network(width)
        self.bytes = sum(p.numel() * p.element_size() for p in net.parameters())
        self.net = DistributedDataParallel(net, process_group=group) if group is not None else net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        self.turns = []  # milliseconds a step

    def step(self, x, y):
        """Milliseconds, and the loss."""
        dist.barrier()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return (time.perf_counter() - begin) * 1e3, loss.item()

    def turn(self, x, y, steps):
        """The median over steps of the slowest rank's time. Keeps the losses of the ranks' last step."""
        times, losses = map(torch.tensor, zip(*(self.step(x, y) for _ in range(steps))))
        dist.all_reduce(times, dist.ReduceOp.MAX)
        last = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(last, losses[-1:].float())
        self.losses = [loss.item() for loss in last]
        return times.median().item()


def agree(value):
    """Rank 0's number, on all ranks."""
    tensor = torch.tensor([float(value)])
    dist.broadcast(tensor, 0)
    return tensor.item()


def measure(width, groups, options):
    x, y = torch.randn(BATCH, width), torch.randint(0, 10, (BATCH,))
    contenders = [Contender(name, width, group) for name, group in groups.items()]
    begin = time.monotonic()
    for contender in contenders:
        slowest = contender.turn(x, y, WARM_UP)
    steps = int(agree(min(20, max(3, 250 / slowest))))
    turn = 0
    while agree(turn < options.turns and (turn < 3 or time.monotonic() - begin < options.seconds)):
        order = contenders if turn % 2 == 0 else contenders[::-1]
        for contender in order:
            contender.turns.append(contender.turn(x, y, steps))
        turn += 1
    return {"bytes": contenders[0].bytes, "steps": steps, "losses": {c.name: c.losses for c in contenders},
            "turns": {c.name: c.turns for c in contenders}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--widths", required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("lockstep", timeout=datetime.timedelta(minutes=5))
    groups = {"gloo": dist.new_group(backend="gloo"), "lockstep": dist.new_group(), "alone": None}
    for width in map(int, options.widths.split(",")):
        row = measure(width, groups, options)
        if dist.get_rank() == 0:
            print("row " + json.dumps(row), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
