#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The regret of `lockstep plan auto`: every runnable plan of a small GPT on 4 ranks of this machine is trained, and the step of
the plan that the search finds stands beside the fastest one.

    bench/plan_regret.py --build build [--ranks 4] [--batch 4] [--every 1] [--steps 8] [--rounds 15] [--json FILE] [--folder DIR]

Each plan is trained once. One measurement says little: equal computations under several names (with one micro-batch 1f1b and gpipe
are the same) differ by a quarter, and the fastest of thousands is one that was lucky. So the 300 fastest are trained three times more,
in turns, and the thirty of them with the least medians and the search's `--rounds` times; steps are the medians of the last turns.
A plan is printed with its step, the prediction, the regret (its step over the fastest) and the memory of the largest rank: its peak
resident set, above that of a rank that trains a GPT of one narrow layer, beside the prediction. What training refuses is counted. The
device and the link are measured first, as in compare_sim.py. With `--every N` only each Nth plan is trained, and the search's. --json
has each row as soon as it is measured, and --folder keeps the plans, the device and the text, so that predictions can be made again.
Run it on a machine that does nothing else: with --every 1 it takes about an hour.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from compare_sim import cluster_of, device_of, link_cluster, run, seconds_of, short_text
from link import Refused, link_of
from pages import write_rows

AIM = 0.05  # of the regret
HEAT, HEAT_ROUNDS, FINALISTS = 300, 3, 30
VOCABULARY = 256  # of bytes
HEAD = ("| plan | step ms | predicted ms | error | regret | peak MB | predicted MB |\n|---|---|---|---|---|---|---|")
NARROW = {"layers": 1, "dim": 8, "heads": 1, "context": 8}


def shape_of(options):
    return {name: getattr(options, name) for name in NARROW}


def flags(shape):
    return [word for name, value in shape.items() for word in (f"--{name}", value)]


# ---- plans --------------------------------------------------------------------------------------

def describe(plan):
    """Of a plan's file: what a person would ask for."""
    words = [plan["mesh"], f"{plan['micro_batches']} x {plan['batch']}"]
    if "pp=" in plan["mesh"]:
        words += [plan["schedule"] + (f" -w {plan['warm_up']}" if plan["warm_up"] > 1 else ""),
                  "cut " + " ".join(stage["first"] for stage in plan["stages"][1:])]
    words += [f"zero {plan['zero']}"] if plan["zero"] else []
    words += [name for name in ("recompute", "sequence") if plan[name]]
    roles = {word.split("=")[0].split(".")[-1] for word in plan.get("tensor_plan", "").split() if not word.endswith("=sequence")}
    words += ["tp of " + "+".join(sorted(roles))] if roles else []
    return ", ".join(words)


def every_plan(options, folder, cluster, cores, device):
    """(file, predicted ms, predicted bytes), the search's first."""
    shape = [options.layers, options.dim, options.heads, options.context]
    found = folder / "found.json"
    run([options.build / "lockstep", "plan", "auto", "gpt", *flags(shape_of(options)), "--vocab", VOCABULARY, "--batch", options.batch,
         "--ranks", options.ranks, "--cluster", cluster, "--cores", cores, "--device", device, "--out", found])
    predicted = json.loads(found.read_text())["predicted"]
    said = run([options.build / "bench" / "dev" / "plans", folder, options.ranks, options.batch, *shape, cluster, cores,
                device.read_text()])
    rows = [line.split() for line in said.splitlines()]
    return [(found, predicted["step_ms"], predicted["memory_bytes"]),
            *((pathlib.Path(path), float(ms), float(memory)) for path, ms, memory in rows[::options.every])]


# ---- measuring ----------------------------------------------------------------------------------

def train(options, shape, folder, *more):
    """(median step in ms, bytes of the largest rank's peak resident set)"""
    log = folder / "log"
    log.unlink(missing_ok=True)
    command = [options.build / "lockstep", "run", "-n", options.ranks, options.build / "programs" / "train_gpt", "--data", folder / "text",
               *flags(shape), "--steps", options.steps, "--eval-every", 0, "--clip", 0, "--log", log, *more]
    with tempfile.TemporaryFile(mode="w+") as said:
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
                                   env=dict(os.environ, LOCKSTEP_THREADS="1"))
        _, status, used = os.wait4(process.pid, 0)  # of all that it has waited for
        process.returncode = os.waitstatus_to_exitcode(status)
        if status != 0:
            said.seek(0)
            raise Refused(said.read().strip()[-300:])
    steps = [seconds_of(line) for line in log.read_text().splitlines() if '"seconds"' in line]
    return 1e3 * statistics.median(steps[2:] or steps), 1024 * used.ru_maxrss


