# SPDX-License-Identifier: Apache-2.0
"""What is learned beside PyTorch, and from where: both sides read this file. No modules needed.

A case is a program of examples/ with its flags. Its first weights are numbers of a formula, handed over as a
safetensors file (--init); the samples of each step are those of the sampler, computed here a second time.

Losses agree with PyTorch's to six digits or more, so one that is off by a percent of the spread is worth a look.
"""

import json
import math
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent.parent
sys.path[:0] = [str(HERE.parent)]
import formula

SEEDS = (1, 2, 3)
RANKS = (1, 4)
POINTS = 5  # of a curve: the mean loss of each fifth of the steps
NUMBERS = HERE / "numbers.json"
TEXT = SOURCE / "LICENSE"  # text that stays as it is


class Case:
    """Numbers are the flags of that name; `batch` is of all ranks together."""

    def __init__(self, program, model, shapes, *, optim, steps, batch, lr, schedule, warmup, clip=0.0,
                 weight_decay=0.0, dtype="float32", more=()):
        self.program, self.model, self.shapes = program, model, shapes
        self.optim, self.steps, self.batch, self.lr, self.clip = optim, steps, batch, lr, clip
        self.schedule, self.warmup, self.weight_decay = schedule, warmup, weight_decay
        self.dtype, self.more = dtype, more

    def flags(self, data, seed, ranks):
        return ["--model", self.model, "--data", data, "--seed", seed, "--steps", self.steps,
                "--batch", self.batch // ranks, "--optim", self.optim, "--lr", self.lr, "--clip", self.clip,
                "--lr-schedule", self.schedule, "--min-lr", 0, "--warmup", self.warmup,
                "--weight-decay", self.weight_decay, "--dtype", self.dtype, *self.more]

    def lr_of(self, step):
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.lr
        progress = (step - self.warmup) / (self.steps - self.warmup)
        return self.lr * (0.5 * (1 + math.cos(math.pi * progress)) if self.schedule == "cosine" else 1 - progress)


def linear(name, out, inputs, bias=True):
    return {f"{name}.weight": (out, inputs)} | ({f"{name}.bias": (out,)} if bias else {})


def norm(name, channels):
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


def gpt_shapes(layers, dim, context, vocab=256):  # models/gpt.c
    shapes = {"tokens.weight": (vocab, dim), "positions": (context, dim)}
    for i in range(layers):
        at = f"blocks.{i}"
        shapes |= norm(f"{at}.norm1", dim) | linear(f"{at}.qkv", 3 * dim, dim) | linear(f"{at}.proj", dim, dim)
        shapes |= norm(f"{at}.norm2", dim) | linear(f"{at}.up", 4 * dim, dim) | linear(f"{at}.down", dim, 4 * dim)
    return shapes | norm("norm", dim) | linear("head", vocab, dim, bias=False)


def gpt(layers, heads, dim, context, steps, dtype="float32"):
    return Case("train_gpt", "gpt", gpt_shapes(layers, dim, context), optim="adamw", steps=steps, batch=8, lr=5e-3,
                schedule="cosine", warmup=steps // 10, clip=1.0, weight_decay=0.1, dtype=dtype,
                more=("--layers", layers, "--heads", heads, "--dim", dim, "--context", context, "--beta2", 0.95))


MLP = linear("fc1", 64, 64) | linear("fc2", 10, 64)  # models/mlp.c
CNN = ({"conv1.weight": (16, 1, 3, 3)} | norm("bn1", 16) | {"conv2.weight": (32, 16, 3, 3)} | norm("bn2", 32)
       | linear("fc", 10, 32 * 4 * 4))  # models/cnn.c

DIGITS = {
    "mlp": Case("train_image", "mlp", MLP, optim="sgd", steps=400, batch=32, lr=0.05, schedule="constant", warmup=0,
                weight_decay=1e-4, more=("--hidden", 64)),
    "cnn": Case("train_image", "cnn", CNN, optim="sgd", steps=200, batch=32, lr=0.05, schedule="linear", warmup=20),
}
TEXTS = {
    "short gpt": gpt(1, 2, 32, 32, steps=100),
    "short gpt in bf16": gpt(1, 2, 32, 32, steps=100, dtype="bf16"),
    "gpt": gpt(2, 4, 64, 64, steps=400),
}
CASES = DIGITS | TEXTS


# ---- the first weights ------------------------------------------------------------------------

def parameter(name, shape, seed):
    """Values in row-major order: as PyTorch begins, uniform within 1/sqrt(fan-in); scales of norms are 1."""
    count = math.prod(shape)
    if len(shape) == 1 and name.endswith("weight"):
        return [1.0] * count
    if len(shape) == 1:
        return [0.0] * count
    scale = 1.0 / math.sqrt(count // shape[0])
    first = f"{name} {seed}"
    return [scale * v for v in formula.values(first, count)]


def buffers(shapes):
    """Running statistics before the first batch: (name, shape, dtype, values)."""
    for name, (channels, *rest) in shapes.items():
        if name.startswith("bn") and name.endswith("weight"):
            at = name.removesuffix("weight")
            yield f"{at}running_mean", (channels,), "F32", [0.0] * channels
            yield f"{at}running_var", (channels,), "F32", [1.0] * channels
            yield f"{at}num_batches_tracked", (), "I64", [0]


def write_start(case, seed, path):
    """A safetensors file: length of the header, header, data."""
    header, data = {}, b""
    parameters = [(name, shape, "F32", parameter(name, shape, seed)) for name, shape in case.shapes.items()]
    for name, shape, dtype, values in [*parameters, *buffers(case.shapes)]:
        raw = struct.pack(f"<{len(values)}{'f' if dtype == 'F32' else 'q'}", *values)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


# ---- the order of samples: src/data/sampler.c, told a second time -----------------------------

def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & 0xffffffff, p0 >> 32 ^ c3 ^ k1, p0 & 0xffffffff
        k0, k1 = k0 + 0x9E3779B9 & 0xffffffff, k1 + 0xBB67AE85 & 0xffffffff
    return c0, c1, c2, c3


def shuffled(position, count, seed, epoch):
    """Where eight Feistel rounds send it, again until that is below count."""
    half = 1
    while 4**half < count:
        half += 1
    mask = 2**half - 1
    while True:
        left, right = position >> half, position & mask
        for turn in range(8):
            mixed = philox((right, turn, epoch & 0xffffffff, epoch >> 32), (seed & 0xffffffff, seed >> 32))[0]
            left, right = right, left ^ mixed & mask
        position = left << half | right
        if position < count:
            return position


def batch_of(step, count, batch, seed):
    """Samples of a global batch; the last ones of an epoch that fill none are left out."""
    epoch, within = divmod(step, count // batch)
    return [shuffled(within * batch + i, count, seed, epoch) for i in range(batch)]


# ---- results ----------------------------------------------------------------------------------

def summary(losses, test_loss, accuracy):
    each = len(losses) / POINTS
    curve = [losses[int(i * each):int((i + 1) * each)] for i in range(POINTS)]
    return {"curve": [sum(part) / len(part) for part in curve], "loss": test_loss, "accuracy": accuracy}
