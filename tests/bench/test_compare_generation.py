# SPDX-License-Identifier: Apache-2.0
"""`make compare-generation` without CTranslate2: what it reads of lockstep generate, and its rows."""

import pathlib
import subprocess
import sys
import tempfile
import types

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, command, run, test

sys.path[:0] = [str(SOURCE / "bench")]
sys.dont_write_bytecode = True
import compare_generation

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-compare-generation-")


@test
def the_rate_is_found_in_what_generate_prints():
    models = pathlib.Path(SCRATCH.name)
    text = models / "text"
    text.write_text("abcdefghij" * 100)
    command(BUILD / "lockstep", "train", "gpt", "--model", "llama", "--data", text, "--layers", 1, "--dim", 16, "--heads", 2,
            "--context", 16, "--steps", 1, "--batch", 1, "--export", "gpt2/", cwd=models)
    for kind in ("float32", "bf16", "int8"):
        assert compare_generation.ours(types.SimpleNamespace(build=BUILD), models, kind, 1) > 0


@test
def a_row_has_the_ratio_to_float32_and_to_the_peer_of_each_turn():
    rates = {"float32": iter((10.0, 20.0)), "bf16": iter((20.0, 30.0)), "int8": iter((40.0, 50.0))}
    compare_generation.ours = lambda options, models, kind, threads: next(rates[kind])
    compare_generation.theirs = lambda python, models, kind, threads: 20.0
    rows = list(compare_generation.rows_of(types.SimpleNamespace(turns=2), None, None, 1))
    assert rows[2] == {"name": "int8, 1", "ours": [40.0, 50.0], "peer": [20.0, 20.0]}, rows
    assert compare_generation.ratio(rows[2]["ours"], rows[2]["peer"]) == "2.25 [2.00, 2.50]"


run()
