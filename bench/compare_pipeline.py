#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pipeline-parallel training beside PyTorch's torch.distributed.pipelining over gloo: the same GPT in the same two stages,
the same micro-batches, optimizer and initial parameters, two ranks with one thread each, on the same link. Both jobs
are alive and take turns; the one whose turn it is not is asleep. A step's time is its slowest rank's.

    bench/compare_pipeline.py --build build [--python PYTHON] [--row gpt/shm,gpt/tcp,gpt/1gbit] [--schedules gpipe,1f1b]

The ratio is PyTorch's time by Lockstep's, made within each turn; above 1 Lockstep is faster. Shared memory is
Lockstep's only: gloo uses loopback there. 1 Gbit/s is a link between two network namespaces, which needs root.
"""

import statistics

import turns
from link import LINKS, link_of
from pages import range_text
from turns import check_equal, parallel_job, take_turns, torch_job

MICRO = 8
ROWS_OF = {"gpt": 1, "gpt-tiny": 2}  # samples of a micro-batch
STEPS = {"gpt-tiny": 10}  # of a turn; else 2
ROWS = [f"gpt/{link}" for link in LINKS]
SCHEDULES = ("gpipe", "1f1b")


def torch(options, link, arguments, folder):
    return torch_job(options, link, folder, "pipeline_torch.py", lambda gate, path: [*arguments, gate, path])


def measure(options, model, name):
    """(rows of Lockstep, rows of PyTorch)."""
    arguments = [model, ROWS_OF[model], MICRO, ",".join(options.schedules), 1, STEPS.get(model, 2), options.turns]
    with link_of(name) as link:
        ours, theirs = take_turns((parallel_job, torch), options, link, arguments)
    check_equal(ours, theirs)
    return ours, theirs


def rows_of(model, link, ours, theirs):
    """A row for each schedule."""
    for mine, other in zip(ours, theirs):
        ratios = [theirs_ms / ours_ms for ours_ms, theirs_ms in zip(mine["slowest_ms"], other["slowest_ms"])]
        yield {"name": f"{model}, {MICRO} micro-batches of {ROWS_OF[model]}, {LINKS[link][0]}, {mine['form']}",
               "peer": "PyTorch pipelining over gloo", "model": model, "link": link, "schedule": mine["form"],
               "ours_ms": round(statistics.median(mine["slowest_ms"]), 3),
               "peer_ms": round(statistics.median(other["slowest_ms"]), 3), **turns.summary(ratios)}


HEAD = ("Ratio: PyTorch's time by Lockstep's.\n| a step | Lockstep ms | PyTorch ms | ratio | range | turns |\n"
        "|---|---|---|---|---|---|")


def line_of(row):
    return (f"| {row['name']} | {row['ours_ms']:.4g} | {row['peer_ms']:.4g} | {row['ratio']:.2f} | {range_text(row)} | "
            f"{row['turns']} |")


def measured(options, model, link):
    return rows_of(model, link, *measure(options, model, link))


def missed(row):
    if row["spread"][1] < 1.0:
        yield "slower than PyTorch"


if __name__ == "__main__":
    turns.compare(turns.parse(__doc__, ROWS_OF, ROWS, "schedules", SCHEDULES), "compare-pipeline.json", HEAD, measured,
                  line_of, missed)
