#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data parallelism that divides training state beside PyTorch's: the same GPT, batch, optimizer and initial parameters, two
ranks with one thread each, on the same link. `zero` 1 beside ZeroRedundancyOptimizer under DistributedDataParallel, 2 and 3
beside FSDP2 (torch.distributed.fsdp.fully_shard) with reshard_after_forward False and True, over gloo.

    bench/compare_zero.py --build build [--python PYTHON] [--row gpt/shm,gpt/tcp,gpt-tiny/shm,gpt-tiny/tcp] [--zero 1,2,3]

Each framework has two jobs, one that trains under `zero` and one whose ranks train the whole GPT by themselves. All four are
alive and take turns; those whose turn it is not are asleep. A step's time is its slowest rank's. Added time is a step's time
minus that of the same framework's step alone in the same turn, and at least 0.5 % of it: less is noise. The ratio is
PyTorch's added time by Lockstep's, made within each turn; above 1 Lockstep adds less.

Peak memory is that of the larger rank's process in the turns (VmHWM, reset after the warm-up), minus what the process had
before it made the network (VmRSS), on both sides alike; its ratio is Lockstep's by PyTorch's. In shared memory a rank reads
the other's gradients and parameters in place, and each such page is in the Rss of both processes, though the host has it once.
So a share is shown, too, and judged by the aim: the peak without what counts for others of the pages of shared memory (RssShmem
- Pss_Shmem) after the turns. Shared memory is Lockstep's only: gloo uses loopback there.
"""

import added
import turns
from link import LINKS, link_of
from pages import range_text
from turns import check_equal, parallel_job, take_turns, torch_job

MEMORY = 0.8  # aim of the ratio of peak memory
BATCH = {"gpt": 1, "gpt-tiny": 2}
STEPS = {"gpt-tiny": 20}  # of a turn; else 3
WARM_UP = 3  # the first steps show in which order gradients are ready
ROWS = ["gpt/shm", "gpt/tcp", "gpt-tiny/shm", "gpt-tiny/tcp"]
STAGES = ("1", "2", "3")
PEERS = {"1": "PyTorch DDP, ZeroRedundancyOptimizer", "2": "PyTorch FSDP2, reshard_after_forward=False",
         "3": "PyTorch FSDP2, reshard_after_forward=True"}


def lockstep(form):
    return lambda options, link, arguments, folder: parallel_job(options, link, arguments(form), folder, f"Lockstep {form}")


def torch(form):
    return lambda options, link, arguments, folder: torch_job(
        options, link, folder, "zero_torch.py", lambda gate, path: [*arguments(form), gate, path], f"PyTorch {form}")


def measure(options, model, name, stage):
    """The rows (alone, zero) of Lockstep, those of PyTorch."""
    def arguments(form):
        return [model, BATCH[model], 1, form, WARM_UP, STEPS.get(model, 3), options.turns]

    forms = ("alone", f"zero{stage}")
    with link_of(name) as link:
        rows = take_turns([side(form) for form in forms for side in (lockstep, torch)], options, link, arguments)
    alone, alone_torch, zero, zero_torch = (row for row, in rows)
    check_equal((alone, zero), (alone_torch, zero_torch))
    return (alone, zero), (alone_torch, zero_torch)


def row_of(model, link, stage, ours, theirs):
    row = {"name": f"{model}, batch {BATCH[model]}, {LINKS[link][0]}, zero {stage}", "peer": PEERS[stage], "model": model,
           "link": link, "zero": stage, "batch": BATCH[model]}
    for who, (alone, zero) in (("ours", ours), ("peer", theirs)):
        row |= added.times_of(who, alone, zero)
        row |= {f"{who}_{what}_mb": round(side[key], 1) for what, side, key in (
            ("peak", zero, "peak_mb"), ("share", zero, "share_mb"), ("alone", alone, "peak_mb"))}
    ratios = added.ratios(added.added(*theirs), added.added(*ours))
    return {**row, **turns.summary(ratios), "memory_ratio": round(row["ours_share_mb"] / row["peer_share_mb"], 3)}


HEAD = ("Alone: each rank trains the whole network. Added: milliseconds over that. Ratio: PyTorch's added time by Lockstep's.\n"
        "Peak: MB of the larger rank, its share of them, and those of one alone; memory: Lockstep's share by PyTorch's.\n"
        "| a step | Lockstep ms | alone | added | peak MB | share | alone | PyTorch ms | alone | added | peak MB | share | alone | "
        "ratio | range | turns | memory |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")


def line_of(row):
    def side(who):
        return (f"{added.times_text(row, who)} | {row[who + '_peak_mb']:.0f} | {row[who + '_share_mb']:.0f} | {row[who + '_alone_mb']:.0f}")
    return (f"| {row['name']} | {side('ours')} | {side('peer')} | {row['ratio']:.2f} | {range_text(row)} | {row['turns']} | "
            f"{row['memory_ratio']:.2f} |")


def measured(options, model, link):
    for stage in options.zero:
        yield row_of(model, link, stage, *measure(options, model, link, stage))


def missed(row):
    yield from added.missed(row)
    if row["memory_ratio"] > MEMORY:
        yield f"missed: the share of the peak memory is {row['memory_ratio']:.2f} of PyTorch's, aim {MEMORY}"


if __name__ == "__main__":
    turns.compare(turns.parse(__doc__, BATCH, ROWS, "zero", STAGES), "compare-zero.json", HEAD, measured, line_of, missed)
