"""`lockstep info --comm` and `--memory`: published bytes, and the conversions of each layer."""

import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
from sentences import says
from tap import BUILD, run, test


def info(*options, status=0):
    done = subprocess.run([BUILD / "lockstep", "info", *options], text=True, capture_output=True, timeout=60)
    assert done.returncode == status, done
    return done.stdout + done.stderr


def sent(*options):
    return [int(n) for n in re.findall(r"sent by each rank +(\d+)", info("--comm", "--batch", "2", *options))]


@test
def bytes_of_a_step_are_those_of_megatron():
    assert sent("--mesh", "tp=2") == [4 * 524288]  # 2 + 2 all-reduces of [2,128,128] a layer
    assert sent("--mesh", "tp=2", "--vocab", "256") == [2362368]
    assert sent("--mesh", "tp=4", "--vocab", "256") == [3543552]
    assert sent("--mesh", "tp=2", "--sequence") == [4 * 524288]
    assert sent("--mesh", "tp=2", "--sequence", "--regather") == [5 * 524288]
    assert sent("--mesh", "pp=2") == []
    rows = info("--comm", "--mesh", "dp=2,tp=2", "--sequence")
    assert re.search(r"into attention +all-gather +reduce-scatter +4 ", rows), rows
    assert re.search(r"out of the MLP +reduce-scatter +all-gather +4 ", rows), rows


@test
def memory_of_a_layer_is_korthikantis():
    rows = info("--memory", "--formula", "--layers", "48", "--dim", "6144", "--heads", "64", "--context", "2048", "--batch", "4",
                "--mesh", "tp=8")
    assert re.findall(r"^16 bits.* (\d+) MB", rows, re.MULTILINE) == ["7080", "1325", "885", "214", "101"], rows
    rows = info("--memory", "--batch", "2", "--mesh", "tp=2")
    assert re.findall(r"^here.* (\d+)$", rows, re.MULTILINE) == ["2105856", "1317376", "1184256", "1053184"], rows


@test
def what_a_mesh_does_not_divide_is_named():
    says(info("--comm", "--mesh", "tp=3", status=2), "lockstep info: %s %lld is not divisible by %d; give a multiple")


if __name__ == "__main__":
    run()
