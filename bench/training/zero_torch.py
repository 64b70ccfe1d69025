# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch in bench/compare_zero.py: steps of the GPT of contender_torch.py whose training state two ranks share,
over gloo, or of the whole GPT on each rank; parallel_ours.c does the same. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say
which rank.

    zero_torch.py NAME ROWS MICRO FORMS WARMUPS STEPS ROUNDS GATE JSON

Forms: alone; zero1, DistributedDataParallel with ZeroRedundancyOptimizer; zero2 and zero3, FSDP2 (fully_shard) of each block
and of the rest, with reshard_after_forward False and True. A step's batch has ROWS times MICRO samples. The optimizer is
fused. Rank R waits for a byte from the pipe GATE/R before each turn, rank 0 writes one to GATE/done after the warm-up and
after each turn.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import turns_torch
from contender_torch import NETS, parameter
from gpt_torch import Gpt

ADAMW = {"lr": 1e-4, "fused": True}


def network(name):
    """With the values of contender_torch's."""
    net = NETS[name]()
    net.p = {n: parameter(n, shape, True) for n, shape in net.shapes.items()}
    return net, Gpt(net, 1)


def shard(model, after_forward):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh, reshard_after_forward=after_forward)


def distribute(form, model):
    """The model and its optimizer."""
    if form == "zero1":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **ADAMW)
    if form in ("zero2", "zero3"):
        shard(model, form == "zero3")
    return model, torch.optim.AdamW(model.parameters(), **ADAMW)


class Contender(turns_torch.Contender):
    def __init__(self, form, name, count):
        super().__init__()
        net, model = network(name)
        self.form, self.loss = form, 0.0
        self.x, self.y = net.batch(count)
        self.model, self.optimizer = distribute(form, model)

    def step(self):
        """Seconds."""
        begin = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(self.x).flatten(0, 1), self.y.flatten())
        loss.backward()
        self.optimizer.step()
        self.loss = loss.item()
        return time.perf_counter() - begin

    def row(self):
        return {"form": self.form, "parameters": dist.get_world_size() * sum(p.numel() for p in self.model.parameters()),
                "loss": self.loss, "slowest_ms": self.rounds}


def main():
    name, rows, micro, forms, *rest = sys.argv[1:]
    turns_torch.run(lambda: [Contender(form, name, int(rows) * int(micro)) for form in forms.split(",")], *rest)


main()
