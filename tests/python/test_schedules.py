# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules beside PyTorch's: equal orders of computations, and its tables pass the verifier."""

import functools
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from jobs import BUILD, DEADLINE, HERE, environment, pythons_with, skipped
from tap import command, run, test


@functools.cache
def tables(python):
    done = subprocess.run([python, "-W", "ignore", HERE / "torch_schedules.py"], env=environment(), text=True,
                          timeout=DEADLINE, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return json.loads(done.stdout)


def computed(text, ranks):
    """Forwards and backwards of each rank of a table of ours."""
    rows = [[] for _ in range(ranks)]
    for rank, actions in re.findall(r"^rank (\d+):(.*)$", text, re.MULTILINE):
        rows[int(rank)] += [action for action in actions.split() if re.fullmatch(r"\d+[FB]\d+", action)]
    return rows


def with_peer(action, ranks):
    """PyTorch derives the peer from the stage."""
    found = re.fullmatch(r"(\d+)(SEND|RECV)_([FB])\d+", action)
    if not found:
        return action
    to_next = (found[2] == "SEND") == (found[3] == "F")
    peer = (int(found[1]) + (1 if to_next else -1)) % ranks
    return f"{action}{'>' if found[2] == 'SEND' else '<'}{peer}"


def as_text(table):
    ranks, stages = table["ranks"], table["ranks"] * table["chunks"]
    lines = ["schedule torch", f"ranks {ranks}", f"stages {stages}", f"micro-batches {table['micro_batches']}"]
    for rank, actions in enumerate(table["whole"]):
        steps = [f"{stage}{what}" for stage in range(rank, stages, ranks) for what in ("REDUCE", "STEP@1")]
        lines.append(f"rank {rank}: " + " ".join([with_peer(action, ranks) for action in actions] + steps))
    return "\n".join(lines) + "\n"


def tests_with(python, version):
    @test
    def interleaved_computes_in_the_order_of_pytorch():
        compared = 0
        for table in tables(python):
            if table["kind"] == "ScheduleInterleaved1F1B":
                ours = command(BUILD / "lockstep", "plan", "schedule", "interleaved", "-p", table["ranks"], "--chunks",
                               table["chunks"], "-m", table["micro_batches"], "--table")
                assert computed(ours, table["ranks"]) == table["computed"], table
                compared += 1
        assert compared == 36, compared

    @test
    def tables_of_pytorch_pass_the_verifier():
        for table in tables(python):
            with tempfile.NamedTemporaryFile("w", prefix="lockstep-schedule-", suffix=".txt") as file:
                file.write(as_text(table))
                file.flush()
                command(BUILD / "lockstep", "plan", "schedule", file.name)

    for function in (interleaved_computes_in_the_order_of_pytorch, tables_of_pytorch_pass_the_verifier):
        function.__name__ += f"_{version}"


found = [(python, version) for python, version in pythons_with("torch")
         if tuple(map(int, re.findall(r"\d+", version)[:2])) >= (2, 6)]
for python, version in found:
    tests_with(python, version)
if not found:
    skipped("orders_and_tables_of_pytorch", "no Python with torch 2.6 or newer")
run()
