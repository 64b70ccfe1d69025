# SPDX-License-Identifier: Apache-2.0
"""`make compare-tensor` without PyTorch: turns and rows. Nothing here decides on how long something took."""

import pathlib
import sys
import tempfile
import types

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, run, test

sys.path[:0] = [str(SOURCE / "bench")]
sys.dont_write_bytecode = True
import added
from compare_tensor import COMPARISON
from link import link_of
from turns import parallel_job

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-compare-tensor-")


@test
def two_ranks_share_matrices_in_turns_with_one_alone_and_train_the_same():
    """Over shared memory and TCP; 2 turns of 3 steps after a step each, after one to warm up."""
    for name in ("shm", "tcp"):
        with tempfile.TemporaryDirectory(dir=SCRATCH.name) as folder, link_of(name) as link:
            arguments = ["gpt-tiny", 2, 1, "alone,tensor", 1, 3, 2]
            ours = parallel_job(types.SimpleNamespace(build=BUILD), link, arguments, pathlib.Path(folder))
            try:
                ours.wait()
                ours.turn()
                ours.turn()
                alone, tensor = ours.rows()
            finally:
                ours.end()
        assert (alone["form"], tensor["form"]) == ("alone", "tensor"), (alone, tensor)
        assert all(len(row["slowest_ms"]) == 2 and min(row["slowest_ms"]) > 0 for row in (alone, tensor)), (alone, tensor)
        assert 0 < alone["loss"] < 10 and abs(tensor["loss"] / alone["loss"] - 1) < 1e-5, (alone, tensor)
        # Alone each rank has all of them; of those that are not cut, norms, positions and some biases, both have a copy.
        assert alone["parameters"] / 2 < tensor["parameters"] < 0.55 * alone["parameters"], (alone, tensor)


def rows(alone_ms, tensor_ms):
    return [{"form": form, "parameters": 1000, "loss": 2.0, "slowest_ms": ms}
            for form, ms in (("alone", alone_ms), ("tensor", tensor_ms))]


@test
def added_times_are_compared_within_each_turn():
    """Added 2, 4, 1 and 4, 16, 3; steps of 7, 14, 6 and 14, 21, 18."""
    ours, theirs = rows([10.0, 20.0, 10.0], [7.0, 14.0, 6.0]), rows([20.0, 10.0, 30.0], [14.0, 21.0, 18.0])
    found = COMPARISON.row_of("gpt", "tcp", ours, theirs)
    assert (found["ours_added_ms"], found["peer_added_ms"], found["ratio"], found["spread"]) == (2.0, 4.0, 3.0, [2.0, 4.0]), found
    assert (found["ours_step_ms"], found["peer_step_ms"], found["step_ratio"]) == (7.0, 18.0, 2.0), found
    assert COMPARISON.line_of(found).count("|") == COMPARISON.head().splitlines()[-1].count("|")


@test
def a_step_no_longer_than_half_adds_noise():
    assert added.added(*rows([10.0, 10.0], [4.0, 5.0]), COMPARISON.share) == [0.025, 0.025]


@test
def a_ratio_below_the_aim_is_a_miss():
    assert list(added.missed({"ratio": 2.0})) == []
    assert list(added.missed({"ratio": 1.5})) == ["missed: PyTorch adds 1.50 of the time that Lockstep adds, aim 2.0"]


run()
