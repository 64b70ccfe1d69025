# SPDX-License-Identifier: Apache-2.0
"""Data parallelism by hand, on any backend of torch.distributed: a benchmark of all_reduce, and a small transformer
trained with four ways of averaging gradients, as classes that wrap a module.

    python python/examples/ddp_by_hand.py                    # four processes over Lockstep
    python python/examples/ddp_by_hand.py --backend gloo

Nothing here is Lockstep's but the backend's name. The tables are Markdown: comm_time is the time for which a step waits
for communication after backward; means and standard deviations are over the steps of all ranks. The parameters begin
equal and each rank has its own batches, so all ways end with the same parameters (--export writes them).
"""

import argparse
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

VOCABULARY, CONTEXT, LEARNING_RATE = 64, 16, 0.1


# ---- ways of averaging gradients ----------------------------------------------------------------

class Replica(torch.nn.Module):
    """A module whose replicas begin with rank 0's parameters. After backward call finish()."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.detach(), 0)

    def forward(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        """Afterwards the gradients are averages over the ranks."""
        raise NotImplementedError

    def gradients(self):
        return [parameter.grad for parameter in self.module.parameters()]


class Naive(Replica):
    """One all-reduce for each parameter, after backward."""

    def finish(self):
        for gradient in self.gradients():
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()


class Flat(Replica):
    """One all-reduce of all gradients, after backward."""

    def finish(self):
        gradients = self.gradients()
        flat = _flatten_dense_tensors(gradients)
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, average in zip(gradients, _unflatten_dense_tensors(flat, gradients)):
            gradient.copy_(average)


class Overlapped(Replica):
    """One all-reduce for each parameter, which begins in backward as soon as its gradient is there."""

    def __init__(self, module):
        super().__init__(module)
        self.works = []
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self.ready)

    def ready(self, parameter):
        self.works.append((dist.all_reduce(parameter.grad, async_op=True), parameter.grad))

    def finish(self):
        for work, gradient in self.works:
            work.wait()
            gradient /= dist.get_world_size()
        self.works.clear()


class Bucketed(Replica):
    """One all-reduce for each bucket of parameters, which begins as soon as all its gradients are there. Backward
    reaches the last layers first, so the buckets are filled from the end."""

    def __init__(self, module, bucket_mb):
        super().__init__(module)
        self.buckets, size = [[]], 0
        for parameter in reversed(list(module.parameters())):
            size += parameter.numel() * parameter.element_size()
            if self.buckets[-1] and size > bucket_mb * 1e6:
                self.buckets.append([])
                size = parameter.numel() * parameter.element_size()
            self.buckets[-1].append(parameter)
            parameter.register_post_accumulate_grad_hook(self.ready)
        self.bucket_of = {parameter: i for i, bucket in enumerate(self.buckets) for parameter in bucket}
        self.missing, self.works = [len(bucket) for bucket in self.buckets], []

    def ready(self, parameter):
        i = self.bucket_of[parameter]
        self.missing[i] -= 1
        if self.missing[i] == 0:
            gradients = [each.grad for each in self.buckets[i]]
            flat = _flatten_dense_tensors(gradients)
            self.works.append((dist.all_reduce(flat, async_op=True), flat, gradients))

    def finish(self):
        for work, flat, gradients in self.works:
            work.wait()
            flat /= dist.get_world_size()
            for gradient, average in zip(gradients, _unflatten_dense_tensors(flat, gradients)):
                gradient.copy_(average)
        self.works.clear()
        self.missing = [len(bucket) for bucket in self.buckets]


# ---- benchmarks ---------------------------------------------------------------------------------

class Transformer(torch.nn.Module):
    """A small model of language."""

    def __init__(self, width, layers):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, width)
        self.positions = torch.nn.Parameter(torch.zeros(CONTEXT, width))
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers))
        self.head = torch.nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def gathered(numbers):
    """The numbers of all ranks, in one list."""
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, numbers)
    return [number for numbers in lists for number in numbers]


def all_reduce_row(options, megabytes):
    data, times = torch.rand(int(megabytes * 1e6) // 4), []
    for step in range(options.warmup_steps + options.steps):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(data)
        if step >= options.warmup_steps:
            times.append(time.perf_counter() - begin)
        data /= dist.get_world_size()
    times = gathered(times)
    return {"backend": options.backend, "world_size": dist.get_world_size(), "size_mb": megabytes,
            "warmup_steps": options.warmup_steps, "benchmark_steps": options.steps,
            "time_avg_s": statistics.fmean(times), "time_std_s": statistics.pstdev(times)}


def train_row(options, name, wrap, bucket_size):
    """A row, and the parameters after the last step."""
    torch.manual_seed(dist.get_rank())  # Replica makes them equal
    replica = wrap(Transformer(options.width, options.layers))
    optimizer = torch.optim.SGD(replica.parameters(), lr=LEARNING_RATE)
    data = torch.Generator().manual_seed(dist.get_rank())
    steps, waits = [], []
    for step in range(options.warmup_steps + options.steps):
        tokens = torch.randint(VOCABULARY, (options.batch, CONTEXT), generator=data)
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(replica(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
        loss.backward()
        waiting = time.perf_counter()
        replica.finish()
        waited = time.perf_counter() - waiting
        optimizer.step()
        if step >= options.warmup_steps:
            steps.append(time.perf_counter() - begin)
            waits.append(waited)
    shares = gathered([wait / step for wait, step in zip(waits, steps)])
    steps, waits = gathered(steps), gathered(waits)
    row = {"model": name, "backend": options.backend, "world_size": dist.get_world_size(),
           "global_batch_size": options.batch * dist.get_world_size(), "warmup_steps": options.warmup_steps,
           "benchmark_steps": options.steps, "bucket_size": bucket_size}
    for key, numbers in (("step_time", steps), ("comm_time", waits), ("comm_frac", shares)):
        unit = "" if key == "comm_frac" else "_s"
        row |= {f"{key}_avg{unit}": statistics.fmean(numbers), f"{key}_std{unit}": statistics.pstdev(numbers)}
    return row, torch.cat([parameter.detach().flatten() for parameter in replica.parameters()])


# ---- processes ----------------------------------------------------------------------------------

def print_table(rows):
    def text(value):
        return f"{value:.6f}" if isinstance(value, float) else str(value)
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([text(value) for value in row.values()] for row in rows)]
    print("\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n", flush=True)


def all_reduce_worker(rank, size, options):
    begin_group(rank, size, options)
    rows = [all_reduce_row(options, megabytes) for megabytes in options.sizes]
    if rank == 0:
        print_table(rows)
    dist.destroy_process_group()


def train_worker(rank, size, options):
    begin_group(rank, size, options)
    ways = [("naive", Naive, "-"), ("flat", Flat, "-"), ("overlap", Overlapped, "-")]
    ways += [("bucketed", lambda module, mb=mb: Bucketed(module, mb), f"{mb:g}") for mb in options.buckets]
    found = [train_row(options, *way) for way in ways]
    if rank == 0:
        print_table([row for row, _ in found])
        if options.export:
            torch.save({f"{name} {size}": end for (name, _, size), (_, end) in zip(ways, found)}, options.export)
    dist.destroy_process_group()


def begin_group(rank, size, options):
    if options.backend == "lockstep":
        import lockstep.torch  # noqa: F401 (PyTorch from 2.5 on finds the installed package by itself)
    torch.set_num_threads(1)
    dist.init_process_group(options.backend, rank=rank, world_size=size)


def spawn(worker, size, options):
    """Runs worker(rank, size, options) in processes of their own: forks, which need not import PyTorch again."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(found.getsockname()[1]))
    mp.start_processes(worker, (size, options), size, start_method="fork")


def numbers(kind):
    return lambda text: [kind(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="lockstep")
    parser.add_argument("--processes", type=numbers(int), default=[2, 4, 6], help="of the benchmark of all_reduce")
    parser.add_argument("--sizes", type=numbers(float), default=[1, 10, 100], help="MB that it reduces")
    parser.add_argument("--world-size", type=int, default=4, help="processes that train")
    parser.add_argument("--buckets", type=numbers(float), default=[1, 10, 100, 1000], help="MB")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank")
    parser.add_argument("--warmup-steps", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--export", help="write the parameters after the last step to this file, by way")
    options = parser.parse_args()
    for size in options.processes:
        spawn(all_reduce_worker, size, options)
    spawn(train_worker, options.world_size, options)


if __name__ == "__main__":
    main()
