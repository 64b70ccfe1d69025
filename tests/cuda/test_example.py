# SPDX-License-Identifier: Apache-2.0
"""examples/11_cuda_bring_your_own_backward.cu without a GPU: nvcc compiles it, and over the fakes of CUDA and NCCL, as C++,
its ranks have the losses of one."""

import pathlib
import re
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE / "runtime")]
from example import EXAMPLE, build_example, fake_gpus
from tap import BUILD, SOURCE, Skip, command, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-example-")
FOLDER = pathlib.Path(SCRATCH.name)


@test
def nvcc_compiles_it_for_every_gpu():
    if shutil.which("nvcc") is None:
        raise Skip("no nvcc here: the example in CUDA was not compiled for a GPU")
    for architecture in ("80", "90"):
        command("nvcc", f"-arch=sm_{architecture}", "-I", SOURCE / "include", "-I", BUILD / "include", EXAMPLE, "-o", FOLDER / "cuda_mlp",
                "-L", BUILD / "src", "-llockstep")


def losses(shown):
    return [float(word) for word in re.findall(r"loss (\S+)", shown)]


@test
def two_and_four_gpus_have_the_losses_of_one():
    program = build_example(FOLDER)
    one = losses(command(program, env=fake_gpus()))
    assert len(one) == 7 and one[-1] < one[0] / 2, one
    for ranks in (2, 4):
        shown = command(BUILD / "lockstep", "run", "-n", ranks, program, env=fake_gpus())
        assert "on every rank: yes" in shown, shown
        assert len(losses(shown)) == 7 and all(abs(a - b) <= 2e-4 for a, b in zip(one, losses(shown))), (one, shown)


run()
