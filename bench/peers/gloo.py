# SPDX-License-Identifier: Apache-2.0
"""gloo as a contender, through PyTorch (torch.distributed, backend "gloo", CPU tensors).

    gloo.py FOLDER RANKS [NETWORK:INTERFACE...]     answers the commands of contender.h, by the same rules

NETWORK: a host's network namespace, as a file; each host gets an equal share of the ranks.
The ranks are forked after one `import torch`, which takes seconds.
"""

import ctypes
import math
import os
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch.distributed as dist

PERIOD, CALLS_MAX, CALLS_SLOW = 16381, 40, 3  # as in contender.c
WARMUP_MS = 40.0
SAMPLE_BYTES, SAMPLES_MIN = 16000000, 3


def maximum(*values):
    x = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.tolist()


def all_gather(out, x):
    if int(torch.__version__.split(".")[0]) >= 2:
        dist.all_gather_into_tensor(out, x)
    else:
        dist.all_gather(list(out.view(dist.get_world_size(), -1)), x)


class Bench:
    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks
        random = torch.Generator().manual_seed(20)
        self.pattern = torch.randint(1, 1001, (ranks, PERIOD), generator=random).float()
        self.sum = self.pattern.sum(dim=0)

    def begin(self, op, size):
        self.op, count = op, size // 4
        if op in ("all_gather", "reduce_scatter", "all_to_all"):
            count //= self.ranks
        self.count = count
        self.out = torch.empty(count * (self.ranks if op in ("all_gather", "all_to_all") else 1))
        self.input = torch.empty({"all_gather": count, "reduce_scatter": count * self.ranks,
                                  "all_to_all": count * self.ranks}.get(op, 0))

    def prepare(self):
        for x in (self.input, self.out):
            fill(x, self.pattern[self.rank])

    def operate(self):
        if self.op == "all_reduce":
            dist.all_reduce(self.out)
        elif self.op == "all_gather":
            all_gather(self.out, self.input)
        elif self.op == "broadcast":
            dist.broadcast(self.out, 0)
        elif self.op == "all_to_all":
            dist.all_to_all_single(self.out, self.input)
        else:
            dist.reduce_scatter_tensor(self.out, self.input)

    def block(self, rank):
        return self.out[rank * self.count:(rank + 1) * self.count]

    def wrong(self, calls):
        if self.op == "all_reduce":
            tolerance = 1e-4 if calls > 1 else 0.0
            return differing(self.out, self.sum * float(self.ranks) ** (calls - 1), 0, tolerance)
        if self.op == "all_gather":
            return sum(differing(self.block(r), self.pattern[r]) for r in range(self.ranks))
        if self.op == "all_to_all":
            return sum(differing(self.block(r), self.pattern[r], self.rank * self.count)
                       for r in range(self.ranks))
        if self.op == "broadcast":
            return differing(self.out, self.pattern[0])
        return differing(self.out, self.sum, self.rank * self.count)

    def run(self, calls):
        """Milliseconds from the first start to the last end."""
        dist.barrier()
        start = time.monotonic()
        for _ in range(calls):
            self.operate()
        end = time.monotonic()
        first, last = maximum(-start, end)
        return (first + last) * 1e3

    def warm_up(self, warmups):
        self.prepare()
        start, done, fastest = time.monotonic(), 0, math.inf
        while done < warmups or maximum((time.monotonic() - start) * 1e3)[0] < WARMUP_MS:
            fastest = min(fastest, self.run(1))
            done += 1
            if done % CALLS_MAX == 0:  # sums of sums grow
                self.prepare()
        finite = 33.0 / math.log10(self.ranks) if self.ranks > 1 else CALLS_MAX
        calls = int(min(CALLS_MAX, math.ceil(SAMPLE_BYTES / (self.out.numel() * 4)), finite))
        if fastest > 1.0:
            calls = min(calls, CALLS_SLOW)
        if calls > 1:
            self.prepare()
            self.run(calls)
        return calls

    def measure(self, warmups, samples, budget_ms):
        calls = self.warm_up(warmups)
        start, found = time.monotonic(), []
        while len(found) < samples:
            self.prepare()
            found.append(self.run(calls) / calls)
            wrong, passed = maximum(self.wrong(calls), (time.monotonic() - start) * 1e3)
            if wrong:
                return "error wrong results"
            if passed > budget_ms and len(found) >= SAMPLES_MIN:
                break
        return " ".join(["ok", str(calls)] + [f"{x:.9g}" for x in found])


def fill(x, pattern):
    whole = x.numel() // PERIOD * PERIOD
    x[:whole].view(-1, PERIOD).copy_(pattern)
    x[whole:].copy_(pattern[:x.numel() - whole])


def differing(x, pattern, first=0, tolerance=0.0):
    """Elements of x that are not pattern[first ...]."""
    pattern = pattern.roll(-(first % PERIOD))
    whole = x.numel() // PERIOD * PERIOD
    pieces = [(x[:whole].view(-1, PERIOD), pattern), (x[whole:], pattern[:x.numel() - whole])]
    if tolerance == 0.0:
        return sum(int((a != b).sum()) for a, b in pieces)
    return sum(int(((a - b).abs() > tolerance * b).sum()) for a, b in pieces)


def serve(rank, ranks, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"file://{folder}/gloo")
    bench = Bench(rank, ranks)
    commands = open(f"{folder}/in.{rank}")
    answers = open(f"{folder}/out", "w") if rank == 0 else None
    for line in iter(commands.readline, ""):
        if line == "quit\n":
            break
        op, size, _, warmups, samples, budget_ms = line.split()
        try:
            bench.begin(op, int(size))
            answer = bench.measure(int(warmups), int(samples), float(budget_ms))
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            answer = f"error {error}".splitlines()[0]
        bench.out = bench.input = None
        if rank == 0:
            print(answer, file=answers, flush=True)
    dist.destroy_process_group()


def move_to(host):
    network, _, interface = host.partition(":")
    with open(network) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns {network}")
    os.environ["GLOO_SOCKET_IFNAME"] = interface


def main():
    ranks, hosts = int(sys.argv[2]), sys.argv[3:]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            if hosts:
                move_to(hosts[rank * len(hosts) // ranks])
            serve(rank, ranks, sys.argv[1])
            os._exit(0)
        children.append(child)
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
