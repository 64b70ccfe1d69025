# SPDX-License-Identifier: Apache-2.0
"""PyTorch as a contender of bench/compare_training.py: the networks, batches and optimizers of
../nets.c, and the answers of ours.c. Works with 1.13 and 2.x.

    contender_torch.py NAME BATCH float32|bfloat16 formula|own THREADS [channels_last] [compiled] [fused]

"fused" takes the optimizer's fused kernel, where it has one for the CPU; "compiled" compiles forward and backward with
torch.compile, in the first step.

Parameters have the names they have there (torchvision's, Hugging Face's), and by these their values.
"""

import contextlib
import json
import math
import sys
import time

import torch
from torch.nn import functional as F

FUSED = hasattr(F, "scaled_dot_product_attention")  # 2.x


# ---- the formula of ../nets.c ------------------------------------------------------------------

def bits(name, count):
    """24 bits of each of `count` elements."""
    x = 2166136261
    for byte in name.encode():
        x = (x ^ byte) * 16777619 & 0xffffffff
    x = (torch.arange(count) * 0x9e3779b9 + x) & 0xffffffff
    x = (x ^ x >> 16) * 0x7feb352d & 0xffffffff
    x = (x ^ x >> 15) * 0x846ca68b & 0xffffffff
    return (x ^ x >> 16) >> 8


def values(name, count):
    return bits(name, count).double() / 8388608 - 1


def whole(name, shape, below):
    return (bits(name, math.prod(shape)) * below >> 24).reshape(shape)


