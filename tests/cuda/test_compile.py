# SPDX-License-Identifier: Apache-2.0
"""The kernels compile for the GPUs that are supported, and those named here without spills to memory. Needs nvcc, no GPU."""

import os
import pathlib
import re
import shutil
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, Skip, command, run, test

ARCHITECTURES = ("80", "90")
# Those that a step of a GPT spends its time in.
WITHOUT_SPILLS = ("layer_norm", "layer_norm_bf16", "norm_gradient", "norm_weights", "cross_entropy_rows", "softmax", "unary",
                  "unary_backward", "binary_bf16", "finish_product", "embedding", "embedding_backward", "adamw_parts", "sum_part",
                  "sum_rows", "bfloat16_widen", "bfloat16_narrow", "dropout", "random_normal", "attention_forward",
                  "attention_queries", "attention_keys")
LONG = os.environ.get("TEST_LONG") is not None


def compiled(source, architecture, *flags):
    with tempfile.TemporaryDirectory(prefix="lockstep-nvcc-") as folder:
        return command("nvcc", "-cubin", "-std=c++17", "-O3", f"-arch=sm_{architecture}", "-Xptxas", "-v", *flags,
                       f"-I{SOURCE / 'include'}", f"-I{SOURCE / 'src'}", f"-I{BUILD / 'src'}",
                       "-o", pathlib.Path(folder) / "out.cubin", SOURCE / "src/cuda/kernels" / source)


def spills(text):
    """{kernel: bytes spilled}"""
    found, name = {}, None
    for line in text.splitlines():
        entry = re.search(r"Compiling entry function 'cuda_(\w+)'", line)
        name = entry.group(1) if entry else name
        spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if spilled and name:
            found[name] = max(int(spilled.group(1)), int(spilled.group(2)))
    return found


def listed():
    entries = (BUILD / "src/cuda/cuda_entries.h").read_text() + (SOURCE / "src/cuda/args.h").read_text()
    return set(re.findall(r"\bX\((\w+), [01]\)", entries))


@test
def every_kernel_compiles_for_every_gpu_and_the_frequent_ones_do_not_spill():
    if shutil.which("nvcc") is None:
        raise Skip("no nvcc here: the kernels were not compiled for a GPU")
    if not LONG:
        raise Skip("a minute: TEST_LONG=1")
    for architecture in ARCHITECTURES:
        found = spills(compiled("kernels.cu", architecture)) | spills(compiled("random.cu", architecture, "-fmad=false"))
        assert set(found) == listed(), set(found) ^ listed()
        spilling = {name: found[name] for name in WITHOUT_SPILLS if found[name] > 0}
        assert not spilling, (architecture, spilling)


run()
