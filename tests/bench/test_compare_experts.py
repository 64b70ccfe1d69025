# SPDX-License-Identifier: Apache-2.0
"""`make compare-experts` without PyTorch: turns and rows. Nothing here decides on how long something took."""

import pathlib
import sys
import types

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, run, test

sys.path[:0] = [str(SOURCE / "bench")]
sys.dont_write_bytecode = True
import added
from compare_experts import COMPARISON
from link import link_of
from turns import parallel_job, take_turns


@test
def a_layer_of_experts_and_one_with_half_of_them_take_turns():
    with link_of("tcp") as link:
        (alone, experts), = take_turns([parallel_job], types.SimpleNamespace(build=BUILD, turns=2), link,
                                       ["experts-tiny", 64, 1, "alone,experts", 1, 2, 2])
    assert [row["form"] for row in (alone, experts)] == ["alone", "experts"]
    for row in (alone, experts):
        assert len(row["slowest_ms"]) == 2 and min(row["slowest_ms"]) > 0 and row["loss"] > 0, row
    expert, head = 128 * 32 + 128 + 32 * 128 + 32, 32 * 10 + 10
    assert alone["parameters"] == 2 * (2 * (expert + 32) + head) and experts["parameters"] == 4 * expert + 2 * (4 * 32 + head)


def rows(alone_ms, experts_ms):
    return [{"form": form, "parameters": 1000, "loss": 2.0, "slowest_ms": ms}
            for form, ms in (("alone", alone_ms), ("experts", experts_ms))]


@test
def added_times_are_compared_within_each_turn():
    """Added 2, 4, 1 and 4, 16, 3."""
    ours, theirs = rows([10.0, 20.0, 10.0], [12.0, 24.0, 11.0]), rows([20.0, 10.0, 30.0], [24.0, 26.0, 33.0])
    found = COMPARISON.row_of("experts", "tcp", ours, theirs)
    assert (found["ours_added_ms"], found["peer_added_ms"], found["ratio"], found["spread"]) == (2.0, 4.0, 3.0, [2.0, 4.0]), found
    assert COMPARISON.line_of(found).count("|") == COMPARISON.head().splitlines()[-1].count("|")
    assert added.added(*rows([10.0, 10.0], [9.0, 10.0]), COMPARISON.share) == [0.05, 0.05]


@test
def an_aim_that_is_not_reached_is_a_miss():
    assert list(added.missed({"ratio": 2.0})) == []
    assert list(added.missed({"ratio": 1.5})) == [
        "missed: PyTorch adds 1.50 of the time that Lockstep adds, aim 2.0"]


run()