def measure(options, folder, plan, base):
    path, predicted, memory = plan
    step, peak = train(options, shape_of(options), folder, "--plan", path)
    return {"name": describe(json.loads(path.read_text())), "file": str(path), "step_ms": step, "predicted_ms": predicted,
            "peak_bytes": max(0, peak - base), "predicted_bytes": memory}


def keep_rows(options, rows):
    if options.json is not None:
        write_rows(options.json, rows, False)


def measure_all(options, folder, plans, base):
    rows, refused = [], {}
    for plan in plans:
        try:
            rows.append(measure(options, folder, plan, base))
            keep_rows(options, rows)
        except Refused as why:
            if plan is plans[0]:
                raise
            last = str(why).splitlines()[-1] if str(why) else "no message"
            reason = re.sub(r"\S*/\S+", "FILE", last)
            refused[reason] = refused.get(reason, 0) + 1
    return rows, refused


def fastest(rows, count):
    return sorted(rows, key=lambda row: row["step_ms"])[:count]


def take_turns(options, folder, rows, rounds):
    steps = [[] for _ in rows]
    for _ in range(rounds):
        for row, times in zip(rows, steps):
            times.append(train(options, shape_of(options), folder, "--plan", row["file"])[0])
    for row, times in zip(rows, steps):
        row["step_ms"] = statistics.median(times) if times else row["step_ms"]


def finish(options, folder, rows):
    """The fastest and the search's, in turns."""
    heat = fastest(rows[1:], HEAT)
    take_turns(options, folder, heat, HEAT_ROUNDS)
    finalists = [rows[0], *fastest(heat, FINALISTS)]
    take_turns(options, folder, finalists, options.rounds)
    return finalists


def folder_of(options):
    if options.folder is None:
        return tempfile.TemporaryDirectory(prefix="lockstep-plan-regret-")
    options.folder.mkdir(parents=True, exist_ok=True)
    return contextlib.nullcontext(options.folder.resolve())


# ---- what is printed ----------------------------------------------------------------------------

def judged(rows, finalists):
    """With the regret of each: its step over the least of those that were measured in turns."""
    least = min(row["step_ms"] for row in finalists)
    for row in rows:
        row["error"] = row["predicted_ms"] / row["step_ms"] - 1
        row["regret"] = row["step_ms"] / least - 1
    return rows


def line_of(row):
    return (f"| {row['name']} | {row['step_ms']:.4g} | {row['predicted_ms']:.4g} | {100 * row['error']:+.1f} % | "
            f"{100 * row['regret']:.1f} % | {row['peak_bytes'] * 1e-6:.4g} | {row['predicted_bytes'] * 1e-6:.4g} |")


def verdict(row):
    said = f"plan auto's plan, {row['name']}, takes {100 * row['regret']:.1f} % longer than the fastest"
    return said if row["regret"] <= AIM else f"missed: {said}, aim {100 * AIM:.0f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    for name, value in (("ranks", 4), ("batch", 4), ("layers", 2), ("dim", 256), ("heads", 8), ("context", 64), ("every", 1),
                        ("steps", 8), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", type=pathlib.Path, help="also write the rows to this file, as they are measured")
    parser.add_argument("--folder", type=pathlib.Path, help="keep the plans and the device here")
    options = parser.parse_args()
    options.build = options.build.resolve()
    with folder_of(options) as name, link_of("shm") as link:
        folder = pathlib.Path(name)
        short_text(folder)
        cluster, cores = cluster_of(options.ranks, link_cluster(options, link, folder), False)
        device = device_of(options, link, folder, options.ranks, options.batch * options.context, options.dim, options.context)
        plans = every_plan(options, folder, cluster, cores, device)
        print(f"{len(plans) - 1} plans and the search's on {cluster}, {cores} cores", flush=True)
        base = train(options, NARROW, folder, "--batch", 1)[1]
        rows, refused = measure_all(options, folder, plans, base)
        finalists = finish(options, folder, rows)
    judged(rows, finalists)
    print(HEAD)
    for row in [rows[0], *sorted(rows[1:], key=lambda row: row["step_ms"])]:
        print(line_of(row))
    for reason, count in refused.items():
        print(f"{count} refused by training: {reason}")
    print(verdict(rows[0]))
    keep_rows(options, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
