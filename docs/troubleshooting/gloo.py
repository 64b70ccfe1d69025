# SPDX-License-Identifier: Apache-2.0
"""Mistakes of a job of two ranks, with gloo through PyTorch: rank 1 makes them.

    torchrun … gloo.py MODE FOLDER

`reproduce` runs it. FOLDER/pid.R holds each rank's process number, FOLDER/fault is made at the moment of
the mistake. Lines that begin with SILENT are results of a call that was wrong and returned success.
"""

import contextlib
import os
import pathlib
import resource
import signal
import sys
import time

import torch
import torch.distributed as dist

COUNT = 1000
MODE, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
RANK = int(os.environ["RANK"])


def fault():
    (FOLDER / "fault").touch()


def silent(call, first, last):
    print(f"SILENT: rank {RANK}: {call} returned success; its first element is {first:g}, "
          f"its last {last:g}", flush=True)


def disagree():
    a, b = torch.full((COUNT,), RANK + 1.0), torch.full((COUNT,), 100.0 * (RANK + 1))
    if RANK == 1 and MODE in ("shape", "dtype", "op", "root", "operation", "order", "missing"):
        fault()
    if MODE == "shape":
        a = torch.full((2 * COUNT if RANK == 1 else COUNT,), RANK + 1.0)
        dist.all_reduce(a)
        silent("all_reduce of 1000 and 2000 floats", a[0], a[-1])
    elif MODE == "dtype":
        a = a.to(torch.int32) if RANK == 1 else a
        dist.all_reduce(a)
        silent("all_reduce of float32 and int32", a[0], a[-1])
    elif MODE == "op":
        dist.all_reduce(a, dist.ReduceOp.MAX if RANK == 1 else dist.ReduceOp.SUM)
        silent("all_reduce of SUM and MAX", a[0], a[-1])
    elif MODE == "root":
        dist.broadcast(a, RANK)
        silent("broadcast from root 0 and root 1", a[0], a[-1])
    elif MODE == "operation":
        dist.broadcast(a, 0) if RANK == 1 else dist.all_reduce(a)
        silent("all_reduce and broadcast", a[0], a[-1])
    elif MODE == "order":
        for tensor in (b, a) if RANK == 1 else (a, b):
            dist.all_reduce(tensor)
        silent("all_reduce of two tensors in another order", a[0], b[0])
    elif MODE == "missing":
        if RANK == 0:
            dist.all_reduce(a)
            silent("all_reduce of the first tensor", a[0], a[-1])
        dist.all_reduce(b)
        silent("all_reduce of the second tensor", b[0], b[-1])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(16, 32 if MODE == "model" and RANK == 1 else 16)
        self.fc2 = torch.nn.Linear(self.fc1.out_features, 16)
        self.spare = torch.nn.Linear(16, 16)

    def forward(self, x):
        x = self.fc2(torch.relu(self.fc1(x)))
        return x if MODE == "unused" and RANK == 1 else self.spare(x)


def train():
    torch.manual_seed(0)
    if RANK == 1 and MODE in ("model", "unused", "nosync"):
        fault()
    net = torch.nn.parallel.DistributedDataParallel(Net())
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    steps = 3 if MODE == "uneven" and RANK == 1 else 4
    for step in range(steps):
        with net.no_sync() if MODE == "nosync" else contextlib.nullcontext():
            loss = net(torch.full((8, 16), float(RANK + 1))).square().mean()
            loss.backward()
        optim.step()
        optim.zero_grad()
    if MODE == "uneven" and RANK == 1:
        fault()
    if MODE == "nosync":
        total = sum(p.detach().abs().sum().item() for p in net.parameters())
        print(f"SILENT: rank {RANK}: trained {steps} steps; the sum of its weights' sizes is "
              f"{total:.6f}", flush=True)
    if MODE == "unused":
        silent("training", loss.item(), loss.item())


def end_as_told():
    if MODE not in ("kill", "stop", "exit0", "exit3", "abort", "segfault", "memory"):
        return
    time.sleep(1)
    fault()
    if MODE == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif MODE == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif MODE == "exit0":
        os._exit(0)
    elif MODE == "exit3":
        os._exit(3)
    elif MODE == "abort":
        os.abort()
    elif MODE == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif MODE == "memory":
        used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), used + (1 << 30)))
        torch.zeros(1 << 31)


def main():
    (FOLDER / f"pid.{RANK}").write_text(f"{os.getpid()}\n")
    if MODE == "start" and RANK == 1:
        fault()
        return
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(COUNT))  # one that is right
    disagree()
    if MODE in ("model", "unused", "nosync", "uneven"):
        train()
    if RANK == 1:
        end_as_told()
    if MODE == "launcher":
        time.sleep(2)
        while RANK == 1:
            time.sleep(1)
    if MODE not in ("missing", "uneven"):
        dist.all_reduce(torch.ones(COUNT))
    dist.destroy_process_group()


main()
