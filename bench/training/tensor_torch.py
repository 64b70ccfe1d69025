# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch in bench/compare_tensor.py: steps of the GPT of contender_torch.py under torch.distributed.tensor's
parallelize_module over gloo, and of the whole GPT on each rank, in turns; parallel_ours.c does the same. RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT say which rank.

    tensor_torch.py NAME ROWS MICRO FORMS WARMUPS STEPS ROUNDS GATE JSON

A form is alone or tensor. A step's batch has ROWS times MICRO samples. The optimizer is fused. Rank R waits for a byte
from the pipe GATE/R before each turn, rank 0 writes one to GATE/done after the warm-up and after each turn.

The plan is that of PyTorch's tutorial without sequence parallelism, the vocabulary included: the embedding's table by rows,
the head by columns, the loss by loss_parallel. One layer makes queries, keys and values, as in Lockstep's model: its rows
are in the order of the ranks that get them, and its input's gradient is summed once, not three times.
"""

import contextlib
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional as F

import turns_torch
from contender_torch import build
from gpt_torch import Gpt


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def cut(model):
    """Colwise and rowwise layers whose results are local tensors, and logits that remain cut."""
    plan = {"blocks.*.qkv": ColwiseParallel(), "blocks.*.proj": RowwiseParallel(),
            "blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel(),
            "tokens": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(use_local_output=False)}
    parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)


class Contender(turns_torch.Contender):
    def __init__(self, form, name, count):
        super().__init__()
        net, self.optimizer = build(name, True, False, True)
        self.form, self.loss, tensor = form, 0.0, form == "tensor"
        self.model = Gpt(net, dist.get_world_size() if tensor else 1)
        self.losses = loss_parallel if tensor else contextlib.nullcontext
        if tensor:
            cut(self.model)
        parameters = list(self.model.parameters())
        # The fused kernel takes either kind, not both at once.
        self.optimizer.param_groups[0]["params"] = [p for p in parameters if not isinstance(p, DTensor)]
        if tensor:
            self.optimizer.add_param_group({"params": [p for p in parameters if isinstance(p, DTensor)]})
        self.x, self.y = net.batch(count)

    def step(self):
        """Seconds."""
        begin = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        with self.losses():
            loss = F.cross_entropy(self.model(self.x).flatten(0, 1), self.y.flatten())
            loss.backward()
        self.optimizer.step()
        self.loss = local(loss).item()
        return time.perf_counter() - begin

    def row(self):
        kept = torch.tensor(sum(local(p).numel() for p in self.model.parameters()))
        dist.all_reduce(kept)
        return {"form": self.form, "parameters": kept.item(), "loss": self.loss, "slowest_ms": self.rounds}


def main():
    name, rows, micro, forms, *rest = sys.argv[1:]
    turns_torch.run(lambda: [Contender(form, name, int(rows) * int(micro)) for form in forms.split(",")], *rest)


main()
