# SPDX-License-Identifier: Apache-2.0
"""examples/11_cuda_bring_your_own_backward.cu as a program for the fakes of CUDA and NCCL (cuda_runtime.h)."""

import os
import re
import shutil

from tap import BUILD, SOURCE, Skip, command

EXAMPLE = SOURCE / "examples/11_cuda_bring_your_own_backward.cu"
FAKES = BUILD / "tests/fake_cuda"
FAKE_GPUS = {"LD_LIBRARY_PATH": str(FAKES), "FAKE_CUDA_OPEN": "1"}
LIBRARY = ("-L", BUILD / "src", "-llockstep", f"-Wl,-rpath,{BUILD / 'src'}")


def build_example(folder):
    """The path of the program; it runs in an environment with FAKE_GPUS."""
    if shutil.which("g++") is None or not (FAKES / "libnccl.so.2").exists():
        raise Skip("no g++ here, or the build has no fakes")
    text, starts = re.subn(r"(\w+)<<<(.*?)>>>\((.*?)\);", r"start(\2, \1, \3);", EXAMPLE.read_text(), flags=re.DOTALL)
    assert starts == EXAMPLE.read_text().count("<<<") >= 5, starts
    (folder / "example.cpp").write_text(text)
    command("g++", "-std=c++20", "-O1", "-w", "-ffp-contract=off", "-I", SOURCE / "tests/cuda/runtime", "-I", SOURCE / "include", "-I",
            BUILD / "include", folder / "example.cpp", "-o", folder / "example", *LIBRARY, FAKES / "libcuda.so.1",
            f"-Wl,-rpath,{FAKES}")
    return folder / "example"


def fake_gpus(**more):
    return {**os.environ, **FAKE_GPUS, **more}
