# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of its backends, from its wheel: what passes over gloo passes over Lockstep, but
for the differences that are listed here with their reasons."""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from jobs import LONG, environment, pythons_with, skipped
from tap import run, test

# In PyTorch 2.15. Those of 2.13 are among them.
DIFFERENT = {
    "test_barrier_timeout_full_group": "asks for gloo's wording of a timeout",
    "test_monitored_barrier_gloo": "asks for gloo's wording of a timeout",
    "test_monitored_barrier_gloo_subgroup": "asks for gloo's wording of a timeout",
    "test_monitored_barrier_gloo_rank_0_timeout": "gives a timeout of 0, which is refused in words",
    "test_ddp_logging_data_cpu": "asks for gloo in DDP's log, whose C++ part knows lockstep",
}
FEW = ["test_all_gather", "test_all_reduce_sum", "test_barrier", "test_broadcast", "test_gather",
       "test_reduce_max", "test_scatter", "test_send_recv_with_tag", "test_sparse_all_reduce_sum"]

PYTHONS = pythons_with("torch", "numpy", "expecttest")


def outcomes(python, backend, names):
    """{test: [outcome, text]}"""
    with tempfile.TemporaryDirectory(prefix="lockstep-own-") as folder:
        notes = pathlib.Path(folder) / "notes.json"
        script = pathlib.Path(__file__).resolve().parent / "torch_own.py"
        subprocess.run([python, script, backend, notes, *names], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, env=environment(PYTHONWARNINGS="ignore"))
        return json.loads(notes.read_text())


def passes(python, names):
    found = outcomes(python, "lockstep", names)
    assert set(found) == set(names), set(names) ^ set(found)
    failed = {name: text for name, (outcome, text) in found.items()
              if outcome == "failed" and name not in DIFFERENT}
    assert failed == {}, "\n".join(f"{name}: {text}" for name, text in failed.items())


if not PYTHONS:
    skipped("pytorchs_own_tests", "no Python with torch and expecttest was found; TEST_PYTHON names one")
elif LONG:
    for python, version in PYTHONS:
        @test
        def what_passes_over_gloo_passes_over_lockstep(python=python):
            over_gloo = outcomes(python, "gloo", [])
            good = [name for name, (outcome, _) in over_gloo.items() if outcome == "ok"]
            assert len(good) > 50, f"{len(good)} pass over gloo"
            passes(python, good)
else:
    @test
    def a_few_of_pytorchs_own_tests_pass_over_lockstep():
        passes(PYTHONS[0][0], FEW)

run()
