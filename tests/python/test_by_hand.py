# SPDX-License-Identifier: Apache-2.0
"""python/examples/ddp_by_hand.py over Lockstep and over gloo: its tables, and equal parameters at the end."""

import pathlib
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from jobs import LONG, SOURCE, Warm, environment, pythons_with, skipped
from tap import run, test

KEYS = ("model backend world_size global_batch_size warmup_steps benchmark_steps bucket_size step_time_avg_s "
        "step_time_std_s comm_time_avg_s comm_time_std_s comm_frac_avg comm_frac_std").split()
# With fewer processes and buckets the test takes half a minute.
WORLD = "4" if LONG else "2"
PROCESSES = {"lockstep": "2,4,6" if LONG else "2", "gloo": "2"}
BUCKETS = ("0.01", "1", "10", "100", "1000") if LONG else ("0.01", "1000")
SMALL = ["--sizes", "0.1,1", "--width", "32", "--layers", "2", "--batch", "4", "--buckets", ",".join(BUCKETS),
         "--world-size", WORLD, "--warmup-steps", "1", "--steps", "3"]
COMPARE = """
import sys, torch
ours, theirs = (torch.load(path) for path in sys.argv[1:])
assert list(ours) == list(theirs) and len(ours) >= 5, (list(ours), list(theirs))
first = next(iter(theirs.values()))
for way in ours:
    for found in (ours[way], theirs[way]):
        assert found.shape == first.shape and (found - first).abs().max() <= 1e-6, (way, (found - first).abs().max())
        assert torch.isfinite(found).all() and found.abs().max() > 0.1
print("parameters", first.numel())
"""


def tables_of(text):
    """[[{key: cell}]] of the Markdown tables in a text."""
    tables, head = [], None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")] if line.startswith("|") else None
        if cells is None:
            head = None
        elif head is None:
            head = cells
            tables.append([])
        elif cells[0] != "---":
            tables[-1].append(dict(zip(head, cells)))
    return tables


def program(python, backend, folder):
    """Its tables; its parameters are in the folder."""
    (status, said), = Warm.of(python, "torch", "torch.distributed").run(
        ([SOURCE / "python/examples/ddp_by_hand.py", "--backend", backend, "--processes", PROCESSES[backend], *SMALL, "--export",
          f"{folder}/{backend}"], environment(PYTHONWARNINGS="ignore")))
    assert status == 0, said
    return tables_of(said)


def check_tables(backend, tables):
    sizes = PROCESSES[backend].split(",")
    assert [len(rows) for rows in tables] == [2] * len(sizes) + [3 + len(BUCKETS)], tables
    for rows, size in zip(tables, sizes):
        assert [(row["backend"], row["world_size"], row["size_mb"]) for row in rows] == \
            [(backend, size, "0.100000"), (backend, size, "1.000000")], rows
        assert all(float(row["time_avg_s"]) > 0 for row in rows), rows
    rows = tables[-1]
    assert [list(row) for row in rows] == [KEYS] * len(rows), rows
    assert [(row["model"], row["bucket_size"]) for row in rows] == [
        ("naive", "-"), ("flat", "-"), ("overlap", "-"),
        *(("bucketed", size) for size in BUCKETS)], rows
    for row in rows:
        assert (row["backend"], row["world_size"], row["global_batch_size"]) == (backend, WORLD, str(4 * int(WORLD))), row
        assert 0 < float(row["comm_time_avg_s"]) < float(row["step_time_avg_s"]), row
        assert 0 < float(row["comm_frac_avg"]) < 1 and float(row["step_time_std_s"]) >= 0, row


def tests_with(python, version):
    @test
    def the_example_ends_with_the_parameters_of_gloo():
        with tempfile.TemporaryDirectory(prefix="lockstep-by-hand-") as folder:
            for backend in ("lockstep", "gloo"):
                check_tables(backend, program(python, backend, folder))
            (status, said), = Warm.of(python, "torch", "torch.distributed").run(
                (["-c", COMPARE, f"{folder}/lockstep", f"{folder}/gloo"], environment()))
            assert status == 0 and "parameters 3" in said, said


# Hooks that run after a gradient is accumulated came with 2.1.
NEW = [(python, version) for python, version in pythons_with("torch") if tuple(map(int, version.split(".")[:2])) >= (2, 1)]
for found in NEW[:1]:
    tests_with(*found)
if not NEW:
    skipped("the_example_ends_with_the_parameters_of_gloo", "no Python here has torch 2.1 or newer")

run()
