#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Automatic buckets beside an exhaustive sweep of fixed sizes: `lockstep bench ddp` in turns, with all sizes
alive in one job, over shared memory, over TCP of one host, and at 1 Gbit/s between two network namespaces with
`tc tbf`, which this script makes and removes. Each row is a link and a network. Its ratio is the best fixed
size's time by that of automatic buckets, made within each turn (above 1: automatic ones are faster); the best
size is the one with the least median over all turns, so it has chance on its side. The range is that of the
turns' ratios: quartiles from 9 turns on, else the lowest and the highest.

    bench/compare_buckets.py --build build [--models mlp,resnet18-cifar,gpt] [--links shm,tcp,1gbit] [--keep]
"""

import argparse
import json
import os
import pathlib
import statistics
import sys

import conditions
from link import LINKS, Job, Refused, link_of
from pages import range_of, range_text, write_rows

SOURCE = pathlib.Path(__file__).resolve().parent.parent
TARGET = 1 / 1.03  # automatic buckets take at most 3 % longer than the sweep's best
# MB. 1000: all gradients but the first 1 MiB of each type in one bucket.
SIZES = ("0", "0.25", "0.5", "1", "2", "5", "10", "25", "1000")
# Steps of a turn and samples of a step of a rank; of the other networks 2 and their own. Batches are so
# small that communication shows.
STEPS = {"mlp": 20, "mlp-tiny": 20}
BATCHES = {"resnet18-cifar": 4, "gpt": 1}


def arguments(options, model, path):
    batch = ["--batch", str(BATCHES[model])] if model in BATCHES else []
    return [str(options.build / "lockstep"), "bench", "ddp", "--model", model, *batch, "--mode", "overlap", "--buckets",
            ",".join(options.sizes) + ",auto", "--steps", str(STEPS.get(model, 2)), "--rounds", str(options.rounds),
            "--warmup", "2", "--json", str(path)]


def measure(options, name, model, path):
    with link_of(name) as link, Job(link.jobs(options.build, arguments(options, model, path))) as job:
        job.wait()


# ---- rows -------------------------------------------------------------------------------------


def row_of(title, model, found):
    """The automatic row beside the best of the others."""
    automatic = next(row for row in found if row["buckets"] == "auto")
    fixed = [row for row in found if row["buckets"] != "auto"]
    best = min(fixed, key=lambda row: statistics.median(row["round_ms"]))
    ratios = [b / a for b, a in zip(best["round_ms"], automatic["round_ms"])]
    low, high, kind = range_of(ratios)
    return {"name": f"{model}, {title}", "peer": f"fixed, {best['buckets']} MB", "model": model, "link": title,
            "ours_ms": round(statistics.median(automatic["round_ms"]), 4),
            "peer_ms": round(statistics.median(best["round_ms"]), 4), "ratio": round(statistics.median(ratios), 3),
            "spread": [round(low, 3), round(high, 3)],
            "spread_is": kind, "turns": len(ratios),
            "buckets": automatic["bucket_bytes"], "hidden_share": automatic["hidden_share"],
            "comm_frac": automatic["comm_frac"],
            "sweep_ms": {row["buckets"]: round(statistics.median(row["round_ms"]), 4) for row in fixed}}


def missed(row):
    """Whether even the range's upper end is slower than the target."""
    return row["ratio"] < TARGET and row["spread"][1] < 1.0


HEAD = ("Ratio: time of the best fixed size by that of automatic buckets.\n"
        "| a training step | automatic ms | buckets | best fixed ms | size | ratio | range | turns |\n"
        "|---|---|---|---|---|---|---|---|")


def line_of(row):
    return (f"| {row['name']} | {row['ours_ms']:.2f} | {len(row['buckets'])} | {row['peer_ms']:.2f} | {row['peer']} | "
            f"{row['ratio']:.3f} | {range_text(row)} | {row['turns']} |")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build")
    parser.add_argument("--models", default="mlp,resnet18-cifar,gpt")
    parser.add_argument("--links", default=",".join(LINKS), help=", ".join(LINKS))
    parser.add_argument("--sizes", default=",".join(SIZES), help="MB of the sweep")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each size, up to 10")
    parser.add_argument("--keep", action="store_true", help="other rows of compare-buckets.json stay: for runs of parts")
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.models, options.links = options.models.split(","), options.links.split(",")
    options.sizes = options.sizes.split(",")
    unknown = [link for link in options.links if link not in LINKS]
    if unknown:
        parser.error(f"--links: {unknown[0]} is unknown; choose from {', '.join(LINKS)}")
    return options


def main():
    options = parse()
    os.environ.setdefault("LOCKSTEP_THREADS", "1")  # of each rank; the ranks share the cores
    watch, rows = conditions.Watch(), []
    print(HEAD, flush=True)
    path = options.build / "bench-ddp.json"
    for link in options.links:
        for model in options.models:
            title = LINKS[link][0]
            try:
                measure(options, link, model, path)
            except Refused as refused:
                print(f"SKIP {model}, {title}: {refused}", flush=True)
                continue
            rows.append({**row_of(title, model, json.loads(path.read_text())), "conditions": watch.conditions()})
            write_rows(options.build / "compare-buckets.json", rows, options.keep)
            print(line_of(rows[-1]), flush=True)
    about = watch.conditions()
    print(f"\n{about['minutes']} minutes; other programs kept {about['others_cores']:.2f} processors busy", flush=True)
    late = [row["name"] for row in rows if missed(row)]
    sys.exit(f"slower than the target of 3 % beyond the range of the turns: {'; '.join(late)}" if late else 0)


if __name__ == "__main__":
    main()
