# SPDX-License-Identifier: Apache-2.0
"""make gpu-check without a GPU: its scripts and programs over the fakes of CUDA and NCCL, with programs of these names in the
place of nvidia-smi, nvcc, compute-sanitizer and nccl-tests; and what they find when a result is wrong."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "harness"), str(TESTS / "cuda/runtime")]
from example import build_example, fake_gpus
from tap import BUILD, SOURCE, Skip, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-gpu-check-")
FOLDER = pathlib.Path(SCRATCH.name)
PROGRAMS = {
    "nvidia-smi": 'i=0; while [ $i -lt $FAKE_CUDA_DEVICES ]; do echo "NVIDIA Fake, 580.65.06, 8192 MiB"; i=$((i + 1)); done',
    "nvcc": 'while [ $# -gt 1 ]; do [ "$1" = -o ] && cp "$EXAMPLE" "$2"; shift; done',
    "compute-sanitizer": 'while [ "${1#/}" = "$1" ]; do shift; done; "$@" && echo "ERROR SUMMARY: 0 errors"',
    "all_reduce_perf": 'echo "# nThread 1"; echo "        1024   256  float  sum  -1  10.1  0.10  0.10  0  10.0  0.10  0.15  0"',
}


def check(gpus, *more, **environment):
    """(exit status, what it printed, its results)"""
    if not (BUILD / "tests/fake_cuda/kernels.fatbin").exists():
        raise Skip("this build has no emulated kernels")
    program, out, place = FOLDER / "example", FOLDER / "out.json", FOLDER / "bin"
    if not place.exists():
        build_example(FOLDER)
        place.mkdir()
        for name, text in PROGRAMS.items():
            (place / name).write_text(f"#!/bin/sh\n{text}\n")
            (place / name).chmod(0o755)
    out.unlink(missing_ok=True)
    variables = fake_gpus(EXAMPLE=str(program), FAKE_CUDA_DEVICES=str(gpus), PATH=f"{place}:{os.environ['PATH']}", **environment)
    variables["LOCKSTEP_NCCL"] = str(BUILD / "tests/fake_cuda/libnccl.so.2")
    done = subprocess.run([str(SOURCE / "scripts/gpu-check"), "--quick", "--build", str(BUILD), "--out", str(out), *more], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=500, env=variables, check=False)
    return done.returncode, done.stdout, json.loads(out.read_text()) if out.exists() else {}


def rows_of(result):
    return {(row["name"], row.get("ranks", 1)): row for row in result["checks"] + (result["device_cuda"] or {"checks": []})["checks"]}


@test
def every_row_passes_on_one_gpu():
    status, shown, result = check(1)
    assert status == 0, (shown, result)
    rows = rows_of(result)
    for ranks in (1, 2, 3, 4):
        assert rows["values", ranks]["passed"] and rows["streams", ranks]["passed"], rows
    for name in ("training equals that of one rank", "a stream that hangs is ended"):
        assert rows[name, 2]["passed"], rows
    for name in ("operations as on the processor", "gpt in bfloat16", "gpt, captured, to the bit", "stages over nccl",
                 "gpt in two micro-batches, captured, to the bit", "replicas with parameters divided over nccl",
                 "replicas in rounds of local steps over nccl",
                 "replicas in two micro-batches, captured step with all_reduce, to the bit",
                 "compute-sanitizer of operations, memcheck", "compute-sanitizer of a training"):
        assert rows[name, 1]["passed"], rows
    assert rows["speed of nccl-tests", 1]["skipped"].startswith("one GPU"), rows
    assert result["device"] == "NVIDIA Fake" and result["driver"] == "580.65.06" and result["gpus"] == 1, result
    assert [row["ranks"] for row in result["all_reduce"]] == [2] * 4, result


@test
def a_wrong_sum_fails_a_row_and_the_script():
    status, shown, result = check(4, "--nccl", FAKE_CUDA_WAITS="0")
    assert status == 1 and "FAIL streams, 4 ranks" in shown, shown
    assert result["all_reduce"][0]["nccl_tests_busbw_gb_s"] == 0.15, result


@test
def without_a_gpu_it_says_so():
    status, shown, _ = check(0)
    assert status == 77 and "no GPU here: nvidia-smi shows none" in shown, shown


run()
