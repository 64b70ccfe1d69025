#!/usr/bin/env python3
"""Tensor parallelism beside PyTorch's parallelize_module (torch.distributed.tensor.parallel) over gloo: the same GPT, batch,
optimizer and initial parameters, two ranks with one thread each, on the same link. Both jobs are alive and take turns; the
one whose turn it is not is asleep. In a turn each takes steps in which the ranks share every matrix, the embedding's and the
head's included, and steps in which each rank trains the whole network by itself. A step's time is its slowest rank's.

    bench/compare_tensor.py --build build [--python PYTHON] [--row gpt/shm,gpt/tcp,gpt-tiny/shm,gpt-tiny/tcp,gpt/1gbit]

Added time is a step's time minus half of the same framework's step of the whole network in the same turn, and at least
0.5 % of that half: less is noise. The first ratio is PyTorch's added time by Lockstep's, the second one PyTorch's time of a
step by Lockstep's, both made within each turn; above 1 Lockstep is faster. Shared memory is Lockstep's only: gloo uses
loopback there. 1 Gbit/s is a link between two network namespaces, which needs root.
"""

import statistics

import turns
from link import LINKS, link_of
from pages import range_text
from turns import check_equal, parallel_job, take_turns, torch_job

AIM = 2.0  # of the ratio of added times
NOISE = 0.005  # of half the step alone: the least added time that counts
BATCH = {"gpt": 8, "gpt-tiny": 2}
STEPS = {"gpt-tiny": 20}  # of a turn; else 2
ROWS = ["gpt/shm", "gpt/tcp", "gpt-tiny/shm", "gpt-tiny/tcp", "gpt/1gbit"]


def torch(options, link, arguments, folder):
    return torch_job(options, link, folder, "tensor_torch.py", lambda gate, path: [*arguments, gate, path])


def measure(options, model, name):
    """The rows (alone, tensor) of Lockstep, those of PyTorch."""
    arguments = [model, BATCH[model], 1, "alone,tensor", 1, STEPS.get(model, 2), options.turns]
    with link_of(name) as link:
        ours, theirs = take_turns((parallel_job, torch), options, link, arguments)
    check_equal(ours, theirs)
    return ours, theirs


def added(alone, tensor):
    return [max(step - whole / 2, NOISE * whole / 2) for whole, step in zip(alone["slowest_ms"], tensor["slowest_ms"])]


def ratios(theirs, ours):
    return [their / our for their, our in zip(theirs, ours)]


def row_of(model, link, ours, theirs):
    row = {"name": f"{model}, batch {BATCH[model]}, {LINKS[link][0]}", "peer": "PyTorch parallelize_module over gloo",
           "model": model, "link": link, "batch": BATCH[model]}
    for who, (alone, tensor) in (("ours", ours), ("peer", theirs)):
        row |= {f"{who}_{what}_ms": round(statistics.median(times), 3) for what, times in (
            ("step", tensor["slowest_ms"]), ("alone", alone["slowest_ms"]), ("added", added(alone, tensor)))}
    steps = ratios(theirs[1]["slowest_ms"], ours[1]["slowest_ms"])
    return {**row, **turns.summary(ratios(added(*theirs), added(*ours))),
            "step_ratio": round(statistics.median(steps), 3)}


HEAD = ("Alone: the whole network on one rank. Added: milliseconds over half of it. Ratio: PyTorch's added time by Lockstep's.\n"
        "| a step | Lockstep ms | alone | added | PyTorch ms | alone | added | ratio | range | turns | ratio of steps |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|")


def line_of(row):
    def side(who):
        return f"{row[who + '_step_ms']:.4g} | {row[who + '_alone_ms']:.4g} | {row[who + '_added_ms']:.3g}"
    return (f"| {row['name']} | {side('ours')} | {side('peer')} | {row['ratio']:.2f} | {range_text(row)} | {row['turns']} | "
            f"{row['step_ratio']:.2f} |")


def measured(options, model, link):
    return [row_of(model, link, *measure(options, model, link))]


def missed(row):
    if row["ratio"] < AIM:
        yield f"missed: PyTorch adds {row['ratio']:.2f} of the time that Lockstep adds, aim {AIM}"


if __name__ == "__main__":
    turns.compare(turns.parse(__doc__, BATCH, ROWS), "compare-tensor.json", HEAD, measured, line_of, missed)
