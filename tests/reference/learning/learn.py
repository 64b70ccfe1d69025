#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Learns what lessons.py lists with PyTorch, as one would write it there, and stores how that went.

    learn.py --digits FOLDER [CASE...]     numbers.json beside it; FOLDER is scripts/make_digits_idx.py's
    learn.py --digits FOLDER --print CASE  only prints, to be held beside what is stored

float32, or bfloat16 by autocast; one thread. Several workers are shares of each batch: their gradients are
averaged, batch norm takes each share's own statistics, and the running ones are worker 0's, as
DistributedDataParallel has it.
"""

import argparse
import json
import pathlib
import struct

import torch
import torch.nn.functional as F
from torch import nn

import lessons


# ---- models -----------------------------------------------------------------------------------

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 4).flatten(1))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.norm2, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, heads, dim, context):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, dim), nn.Parameter(torch.empty(context, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 256, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions))).transpose(1, 2)


def module(case, seed):
    """A model with the first weights of that seed."""
    more = dict(zip(case.more[::2], case.more[1::2]))
    net = (Mlp() if case.model == "mlp" else Cnn() if case.model == "cnn" else
           Gpt(*(more[f"--{name}"] for name in ("layers", "heads", "dim", "context"))))
    with torch.no_grad():
        for name, p in net.named_parameters():
            assert tuple(p.shape) == case.shapes[name], name
            p.copy_(torch.tensor(lessons.parameter(name, p.shape, seed)).reshape(p.shape))
    return net


# ---- data -------------------------------------------------------------------------------------

def idx(path):
    raw = path.read_bytes()
    shape = struct.unpack(f">{raw[3]}I", raw[4:4 + 4 * raw[3]])
    return torch.frombuffer(bytearray(raw[4 + 4 * raw[3]:]), dtype=torch.uint8).reshape(shape)


def images(folder, part):
    x, y = idx(folder / f"{part}-images.idx"), idx(folder / f"{part}-labels.idx")
    return x.float().div(255).unsqueeze(1), y.long()


def windows(text, context, stride):
    rows = text.unfold(0, context + 1, stride)
    return rows[:, :-1], rows[:, 1:]


def data(case, digits):
    """Samples to learn from and to be judged by: (x, y) each."""
    if case.program == "train_image":
        return images(digits, "train"), images(digits, "test")
    context = case.more[case.more.index("--context") + 1]
    text = torch.tensor(list(lessons.TEXT.read_bytes()))
    held_out = len(text) // 10
    return windows(text[:-held_out], context, 1), windows(text[-held_out:], context, context)


# ---- learning ---------------------------------------------------------------------------------

def optimizer(case, net):
    if case.optim == "sgd":
        return torch.optim.SGD(net.parameters(), lr=case.lr, momentum=0.9, weight_decay=case.weight_decay)
    return torch.optim.AdamW(net.parameters(), lr=case.lr, betas=(0.9, 0.95), weight_decay=case.weight_decay)


def precision(case):
    return torch.autocast("cpu", torch.bfloat16, enabled=case.dtype == "bf16")


def step_of_all(case, net, x, y, ranks):
    """The mean loss of the shares, with gradients."""
    losses = []
    for rank, (share, wanted) in enumerate(zip(x.chunk(ranks), y.chunk(ranks))):
        before = {name: b.clone() for name, b in net.named_buffers()}
        with precision(case):
            loss = F.cross_entropy(net(share), wanted)
        (loss / ranks).backward()
        losses.append(loss.item())
        if rank > 0:
            for name, buffer in net.named_buffers():
                buffer.copy_(before[name])
    return sum(losses) / ranks


@torch.no_grad()
def judged(case, net, x, y):
    net.eval()
    with precision(case):
        logits = net(x).float()
    net.train()
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


def learn(case, seed, ranks, digits):
    (x, y), test = data(case, digits)
    net = module(case, seed)
    optim, losses = optimizer(case, net), []
    for step in range(case.steps):
        chosen = torch.tensor(lessons.batch_of(step, len(x), case.batch, seed))
        optim.zero_grad()
        losses.append(step_of_all(case, net, x[chosen], y[chosen], ranks))
        if case.clip:
            nn.utils.clip_grad_norm_(net.parameters(), case.clip)
        for group in optim.param_groups:
            group["lr"] = case.lr_of(step)
        optim.step()
    return lessons.summary(losses, *judged(case, net, *test))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--digits", type=pathlib.Path, required=True)
    parser.add_argument("--print", action="store_true")
    parser.add_argument("names", nargs="*", default=list(lessons.CASES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    numbers = json.loads(lessons.NUMBERS.read_text()) if lessons.NUMBERS.exists() else {}
    for name in options.names:
        numbers[name] = {
            f"{ranks} ranks": {f"seed {seed}": learn(lessons.CASES[name], seed, ranks, options.digits)
                               for seed in lessons.SEEDS} for ranks in lessons.RANKS}
        print(json.dumps({name: numbers[name]}), flush=True)
    if not options.print:
        lessons.NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n")


main()
