# SPDX-License-Identifier: Apache-2.0
"""`make compare-plan`: which plans there are, and what is made of their times. Nothing here decides on how long something took."""

import argparse
import json
import pathlib
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, run, test

sys.path[:0] = [str(SOURCE / "bench")]
sys.dont_write_bytecode = True
import plan_regret

PLAN = {"mesh": "pp=2,tp=2", "micro_batches": 4, "batch": 2, "schedule": "1f1b", "warm_up": 2, "zero": 0, "recompute": True,
        "sequence": False, "stages": [{"first": "embed"}, {"first": "blocks.1"}],
        "tensor_plan": "blocks.*.up=column blocks.*.down=row"}


@test
def a_plan_is_named_by_what_it_says():
    said = plan_regret.describe(PLAN)
    assert said == "pp=2,tp=2, 4 x 2, 1f1b -w 2, cut blocks.1, recompute, tp of down+up", said
    one = dict(PLAN, mesh="dp=4", zero=2, recompute=False, tensor_plan="")
    assert plan_regret.describe(one) == "dp=4, 4 x 2, zero 2", plan_regret.describe(one)


@test
def the_regret_is_over_the_fastest_that_took_turns():
    rows = [{"name": str(ms), "step_ms": ms, "predicted_ms": 9.0, "peak_bytes": 1e6, "predicted_bytes": 2e6} for ms in (11.0, 10.0, 8.0)]
    plan_regret.judged(rows, rows[:2])  # 8.0 was measured once, alone
    assert [round(row["regret"], 3) for row in rows] == [0.1, 0.0, -0.2], rows
    assert plan_regret.line_of(rows[0]).count("|") == plan_regret.HEAD.splitlines()[0].count("|")
    assert plan_regret.verdict(rows[0]).startswith("missed: ") and not plan_regret.verdict(rows[1]).startswith("missed: ")


@test
def a_plan_that_was_fast_once_is_not_among_the_fastest():
    taken = []

    def train(options, shape, folder, *more):
        taken.append(more[1])
        return float(more[1]), 0

    plan_regret.train = train
    rows = [{"file": str(ms), "step_ms": 1.0 * ms} for ms in range(1000, 1400)]
    rows[399]["step_ms"] = 1.0  # lucky
    finalists = plan_regret.finish(argparse.Namespace(rounds=2, layers=1, dim=8, heads=1, context=8), None, rows)
    assert [row["step_ms"] for row in finalists] == [1000.0 + i for i in range(31)], finalists
    assert len(taken) == 300 * 3 + 31 * 2 and taken.count("1000") == 2 and taken.count("1399") == 3, len(taken)


@test
def rows_of_a_run_that_is_cut_short_are_kept():
    def measure(options, folder, plan, base):
        if plan == "third":
            raise KeyboardInterrupt
        return {"name": plan, "step_ms": 1.0}

    plan_regret.measure = measure
    with tempfile.TemporaryDirectory() as folder:
        options = argparse.Namespace(json=pathlib.Path(folder) / "rows", folder=pathlib.Path(folder) / "plans")
        try:
            plan_regret.measure_all(options, folder, ["first", "second", "third"], 0)
        except KeyboardInterrupt:
            pass
        assert [row["name"] for row in json.loads(options.json.read_text())] == ["first", "second"]
        with plan_regret.folder_of(options) as kept:
            (kept / "plan").write_text("1")
        assert (options.folder / "plan").exists(), "a folder that was asked for stays"


run()
