# SPDX-License-Identifier: Apache-2.0
"""Operations on a device beside the same on the processor (tests/gpu/check_device.c): on the loop device, where the program may
not touch elements and kernels not the program's memory, to the bit, and on the CUDA device over the fake driver."""

import os
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, Skip, command, run, test


def check(device, **environment):
    shown = command(BUILD / "tests/gpu/check_device", device, env={**os.environ, **environment})
    assert shown.startswith("ok: ") and int(shown.split()[1]) >= 80, shown


@test
def operations_on_the_loop_device_have_the_bits_of_the_processor():
    check("loop", LOCKSTEP_BACKEND_PATH=str(BUILD / "tests/device"))


@test
def operations_on_cuda_are_those_of_the_processor():
    if not (BUILD / "tests/fake_cuda/kernels.fatbin").exists():
        raise Skip("this build has no emulated kernels")
    check("cuda", LD_LIBRARY_PATH=str(BUILD / "tests/fake_cuda"), LOCKSTEP_BACKEND_PATH=str(BUILD / "src/lockstep/backends"))


run()
