# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch in bench/compare_pipeline.py: steps of the GPT of contender_torch.py in pipeline stages over gloo
(torch.distributed.pipelining), with each schedule in turns; parallel_ours.c does the same. RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT say which rank.

    pipeline_torch.py NAME ROWS MICRO SCHEDULES WARMUPS STEPS ROUNDS GATE JSON

A step has MICRO micro-batches of ROWS samples. The optimizer is fused. Rank R waits for a byte from the pipe GATE/R
before each turn, rank 0 writes one to GATE/done after the warm-up and after each turn.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F

import turns_torch
from contender_torch import build

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Stage(torch.nn.Module):
    """Parts first … last-1 of a GPT, whose parts are the embedding, each block, and the head."""

    def __init__(self, net, first, last):
        super().__init__()
        self.net, self.parts = net, range(first, last)
        for name in self.names():
            parameter = torch.nn.Parameter(net.p[name].detach())
            net.p[name] = parameter
            self.register_parameter(name.replace(".", "_"), parameter)

    def names(self):
        for name in self.net.shapes:
            if name in ("tokens.weight", "positions"):
                part = 0
            else:
                part = int(name.split(".")[1]) + 1 if name.startswith("blocks.") else self.net.layers + 1
            if part in self.parts:
                yield name

    def forward(self, x):
        net = self.net
        for part in self.parts:
            if part == 0:
                x = F.embedding(x, net.p["tokens.weight"]) + net.p["positions"][:x.shape[1]]
            elif part <= net.layers:
                x = net.block(f"blocks.{part - 1}", x)
            else:
                x = net.lin("head", net.norm("norm", x))
        return x


def loss_of(y, target):
    return F.cross_entropy(y.view(-1, y.shape[-1]), target.view(-1))


class Contender(turns_torch.Contender):
    def __init__(self, schedule, name, rows, micro):
        super().__init__()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        net, self.optimizer = build(name, True, False, True)
        parts, self.name = net.layers + 2, schedule
        module = Stage(net, parts * rank // ranks, parts * (rank + 1) // ranks)
        self.parameters = list(module.parameters())
        self.optimizer.param_groups[0]["params"] = self.parameters
        self.x, self.y = net.batch(rows * micro)
        stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
        self.schedule = SCHEDULES[schedule](stage, micro, loss_fn=loss_of)
        self.last, self.loss = rank == ranks - 1, 0.0

    def step(self):
        """Seconds."""
        begin = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        inputs, losses = [self.x] if dist.get_rank() == 0 else [], []
        self.schedule.step(*inputs, **({"target": self.y, "losses": losses} if self.last else {}), return_outputs=False)
        self.optimizer.step()
        self.loss = sum(loss.item() for loss in losses) / max(1, len(losses))
        return time.perf_counter() - begin

    def row(self):
        numbers = torch.tensor([sum(p.numel() for p in self.parameters), self.loss], dtype=torch.float64)
        dist.all_reduce(numbers)
        return {"form": self.name, "parameters": int(numbers[0]), "loss": numbers[1].item(), "slowest_ms": self.rounds}


def main():
    name, rows, micro, schedules, *rest = sys.argv[1:]
    turns_torch.run(lambda: [Contender(schedule, name, int(rows), int(micro)) for schedule in schedules.split(",")], *rest)


main()
