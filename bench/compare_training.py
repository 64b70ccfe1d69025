#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step in one process beside PyTorch, in turns in one run: forward, loss, backward and
update of the same network from the same weights over the same batch (formulas: nets.c). All contenders
of a row are alive, those whose turn it is not are asleep. A turn counts with the median of its steps;
the ratio, the peer's time by ours, is made within each pair of turns that follow each other. Printed are
the median, the range of the ratios (their quartiles if there are at least 9 turns, else the lowest and the
highest) and the number of turns, with the CPU time of a step and the most memory a process had while it
trained (its libraries included). Contenders whose first losses differ are not compared.

PyTorch runs with its defaults and tuned (the fused optimizer where it has one, huge pages), each eagerly and
compiled (torch.compile, which needs a C++ compiler), image networks in both memory formats as well; the fastest
of these counts. Variants whose first steps take more than 1.3 times as long as the fastest one's take no turns.
Compiling takes 20 s and more for each variant: --eager leaves it out.

    bench/compare_training.py --build build [--python PYTHON] [--old PYTHON] [--rows mlp,gpt] [--threads 1,2]

--python: an interpreter that has torch; without it a virtual environment below the build, into which
PyTorch for the CPU is installed if there is none. --old: a second one; it is skipped where it has none.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import conditions
from pages import QUARTILES, range_of, range_text, write_rows
from torch_venv import find_peers

SOURCE = pathlib.Path(__file__).resolve().parent.parent
STEPS_MS = 400  # a turn takes about as long, and one step at least
SLOW = 1.3  # times the fastest variant of a peer: not the one that will count
# What gives PyTorch's tensors huge pages: glibc's allocator and PyTorch's own.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
FIRST = 3  # steps whose losses are compared; they warm up, too
# What the losses of three steps may differ by, relatively: sums are made in other orders.
TOLERANCE = {"float32": (1e-4, 1e-3, 2e-3), "bfloat16": (2e-2, 4e-2, 8e-2)}
# name: network of nets.c, batch, dtype, title
ROWS = {
    "mlp": ("mlp", 64, "float32", "MLP 784-512-512-10, batch 64"),
    "gpt": ("gpt", 8, "float32", "GPT 6 layers, d 384, T 256, V 8192, batch 8"),
    "gpt-bf16": ("gpt", 8, "bfloat16", "the same GPT, bfloat16"),
    "gpt2": ("gpt2", 1, "float32", "GPT-2 small, T 512, batch 1"),
    "bert": ("bert", 2, "float32", "BERT base, s 128, batch 2"),
    "resnet18-cifar": ("resnet18-cifar", 32, "float32", "ResNet-18, CIFAR stem, batch 32"),
    "resnet18": ("resnet18", 8, "float32", "ResNet-18, 224 x 224, batch 8"),
    "resnet18-bf16": ("resnet18", 8, "bfloat16", "ResNet-18, 224 x 224, batch 8, bfloat16"),
    "resnet50": ("resnet50", 4, "float32", "ResNet-50, 224 x 224, batch 4"),
    "resnet50-bf16": ("resnet50", 4, "bfloat16", "ResNet-50, 224 x 224, batch 4, bfloat16"),
}
# The MLP at batches for which no cut into parts of one size is even; --rows sizes takes all of them.
SIZES = {f"mlp-{count}{'' if dtype == 'float32' else '-bf16'}": ("mlp", count, dtype, f"MLP, batch {count}, {dtype}")
         for dtype in ("float32", "bfloat16") for count in (300, 700, 1100, 1536, 1537, 2064, 3100, 4097)}
TINY = {"mlp-tiny": ("mlp-tiny", 4, "float32", "MLP 12-8-8-4, batch 4"),
        "gpt-tiny": ("gpt-tiny", 2, "float32", "GPT 2 layers, d 32, T 16, V 64, batch 2")}
KNOWN = ROWS | SIZES | TINY
STARTS = {"gpt": 3, "resnet50": 3}  # of these rows PyTorch is started as often, too


# ---- contenders -------------------------------------------------------------------------------

class Refused(Exception):
    """A contender cannot do this row."""


