# SPDX-License-Identifier: Apache-2.0
"""The GPT of contender_torch.py as modules of torch.nn, for tensor_torch.py and zero_torch.py: what PyTorch distributes
are modules. One layer makes queries, keys and values, as in Lockstep's model."""

import torch
from torch import nn
from torch.nn import functional as F

from contender_torch import attention, heads


class Block(nn.Module):
    def __init__(self, dim, own_heads):
        super().__init__()
        self.heads = own_heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.proj(attention(*(heads(part, self.heads) for part in qkv), causal=True))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """With the names and values of contender_torch's; `parts` ranks share the heads."""

    def __init__(self, net, parts):
        super().__init__()
        dim = net.shapes["positions"][1]
        self.tokens, self.positions = nn.Embedding(net.V, dim), nn.Parameter(torch.empty(net.T, dim))
        self.blocks = nn.ModuleList(Block(dim, net.heads // parts) for _ in range(net.layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, net.V, bias=False)
        self.load_state_dict({name: by_rank(p, parts) if ".qkv." in name else p for name, p in net.p.items()})

    def forward(self, x):
        h = self.tokens(x) + self.positions[:x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def by_rank(p, parts):
    """Queries, keys and values one after the other -> those of the first rank's heads, of the second's …"""
    return p.unflatten(0, (3, parts, -1)).transpose(0, 1).reshape(p.shape)
