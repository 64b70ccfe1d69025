# SPDX-License-Identifier: Apache-2.0
"""`lockstep info --comm` and `--memory`: published bytes, and the conversions of each layer."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
from sentences import says
from tap import BUILD, run, test


def info(*options, status=0):
    done = subprocess.run([BUILD / "lockstep", "info", *map(str, options)], text=True, capture_output=True, timeout=60)
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
    rows = info("--comm", "--mesh", "dp=2,tp=2", "--sequence")
    assert re.search(r"into attention +all-gather +reduce-scatter +4 ", rows), rows
    assert re.search(r"out of the MLP +reduce-scatter +all-gather +4 ", rows), rows


@test
def bytes_between_replicas_are_those_of_the_hook_and_of_zero():
    gpt = ("--mesh", "dp=4", "--vocab", "256")  # the default of lockstep train gpt: 875,264 parameters
    assert sent(*gpt) == sent(*gpt, "--zero", "0") == sent(*gpt, "--zero", "1") == sent(*gpt, "--zero", "2") == [5251584]
    assert sent(*gpt, "--zero", "3") == [7877376]
    rows = info("--comm", *gpt, "--zero", "3")
    assert re.search(r"parameters +all-gather +all-gather +1 ", rows) and re.search(r"gradients +reduce-scatter +1 ", rows), rows
    assert sent(*gpt, "--hook", "plain") == [5251584]
    assert sent(*gpt, "--hook", "bf16") == [5251584 // 2]
    assert sent(*gpt, "--hook", "int8") == [5251584 // 4]
    assert sent(*gpt, "--hook", "one_bit") == [5251584 // 32]
    assert sent(*gpt, "--hook", "top_k:density=0.01") == [8 * 875264 * 3 // 100]
    assert sent(*gpt, "--hook", "random_k:density=0.01") == [8 * 875264 * 3 // 400]
    # of each layer [384,128], [128,128], [512,128], [128,512]; tables [256,128] twice, [128,128]; the rest are vectors
    factors = 4 * 4 * (512 + 256 + 640 + 640) + 4 * (384 + 384 + 256)
    vectors = 875264 - 4 * 12 * 128 * 128 - 2 * 256 * 128 - 128 * 128
    assert sent(*gpt, "--hook", "powersgd:rank=4") == [8 * (factors + vectors) * 3 // 4]
    assert "powersgd" in info("--comm", *gpt, "--hook", "powersgd:rank=4")
    says(info("--comm", *gpt, "--hook", "int9", status=2), "lockstep info: --hook: %s")
    for more in (("--zero", "1"), ("--mesh", "dp=2,tp=2")):
        says(info("--comm", *gpt, *more, "--hook", "int8", status=2),
             "lockstep info: --hook %s: hooks are for replicas of whole models; give --mesh dp=N alone, without --zero")


@test
def heads_of_keys_that_several_ranks_share_are_counted_for_each():
    two, four = (sent("--mesh", "tp=4,cp=2", "--heads", "4", "--kv-heads", str(heads)) for heads in (2, 4))
    assert two == four  # one head of keys and values on each rank
    assert sent("--mesh", "tp=2,cp=2", "--heads", "4", "--kv-heads", "2") == sent("--mesh", "tp=2,cp=2", "--heads", "4", "--kv-heads", "1")
    says(info("--comm", "--mesh", "tp=4", "--heads", "12", "--dim", "96", "--kv-heads", "3", status=2),
         "lockstep info: %s %lld is not divisible by %d; give a multiple")


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


MOE = ("--model", "moe", "--layers", 2, "--capacity", 1.25)


@test
def bytes_of_experts_are_those_of_the_counters():
    """tests/dist/experts has the counters: 491520 bytes of rows forward, and as many backward, in each exchange."""
    rows = info("--comm", "--batch", 2, *MOE, "--mesh", "ep=4", "--padded")
    assert re.findall(r"^ep +rows \w+(?: experts)? +all-to-all +all-to-all +1 +(\d+)$", rows, re.MULTILINE) == ["491520"] * 2, rows
    says(rows, "%lld experts, %lld for a token; ep=%d, dp=%d")
    says(rows, "rows to experts%s")
    says(rows, "rows back%s")
    says(rows, "gradients but experts'")
    block, gate = 12 * 128 * 128 + 13 * 128, 8 * 128
    rest = (2 * block - (8 * 128 * 128 + 5 * 128) + gate + 128 * 128 + 2 * 128) * 4
    assert f"all-reduce         1 {rest * 3 // 2:14d}" in rows, rows
    # Without padding no more than the places of 6 experts, or all choices.
    rows = info("--comm", "--batch", 2, *MOE, "--mesh", "dp=2,ep=4")
    assert "rows to experts, most        all-to-all     all-to-all         1         491520" in rows, rows
    says(rows, "gradients of experts")
    assert f"{2 * (8 * 128 * 128 + 5 * 128) * 4:14d}" in rows, rows
    rows = info("--comm", "--batch", 2, "--model", "moe", "--layers", 2, "--mesh", "ep=4")
    assert f"{2 * 512 * 128 * 4:14d}" in rows, rows


@test
def memory_of_training_with_zero_is_rajbhandaris():
    rows = info("--memory", "gpt2-xl", "-n", "8")
    assert re.findall(r" ([0-9.]+) GB$", rows, re.MULTILINE) == ["24.9", "14.0", "8.6", "3.1"], rows
    says(rows, "%s: %s parameters in float32, AdamW, %d rank%s; kept by each between two steps")
    says(rows, "Activations come on top, and the buckets on their way: with zero 2 and 3 those of gradients in backward, with zero 3 "
               "those of parameters in both passes; their memory stays for the next step")
    assert re.findall(r" ([0-9.]+) GB$", info("--memory", "gpt2", "-n", "1", "--zero", "2"), re.MULTILINE) == ["2.0"]
    says(info("--memory", "gpt5", status=2),
         'there is no model "%s"; give gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a folder with a config.json')
    with tempfile.TemporaryDirectory() as folder:  # TinyLlama, whose page says 1.1 B
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(dict(
            model_type="llama", num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4, hidden_size=2048,
            intermediate_size=5632, max_position_embeddings=2048, vocab_size=32000)))
        assert ": 1100048384 parameters" in info("--memory", folder)
    says(info("gpt2", status=2), '"%s" is not expected here; give --memory before a model')


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
    says(info("--comm", "--mesh", "tp=2,pp=2", status=2),
         'lockstep info: axis "%s" of --mesh is not counted here; give tp, cp, ep and dp')
    says(info("--comm", "--mesh", "ep=2", status=2),
         "lockstep info: experts are counted along ep and dp, which --model moe has; give --mesh ep and dp for it, tp, cp and dp for "
         "gpt")
    for more in (("--padded",), ("--top-k", 9, "--capacity", 1)):
        says(info("--comm", "--model", "moe", "--mesh", "ep=2", *more, status=2),
             "lockstep info: --top-k %lld of --experts %lld, --capacity %g; give at most all, and with --padded a capacity")
    says(info("--comm", "--model", "moe", "--mesh", "dp=2", "--zero", 1, status=2),
         "lockstep info: what --zero and --hook send is counted for gpt; leave them out with --model moe")
    says(info("--comm", "--mesh", "tp=3", status=2), "lockstep info: %s %lld is not divisible by %d; give a multiple")
    says(info("--comm", "--mesh", "cp=4", "--context", "4", status=2), "--context 4 is not divisible by 8; give a multiple")
    says(info("--comm", "--mesh", "dp=2", "--sequence", status=2),
         "lockstep info: --sequence divides activations over the ranks along tp, and --mesh has none; give it tp")
    says(info("--comm", "--mesh", "tp=2", "--regather", status=2),
         "lockstep info: --regather is about inputs that --sequence gathers; give both")


if __name__ == "__main__":
    run()
