# SPDX-License-Identifier: Apache-2.0
"""Tests of training on several ranks again, with their tensors made on the loop device: there no program and no part of the
library may touch elements, a result that nobody has waited for is not there yet, and what a test reads (elements.h) has the bits
of the processor.

One program for each mechanism; with TEST_LONG=1 all of these FOLDERS but LEFT_OUT, which are also run on the
processor, and must read the same bits there."""

import os
import pathlib
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, Skip, command, none_of, run, test

LONG = os.environ.get("TEST_LONG") is not None
FOLDERS = ("train", "averaging", "zero", "placement", "experts")

# Parameters are gathered in memory of the program there, so kernels must reach it: an odd seed (loop.h).
REACHING = {"zero/test_zero", "zero/test_zero_guards"}

LEFT_OUT = {
    "placement/test_tensor_failures": "starts tensor_victim, which dies",
    "averaging/test_outer_tcp": "is test_outer between hosts",
    "averaging/test_shares": "divides samples of a data set by speeds",
    "train/test_examples": "starts the examples, as a reader does",
    "train/test_failures": "starts victims, which die",
    "train/test_gpt_text": "starts the command; test_train.py does so with --device",
    "train/test_pipeline_memory": "counts bytes of the processor's pool",
    "train/test_steady": "counts allocations of libc, of which the device has others",
    "zero/test_zero_memory": "counts pages of the processor's memory",
    "zero/test_zero_tcp": "is test_zero between hosts",
}


def start(program, *names, **environment):
    inherited = {name: value for name, value in os.environ.items() if name != "TEST_LONG"}
    command(BUILD / "tests/dist" / program, *names, env={**inherited, **environment})


def on_the_loop_device(program, *names, seed=0, **environment):
    start(program, *names, TEST_DEVICE="loop", LOCKSTEP_BACKEND_PATH=str(BUILD / "tests/device"),
          LOOP_SEED=str(seed + (program in REACHING)), **environment)


def on_cuda(program, name):
    """Over the fake driver and NCCL, by which gradients go and parameters are gathered."""
    if not (BUILD / "tests/fake_cuda/kernels.fatbin").exists():
        raise Skip("this build has no emulated kernels")
    start(program, name, TEST_DEVICE="cuda", LD_LIBRARY_PATH=str(BUILD / "tests/fake_cuda"),
          LOCKSTEP_BACKEND_PATH=str(BUILD / "src/lockstep/backends"))


def programs():
    listed = (BUILD / "tests/programs.txt").read_text().split()
    paths = [pathlib.Path(word).parts for word in listed if "tests/dist/" in word]
    return sorted("/".join(parts[-2:]) for parts in paths if parts[-2] in FOLDERS and parts[-1].startswith("test_"))


@test
def data_parallel_models_train_on_the_loop_device():
    for name in ("cut", "halves", "inputs", "recompute"):
        on_the_loop_device(f"train/test_{name}")
    on_the_loop_device("train/test_ddp_uses", "two_losses_and_two_backwards")
    on_the_loop_device("train/test_clip")
    on_the_loop_device("placement/test_ddp_axes")


@test
def stages_train_on_the_loop_device():
    on_the_loop_device("train/test_pipeline_steps")
    on_the_loop_device("train/test_stage_settings")


@test
def placements_convert_and_rows_are_exchanged_on_the_loop_device():
    on_the_loop_device("placement/test_redistribute")
    on_the_loop_device("placement/test_vocab", "_over_2")
    on_the_loop_device("placement/test_ring", "_on_2")
    on_the_loop_device("experts/test_rows")


@test
def optimizers_are_divided_and_parameters_averaged_on_the_loop_device():
    on_the_loop_device("zero/test_zero", "micro_batches_of_2")
    for seed in (0, 1):  # parameters through the host, and in memory of the program
        on_the_loop_device("train/test_local", "local_steps_of_2", seed=seed)
        on_the_loop_device("train/test_local", "its_own_group", seed=seed)
    on_the_loop_device("train/test_local", "not_finite")
    on_the_loop_device("averaging/test_outer", "on_3_ranks")
    on_the_loop_device("averaging/test_replicas", "of_3_ranks")
    on_the_loop_device("averaging/test_replay")


@test
def optimizers_gradients_and_parameters_are_divided_on_cuda_with_equal_bits():
    quick = ("micro_batches_of_2", "passes_of_3", "in_backward_of_2", "at_another_stage")
    for name in ("_of_2_ranks", "_of_3_ranks", "checkpoints") if LONG else quick:
        on_cuda("zero/test_zero", name)
    for name in ("reads_a_divided_parameter", "gathered_parameters", "is_whole"):
        on_cuda("zero/test_zero_guards", name)


def differences(program):
    """Lines of ranks that read other elements than on the processor."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bits-") as folder:
        cpu, loop = pathlib.Path(folder, "cpu"), pathlib.Path(folder, "loop")
        start(program, TEST_BITS=str(cpu))
        for seed in (0, 2):
            on_the_loop_device(program, seed=seed, TEST_BITS=str(loop))
        return [f"{program}: {line}" for line in sorted({*loop.read_text().splitlines()} - {*cpu.read_text().splitlines()})]


@test
def every_program_has_the_bits_of_the_processor_on_the_loop_device():
    if not LONG:
        raise Skip("takes half an hour (TEST_LONG=1)")
    none_of([line for program in programs() if program not in LEFT_OUT for line in differences(program)],
            "ranks that have read other elements than on the processor")


@test
def what_is_left_out_exists():
    none_of(sorted((set(LEFT_OUT) | REACHING) - set(programs())), "programs that are listed here, and are not there")


run()
