#!/usr/bin/env python3
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

import argparse
import json
import os
import pathlib
import select
import statistics
import sys
import tempfile

import conditions
from link import LINKS, Job, Refused, Wire, link_of, stream_ms
from pages import range_of, range_text, write_rows
from torch_venv import find_peers

SOURCE = pathlib.Path(__file__).resolve().parent.parent
NOISE = 0.005  # of a local step: the least added time that counts
DEADLINE = 600  # seconds of a turn, or of the warm-up, which searches for buckets of automatic size
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
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

class Contender:
    """A job of two ranks that waits for its turns."""

    def __init__(self, folder, name, commands, env):
        self.gate = folder / name
        self.gate.mkdir()
        for pipe in ("0", "1", "done"):
            os.mkfifo(self.gate / pipe)
        self.pipes = {pipe: os.open(self.gate / pipe, os.O_RDWR) for pipe in ("0", "1", "done")}
        self.path = folder / f"{name}.json"
        self.job = Job(commands(self.gate, self.path), dict(os.environ, **env))

    def wait(self):
        """Until all its ranks wait for the next turn."""
        for _ in range(2 * DEADLINE):
            self.job.check()
            if select.select([self.pipes["done"]], [], [], 0.5)[0]:
                os.read(self.pipes["done"], 1)
                return self
        raise Refused(f"{self.gate.name}: no turn ended in {DEADLINE} s")

    def release(self):
        os.write(self.pipes["0"], b".")
        os.write(self.pipes["1"], b".")

    def turn(self):
        self.release()
        self.wait()

    def rows(self):
        self.release()
        self.job.wait()
        return json.loads(self.path.read_text())

    def end(self):
        self.job.__exit__()
        for pipe in self.pipes.values():
            os.close(pipe)


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
    port = link.port()

    def commands(gate, path):
        return [[*link.prefix(rank), "env", f"RANK={rank}", options.python, SOURCE / "bench/training/ddp_torch.py",
                 model, batch, modes, 1, steps_of(model, link), options.turns, gate, path, *images] for rank in range(2)]
    return Contender(folder, "PyTorch", commands, {
        "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": link.address, "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": link.device, "PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR", **HUGE_PAGES})


def measure(options, model, name, batch):
    """(rows of Lockstep, rows of PyTorch, milliseconds of the floor or None)."""
    with link_of(name) as link, tempfile.TemporaryDirectory(prefix="lockstep-compare-ddp-") as folder:
        both = []
        try:
            for start in (lockstep, torch):
                both.append(start(options, link, model, batch, pathlib.Path(folder)))
                both[-1].wait()
            for turn in range(options.turns):
                for contender in both[::-1] if turn % 2 else both:
                    contender.turn()
            ours, theirs = (contender.rows() for contender in both)
            check_size(ours, theirs)
        finally:
            for contender in both:
                contender.end()
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
        low, high, kind = range_of(ratios)
        row = {"name": f"{model}, batch {batch}, {title}, {title_of(mode)}", "peer": "PyTorch DDP over gloo",
               "model": model, "link": link, "mode": mode, "batch": batch,
               "ours_ms": statistics.median(ours[mode]), "peer_ms": statistics.median(theirs[mode]),
               "ours_local_ms": statistics.median(ours["local"]), "peer_local_ms": statistics.median(theirs["local"]),
               "ours_added_ms": statistics.median(mine), "peer_added_ms": statistics.median(peers),
               "ours_of_local": of_local(ours[mode], ours["local"]),
               "peer_of_local": of_local(theirs[mode], theirs["local"]),
               "ours_exposed_ms": own[mode]["exposed"]["mean_ms"], "ours_wire_ms": own[mode]["wire"]["mean_ms"],
               "ratio": round(statistics.median(ratios), 3), "spread": [round(low, 3), round(high, 3)],
               "spread_is": kind, "turns": len(ratios)}
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


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build")
    parser.add_argument("--python", help="an interpreter with torch; without it PyTorch is installed below the build")
    parser.add_argument("--row", default=",".join(ROWS), help="MODEL/LINK: " + ", ".join(ROWS))
    parser.add_argument("--modes", default=",".join(MODES), help="of " + ", ".join(MODES))
    parser.add_argument("--batch", type=int, help="samples of a step of a rank, instead of the row's own")
    parser.add_argument("--plane", choices=["plain", "tls"], default="plain", help="of Lockstep between hosts")
    parser.add_argument("--turns", type=int, default=5, help="up to 10")
    parser.add_argument("--keep", action="store_true", help="other rows of compare-ddp.json stay: for runs of parts")
    options = parser.parse_args(arguments)
    options.build = options.build.resolve()
    options.row, options.modes = options.row.split(","), options.modes.split(",")
    for row in options.row:
        model, _, link = row.partition("/")
        if model not in SMALL or link not in LINKS:
            parser.error(f"--row: {row} is unknown; choose from {', '.join(ROWS)}")
    unknown = [mode for mode in options.modes if mode not in MODES]
    if unknown:
        parser.error(f"--modes: {unknown[0]} is unknown; choose from {', '.join(MODES)}")
    return options


def main():
    options = parse()
    peers = find_peers(options.build, options.python)
    if not peers:
        sys.exit("no PyTorch was found to compare with")
    options.python, version = next(iter(peers.items()))
    watch, rows = conditions.Watch(), []
    print(f"PyTorch {version}. {HEAD}", flush=True)
    for model, link in (row.split("/") for row in options.row):
        batch = options.batch or BATCHES.get(model, {}).get(link, SMALL[model])
        try:
            found = measure(options, model, link, batch)
        except Refused as refused:
            print(f"SKIP {model}, {LINKS[link][0]}: {refused}", flush=True)
            continue
        new = [{**row, "torch": version, "conditions": watch.conditions()} for row in rows_of(model, link, options.plane, batch, *found)]
        rows += new
        write_rows(options.build / "compare-ddp.json", rows, options.keep)
        print("\n".join(map(line_of, new)), flush=True)
    about = watch.conditions()
    print(f"\n{about['minutes']} minutes; other programs kept {about['others_cores']:.2f} processors busy", flush=True)
    late = [f"{row['name']}: {why}" for row in rows for why in missed(row)]
    sys.exit("\n".join(late) if late else 0)


if __name__ == "__main__":
    main()
