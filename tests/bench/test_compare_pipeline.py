# SPDX-License-Identifier: Apache-2.0
"""`make compare-pipeline` without PyTorch: turns and rows. Nothing here decides on how long something took."""

import pathlib
import sys
import tempfile
import types

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, run, test

sys.path[:0] = [str(SOURCE / "bench")]
sys.dont_write_bytecode = True
import compare_pipeline
from link import Refused, link_of

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-compare-pipeline-")


@test
def two_stages_take_turns_with_others_and_train_the_same_with_each_schedule():
    """Over shared memory and TCP; 2 turns of 3 steps behind a step each, after one to warm up."""
    losses = []
    for name in ("shm", "tcp"):
        with tempfile.TemporaryDirectory(dir=SCRATCH.name) as folder, link_of(name) as link:
            arguments = ["gpt-tiny", 2, 4, "gpipe,1f1b", 1, 3, 2]
            ours = compare_pipeline.parallel_job(types.SimpleNamespace(build=BUILD), link, arguments, pathlib.Path(folder))
            try:
                ours.wait()
                ours.turn()
                ours.turn()
                found = ours.rows()
            finally:
                ours.end()
        assert [row["form"] for row in found] == ["gpipe", "1f1b"], found
        assert all(len(row["slowest_ms"]) == 2 and min(row["slowest_ms"]) > 0 for row in found), found
        assert found[0]["parameters"] > 10000 and found[0]["parameters"] == found[1]["parameters"], found
        losses += [row["loss"] for row in found]
    assert len(set(losses)) == 1 and 0 < losses[0] < 10, losses


def row(form, loss, ms):
    return {"form": form, "parameters": 1000, "loss": loss, "slowest_ms": ms}


@test
def times_are_compared_within_each_turn():
    ours, theirs = [row("gpipe", 2.0, [10.0, 20.0, 30.0])], [row("gpipe", 2.001, [15.0, 20.0, 60.0])]
    compare_pipeline.check_equal(ours, theirs)
    found, = compare_pipeline.rows_of("gpt", "tcp", 8, "PyTorch", ours, theirs)
    assert (found["ours_ms"], found["peer_ms"], found["ratio"], found["spread"]) == (20.0, 20.0, 1.5, [1.0, 2.0]), found
    assert compare_pipeline.line_of(found).count("|") == compare_pipeline.HEAD.splitlines()[-1].count("|")


@test
def schedules_are_compared_with_one_of_them():
    options = types.SimpleNamespace(build=BUILD, beside="1f1b", schedules=["zb-h1", "1f1b"], micro=2, turns=2)
    found = list(compare_pipeline.measured(options, "gpt-tiny", "shm"))
    assert [(row["schedule"], row["peer"]) for row in found] == [("zb-h1", "Lockstep, 1f1b"), ("1f1b", "Lockstep, 1f1b")], found
    assert found[0]["peer_ms"] == found[1]["peer_ms"] > 0 and "2 micro-batches" in found[0]["name"], found
    assert compare_pipeline.BESIDE.format("1f1b").splitlines()[1].startswith("| a step | Lockstep ms | 1f1b ms |")
    assert not list(compare_pipeline.missed({"spread": [0.5, 0.6], "peer": "Lockstep, 1f1b", "name": ""}))


@test
def other_trainings_are_not_compared():
    for other in (row("gpipe", 2.01, [1.0]), {**row("gpipe", 2.0, [1.0]), "parameters": 1001}):
        try:
            compare_pipeline.check_equal([row("gpipe", 2.0, [1.0])], [other])
        except Refused as refused:
            assert "Lockstep has 1000 parameters and the loss 2.0" in str(refused)
        else:
            raise AssertionError("compared")


run()
