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
def every_conversion_has_its_row():
    rows = info("--comm", "--mesh", "dp=2,tp=2,cp=2", "--vocab", "256")
    says(rows, "token embedding")
    says(rows, "into attention")
    says(rows, "out of attention")
    says(rows, "into the MLP")
    says(rows, "out of the MLP")
    says(rows, "into the head")
    says(rows, "loss: maxima, sums, targets")
    says(rows, "keys and values")
    says(rows, "keys, values, their gradients")
    says(rows, "a micro-batch, sent by each rank")
    assert "reduce-scatter, again" in info("--comm", "--mesh", "tp=2", "--sequence", "--regather")


@test
def memory_of_training_with_zero_is_rajbhandaris():
    rows = info("--memory", "gpt2-xl", "-n", "8")
    assert re.findall(r" ([0-9.]+) GB$", rows, re.MULTILINE) == ["24.9", "14.0", "8.6", "3.1"], rows
    says(rows, "%s: %s parameters in float32, AdamW, %d rank%s; kept by each between two steps")
    says(rows, "Activations come on top, and in backward with zero 2 the buckets on their way; training has zero 0, 1 and 2")
    assert re.findall(r" ([0-9.]+) GB$", info("--memory", "gpt2", "-n", "1", "--zero", "2"), re.MULTILINE) == ["2.0"]
    says(info("--memory", "gpt5", status=2), 'there is no model "%s"; give gpt2, gpt2-medium, gpt2-large or gpt2-xl')
    says(info("gpt2", status=2), 'what of "%s"? give --memory before it')


@test
def memory_of_a_layer_is_korthikantis():
    rows = info("--memory", "--formula", "--layers", "48", "--dim", "6144", "--heads", "64", "--context", "2048", "--batch", "4",
                "--mesh", "tp=8")
    assert re.findall(r"^16 bits.* (\d+) MB", rows, re.MULTILINE) == ["7080", "1325", "885", "214", "101"], rows
    says(rows, "kept by a layer")
    says(rows, "16 bits, one rank")
    says(rows, "16 bits, tp")
    says(rows, "16 bits, tp, sequence")
    says(rows, "16 bits, selective recomputation")
    says(rows, "16 bits, full recomputation")
    says(rows, "here, one rank")
    says(rows, "here, tp")
    says(rows, "here, tp, sequence")
    says(rows, "here, gathered again")
    says(rows, "4 sbh (4 + 12/t) + 4 bas/t + 16 bs")
    says(rows, "4 sbh (2 + 14/t) + 4 bas/t")
    says(rows, "64 sbh + 4 bas + 16 bs + 512")
    says(rows, "64 sbh/t + 4 bas/t")
    says(rows, "sbh (10 + 24/t + 5as/ht)")
    says(rows, "sbh (34 + 5as/h)")
    says(rows, "sbh/t (34 + 5as/h)")
    rows = info("--memory", "--batch", "2", "--mesh", "tp=2")
    assert re.findall(r"^here.* (\d+)$", rows, re.MULTILINE) == ["2105856", "1317376", "1184256", "1053184"], rows


@test
def what_a_mesh_does_not_divide_is_named():
    says(info("--comm", "--mesh", "tp=3", status=2), "lockstep info: %s %lld is not divisible by %d; give a multiple")
    says(info("--comm", "--mesh", "cp=4", "--context", "4", status=2), "--context 4 is not divisible by 8; give a multiple")
    says(info("--comm", "--mesh", "tp=2", "--regather", status=2),
         "lockstep info: --regather is about inputs that --sequence gathers; give both")


if __name__ == "__main__":
    run()
