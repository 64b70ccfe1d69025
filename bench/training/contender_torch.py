"""PyTorch eager as a contender of bench/compare_training.py: the model, the batch and the optimizer
of ours.c, and its answers. Works with 1.13 and 2.x."""

import json
import math
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def attend(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for part in self.qkv(x).split(c, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = torch.ones(t, t, dtype=torch.bool).tril()
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            y = scores.masked_fill(~mask, -math.inf).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers, heads, dim, context, vocab):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Parameter(torch.randn(context, dim) * 0.02)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions[:x.shape[1]])))


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))


# name: model, rows and columns of x, whether x holds tokens, classes
MODELS = {"mlp": (mlp, 64, 784, False, 10),
          "gpt": (lambda: GPT(6, 6, 384, 256, 8192), 8, 256, True, 8192),
          "gpt-tiny": (lambda: GPT(2, 2, 32, 16, 64), 2, 16, True, 64)}


def batch(rows, columns, tokens, classes):
    def ids(count, offset):
        return (torch.arange(count, dtype=torch.int64) * 7919 + offset) % classes

    if tokens:
        return (ids(rows * columns, 0).view(rows, columns),
                ids(rows * columns, 104729).view(rows, columns))
    x = (torch.arange(rows * columns, dtype=torch.int64) * 7919 % 1000).float() / 1000
    return x.view(rows, columns), ids(rows, 104729)


def main():
    build, *shape = MODELS[sys.argv[1]]
    torch.set_num_threads(int(sys.argv[2]))
    torch.manual_seed(0)
    net, (x, y) = build(), batch(*shape)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    print("ready", sum(p.numel() for p in net.parameters()), "parameters", flush=True)
    for line in sys.stdin:
        steps, times, cpu = int(line), [], time.process_time()
        if steps < 1:
            break
        for _ in range(steps):
            begin = time.perf_counter()
            optimizer.zero_grad()
            logits = net(x)
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
            loss.backward()
            optimizer.step()
            value = loss.item()
            times.append((time.perf_counter() - begin) * 1e3)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"ms": times, "cpu_ms": (time.process_time() - cpu) * 1e3 / steps,
                          "loss": value, "peak_mb": peak}), flush=True)


main()
