# SPDX-License-Identifier: Apache-2.0
"""`lockstep sim`: what it prints, its trace, and what it refuses."""

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


def sim(*options, status=0):
    done = subprocess.run([BUILD / "lockstep", "sim", *options], text=True, capture_output=True, timeout=120)
    assert done.returncode == status, done
    return done.stdout + done.stderr


def parts(rows):
    return {name: float(ms) for name, ms in re.findall(r"^ *([a-z]+(?: exposed)?) +([\d.]+) ms", rows, re.M)}


@test
def parts_add_up_to_the_step():
    rows = sim("--mesh", "dp=8,pp=8,tp=8", "--model", "gpt2-xl", "--cluster", "8:200gbyte,8:25gbyte")
    got = parts(rows)
    step = got.pop("step")
    assert abs(sum(got.values()) - step) < 0.01 and len(got) == 6, rows
    says(rows, "note: the cluster has %d devices for %d ranks; its highest level is taken with %d components")
    says(rows, "note: no matmul was measured, so computation is a lower bound")
    assert "tp=8 does not divide 25 heads; the times are those of a rank with 4" in rows


@test
def three_thousand_ranks_are_simulated():
    rows = sim("--mesh", "dp=6,pp=64,tp=8", "--model", "gpt", "--layers", "128", "--dim", "25600", "--heads", "160",
               "--micro-batches", "512")
    assert "3072 ranks; 1f1b, 512 micro-batches of 1" in rows and "1007988.4 M parameters" in rows


@test
def the_trace_is_one_of_a_job():
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/sim.json"
        rows = sim("--mesh", "dp=2,pp=4", "--model", "gpt2", "--zero", "1", "--trace", path)
        step = parts(rows)["step"]
        root = json.load(open(path))
        assert root["otherData"]["lockstep_trace"] == 1 and root["otherData"]["world_size"] == 4
        spans = [e for e in root["traceEvents"] if e["ph"] == "X"]
        ends = max(e["ts"] + e["dur"] for e in spans)
        assert abs(ends / 1e3 - step) < 0.01, (ends, step)
        kinds = {e["cat"] for e in spans}
        assert kinds == {"step", "forward", "backward", "exposed", "optimizer", "bucket", "send", "recv"}, kinds
        read = subprocess.run([BUILD / "lockstep", "trace", path], text=True, capture_output=True, timeout=60)
        assert read.returncode == 0 and "of 4 ranks" in read.stdout, read
        says("\n".join(e["name"] for e in spans), "gather parameters")
        rows = sim("--trace", f"{folder}/none/x.json", status=1)
        assert "none cannot be read" in rows, rows
        (pathlib.Path(folder) / "book.txt").write_text("not a trace")
        assert "is not a trace" in sim("--trace", f"{folder}/book.txt", status=1)


@test
def all_axes_and_schedules_have_rows():
    rows = sim("--mesh", "dp=2,ep=4,cp=2,tp=2,pp=2", "--experts", "8", "--zero", "3")
    got = parts(rows)
    assert abs(sum(got.values()) - 2 * got["step"]) < 0.01 and {"cp exposed", "ep", "gather", "pp exposed"} <= set(got), rows
    assert "64 ranks" in rows and "8 experts, 2 a token" in rows and re.search(r"^  ep +\d+ bytes", rows, re.M), rows
    says(rows, "note: gradients of several micro-batches add up whole%s, so --zero %lld keeps what --zero 1 does; --micro-batches 1 keeps less")
    says(rows, "note: training refuses --zero 3 with pp, tp or ep")
    odd = "note: a rank of cp has two chunks of a sequence, so training refuses cp=%d of --context %lld"
    says(sim("--mesh", "cp=2", "--context", "1022"), odd)
    assert "training refuses" not in sim("--mesh", "cp=2", "--context", "1024")
    with tempfile.TemporaryDirectory() as folder:
        rows = sim("--mesh", "pp=4", "--schedule", "pipedream", "--trace", f"{folder}/t.json")
        assert parts(rows)["bubble"] == 0.0 and json.load(open(f"{folder}/t.json"))["traceEvents"], rows


TINYLLAMA = dict(model_type="llama", num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4, hidden_size=2048,
                 intermediate_size=5632, max_position_embeddings=2048, vocab_size=32000)
MIXTRAL = dict(model_type="mixtral", num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, hidden_size=4096,
               intermediate_size=14336, max_position_embeddings=32768, vocab_size=32000, num_local_experts=8, num_experts_per_tok=2)


@test
def published_llamas_and_mixtrals_have_their_sizes():
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.json"
        config.write_text(json.dumps(TINYLLAMA))
        rows = sim("--init", folder, "--mesh", "dp=2,tp=8")
        assert rows.startswith("llama: 22 layers, dim 2048, 32 heads, 4 of keys, MLPs of 5632, vocabulary 32000, context 2048; 1100.0 M"), rows
        assert rows == sim("--model", "llama", "--layers", "22", "--dim", "2048", "--heads", "32", "--kv-heads", "4", "--hidden", "5632",
                           "--vocab", "32000", "--context", "2048", "--mesh", "dp=2,tp=8")
        config.write_text(json.dumps(MIXTRAL))
        rows = sim("--init", folder, "--context", "4096", "--mesh", "dp=2,ep=8,pp=4")
        assert "; 8 experts, 2 a token; 46702.8 M parameters" in rows and re.search(r"^  ep +[1-9]\d* bytes", rows, re.M), rows
    rows = sim("--model", "llama", "--layers", "2", "--dim", "384", "--heads", "24", "--kv-heads", "12", "--mesh", "tp=8")
    says(rows, "note: tp=%d and %lld heads of keys: one must divide the other, so training refuses such a mesh")
    says(sim("--model", "llama", status=2), "--model %s has no sizes of its own; give --layers, --dim and --heads")
    says(sim("--model", "gpt2", "--tied", status=2), "--%s is for llama and mixtral, and this is %s; leave it out")


