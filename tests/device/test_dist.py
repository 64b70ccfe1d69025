# SPDX-License-Identifier: Apache-2.0
"""Tests of data parallelism and stages again, with their tensors made on the loop device: programs that look at no element but
by copies."""

import os
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, command, run, test


def on_the_loop_device(program):
    command(BUILD / "tests/dist" / program, env={**os.environ, "TEST_DEVICE": "loop", "LOCKSTEP_BACKEND_PATH": str(BUILD / "tests/device")})


@test
def data_parallel_models_train_on_the_loop_device():
    for name in ("cut", "halves", "inputs", "recompute"):
        on_the_loop_device(f"train/test_{name}")


@test
def stages_train_on_the_loop_device():
    on_the_loop_device("train/test_pipeline_steps")
    on_the_loop_device("train/test_stage_settings")


run()
