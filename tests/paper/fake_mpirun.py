# SPDX-License-Identifier: Apache-2.0
"""Stands in for mpirun: writes made-up rows of the `lockstep bench` that it is to start, and appends them to $FAKE_ROWS,
so that a test can compute the tables of `lockstep paper --transport mpi` from them."""

import hashlib
import json
import os
import statistics
import sys

# By these the times of turns are longer, by mode.
FACTORS = json.loads(os.environ.get("FAKE_FACTORS", "{}"))
PARTS = ("step", "forward", "backward", "wire", "exposed", "optimizer")


def made_up(*key):
    """In [1,2), of the key alone."""
    return 1 + int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4], "big") / 2**32


def steps(command, model, ranks, options):
    """Rows of `bench ddp` and `bench replay`."""
    count, rounds = int(options["steps"]), int(options["rounds"])
    lists = {key: options.get(key, "1").split(",") for key in ("skip", "groups")}
    more = {"compute": command, "recorded": "paper", "speed": float(options.get("speed", 1))} if command == "replay" else {}
    for skip, groups, mode in ((s, g, m) for s in lists["skip"] for g in lists["groups"] for m in options["mode"].split(",")):
        sized = mode in ("overlap", "bucketed")
        for size in options["buckets"].split(",") if sized else "-":
            if mode == "local" and (skip, groups) != ("1", "1"):
                continue
            samples = rounds * -(-count // int(skip))
            key = (model, ranks, mode, size, skip, groups, options.get("noise"), options.get("speed"))
            rows = {part: [10 * made_up(*key, part, i) for i in range(samples)] for part in PARTS}
            bytes = [int((0.35e6 if size == "1" else 2e6) * made_up(*key, i)) for i in range(3)]
            yield {"model": model, "batch": int(options.get("batch", 4)), "ranks": ranks, "mode": mode, "buckets": size,
                   "warmup": 3, "untimed": int(options["untimed"]), "steps": count, "rounds": rounds, "bucket_bytes": bytes, "hidden_share": made_up(*key) - 1,
                   "skip": int(skip), "groups": int(groups), "samples_ms": rows,
                   "round_ms": [20 * made_up(*key, "round", i) * FACTORS.get(mode, 1) for i in range(rounds)],
                   **{part: {"mean_ms": statistics.mean(ms), "deviation_ms": made_up(*key, part)} for part, ms in rows.items()},
                   **more}


def pieces(ranks, options):
    for size in options["pieces"].split(","):
        calls = -(-int(options["total"]) // int(size))
        whole = 0.01 * calls + 4e-6 * int(options["total"])
        turns = [whole * made_up(ranks, size, i) for i in range(int(options["rounds"]))]
        yield {"elements": int(size), "calls": calls, "ranks": ranks, "round_ms": turns,
               "time_ms": statistics.median(turns)}


def all_reduce(ranks, options):
    for size in options["sizes"].split(","):
        number = int(size.rstrip("KMG")) * {"K": 1000, "M": 10**6, "G": 10**9}[size[-1]]
        yield {"bytes": number, "ranks": ranks, **{key: made_up(ranks, size, key) for key in ("time_ms", "algbw", "busbw")},
               "samples_ms": [made_up(ranks, size, "sample", i) for i in range(int(options["samples"]))]}


def straggler(task, options):
    """Trainings of which one seed of a mode does not end; those with versions have a histogram."""
    for mode in options["modes"].split():
        for seed in range(1, int(options["seeds"]) + 1):
            key = (task, mode, seed, options["slow"])
            times = [2 * made_up(*key, i) + i for i in range(3)]
            stale = [int(100 * made_up(*key, "stale", i)) for i in range(4)] if mode in ("async", "stale=2") else []
            yield {"mode": mode, "about": "a network", "target": 0.5, "seed": seed, "reached": (mode, seed) != ("sync", 2),
                   "seconds": times[1], "trained_seconds": times[2], "steps": int(1000 * made_up(*key, "steps")),
                   "loss": made_up(*key, "loss"), "dropped": len(stale), "stale": stale,
                   "losses": [made_up(*key, "losses", i) for i in range(3)], "times": times}


def main():
    words = sys.argv[1:]
    ranks, (command, *rest) = int(words[words.index("-n") + 1]), words[words.index("bench") + 1:]
    model = rest.pop(0) if command in ("replay", "straggler") else None
    options = dict(zip((word.removeprefix("--") for word in rest[::2]), rest[1::2], strict=True))
    rows = list({"ddp": lambda: steps(command, options["model"], ranks, options),
                 "replay": lambda: steps(command, model, ranks, options), "pieces": lambda: pieces(ranks, options),
                 "straggler": lambda: straggler(model, options),
                 "all-reduce": lambda: all_reduce(ranks, options)}[command]())
    with open(options["json"], "w") as file:
        json.dump(rows, file)
    with open(os.environ["FAKE_ROWS"], "a") as file:
        json.dump({"command": command, "ranks": ranks, "options": options, "rows": rows}, file)
        file.write("\n")


main()