@test
def recomputed_blocks_keep_their_inputs_with_every_schedule():
    def kept(*options):
        return float(re.findall(r"([\d.]+) GB", sim("--model", "gpt2", "--batch", "4", "-m", "4", *options).splitlines()[-1])[3])
    assert kept("--recompute") < kept() / 2, "training recomputes blocks"
    assert kept("--mesh", "pp=2", "--recompute") < kept("--mesh", "pp=2")


@test
def odd_clusters_and_meshes_are_refused():
    for cluster in ("", ",", "8:", ":1gbit", "0:1gbit", "-1:1gbit", "8:nangbyte", "8:infgbyte", "8:1e400gbyte", "8:0gbit",
                    "8:1gbit@", "8:1gbit@-1us", "8:1gbit@1e300s", "99999999999999999999:1gbit", "8:1gbit;", "8:1gbit,", "#8:1gbit",
                    "2:1gbit,2:1gbit,2:1gbit,2:1gbit,2:1gbit", "65536:1gbit,2:1gbit"):
        assert "cluster" in sim("--cluster", cluster, status=1), cluster
    for mesh in ("", "=", "dp", "dp=", "dp=0", "dp=-1", "dp=1.5", "dp=*", "dp=2,dp=2", "dp=2,", "dp=99999999999", "dp=1000,tp=1000,pp=100", "dp=60000,tp=60000,pp=200",
                 "x" * 5000):
        assert "lockstep sim: " in sim("--mesh", mesh, status=2), mesh


@test
def clusters_and_devices_are_read_from_files():
    with tempfile.TemporaryDirectory() as folder:
        cluster, device = pathlib.Path(folder) / "cluster", pathlib.Path(folder) / "device"
        cluster.write_text("# 2 hosts\n4:10gbyte\n2:1gbit@50us\n")
        device.write_text("100gflop\n20gbyte\nmatmul 1024 2304 768 50ms\n")
        rows = sim("--mesh", "dp=8", "--cluster", str(cluster), "--device", str(device))
        assert "lower bound" not in rows
        assert rows == sim("--mesh", "dp=8", "--cluster", "4:10gbyte,2:1gbit@50us", "--device", str(device))
        cluster.write_text("# " + "x" * 70000)
        says(sim("--cluster", str(cluster), status=1), "%s has %zu bytes or more; it may have some hundred lines")
        assert "No such file" in sim("--device", f"{folder}/none", status=1)


@test
def what_cannot_be_is_refused():
    says(sim("--mesh", "dp=2,sp=2", status=2), 'axis "%s" of --mesh is not simulated; give dp, pp, tp, cp and ep')
    says(sim("--mesh", "cp=3", status=2), "--context %lld is no multiple of the %d ranks along cp; give one that is")
    says(sim("--mesh", "ep=3", "--experts", "8", status=2), "--experts %lld cannot be divided over %d ranks along ep; give a "
         "multiple")
    says(sim("--sequence", "--mesh", "dp=2", status=2),
         "--sequence divides activations over the ranks along tp, and --mesh has none; give it tp, as in --mesh dp=2,tp=2")
    sim("--sequence", "--mesh", "dp=2,tp=2")
    says(sim("--experts", "1", status=2), "--top-k %lld is more than --experts %lld")
    says(sim("--mesh", "dp=70000", status=2), "--mesh has %d ranks, %d along pp; at most %d and %d are possible")
    says(sim("--mesh", "pp=300", status=2), "--mesh has %d ranks, %d along pp; at most %d and %d are possible")
    assert "axes as name=size" in sim("--mesh", "dp", status=2)
    says(sim("--model", "gpt", status=2), "--model %s has no sizes of its own; give --layers, --dim and --heads")
    says(sim("--dim", "770", status=2), "--dim %lld is no multiple of --heads %lld; give one that is")
    says(sim("--bucket", "1gbit", status=2), '--bucket is "%s"; give bytes, such as 25m')
    assert 'unexpected argument "gpt2"' in sim("gpt2", status=2)
    says(sim("--mesh", "pp=16", status=1), "%lld layers are fewer than %lld stages; give fewer ranks along pp, or more layers")
    assert "--cluster: \"8:fast\" is not a level" in sim("--cluster", "8:fast", status=1)
    assert "--device: it lacks the speed of its memory" in sim("--device", "1tflop", status=1)
    assert "micro-batches" in sim("--mesh", "pp=4", "--schedule", "interleaved", "-m", "6", status=1)


if __name__ == "__main__":
    run()
