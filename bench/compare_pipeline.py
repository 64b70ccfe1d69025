#!/usr/bin/env python3
"""Pipeline-parallel training beside PyTorch's torch.distributed.pipelining over gloo: the same GPT in the same two stages,
the same micro-batches, optimizer and initial parameters, two ranks with one thread each, on the same link. Both jobs
are alive and take turns; the one whose turn it is not is asleep. A step's time is its slowest rank's.

    bench/compare_pipeline.py --build build [--python PYTHON] [--row gpt/shm,gpt/tcp,gpt/1gbit] [--schedules gpipe,1f1b]

The ratio is PyTorch's time by Lockstep's, made within each turn; above 1 Lockstep is faster. Shared memory is
Lockstep's only: gloo uses loopback there. 1 Gbit/s is a link between two network namespaces, which needs root.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

import conditions
from compare_ddp import HUGE_PAGES, Contender
from link import LINKS, SOURCE, Refused, Wire, link_of
from pages import range_of, range_text, write_rows
from torch_venv import find_peers

MICRO = 8
ROWS_OF = {"gpt": 1, "gpt-tiny": 2}  # samples of a micro-batch
STEPS = {"gpt-tiny": 10}  # of a turn; else 2
ROWS = [f"gpt/{link}" for link in LINKS]
SCHEDULES = ("gpipe", "1f1b")
CLOSE = 1e-3  # of the losses after so many steps


def lockstep(options, link, arguments, folder):
    environment = {"LOCKSTEP_THREADS": "1", "LOCKSTEP_TUNE_FILE": "/dev/null"}
    wired = link.address == Wire.address
    if not wired and link.transport == "tcp":
        environment["LOCKSTEP_HOSTS"] = "2"

    def commands(gate, path):
        command = [options.build / "bench/contender_pipeline", *arguments, gate, path]
        return link.jobs(options.build, command, "plain") if wired else \
            [[options.build / "lockstep", "run", "-n", "2", *command]]
    return Contender(folder, "Lockstep", commands, environment)


def torch(options, link, arguments, folder):
    port = link.port()

    def commands(gate, path):
        return [[*link.prefix(rank), "env", f"RANK={rank}", options.python, SOURCE / "bench/training/pipeline_torch.py",
                 *arguments, gate, path] for rank in range(2)]
    return Contender(folder, "PyTorch", commands, {
        "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": link.address, "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": link.device, "PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR", **HUGE_PAGES})


def measure(options, model, name):
    """(rows of Lockstep, rows of PyTorch)."""
    arguments = [model, ROWS_OF[model], MICRO, ",".join(options.schedules), 1, STEPS.get(model, 2), options.turns]
    with link_of(name) as link, tempfile.TemporaryDirectory(prefix="lockstep-compare-pipeline-") as folder:
        both = []
        try:
            for start in (lockstep, torch):
                both.append(start(options, link, arguments, pathlib.Path(folder)))
                both[-1].wait()
            for turn in range(options.turns):
                for contender in both[::-1] if turn % 2 else both:
                    contender.turn()
            ours, theirs = (contender.rows() for contender in both)
        finally:
            for contender in both:
                contender.end()
    check_equal(ours, theirs)
    return ours, theirs


def check_equal(ours, theirs):
    """Refused: the two do not train the same."""
    for mine, other in zip(ours, theirs):
        if mine["parameters"] != other["parameters"] or abs(mine["loss"] - other["loss"]) > CLOSE * other["loss"]:
            raise Refused(f"{mine['schedule']}: Lockstep has {mine['parameters']} parameters and the loss {mine['loss']}, "
                          f"PyTorch {other['parameters']} and {other['loss']}")


def rows_of(model, link, ours, theirs):
    """A row for each schedule."""
    for mine, other in zip(ours, theirs):
        ratios = [theirs_ms / ours_ms for ours_ms, theirs_ms in zip(mine["slowest_ms"], other["slowest_ms"])]
        low, high, kind = range_of(ratios)
        yield {"name": f"{model}, {MICRO} micro-batches of {ROWS_OF[model]}, {LINKS[link][0]}, {mine['schedule']}",
               "peer": "PyTorch pipelining over gloo", "model": model, "link": link, "schedule": mine["schedule"],
               "ours_ms": round(statistics.median(mine["slowest_ms"]), 3),
               "peer_ms": round(statistics.median(other["slowest_ms"]), 3), "ratio": round(statistics.median(ratios), 3),
               "spread": [round(low, 3), round(high, 3)], "spread_is": kind, "turns": len(ratios)}


HEAD = ("Ratio: PyTorch's time by Lockstep's.\n| a step | Lockstep ms | PyTorch ms | ratio | range | turns |\n"
        "|---|---|---|---|---|---|")


def line_of(row):
    return (f"| {row['name']} | {row['ours_ms']:.4g} | {row['peer_ms']:.4g} | {row['ratio']:.2f} | {range_text(row)} | "
            f"{row['turns']} |")


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build")
    parser.add_argument("--python", help="an interpreter with torch; without it PyTorch is installed below the build")
    parser.add_argument("--row", default=",".join(ROWS), help="MODEL/LINK: " + ", ".join(ROWS))
    parser.add_argument("--schedules", default=",".join(SCHEDULES), help="of " + ", ".join(SCHEDULES))
    parser.add_argument("--turns", type=int, default=5, help="up to 10")
    parser.add_argument("--keep", action="store_true", help="other rows of compare-pipeline.json stay: for runs of parts")
    options = parser.parse_args(arguments)
    options.build = options.build.resolve()
    options.row, options.schedules = options.row.split(","), options.schedules.split(",")
    for row in options.row:
        model, _, link = row.partition("/")
        if model not in ROWS_OF or link not in LINKS:
            parser.error(f"--row: {row} is unknown; choose from {', '.join(ROWS)}")
    unknown = [schedule for schedule in options.schedules if schedule not in SCHEDULES]
    if unknown:
        parser.error(f"--schedules: {unknown[0]} is unknown; choose from {', '.join(SCHEDULES)}")
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
        try:
            found = measure(options, model, link)
        except Refused as refused:
            print(f"SKIP {model}, {LINKS[link][0]}: {refused}", flush=True)
            continue
        new = [{**row, "torch": version, "conditions": watch.conditions()} for row in rows_of(model, link, *found)]
        rows += new
        write_rows(options.build / "compare-pipeline.json", rows, options.keep)
        print("\n".join(map(line_of, new)), flush=True)
    about = watch.conditions()
    print(f"\n{about['minutes']} minutes; other programs kept {about['others_cores']:.2f} processors busy", flush=True)
    late = [f"{row['name']}: slower than PyTorch" for row in rows if row["spread"][1] < 1.0]
    sys.exit("\n".join(late) if late else 0)


if __name__ == "__main__":
    main()
