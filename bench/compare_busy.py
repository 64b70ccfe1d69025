#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step beside busy processes, against the same step with threads that never spin, in turns.

    bench/compare_busy.py [--build BUILD] [--busy 0,2] [--turns N]

Rows: one process outside the launcher, and `lockstep run` with 1 and 2 ranks; the GPT of `lockstep train gpt`.
The peer is the same command with OMP_WAIT_POLICY=passive. ratio = peer / ours: above 1, ours is faster.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from pages import write_rows

SOURCE = pathlib.Path(__file__).resolve().parent.parent
STEPS, FIRST = 16, 4  # the first ones fill caches and plans
ROWS = {"one process": [], "1 rank": ["-n", "1"], "2 ranks": ["-n", "2"]}


def step_ms(build, ranks, passive):
    """The median of a run's steps."""
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environment.update({"OMP_WAIT_POLICY": "passive"} if passive else {})
    with tempfile.TemporaryDirectory(prefix="lockstep-busy-") as folder:
        log = pathlib.Path(folder) / "log"
        subprocess.run([build / "lockstep", "train", "gpt", *ranks, "--data",
                        SOURCE / "examples/data/pride_and_prejudice.txt", "--steps", str(STEPS), "--log", log],
                       env=environment, check=True, stdout=subprocess.DEVNULL, timeout=600)
        rows = [json.loads(line) for line in log.read_text().splitlines()]
    return statistics.median(1e3 * row["seconds"] for row in rows
                             if row["step"] > FIRST and "seconds" in row)


def busy_processes(count):
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]


def compare(options, name, busy):
    loops = busy_processes(busy)
    try:
        turns = [(step_ms(options.build, ROWS[name], False), step_ms(options.build, ROWS[name], True))
                 for _ in range(options.turns)]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    ours, peer = (statistics.median(turn[i] for turn in turns) for i in (0, 1))
    ratios = sorted(peer / own for own, peer in turns)
    print(f"| {name} | {busy} | {ours:.1f} | {peer:.1f} | {statistics.median(ratios):.2f} "
          f"[{ratios[0]:.2f}, {ratios[-1]:.2f}] |", flush=True)
    return {"name": f"{name}, {busy} busy", "peer": "OMP_WAIT_POLICY=passive", "ours_ms": round(ours, 2),
            "peer_ms": round(peer, 2), "ratio": round(statistics.median(ratios), 3),
            "spread": [round(ratios[0], 3), round(ratios[-1], 3)], "turns": len(turns)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build")
    parser.add_argument("--busy", default="0,2", help="processes that do nothing but compute")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    options.build = options.build.resolve()
    print("| Lockstep | busy processes | ms a step | ms, passive | ratio |\n|---|---|---|---|---|", flush=True)
    rows = [compare(options, name, int(busy)) for busy in options.busy.split(",") for name in ROWS]
    write_rows(options.build / "compare-busy.json", rows, False)


if __name__ == "__main__":
    main()
