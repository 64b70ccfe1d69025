# SPDX-License-Identifier: Apache-2.0
"""`make compare-zero` without PyTorch: turns and rows. Nothing here decides on how long something took."""

import pathlib
import sys
import tempfile
import types

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, run, test

sys.path[:0] = [str(SOURCE / "bench")]
sys.dont_write_bytecode = True
import added
import compare_zero
from link import link_of
from turns import take_turns

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-compare-zero-")


def trained(name, forms):
    """Rows of Lockstep's jobs of these forms: 2 turns of 3 steps after a step each, after 3 to warm up."""
    with link_of(name) as link:
        jobs = [compare_zero.lockstep(form) for form in forms]
        rows = take_turns(jobs, types.SimpleNamespace(build=BUILD, turns=2), link,
                          lambda form: ["gpt-tiny", 2, 1, form, 3, 3, 2])
    return [row for row, in rows]


@test
def jobs_with_and_without_zero_take_turns_and_train_the_same():
    for name in ("shm", "tcp"):
        alone, *others = rows = trained(name, ["alone", "zero1", "zero2", "zero3"])
        assert [row["form"] for row in rows] == ["alone", "zero1", "zero2", "zero3"], rows
        for row in rows:
            assert len(row["slowest_ms"]) == 2 and min(row["slowest_ms"]) > 0, row
            assert 0 < row["share_mb"] and row["peak_mb"] > 0, row
            # Each rank has the whole network, and the same batch.
            assert row["parameters"] == 2 * 30080 and abs(row["loss"] / alone["loss"] - 1) < 1e-5, rows


def rows(alone_ms, zero_ms, peak_mb):
    return [{"form": form, "parameters": 1000, "loss": 2.0, "slowest_ms": ms, "peak_mb": mb,
             "share_mb": mb - 10.0}
            for form, ms, mb in (("alone", alone_ms, 100.0), ("zero2", zero_ms, peak_mb))]


@test
def added_times_are_compared_within_each_turn_and_peaks_of_the_jobs():
    """Added 2, 4, 1 and 4, 16, 3."""
    ours, theirs = rows([10.0, 20.0, 10.0], [12.0, 24.0, 11.0], 60.0), rows([20.0, 10.0, 30.0], [24.0, 26.0, 33.0], 90.0)
    found = compare_zero.row_of("gpt", "tcp", "2", ours, theirs)
    assert (found["ours_added_ms"], found["peer_added_ms"], found["ratio"], found["spread"]) == (2.0, 4.0, 3.0, [2.0, 4.0]), found
    assert (found["ours_peak_mb"], found["peer_peak_mb"]) == (60.0, 90.0), found
    assert (found["ours_share_mb"], found["peer_share_mb"], found["memory_ratio"]) == (50.0, 80.0, 0.625), found
    assert found["peer"] == "PyTorch FSDP2, reshard_after_forward=False"
    assert compare_zero.line_of(found).count("|") == compare_zero.HEAD.splitlines()[-1].count("|")


@test
def a_step_no_longer_than_alone_adds_noise():
    assert added.added(*rows([10.0, 10.0], [9.0, 10.0], 1.0)) == [0.05, 0.05]


@test
def aims_that_are_not_reached_are_misses():
    assert list(compare_zero.missed({"ratio": 2.0, "memory_ratio": 0.8})) == []
    assert list(compare_zero.missed({"ratio": 1.5, "memory_ratio": 0.9})) == [
        "missed: PyTorch adds 1.50 of the time that Lockstep adds, aim 2.0",
        "missed: the share of the peak memory is 0.90 of PyTorch's, aim 0.8"]


run()
