#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A DDP training step of PyTorch over gloo and over Lockstep: the same model in the same processes,
in turns of a few steps; a third contender trains without communication. A step's time is that of its
slowest rank, a turn counts with its median. The ratio is made within each pair of turns that follow
each other, so that what else the machine does weighs on both; its median is printed, with the quartiles
of all turns and their number (with fewer than 9 turns the lowest and the highest ratio, marked by a star).
Both train the same steps from the same weights: if the ranks' losses after the last one differ by more than
sums in another order explain, no ratio is printed and the command fails.

    bench/compare_torch_backend.py --build build [--python PYTHON] [--ranks 2,4] [--seconds 35]

Takes about --seconds for each row. Without --python one with torch is looked for; where there is
none, PyTorch for the CPU is installed into a virtual environment below the build.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import conditions
from pages import range_of, range_text
import torch_venv

SOURCE = pathlib.Path(__file__).resolve().parent.parent
TOLERANCE = 1e-3  # of a loss, relatively: float32 sums in other orders, over hundreds of steps
WIDTHS = "256,1024,1800"  # 0.8, 13 and 39 MB of gradients


def version_of(python):
    done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], text=True,
                          capture_output=True, cwd="/")
    return done.stdout.strip() if done.returncode == 0 else None


def find_python(build):
    venv = build / "torch-venv"
    for python in (venv / "bin/python", sys.executable, "/usr/bin/python3"):
        if pathlib.Path(python).exists() and version_of(str(python)):
            return str(python)
    torch_venv.install(venv)
    return str(venv / "bin/python")


def measured(options, ranks):
    """What the ranks of a job print, row by row as they do."""
    env = dict(os.environ, PYTHONPATH=str(SOURCE / "python"), OMP_NUM_THREADS="1",
               LOCKSTEP_LIBRARY=str(options.build / "src"), PYTHONWARNINGS="ignore")
    job = subprocess.Popen(
        [options.build / "lockstep", "run", "-n", str(ranks), options.python, "-m",
         "lockstep.torch", SOURCE / "bench/torch_step.py", "--widths", options.widths, "--turns",
         str(options.turns), "--seconds", str(options.seconds)],
        env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT)
    said = []
    for line in job.stdout:
        at = line.find("row {")  # `lockstep run` may put the rank before it
        if at >= 0:
            yield json.loads(line[at + 4:])
        else:
            said.append(line)
    if job.wait() != 0:
        sys.exit(f"the job of {ranks} ranks ended with {job.returncode}:\n{''.join(said)}")


def differing(losses):
    """Why the two did not train the same; None: they did."""
    pairs = list(zip(losses["gloo"], losses["lockstep"]))
    if all(abs(g - l) <= TOLERANCE * abs(g) for g, l in pairs):
        return None
    return f"the ranks' losses are {losses['gloo']} over gloo, {losses['lockstep']} over Lockstep"


def row(ranks, found):
    turns = found["turns"]
    ratios = sorted(g / l for g, l in zip(turns["gloo"], turns["lockstep"]))
    low, high, kind = range_of(ratios)
    ms = {name: round(statistics.median(times), 3) for name, times in turns.items()}
    return {"name": f"{ranks} ranks, {found['bytes'] / 1e6:.1f} MB of gradients",
            "ours_ms": ms["lockstep"], "peer": "gloo", "peer_ms": ms["gloo"],
            "alone_ms": ms["alone"], "ratio": round(statistics.median(ratios), 3),
            "spread": [round(low, 3), round(high, 3)], "spread_is": kind, "turns": len(ratios),
            "steps": found["steps"], "losses": found["losses"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build")
    parser.add_argument("--python")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--widths", default=WIDTHS)
    parser.add_argument("--turns", type=int, default=40, help="at most, of each contender")
    parser.add_argument("--seconds", type=float, default=35, help="for a row; three turns at least")
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.python = options.python or find_python(options.build)
    print(f"PyTorch {version_of(options.python)}, {os.cpu_count()} cores, a thread a rank. "
          "Milliseconds a step; ratio: gloo's by Lockstep's, in pairs of turns.\n\n"
          "| a DDP step | Lockstep | gloo | no communication | ratio | range | turns |\n"
          "|---|---|---|---|---|---|---|", flush=True)
    rows, problems, watch = [], [], conditions.Watch()
    for ranks in map(int, options.ranks.split(",")):
        for found in measured(options, ranks):
            r = row(ranks, found)
            if why := differing(found["losses"]):
                problems.append(f"{r['name']}: not compared: {why}")
                continue
            rows.append(r)
            print(f"| {r['name']} | {r['ours_ms']:.2f} | {r['peer_ms']:.2f} | {r['alone_ms']:.2f} | "
                  f"{r['ratio']:.2f} | {range_text(r)} | {r['turns']} |", flush=True)
    about = watch.conditions()
    (options.build / "compare-torch-backend.json").write_text(
        json.dumps([{**r, "conditions": about} for r in rows], indent=1) + "\n")
    sys.exit("\n".join(problems) if problems else 0)


if __name__ == "__main__":
    main()
