#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pipeline-parallel training beside PyTorch's torch.distributed.pipelining over gloo: the same GPT in the same two stages,
the same micro-batches, optimizer and initial parameters, two ranks with one thread each, on the same link. Both jobs
are alive and take turns; the one whose turn it is not is asleep. A step's time is its slowest rank's.

    bench/compare_pipeline.py --build build [--python PYTHON] [--row gpt/shm,gpt/tcp,gpt/1gbit] [--schedules gpipe,1f1b]
    bench/compare_pipeline.py --row gpt/shm --beside 1f1b --schedules zb-h1,1f1b --micro 2    schedules of Lockstep

The ratio is PyTorch's time by Lockstep's, made within each turn; above 1 Lockstep is faster. With --beside it
is the time of that schedule of Lockstep's by the time of each of the others. Shared memory is
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
COMPARED = ("gpipe", "1f1b")  # those that PyTorch has too
SCHEDULES = (*COMPARED, "zb-h1")
HEAD = ("Ratio: PyTorch's time by Lockstep's.\n| a step | Lockstep ms | PyTorch ms | ratio | range | turns |\n"
        "|---|---|---|---|---|---|")
BESIDE = HEAD.replace("PyTorch's time by Lockstep's", "the time of {0} by the row's").replace("PyTorch ms", "{0} ms")


def torch(options, link, arguments, folder):
    return torch_job(options, link, folder, "pipeline_torch.py", lambda gate, path: [*arguments, gate, path])


def measure(options, model, name):
    """(rows of Lockstep, rows of PyTorch)."""
    forms = [options.beside, *options.schedules] if options.beside else options.schedules
    arguments = [model, ROWS_OF[model], options.micro, ",".join(forms), 1, STEPS.get(model, 2), options.turns]
    with link_of(name) as link:
        if options.beside:
            first, *ours = take_turns((parallel_job,), options, link, arguments)[0]
            theirs = [first] * len(ours)
        else:
            ours, theirs = take_turns((parallel_job, torch), options, link, arguments)
    check_equal(ours, theirs)
    return ours, theirs


def rows_of(model, link, micro, peer, ours, theirs):
    """A row for each schedule."""
    for mine, other in zip(ours, theirs):
        ratios = [theirs_ms / ours_ms for ours_ms, theirs_ms in zip(mine["slowest_ms"], other["slowest_ms"])]
        yield {"name": f"{model}, {micro} micro-batches of {ROWS_OF[model]}, {LINKS[link][0]}, {mine['form']}",
               "peer": peer, "model": model, "link": link, "schedule": mine["form"],
               "ours_ms": round(statistics.median(mine["slowest_ms"]), 3),
               "peer_ms": round(statistics.median(other["slowest_ms"]), 3), **turns.summary(ratios)}


def line_of(row):
    return (f"| {row['name']} | {row['ours_ms']:.4g} | {row['peer_ms']:.4g} | {row['ratio']:.2f} | {range_text(row)} | "
            f"{row['turns']} |")


def measured(options, model, link):
    peer = f"Lockstep, {options.beside}" if options.beside else "PyTorch pipelining over gloo"
    return rows_of(model, link, options.micro, peer, *measure(options, model, link))


def missed(row):
    if row["spread"][1] < 1.0 and row["peer"].startswith("PyTorch"):
        yield "slower than PyTorch"


def more(parser):
    parser.add_argument("--beside", choices=SCHEDULES, help="compare schedules with this one of Lockstep, not with PyTorch")
    parser.add_argument("--micro", type=int, default=MICRO, help=f"micro-batches of a step ({MICRO})")
    parser.set_defaults(schedules=",".join(COMPARED))


def main():
    options = turns.parse(__doc__, ROWS_OF, ROWS, "schedules", SCHEDULES, more)
    if not options.beside and set(options.schedules) - set(COMPARED):
        raise SystemExit(f"PyTorch is compared in {' and '.join(COMPARED)} alone; give --beside 1f1b for other schedules")
    head = BESIDE.format(options.beside) if options.beside else HEAD
    turns.compare(options, "compare-pipeline.json", head, measured, line_of, missed)


if __name__ == "__main__":
    main()
