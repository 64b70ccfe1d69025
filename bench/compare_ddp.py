#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training beside PyTorch's DistributedDataParallel over gloo: the same network, batch, optimizer and
initial parameters, two ranks with one thread each, on the same link. Both jobs are alive and take turns; the one whose
turn it is not is asleep. In a turn each takes steps without communication (local), with one all-reduce for each
parameter (naive), one for all (flat), and during backward with buckets of given sizes and of its own choice. A step's
time is its slowest rank's: without communication no rank waits for another.

    bench/compare_ddp.py --build build [--python PYTHON] [--row resnet18-cifar/1gbit,…] [--modes naive,flat] [--keep]

Added time is a step's time minus that of the same framework's local step in the same turn, and at least 0.5 % of it:
less is noise. The ratio is PyTorch's added time by Lockstep's, made within each turn; above 1 Lockstep adds less.
The floor is the time of a bare TCP stream of the gradients' bytes in both directions on the same link.

PyTorch runs tuned: fused optimizer, huge pages, channels_last for images, gradients as views of the buckets. Its naive
and flat steps are written as a course's notebook does: dist.all_reduce of each gradient, or of the flattened ones.
Neither side encrypts, unless --plane tls. 1 Gbit/s is a link between two network namespaces with half of the cores
each, which this command makes and removes; it needs root. Shared memory is Lockstep's only: gloo uses loopback there.
"""

import statistics

import turns
from link import LINKS, Refused, Wire, link_of, stream_ms
from pages import range_text
from turns import Contender, take_turns, torch_job

NOISE = 0.005  # of a local step: the least added time that counts
# Samples of a rank. On one host so few that communication shows; at 1 Gbit/s so many that backward is longer than
# the transfer, which is what overlap can hide.
BATCHES = {"resnet18-cifar": {"1gbit": 64}, "gpt": {"1gbit": 16}}
SMALL = {"resnet18-cifar": 4, "gpt": 1, "gpt-tiny": 2, "mlp-tiny": 4}
STEPS = {"gpt-tiny": 20, "mlp-tiny": 20}  # of a turn; else 3 on one host, 1 at 1 Gbit/s
ROWS = [f"{model}/{link}" for model in ("resnet18-cifar", "gpt") for link in LINKS]
MODES = ("naive", "flat", "1", "5", "25", "auto")
TITLES = {"naive": "naive", "flat": "flat", "auto": "overlap"}
OVERLAPPED, FLAT = 1.05, 1.1  # aims: of the local step at 1 Gbit/s; of the floor


def title_of(mode):
    return TITLES.get(mode, f"overlap, {mode} MB")


# ---- the two jobs -----------------------------------------------------------------------------

def steps_of(model, link):
    return STEPS.get(model, 1 if link.address == Wire.address else 3)


def lockstep(options, link, model, batch, folder):
    sizes = ",".join(mode for mode in options.modes if mode not in ("naive", "flat")) or "auto"
    modes = [mode for mode in ("naive", "flat") if mode in options.modes]
    modes += ["overlap"] if len(modes) < len(options.modes) else []

    def commands(gate, path):
        return link.jobs(options.build, [
            options.build / "lockstep", "bench", "ddp", "--model", model, "--batch", batch, "--mode",
            ",".join([*modes, "local"]), "--buckets", sizes, "--steps", steps_of(model, link), "--rounds", options.turns,
            "--warmup", 1, "--gate", gate, "--json", path], options.plane)
    # Without the times that an earlier program has measured.
    return Contender(folder, "Lockstep", commands, {"LOCKSTEP_THREADS": "1", "LOCKSTEP_TUNE_FILE": "/dev/null"})


def torch(options, link, model, batch, folder):
    modes = ",".join([*("default" if mode == "auto" else mode for mode in options.modes), "local"])
    images = ["channels_last"] if model.startswith("resnet") else []
    return torch_job(options, link, folder, "ddp_torch.py", lambda gate, path: [
        model, batch, modes, 1, steps_of(model, link), options.turns, gate, path, *images])


def measure(options, model, name, batch):
    """(rows of Lockstep, rows of PyTorch, milliseconds of the floor or None)."""
    with link_of(name) as link:
        ours, theirs = take_turns((lockstep, torch), options, link, model, batch)
        check_size(ours, theirs)
        return ours, theirs, None if name == "shm" else stream_ms(link, 4 * theirs[0]["parameters"])


# ---- rows -------------------------------------------------------------------------------------

def by_mode(rows):
    """{"naive", "1", "auto" …: row}."""
    return {row["buckets"] if row["mode"] == "overlap" else {"default": "auto"}.get(row["mode"], row["mode"]): row
            for row in rows}


def added(steps, local):
    return [max(step - alone, NOISE * alone) for step, alone in zip(steps, local)]


def of_local(steps, local):
    return round(statistics.median(step / alone for step, alone in zip(steps, local)), 4)


def check_size(ours, theirs):
    """Refused: the two do not train equally many parameters."""
    numbers = [sum(row["bucket_bytes"]) // 4 for row in ours if row["mode"] != "local"]
    if any(abs(number - theirs[0]["parameters"]) > 0.001 * number for number in numbers):
        raise Refused(f"PyTorch has {theirs[0]['parameters']} parameters, Lockstep {numbers}")


def rows_of(model, link, plane, batch, ours, theirs, floor):
    """A row for each mode that both have."""
    own, ours, theirs = by_mode(ours), *({mode: row["slowest_ms"] for mode, row in by_mode(rows).items()}
                                         for rows in (ours, theirs))
    title = LINKS[link][0] + (", TLS" if plane == "tls" else "")
    for mode in [mode for mode in MODES if mode in ours]:
        mine, peers = added(ours[mode], ours["local"]), added(theirs[mode], theirs["local"])
        ratios = [p / m for p, m in zip(peers, mine)]
        row = {"name": f"{model}, batch {batch}, {title}, {title_of(mode)}", "peer": "PyTorch DDP over gloo",
               "model": model, "link": link, "mode": mode, "batch": batch,
               "ours_ms": statistics.median(ours[mode]), "peer_ms": statistics.median(theirs[mode]),
               "ours_local_ms": statistics.median(ours["local"]), "peer_local_ms": statistics.median(theirs["local"]),
               "ours_added_ms": statistics.median(mine), "peer_added_ms": statistics.median(peers),
               "ours_of_local": of_local(ours[mode], ours["local"]),
               "peer_of_local": of_local(theirs[mode], theirs["local"]),
               "ours_exposed_ms": own[mode]["exposed"]["mean_ms"], "ours_wire_ms": own[mode]["wire"]["mean_ms"],
               **turns.summary(ratios)}
        if floor is not None:
            row |= {"floor_ms": floor}
        yield {key: round(value, 3) if key.endswith("_ms") else value for key, value in row.items()}


def missed(row):
    """The aims that a row does not reach."""
    if row["spread"][1] < 1.0:
        yield "adds more time than PyTorch"
    if row["link"] == "1gbit" and row["mode"] == "flat" and row["ours_added_ms"] > FLAT * row["floor_ms"]:
        yield f"adds {row['ours_added_ms'] / row['floor_ms']:.2f} of the floor, aim {FLAT}"
    if row["link"] == "1gbit" and row["mode"] not in ("naive", "flat") and row["ours_of_local"] > OVERLAPPED:
        yield f"takes {row['ours_of_local']:.3f} of the local step, aim {OVERLAPPED}"


HEAD = ("Added: milliseconds over the local step of the same framework. Ratio: PyTorch's added time by Lockstep's.\n"
        "| a step | Lockstep ms | added | of local | PyTorch ms | added | of local | ratio | range | turns | floor ms |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|")


def line_of(row):
    def side(who):
        return f"{row[who + '_ms']:.4g} | {row[who + '_added_ms']:.3g} | {row[who + '_of_local']:.3f}"
    floor = f"{row['floor_ms']:.3g}" if "floor_ms" in row else ""
    return (f"| {row['name']} | {side('ours')} | {side('peer')} | {row['ratio']:.2f} | {range_text(row)} | {row['turns']} | "
            f"{floor} |")


def measured(options, model, link):
    batch = options.batch or BATCHES.get(model, {}).get(link, SMALL[model])
    return rows_of(model, link, options.plane, batch, *measure(options, model, link, batch))


def more_flags(parser):
    parser.add_argument("--batch", type=int, help="samples of a step of a rank, instead of the row's own")
    parser.add_argument("--plane", choices=["plain", "tls"], default="plain", help="of Lockstep between hosts")


if __name__ == "__main__":
    turns.compare(turns.parse(__doc__, SMALL, ROWS, "modes", MODES, more_flags), "compare-ddp.json", HEAD, measured,
                  line_of, missed)
