#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the numbers beside this script: 50 steps of training (100 with groups of parameters), computed by
PyTorch in float64.

    python3 tests/reference/make.py [NET...]        needs PyTorch; the stored numbers are 2.13's

NET.safetensors holds, for SGD with momentum, for AdamW and for AdamW with groups of parameters (of gpt and
bert), the losses of all steps (float64) and the
gradients of the first and the last step (rounded to float32 once). Weights and batches are no random
numbers but those of formula.py, which formula.c has too; every weight is a float32, so that both sides
start from the same. `ranks` workers see equal shares of each batch. That shows only where a share's
own statistics enter, in batch norm; such nets have numbers for each count of ranks.

Some functions have kinks (ReLU at 0, the largest of a pool at a tie), beside which float32 and float64
may take different sides, and the comparison would be one of luck. Each net reports how near it came;
below KINK the script refuses: change the name of the inputs, which changes their values (the numbers in them
count such changes).

A new net is its shapes and its loss, here and in nets.c.
"""

import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

from formula import value, whole

BATCH, BATCHES = 12, 4  # step s trains on batch s % BATCHES of BATCH samples
RANKS = (1, 2, 3, 4)


def adamw_with_groups(p):
    """No decay of biases and norms, half the learning rate for embeddings."""
    vectors = [v for v in p.values() if v.dim() < 2]
    embeddings = [v for name, v in p.items()
                  if v.dim() > 1 and ("embeddings" in name or name in ("tokens.weight", "positions"))]
    taken = {id(v) for v in vectors + embeddings}
    return torch.optim.AdamW([{"params": [v for v in p.values() if id(v) not in taken]},
                              {"params": vectors, "weight_decay": 0.0},
                              {"params": embeddings, "lr": 1.5e-3}], lr=3e-3, weight_decay=0.1)


OPTIMIZERS = {  # and the number of steps
    "sgd": (lambda p: torch.optim.SGD(p.values(), lr=0.02, momentum=0.9, weight_decay=1e-3), 50),
    "adamw": (lambda p: torch.optim.AdamW(p.values(), lr=3e-3), 50),
    "groups": (adamw_with_groups, 100),
}
KINK = 2e-6
nearest_kink = math.inf


# ---- weights and batches -----------------------------------------------------------------------

def parameter(name, shape):
    """Matrices and filters by their fan-in, scales of norms around 1, biases around 0."""
    count = math.prod(shape)
    values = [value(name, i) for i in range(count)]
    if len(shape) > 1:
        scale = 1.5 / math.sqrt(count // shape[0])
        values = [v * scale for v in values]
    else:
        middle = 1.0 if name.endswith("weight") else 0.0
        values = [middle + 0.25 * v for v in values]
    exact = torch.tensor(values, dtype=torch.float64).float().double()
    return exact.reshape(shape).requires_grad_()


def floats(name, samples, shape):
    """[len(samples), shape]: sample n has elements n*numel...(n+1)*numel-1."""
    count = math.prod(shape)
    rows = [[value(name, n * count + i) for i in range(count)] for n in samples]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), *shape)


def classes(samples, below):
    return torch.tensor([whole("class", n, below) for n in samples])


def tokens(samples, length, vocab):
    """Arithmetic progressions modulo the vocabulary: something that can be learnt."""
    return torch.tensor([[(whole("first", n, vocab) + t * (1 + whole("stride", n, 3))) % vocab
                          for t in range(length)] for n in samples])


# ---- functions with kinks ---------------------------------------------------------------------

def near_kink(distance):
    global nearest_kink
    nearest_kink = min(nearest_kink, distance.min().item())


def relu(x):
    near_kink(x.detach().abs())
    return F.relu(x)


def max_pool(x, size):
    windows = x.detach().unfold(2, size, size).unfold(3, size, size).flatten(4)
    best = windows.topk(2).values  # of values behind a ReLU: ties at 0 have no gradient
    gap = (best[..., 0] - best[..., 1])[best[..., 0] > 0]
    near_kink(gap)
    return F.max_pool2d(x, size)


# ---- the nets: shapes of the parameters, and the loss of some samples -------------------------

def linear(name, out, inputs, bias=True):
    return {f"{name}.weight": (out, inputs)} | ({f"{name}.bias": (out,)} if bias else {})


def norm(name, channels):
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


def apply_linear(p, name, x):
    return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def apply_norm(p, name, x, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], eps)


def apply_conv(p, name, x, **options):
    return F.conv2d(x, p[f"{name}.weight"], p.get(f"{name}.bias"), **options)


def apply_batch_norm(p, name, x):
    return F.batch_norm(x, None, None, p[f"{name}.weight"], p[f"{name}.bias"], training=True)


def heads(x, count):  # [B,T,C] -> [B,H,T,D]
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def joined(x):  # and back
    return x.transpose(1, 2).flatten(2)


class Mlp:  # models/mlp.c
    shapes = linear("fc1", 48, 20) | linear("fc2", 10, 48)

    @staticmethod
    def loss(p, samples):
        x = floats("x", samples, (20,))
        y = apply_linear(p, "fc2", relu(apply_linear(p, "fc1", x)))
        return F.cross_entropy(y, classes(samples, 10))


class Gpt:  # models/gpt.c
    groups = True
    C, V, T, LAYERS, HEADS = 12, 16, 8, 2, 2
    shapes = {"tokens.weight": (V, C), "positions": (T, C)}
    for i in range(LAYERS):
        shapes |= norm(f"blocks.{i}.norm1", C) | linear(f"blocks.{i}.qkv", 3 * C, C)
        shapes |= linear(f"blocks.{i}.proj", C, C) | norm(f"blocks.{i}.norm2", C)
        shapes |= linear(f"blocks.{i}.up", 4 * C, C) | linear(f"blocks.{i}.down", C, 4 * C)
    shapes |= norm("norm", C) | linear("head", V, C, bias=False)

    @classmethod
    def block(cls, p, name, x):
        h = apply_linear(p, f"{name}.qkv", apply_norm(p, f"{name}.norm1", x))
        q, k, v = (heads(part, cls.HEADS) for part in h.chunk(3, dim=-1))
        seen = joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        x = x + apply_linear(p, f"{name}.proj", seen)
        h = F.gelu(apply_linear(p, f"{name}.up", apply_norm(p, f"{name}.norm2", x)))
        return x + apply_linear(p, f"{name}.down", h)

    @classmethod
    def loss(cls, p, samples):
        text = tokens(samples, cls.T + 1, cls.V)
        x = F.embedding(text[:, :-1], p["tokens.weight"]) + p["positions"]
        for i in range(cls.LAYERS):
            x = cls.block(p, f"blocks.{i}", x)
        logits = apply_linear(p, "head", apply_norm(p, "norm", x))
        return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


class Cnn:  # convolutions with biases: before a batch norm their true gradient is zero
    by_ranks = True
    shapes = {"0.weight": (5, 2, 3, 3), "0.bias": (5,)} | norm("1", 5)
    shapes |= {"4.weight": (7, 5, 3, 3), "4.bias": (7,)} | norm("5", 7) | linear("9", 4, 7)

    @staticmethod
    def loss(p, samples):
        x = floats("x0", samples, (2, 5, 5))
        x = relu(apply_batch_norm(p, "1", apply_conv(p, "0", x, padding=1)))
        x = max_pool(x, 2)
        x = relu(apply_batch_norm(p, "5", apply_conv(p, "4", x, padding=1)))
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return F.cross_entropy(apply_linear(p, "9", x), classes(samples, 4))


class Resnet:  # two basic blocks, the second with a stride and a projection
    by_ranks = True
    shapes = {"conv1.weight": (4, 3, 3, 3)} | norm("bn1", 4)
    for block, inputs, out in (("layer1.0", 4, 4), ("layer2.0", 4, 8)):
        shapes |= {f"{block}.conv1.weight": (out, inputs, 3, 3)} | norm(f"{block}.bn1", out)
        shapes |= {f"{block}.conv2.weight": (out, out, 3, 3)} | norm(f"{block}.bn2", out)
    shapes |= {"layer2.0.downsample.0.weight": (8, 4, 1, 1)} | norm("layer2.0.downsample.1", 8)
    shapes |= linear("fc", 5, 8)

    @staticmethod
    def block(p, name, x, stride):
        h = apply_conv(p, f"{name}.conv1", x, stride=stride, padding=1)
        h = relu(apply_batch_norm(p, f"{name}.bn1", h))
        h = apply_batch_norm(p, f"{name}.bn2", apply_conv(p, f"{name}.conv2", h, padding=1))
        if f"{name}.downsample.0.weight" in p:
            x = apply_conv(p, f"{name}.downsample.0", x, stride=stride)
            x = apply_batch_norm(p, f"{name}.downsample.1", x)
        return relu(h + x)

    @classmethod
    def loss(cls, p, samples):
        x = floats("x22", samples, (3, 4, 4))
        x = relu(apply_batch_norm(p, "bn1", apply_conv(p, "conv1", x, padding=1)))
        x = cls.block(p, "layer2.0", cls.block(p, "layer1.0", x, 1), 2)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return F.cross_entropy(apply_linear(p, "fc", x), classes(samples, 5))


class Bert:  # Hugging Face's names; keys have biases whose true gradient is zero
    groups = True
    C, V, T, LAYERS, HEADS, WIDE, MASK = 12, 16, 8, 2, 2, 24, 0
    shapes = {"bert.embeddings.word_embeddings.weight": (V, C),
              "bert.embeddings.position_embeddings.weight": (T, C),
              "bert.embeddings.token_type_embeddings.weight": (2, C)}
    shapes |= norm("bert.embeddings.LayerNorm", C)
    for i in range(LAYERS):
        at = f"bert.encoder.layer.{i}"
        for part in ("query", "key", "value"):
            shapes |= linear(f"{at}.attention.self.{part}", C, C)
        shapes |= linear(f"{at}.attention.output.dense", C, C)
        shapes |= norm(f"{at}.attention.output.LayerNorm", C)
        shapes |= linear(f"{at}.intermediate.dense", WIDE, C) | linear(f"{at}.output.dense", C, WIDE)
        shapes |= norm(f"{at}.output.LayerNorm", C)
    shapes |= {"cls.predictions.bias": (V,)} | linear("cls.predictions.transform.dense", C, C)
    shapes |= norm("cls.predictions.transform.LayerNorm", C)

    @classmethod
    def layer(cls, p, at, x):
        q, k, v = (heads(apply_linear(p, f"{at}.attention.self.{part}", x), cls.HEADS)
                   for part in ("query", "key", "value"))
        seen = joined(F.scaled_dot_product_attention(q, k, v))
        x = x + apply_linear(p, f"{at}.attention.output.dense", seen)
        x = apply_norm(p, f"{at}.attention.output.LayerNorm", x, 1e-12)
        h = F.gelu(apply_linear(p, f"{at}.intermediate.dense", x))
        return apply_norm(p, f"{at}.output.LayerNorm", x + apply_linear(p, f"{at}.output.dense", h),
                          1e-12)

    @classmethod
    def loss(cls, p, samples):
        """Two masked positions in each sequence, so that equal shares hold equally many."""
        text = tokens(samples, cls.T, cls.V)
        hidden = torch.tensor([[(t + n) % (cls.T // 2) == 0 for t in range(cls.T)] for n in samples])
        e = "bert.embeddings"
        x = F.embedding(text.masked_fill(hidden, cls.MASK), p[f"{e}.word_embeddings.weight"])
        x = x + p[f"{e}.position_embeddings.weight"] + p[f"{e}.token_type_embeddings.weight"][0]
        x = apply_norm(p, f"{e}.LayerNorm", x, 1e-12)
        for i in range(cls.LAYERS):
            x = cls.layer(p, f"bert.encoder.layer.{i}", x)
        h = F.gelu(apply_linear(p, "cls.predictions.transform.dense", x))
        h = apply_norm(p, "cls.predictions.transform.LayerNorm", h, 1e-12)
        logits = F.linear(h, p[f"{e}.word_embeddings.weight"], p["cls.predictions.bias"])
        return F.cross_entropy(logits[hidden], text[hidden])


class Lstm:  # models/lstm.c; each weight is used once for every step of time
    V, E, H, T, LAYERS = 16, 8, 10, 7, 2
    shapes = {"encoder.weight": (V, E)}
    for i in range(LAYERS):
        shapes |= {f"rnn.weight_ih_l{i}": (4 * H, H if i else E), f"rnn.weight_hh_l{i}": (4 * H, H),
                   f"rnn.bias_ih_l{i}": (4 * H,), f"rnn.bias_hh_l{i}": (4 * H,)}
    shapes |= linear("decoder", V, H)

    @classmethod
    def loss(cls, p, samples):
        text = tokens(samples, cls.T + 1, cls.V)
        x = F.embedding(text[:, :-1], p["encoder.weight"])
        zero = torch.zeros(cls.LAYERS, len(samples), cls.H, dtype=torch.float64)
        weights = [p[f"rnn.{kind}_l{i}"] for i in range(cls.LAYERS)
                   for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        x, _, _ = torch.lstm(x, (zero, zero), weights, True, cls.LAYERS, 0.0, True, False, True)
        return F.cross_entropy(apply_linear(p, "decoder", x).flatten(0, 1), text[:, 1:].flatten())


NETS = {"mlp": Mlp, "gpt": Gpt, "cnn": Cnn, "resnet": Resnet, "bert": Bert, "lstm": Lstm}


# ---- training ---------------------------------------------------------------------------------

def train(net, optimizer, ranks):
    """Losses of all steps, and the gradients of the first and the last."""
    p = {name: parameter(name, shape) for name, shape in net.shapes.items()}
    make, steps = OPTIMIZERS[optimizer]
    optim = make(p)
    losses, gradients, share = [], [], BATCH // ranks
    for step in range(steps):
        first = step % BATCHES * BATCH
        shares = [range(first + r * share, first + (r + 1) * share) for r in range(ranks)]
        loss = sum(net.loss(p, samples) for samples in shares) / ranks
        optim.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step in (0, steps - 1):
            gradients.append({name: v.grad.clone() for name, v in p.items()})
        optim.step()
    return losses, *gradients


def numbers(net):
    """Name -> tensor, as stored: "[RANKS/]OPTIMIZER/losses", "…start/PARAM", "…OPTIMIZER/end/PARAM"."""
    out = {}
    by_ranks = getattr(net, "by_ranks", False)
    for ranks in RANKS if by_ranks else (1,):
        prefix = f"{ranks}/" if by_ranks else ""
        for optimizer in OPTIMIZERS:
            if optimizer == "groups" and not getattr(net, "groups", False):
                continue
            losses, start, end = train(net, optimizer, ranks)
            print(f"  {prefix}{optimizer}: loss {losses[0]:.4f} to {losses[-1]:.4f}, smallest gradient of the "
                  f"last step {min(g.norm().item() for g in end.values()):.2g}")
            out[f"{prefix}{optimizer}/losses"] = torch.tensor(losses, dtype=torch.float64)
            out |= {f"{prefix}start/{name}": g.float() for name, g in start.items()}
            out |= {f"{prefix}{optimizer}/end/{name}": g.float() for name, g in end.items()}
    return out


def write(path, tensors):
    """safetensors: length of the header, header, data."""
    header, data = {}, b""
    for name, t in tensors.items():
        raw = t.numpy().tobytes()
        header[name] = {"dtype": {torch.float64: "F64", torch.float32: "F32"}[t.dtype],
                        "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def main():
    global nearest_kink
    torch.set_num_threads(1)
    for name in sys.argv[1:] or NETS:
        nearest_kink = math.inf
        print(name)
        tensors = numbers(NETS[name])
        if nearest_kink < KINK:
            sys.exit(f"make.py: {name} comes within {nearest_kink:.2g} of a kink; see above")
        path = pathlib.Path(__file__).resolve().parent / f"{name}.safetensors"
        write(path, tensors)
        print(f"  nearest kink {nearest_kink:.2g}, {path.stat().st_size} bytes")


main()
