# SPDX-License-Identifier: Apache-2.0
"""Shared by compare_ddp.py, compare_pipeline.py, compare_zero.py and added.py: Lockstep's and PyTorch's jobs of two ranks,
which take turns on one link, and the command that measures rows with them."""

import argparse
import json
import os
import pathlib
import select
import statistics
import sys
import tempfile

import conditions
from link import LINKS, SOURCE, Job, Refused, Wire
from pages import range_of, write_rows
from torch_venv import find_peers

CLOSE = 1e-3  # of the losses after equally many steps, and of 1 where they are less: small losses drift apart
DEADLINE = 600  # seconds of a turn, or of the warm-up
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}


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


def parallel_job(options, link, arguments, folder, name="Lockstep"):
    """Lockstep's of bench/training/parallel_ours.c."""
    environment = {"LOCKSTEP_THREADS": "1", "LOCKSTEP_TUNE_FILE": "/dev/null"}
    wired = link.address == Wire.address
    if not wired and link.transport == "tcp":
        environment["LOCKSTEP_HOSTS"] = "2"

    def commands(gate, path):
        command = [options.build / "bench/contender_parallel", *arguments, gate, path]
        return link.jobs(options.build, command, "plain") if wired else \
            [[options.build / "lockstep", "run", "-n", "2", *command]]
    return Contender(folder, name, commands, environment)


def torch_job(options, link, folder, script, arguments, name="PyTorch"):
    """PyTorch's; `arguments(gate, path)` are those of the script in bench/training."""
    port = link.port()

    def commands(gate, path):
        return [[*link.prefix(rank), "env", f"RANK={rank}", options.python, SOURCE / "bench/training" / script,
                 *arguments(gate, path)] for rank in range(2)]
    return Contender(folder, name, commands, {
        "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": link.address, "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": link.device, "PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR", **HUGE_PAGES})


def take_turns(starts, options, *arguments):
    """The rows of the contenders that `starts` make of the arguments and a folder."""
    both = []
    with tempfile.TemporaryDirectory(prefix="lockstep-compare-") as folder:
        try:
            for start in starts:
                both.append(start(options, *arguments, pathlib.Path(folder)))
                both[-1].wait()
            for turn in range(options.turns):
                for contender in both[::-1] if turn % 2 else both:
                    contender.turn()
            return [contender.rows() for contender in both]
        finally:
            for contender in both:
                contender.end()


def check_equal(ours, theirs):
    """Refused: the two do not train the same."""
    for mine, other in zip(ours, theirs):
        if mine["parameters"] != other["parameters"] or abs(mine["loss"] - other["loss"]) > CLOSE * max(other["loss"], 1):
            raise Refused(f"{mine['form']}: Lockstep has {mine['parameters']} parameters and the loss {mine['loss']}, "
                          f"PyTorch {other['parameters']} and {other['loss']}")


# ---- rows -------------------------------------------------------------------------------------

def summary(ratios):
    """What a row says of the ratios of its turns."""
    low, high, kind = range_of(ratios)
    return {"ratio": round(statistics.median(ratios), 3), "spread": [round(low, 3), round(high, 3)], "spread_is": kind,
            "turns": len(ratios)}


def parse(doc, models, rows, part=None, parts=(), more=lambda parser: None):
    """The command's options; `part` names the flag that chooses of `parts`, if there is one; `more` adds flags."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build")
    parser.add_argument("--python", help="an interpreter with torch; without it PyTorch is installed below the build")
    parser.add_argument("--row", default=",".join(rows), help="MODEL/LINK: " + ", ".join(rows))
    if part:
        parser.add_argument(f"--{part}", default=",".join(parts), help="of " + ", ".join(parts))
    more(parser)
    parser.add_argument("--turns", type=int, default=5, help="up to 10")
    parser.add_argument("--keep", action="store_true", help="other rows of the JSON file stay: for runs of parts")
    options = parser.parse_args()
    options.build, options.row = options.build.resolve(), options.row.split(",")
    for row in options.row:
        model, _, link = row.partition("/")
        if model not in models or link not in LINKS:
            parser.error(f"--row: {row} is unknown; choose from {', '.join(rows)}")
    if not part:
        return options
    chosen = getattr(options, part).split(",")
    unknown = [name for name in chosen if name not in parts]
    if unknown:
        parser.error(f"--{part}: {unknown[0]} is unknown; choose from {', '.join(parts)}")
    setattr(options, part, chosen)
    return options


def compare(options, file, head, rows_of, line_of, missed):
    """Prints `rows_of(options, model, link)` below `head` and writes them to the file; ends with an error if one has
    missed an aim."""
    peers = find_peers(options.build, options.python)
    if not peers:
        sys.exit("no PyTorch was found to compare with")
    options.python, version = next(iter(peers.items()))
    watch, rows = conditions.Watch(), []
    print(f"PyTorch {version}. {head}", flush=True)
    for model, link in (row.split("/") for row in options.row):
        try:
            found = list(rows_of(options, model, link))
        except Refused as refused:
            print(f"SKIP {model}, {LINKS[link][0]}: {refused}", flush=True)
            continue
        new = [{**row, "torch": version, "conditions": watch.conditions()} for row in found]
        rows += new
        write_rows(options.build / file, rows, options.keep)
        print("\n".join(map(line_of, new)), flush=True)
    about = watch.conditions()
    print(f"\n{about['minutes']} minutes; other programs kept {about['others_cores']:.2f} processors busy", flush=True)
    late = [f"{row['name']}: {why}" for row in rows for why in missed(row)]
    sys.exit("\n".join(late) if late else 0)