def parameter(name, shape, formula):
    count = math.prod(shape)
    if not formula:
        return torch.randn(shape).mul_(0.02) if len(shape) > 1 else torch.zeros(shape)
    if len(shape) > 1:
        v = values(name, count) * (1.5 / math.sqrt(count // shape[0]))
    else:
        v = values(name, count) * 0.25 + (1.0 if name.endswith("weight") else 0.0)
    return v.float().reshape(shape)


# ---- parts -------------------------------------------------------------------------------------

def linear(name, out, inputs, bias=True):
    return {f"{name}.weight": (out, inputs)} | ({f"{name}.bias": (out,)} if bias else {})


def norm(name, channels):
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


def heads(x, count):  # [B,T,C] -> [B,H,T,D]
    return x.view(x.shape[0], x.shape[1], count, x.shape[2] // count).transpose(1, 2)


def attention(q, k, v, causal):  # [B,H,T,D] -> [B,T,C]
    if FUSED:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    else:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if causal:
            mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
            scores = scores.masked_fill(~mask, -math.inf)
        y = scores.softmax(-1) @ v
    return y.transpose(1, 2).flatten(2)


class Net:
    """Parameters and buffers by name; `forward` makes logits, `loss` the loss of a batch."""
    sgd = False

    def lin(self, name, x):
        return F.linear(x, self.p[f"{name}.weight"], self.p.get(f"{name}.bias"))

    def norm(self, name, x, eps=1e-5):
        return F.layer_norm(x, x.shape[-1:], self.p[f"{name}.weight"], self.p[f"{name}.bias"], eps)

    def batch(self, count):
        return (whole("x", (count, self.T), self.V), whole("y", (count, self.T), self.V))

    def loss(self, x, y):
        logits = self.forward(x)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


# ---- the networks ------------------------------------------------------------------------------

class Mlp(Net):
    def __init__(self, inputs, wide, out):
        self.inputs, self.out = inputs, out
        self.shapes = linear("0", wide, inputs) | linear("2", wide, wide) | linear("4", out, wide)

    def batch(self, count):
        return (values("x", count * self.inputs).float().view(count, -1),
                whole("y", (count,), self.out))

    def forward(self, x):
        return self.lin("4", F.relu(self.lin("2", F.relu(self.lin("0", x)))))


class Gpt(Net):
    def __init__(self, layers, count, dim, context, vocab):
        self.layers, self.heads, self.T, self.V = layers, count, context, vocab
        self.shapes = {"tokens.weight": (vocab, dim), "positions": (context, dim)}
        for i in range(layers):
            at = f"blocks.{i}"
            self.shapes |= norm(f"{at}.norm1", dim) | linear(f"{at}.qkv", 3 * dim, dim)
            self.shapes |= linear(f"{at}.proj", dim, dim) | norm(f"{at}.norm2", dim)
            self.shapes |= linear(f"{at}.up", 4 * dim, dim) | linear(f"{at}.down", dim, 4 * dim)
        self.shapes |= norm("norm", dim) | linear("head", vocab, dim, bias=False)

    def block(self, at, x):
        qkv = self.lin(f"{at}.qkv", self.norm(f"{at}.norm1", x)).chunk(3, dim=-1)
        seen = attention(*(heads(part, self.heads) for part in qkv), causal=True)
        x = x + self.lin(f"{at}.proj", seen)
        wide = F.gelu(self.lin(f"{at}.up", self.norm(f"{at}.norm2", x)))
        return x + self.lin(f"{at}.down", wide)

    def forward(self, x):
        h = F.embedding(x, self.p["tokens.weight"]) + self.p["positions"][:x.shape[1]]
        for i in range(self.layers):
            h = self.block(f"blocks.{i}", h)
        return self.lin("head", self.norm("norm", h))


class Gpt2(Net):
    HEADS, C, V = 12, 768, 50257

    def __init__(self, length):
        self.T, t, c = length, "transformer", self.C
        self.shapes = {f"{t}.wte.weight": (self.V, c), f"{t}.wpe.weight": (1024, c)}
        for i in range(12):
            at = f"{t}.h.{i}"
            self.shapes |= norm(f"{at}.ln_1", c) | norm(f"{at}.ln_2", c)
            for name, inputs, out in (("attn.c_attn", c, 3 * c), ("attn.c_proj", c, c),
                                      ("mlp.c_fc", c, 4 * c), ("mlp.c_proj", 4 * c, c)):
                self.shapes |= {f"{at}.{name}.weight": (inputs, out), f"{at}.{name}.bias": (out,)}
        self.shapes |= norm(f"{t}.ln_f", c)

    def conv1d(self, name, x):  # transformers' Conv1D: the weight is [in,out]
        weight = self.p[f"{name}.weight"]
        y = torch.addmm(self.p[f"{name}.bias"], x.view(-1, x.shape[-1]), weight)
        return y.view(*x.shape[:-1], weight.shape[1])

    def block(self, at, x):
        qkv = self.conv1d(f"{at}.attn.c_attn", self.norm(f"{at}.ln_1", x)).split(self.C, dim=2)
        seen = attention(*(heads(part, self.HEADS) for part in qkv), causal=True)
        x = x + self.conv1d(f"{at}.attn.c_proj", seen)
        wide = F.gelu(self.conv1d(f"{at}.mlp.c_fc", self.norm(f"{at}.ln_2", x)), approximate="tanh")
        return x + self.conv1d(f"{at}.mlp.c_proj", wide)

    def forward(self, x):
        h = F.embedding(x, self.p["transformer.wte.weight"])
        h = h + self.p["transformer.wpe.weight"][:x.shape[1]]
        for i in range(12):
            h = self.block(f"transformer.h.{i}", h)
        return F.linear(self.norm("transformer.ln_f", h), self.p["transformer.wte.weight"])


class Bert(Net):
    HEADS, C, V, E = 12, 768, 30522, "bert.embeddings"

    def __init__(self, length):
        self.T, c = length, self.C
        self.shapes = {f"{self.E}.word_embeddings.weight": (self.V, c),
                       f"{self.E}.position_embeddings.weight": (512, c),
                       f"{self.E}.token_type_embeddings.weight": (2, c)}
        self.shapes |= norm(f"{self.E}.LayerNorm", c)
        for i in range(12):
            at = f"bert.encoder.layer.{i}"
            for part in ("self.query", "self.key", "self.value", "output.dense"):
                self.shapes |= linear(f"{at}.attention.{part}", c, c)
            self.shapes |= norm(f"{at}.attention.output.LayerNorm", c)
            self.shapes |= linear(f"{at}.intermediate.dense", 4 * c, c)
            self.shapes |= linear(f"{at}.output.dense", c, 4 * c) | norm(f"{at}.output.LayerNorm", c)
        self.shapes |= {"cls.predictions.bias": (self.V,)}
        self.shapes |= linear("cls.predictions.transform.dense", c, c)
        self.shapes |= norm("cls.predictions.transform.LayerNorm", c)

    def batch(self, count):
        x, y = super().batch(count)
        asked = torch.arange(y.numel()).view(y.shape) % 7 == 3
        return x, y.masked_fill(~asked, -100)

    def layer(self, at, x):
        qkv = (self.lin(f"{at}.attention.self.{part}", x) for part in ("query", "key", "value"))
        seen = attention(*(heads(part, self.HEADS) for part in qkv), causal=False)
        x = x + self.lin(f"{at}.attention.output.dense", seen)
        x = self.norm(f"{at}.attention.output.LayerNorm", x, 1e-12)
        wide = F.gelu(self.lin(f"{at}.intermediate.dense", x))
        x = x + self.lin(f"{at}.output.dense", wide)
        return self.norm(f"{at}.output.LayerNorm", x, 1e-12)

    def forward(self, x):
        words = self.p[f"{self.E}.word_embeddings.weight"]
        types = self.p[f"{self.E}.token_type_embeddings.weight"]
        h = F.embedding(x, words) + F.embedding(torch.zeros_like(x), types)
        h = h + self.p[f"{self.E}.position_embeddings.weight"][:x.shape[1]]
        h = self.norm(f"{self.E}.LayerNorm", h, 1e-12)
        for i in range(12):
            h = self.layer(f"bert.encoder.layer.{i}", h)
        h = F.gelu(self.lin("cls.predictions.transform.dense", h))
        h = self.norm("cls.predictions.transform.LayerNorm", h, 1e-12)
        return F.linear(h, words, self.p["cls.predictions.bias"])


class Resnet(Net):
    sgd = True

    def __init__(self, depth, edge, classes, cifar):
        self.edge, self.classes, self.cifar = edge, classes, cifar
        counts, self.wide = {18: ((2, 2, 2, 2), 1), 50: ((3, 4, 6, 3), 4)}[depth]
        self.shapes = {"conv1.weight": (64, 3, *((3, 3) if cifar else (7, 7)))} | norm("bn1", 64)
        self.blocks, channels = [], 64
        for i, count in enumerate(counts):
            for b in range(count):
                at, stride = f"layer{i + 1}.{b}", 2 if i > 0 and b == 0 else 1
                channels = self.add(at, channels, 64 << i, stride)
        self.shapes |= linear("fc", classes, channels)

    def add(self, at, channels, planes, stride):
        out = planes * self.wide
        kernels = ((3, planes, channels), (3, planes, planes)) if self.wide == 1 else \
            ((1, planes, channels), (3, planes, planes), (1, out, planes))
        for i, (k, o, c) in enumerate(kernels):
            self.shapes |= {f"{at}.conv{i + 1}.weight": (o, c, k, k)} | norm(f"{at}.bn{i + 1}", o)
        if stride != 1 or channels != out:
            self.shapes |= {f"{at}.downsample.0.weight": (out, channels, 1, 1)}
            self.shapes |= norm(f"{at}.downsample.1", out)
        strides = (stride, 1) if self.wide == 1 else (1, stride, 1)
        self.blocks.append((at, [(s, k[0] // 2) for s, k in zip(strides, kernels)], stride))
        return out

    def batch(self, count):
        x = values("x", count * 3 * self.edge**2).float().view(count, 3, self.edge, self.edge)
        return x, whole("y", (count,), self.classes)

    def conv_norm(self, conv, bn, x, stride, padding):
        x = F.conv2d(x, self.p[f"{conv}.weight"], None, stride, padding)
        self.count[bn] += 1
        return F.batch_norm(x, self.mean[bn], self.var[bn], self.p[f"{bn}.weight"],
                            self.p[f"{bn}.bias"], training=True)

    def buffers(self):
        names = [n[:-7] for n, p in self.p.items() if n.endswith(".weight") and p.dim() == 1]
        self.mean = {n: torch.zeros_like(self.p[f"{n}.weight"]) for n in names}
        self.var = {n: torch.ones_like(self.p[f"{n}.weight"]) for n in names}
        self.count = {n: torch.tensor(0) for n in names}

    def block(self, at, convs, stride, x):
        h = x
        for i, (s, padding) in enumerate(convs):
            h = F.relu_(h) if i > 0 else h
            h = self.conv_norm(f"{at}.conv{i + 1}", f"{at}.bn{i + 1}", h, s, padding)
        if f"{at}.downsample.0.weight" in self.p:
            x = self.conv_norm(f"{at}.downsample.0", f"{at}.downsample.1", x, stride, 0)
        return F.relu_(h + x)

    def forward(self, x):
        x = F.relu_(self.conv_norm("conv1", "bn1", x, *((1, 1) if self.cifar else (2, 3))))
        x = x if self.cifar else F.max_pool2d(x, 3, 2, 1)
        for block in self.blocks:
            x = self.block(*block, x)
        return self.lin("fc", F.adaptive_avg_pool2d(x, 1).flatten(1))


NETS = {"mlp": lambda: Mlp(784, 512, 10), "mlp-tiny": lambda: Mlp(12, 8, 4),
        "gpt": lambda: Gpt(6, 6, 384, 256, 8192), "gpt-tiny": lambda: Gpt(2, 2, 32, 16, 64),
        "gpt2": lambda: Gpt2(512), "bert": lambda: Bert(128),
        "resnet18-cifar": lambda: Resnet(18, 32, 10, True),
        "resnet18": lambda: Resnet(18, 224, 1000, False),
        "resnet50": lambda: Resnet(50, 224, 1000, False)}


# ---- training ----------------------------------------------------------------------------------

def reset_peak():
    """From now on: what importing and building took for a while does not count."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def status_mb(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{name}:")) / 1024


def others_mb():
    """What of the pages of shared memory counts for other processes."""
    with open("/proc/self/smaps_rollup") as file:
        own = next(int(line.split()[1]) for line in file if line.startswith("Pss_Shmem:"))
    return status_mb("RssShmem") - own / 1024


def peak_mb():
    return status_mb("VmHWM")


def fused_kernel(wanted):
    """Fused AdamW and SGD exist for the CPU since 2.4."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return {"fused": True} if wanted and version >= (2, 4) else {}


def build(name, formula, channels_last, fused):
    net = NETS[name]()
    net.p = {n: parameter(n, shape, formula) for n, shape in net.shapes.items()}
    if channels_last:
        net.p = {n: p.contiguous(memory_format=torch.channels_last) if p.dim() == 4 else p
                 for n, p in net.p.items()}
    net.p = {n: p.requires_grad_() for n, p in net.p.items()}
    if hasattr(net, "buffers"):
        net.buffers()
    if net.sgd:
        return net, torch.optim.SGD(net.p.values(), lr=2e-5, momentum=0.9, **fused_kernel(fused))
    return net, torch.optim.AdamW(net.p.values(), lr=1e-4, **fused_kernel(fused))


def step(net, optimizer, x, y, bfloat16):
    optimizer.zero_grad(set_to_none=True)
    if bfloat16:
        with torch.autocast("cpu", torch.bfloat16):
            loss = net.loss(x, y)
    else:
        loss = net.loss(x, y)
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    name, count, dtype, start, threads, *flags = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    channels_last = "channels_last" in flags
    net, optimizer = build(name, start == "formula", channels_last, "fused" in flags)
    x, y = net.batch(int(count))
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    compiled = "compiled" in flags
    if compiled:
        net.loss = torch.compile(net.loss)
    reset_peak()
    print("ready", sum(p.numel() for p in net.p.values()), "parameters", flush=True)
    for line in sys.stdin:
        steps, times, losses, cpu = int(line), [], [], time.process_time()
        if steps < 1:
            break
        for _ in range(steps):
            begin = time.perf_counter()
            losses.append(step(net, optimizer, x, y, dtype == "bfloat16"))
            times.append((time.perf_counter() - begin) * 1e3)
        print(json.dumps({"ms": times, "losses": losses, "peak_mb": peak_mb(),
                          "cpu_ms": (time.process_time() - cpu) * 1e3 / steps}), flush=True)
        if compiled:
            reset_peak()  # of the steps alone: compiling was a part of the first
            compiled = False


if __name__ == "__main__":
    main()