class Contender:
    def __init__(self, name, command, threads, more=()):
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), LOCKSTEP_THREADS=str(threads),
                   OPENBLAS_CORETYPE="SkylakeX", PYTHONWARNINGS="ignore", TORCHINDUCTOR_COMPILE_THREADS="1",
                   **dict(more))
        self.name, self.turns, self.cpu = name, [], []
        begin = time.perf_counter()
        self.process = subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        self.parameters = int(self.line().split()[1])
        self.start_ms = (time.perf_counter() - begin) * 1e3

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise Refused(f"{self.name}: ended with {self.process.wait()}")
        return line

    def ask(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return json.loads(self.line())

    def warm_up(self):
        answer = self.ask(FIRST)
        self.losses, self.ms = answer["losses"], min(answer["ms"])
        self.steps = min(500, max(1, round(STEPS_MS / self.ms)))

    def turn(self):
        answer = self.ask(self.steps)
        self.turns.append(statistics.median(answer["ms"]))
        self.cpu.append(answer["cpu_ms"])
        self.peak_mb = answer["peak_mb"]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def command_of(options, row, start, python=None, threads=None, flags=()):
    name, batch, dtype, _ = row
    if python is None:
        return [str(options.build / "bench/contender_training"), name, str(batch), dtype, start]
    return [python, str(SOURCE / "bench/training/contender_torch.py"), name, str(batch), dtype, start,
            str(threads), *flags]


def variants_of(row, version, eager=False):
    """{name: (flags, variables)} of a peer: its defaults and tuned, compiled if it can be (from 2.0 on), images in both
    memory formats."""
    layouts = ((), ("channels_last",)) if row[0].startswith("resnet") else ((),)
    ways = ((),) if eager or int(version.split(".")[0]) < 2 else ((), ("compiled",))
    return {f"PyTorch {version}" + (", NHWC" if layout else "") + (", compiled" if way else "") + (", tuned" if tuned else ""):
            (layout + way + (("fused",) if tuned else ()), HUGE_PAGES if tuned else {})
            for layout in layouts for way in ways for tuned in (False, True)}


def without_slow(group):
    """Ends the variants that cannot be the fastest, after their first steps."""
    fastest = min((c.ms for c in group), default=0)
    for contender in group:
        if contender.ms > SLOW * fastest:
            contender.end()
    return [c for c in group if c.ms <= SLOW * fastest]


def launch(options, row, threads, peers):
    """Ours, and those of each peer (the fastest will count)."""
    ours = Contender("Lockstep", command_of(options, row, "formula"), threads)
    others = []
    for python, version in peers.items():
        group = []
        for name, (flags, variables) in variants_of(row, version, options.eager).items():
            command = command_of(options, row, "formula", python, threads, flags)
            try:
                group.append(Contender(name, command, threads, variables))
                group[-1].warm_up()
            except Refused as refused:
                group = [c for c in group if c.process.poll() is None]
                print(f"skipped: {row[3]}: {refused}", flush=True)
        others += [without_slow(group)] if group else []
    ours.warm_up()
    return ours, others


def differing(row, ours, peer):
    """Why the two do not compute the same; None: they do."""
    if peer.parameters != ours.parameters:
        return f"{peer.name} has {peer.parameters} parameters, Lockstep {ours.parameters}"
    for mine, theirs, tolerance in zip(ours.losses, peer.losses, TOLERANCE[row[2]]):
        if not abs(mine - theirs) <= tolerance * abs(theirs):
            return f"the losses of the first steps are {peer.losses} with {peer.name}, {ours.losses} with Lockstep"
    return None


# ---- rows -------------------------------------------------------------------------------------

def row_of(row, threads, ours, peer, variants=()):
    ratios = [p / o for p, o in zip(peer.turns, ours.turns)]
    low, high, kind = range_of(ratios)
    return {"name": f"{row[3]}, {threads} thread{'s' if threads > 1 else ''}", "peer": peer.name,
            "net": row[3], "threads": threads,
            "ours_ms": round(statistics.median(ours.turns), 4),
            "peer_ms": round(statistics.median(peer.turns), 4), "ratio": round(statistics.median(ratios), 3),
            "spread": [round(low, 3), round(high, 3)], "spread_is": kind,
            "variants_ms": {c.name: round(statistics.median(c.turns), 4) for c in variants},
            "ours_cpu_ms": round(statistics.median(ours.cpu), 4),
            "peer_cpu_ms": round(statistics.median(peer.cpu), 4),
            "ours_peak_mb": round(ours.peak_mb, 1), "peer_peak_mb": round(peer.peak_mb, 1),
            "loss": ours.losses[0], "peer_loss": peer.losses[0], "turns": len(ratios)}


def turns_of(options, round_s):
    """As many as --seconds allow; where that is nearly enough for quartiles, enough."""
    fitting = round(options.seconds / round_s)
    return min(options.turns, max(3, fitting, QUARTILES if fitting > QUARTILES / 2 else 0))


def measure(options, row, threads, peers):
    """Rows, and what kept contenders from being compared."""
    ours, groups = launch(options, row, threads, peers)
    problems = [why for group in groups for peer in group if (why := differing(row, ours, peer))]
    all_of_them = [ours, *(peer for group in groups for peer in group)]
    rows = []
    if not problems:
        round_s = sum(c.steps * c.ms for c in all_of_them) / 1e3
        for _ in range(turns_of(options, round_s)):
            for contender in list(all_of_them):
                try:
                    contender.turn()
                except (Refused, OSError) as ended:
                    if contender is ours:
                        raise Refused(str(ended))
                    print(f"skipped: {row[3]}: {ended}", flush=True)
                    all_of_them.remove(contender)
                    groups = [[c for c in group if c is not contender] for group in groups]
        for group in filter(None, groups):
            best = min(group, key=lambda c: statistics.median(c.turns))
            rows.append(row_of(row, threads, ours, best, group))
    for contender in all_of_them:
        contender.end()
    return rows, [f"{row[3]}: not compared: {why}" for why in problems]


def start_of(options, row, times, python=None):
    """Milliseconds from exec to the first step, with the model's own initialisation."""
    found = []
    for _ in range(times):
        contender = Contender("start", command_of(options, row, "own", python, 2), 2)
        found.append(contender.start_ms)
        contender.end()
    return found


def with_peer(rows):
    """The rows that go into the file: those with a peer, and so a ratio. All are printed."""
    return [row for row in rows if row["peer"]]


def starts(options, names, peers):
    for name in names:
        row = KNOWN[name]
        ours = start_of(options, row, 5)
        for python, version in peers.items() if name in STARTS else ():
            theirs = start_of(options, row, STARTS[name], python)
            ratios = sorted(t / statistics.median(ours) for t in theirs)
            yield {"name": f"exec to the first step: {row[3]}", "peer": f"PyTorch {version}",
                   "ours_ms": round(statistics.median(ours), 1),
                   "peer_ms": round(statistics.median(theirs), 1),
                   "ratio": round(statistics.median(ratios), 2), "starts": [len(ours), len(theirs)],
                   "spread": [round(ratios[0], 2), round(ratios[-1], 2)]}
        if name not in STARTS or not peers:
            yield {"name": f"exec to the first step: {row[3]}", "peer": "",
                   "ours_ms": round(statistics.median(ours), 1)}


# ---- what is printed --------------------------------------------------------------------------

HEAD = (f"Range of the ratios: quartiles from {QUARTILES} turns on, with fewer the lowest and the highest (*).\n"
        "| a training step | Lockstep ms | peer ms | peer | ratio | range | turns | CPU ms, ours / peer "
        "| peak MB, ours / peer |\n|---|---|---|---|---|---|---|---|---|")
START_HEAD = "| from exec to the first step | Lockstep ms | peer ms | peer | starts |\n|---|---|---|---|---|"


def line_of(r):
    return (f"| {r['name']} | {r['ours_ms']:.2f} | {r['peer_ms']:.2f} | {r['peer']} | {r['ratio']:.2f} | "
            f"{range_text(r)} | {r['turns']} | {r['ours_cpu_ms']:.1f} / {r['peer_cpu_ms']:.1f} | "
            f"{r['ours_peak_mb']:.0f} / {r['peer_peak_mb']:.0f} |")


def start_line_of(r):
    peer = f"{r['peer_ms']:.0f} | {r['peer']} | {r['starts'][0]}, {r['starts'][1]}" if r["peer"] else "| | "
    return f"| {r['name'].split(': ')[1]} | {r['ours_ms']:.0f} | {peer} |"


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build")
    parser.add_argument("--python")
    parser.add_argument("--old", default="/usr/bin/python3")
    parser.add_argument("--rows", default=",".join(ROWS), help=", ".join([*ROWS, "sizes", *SIZES, *TINY]))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--turns", type=int, default=11, help="at most, of each contender")
    parser.add_argument("--seconds", type=float, default=25, help="for the turns of a row")
    parser.add_argument("--no-starts", action="store_true")
    parser.add_argument("--eager", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.rows = [row for name in options.rows.split(",") for row in (SIZES if name == "sizes" else [name])]
    unknown = [row for row in options.rows if row not in KNOWN]
    if unknown:
        parser.error(f"--rows: {unknown[0]} is unknown; choose from {', '.join(ROWS)}, sizes")
    return options


def write(options, watch, rows):
    """After each row, so that a run that is cut short leaves those that it has; the conditions so far."""
    about = watch.conditions()
    write_rows(options.build / "compare-training.json", [{**row, "eager": options.eager, "conditions": about} for row in rows], False)
    return about


def main():
    options = parse()
    peers = find_peers(options.build, options.python, options.old)
    watch, rows, problems = conditions.Watch(), [], []
    print(HEAD, flush=True)
    for name in options.rows:
        for threads in map(int, options.threads.split(",")):
            try:
                found, why = measure(options, KNOWN[name], threads, peers)
            except Refused as refused:
                found, why = [], [f"{name}: {refused}"]
            rows, problems = rows + found, problems + why
            write(options, watch, rows)
            for text in [line_of(r) for r in found] + why:
                print(text, flush=True)
    if not options.no_starts:
        print("\n" + START_HEAD, flush=True)
        for r in starts(options, options.rows, peers):
            print(start_line_of(r), flush=True)
            rows += with_peer([r])
    about = write(options, watch, rows)
    print(f"\n{about['minutes']} minutes; other programs kept {about['others_cores']:.2f} processors busy", flush=True)
    sys.exit("\n".join(problems) if problems else 0)


if __name__ == "__main__":
    main()
