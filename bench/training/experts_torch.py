# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch in bench/compare_experts.py: steps of a layer of experts whose tokens two ranks exchange by
all_to_all_single, over gloo, or of a layer with half of the experts on each rank by itself; parallel_ours.c does the same.
RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which rank.

    experts_torch.py NAME ROWS MICRO FORMS WARMUPS STEPS ROUNDS GATE JSON

Forms: alone; experts, each rank with half of them. A token visits two; its rows are sorted by expert, counts are exchanged
before rows, and the rows of all ranks for an expert are one product. Gradients of the gate and of the last layer are summed
in one all_reduce. The optimizer is fused. Rank R waits for a byte from the pipe GATE/R before each turn, rank 0 writes one to
GATE/done after the warm-up and after each turn.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn import functional as F

import turns_torch
from contender_torch import parameter, values, whole

SIZES = {"experts": (384, 8), "experts-tiny": (32, 4)}  # dim, experts
TOP_K, CLASSES = 2, 10


def by_expert(rows, counts):
    """Rows by (rank, expert) -> by (expert, rank), and the order that undoes it; counts [ranks][experts]."""
    flat = torch.tensor(counts).flatten()
    ends = flat.cumsum(0)
    blocks = [torch.arange(end - count, end) for end, count in zip(ends.tolist(), flat.tolist())]
    own = len(counts[0])
    order = torch.cat([blocks[rank * own + e] for e in range(own) for rank in range(len(counts))])
    return rows.index_select(0, order), torch.argsort(order)


class Experts(nn.Module):
    """Of `experts` this rank has 1/`ranks`."""

    def __init__(self, dim, experts, ranks):
        super().__init__()
        self.experts, self.ranks, self.own = experts, ranks, experts // ranks
        shapes = {"gate.weight": (experts, dim), "w1": (experts, 4 * dim, dim), "b1": (experts, 4 * dim),
                  "w2": (experts, dim, 4 * dim), "b2": (experts, dim)}
        first = self.own * dist.get_rank() if ranks > 1 else 0
        for name, shape in shapes.items():
            value = parameter(f"0.{name}", shape, True)
            part = value if name == "gate.weight" else value[first:first + self.own].clone()
            self.register_parameter(name.replace(".", "_"), nn.Parameter(part))

    def run(self, rows, counts):
        """Rows by expert, counts of each."""
        parts = rows.split(counts)
        done = [F.linear(F.gelu(F.linear(part, self.w1[e], self.b1[e])), self.w2[e], self.b2[e])
                for e, part in enumerate(parts)]
        return torch.cat(done)

    def exchanged(self, rows, counts):
        """To the experts of all ranks and back; counts [experts] of this rank's rows."""
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        send = counts.view(self.ranks, self.own).sum(1).tolist()
        come = theirs.view(self.ranks, self.own)
        receive = come.sum(1).tolist()
        arrived = all_to_all_single(rows.new_empty(sum(receive), rows.shape[1]), rows, receive, send)
        ordered, back = by_expert(arrived, come.tolist())
        done = self.run(ordered, come.sum(0).tolist()).index_select(0, back)
        return all_to_all_single(rows.new_empty(sum(send), rows.shape[1]), done, send, receive)

    def forward(self, x):
        weights, chosen = F.softmax(F.linear(x, self.gate_weight), -1).topk(TOP_K)
        weights = weights / weights.sum(-1, keepdim=True)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.experts)
        rows = x.index_select(0, order // TOP_K)
        done = self.exchanged(rows, counts) if self.ranks > 1 else self.run(rows, counts.tolist())
        placed = torch.empty_like(done).index_copy(0, order, done).view(*chosen.shape, -1)
        return (placed * weights.unsqueeze(-1)).sum(1)


class Net(nn.Module):
    def __init__(self, dim, experts, ranks):
        super().__init__()
        self.layer, self.head = Experts(dim, experts, ranks), nn.Linear(dim, CLASSES)
        self.head.load_state_dict({name: parameter(f"1.{name}", value.shape, True)
                                   for name, value in self.head.state_dict().items()})

    def forward(self, x):
        return self.head(self.layer(x))

    def shared(self):
        return [self.layer.gate_weight, *self.head.parameters()]

    def owned(self):
        return [self.layer.w1, self.layer.b1, self.layer.w2, self.layer.b2]


class Contender(turns_torch.Contender):
    def __init__(self, form, name, count):
        super().__init__()
        dim, experts = SIZES[name]
        self.form, self.loss, self.ranks = form, 0.0, dist.get_world_size() if form == "experts" else 1
        self.model = Net(dim, experts if self.ranks > 1 else experts // 2, self.ranks)
        self.x, self.y = values("x", count * dim).float().view(count, -1), whole("y", (count,), CLASSES).long()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def average(self):
        """Of experts the rows of all ranks have come already."""
        shared = [p.grad for p in self.model.shared()]
        flat = torch.cat([grad.flatten() for grad in shared])
        dist.all_reduce(flat)
        flat /= self.ranks
        for grad, part in zip(shared, flat.split([grad.numel() for grad in shared])):
            grad.copy_(part.view_as(grad))
        for p in self.model.owned():
            p.grad /= self.ranks

    def step(self):
        """Seconds."""
        begin = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        if self.ranks > 1:
            self.average()
        self.optimizer.step()
        self.loss = loss.item()
        return time.perf_counter() - begin

    def row(self):
        count = torch.tensor(sum(p.numel() for p in self.model.parameters()))
        dist.all_reduce(count)
        return {"form": self.form, "parameters": count.item(), "loss": self.loss, "slowest_ms": self.rounds}


def main():
    name, rows, micro, forms, *rest = sys.argv[1:]
    turns_torch.run(lambda: [Contender(form, name, int(rows) * int(micro)) for form in forms.split(",")], *rest)


main()
