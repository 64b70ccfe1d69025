# SPDX-License-Identifier: Apache-2.0
"""--mesh with tp and cp: the training programs divide layers and sequences, and learn what one process does."""

import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
import event_file
import gpt2_folder
import training
from sentences import says, sentence
from tap import BUILD, Skip, command, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-mesh-")
FOLDER = pathlib.Path(SCRATCH.name)
LOCKSTEP = BUILD / "lockstep"
CLOSE = 1e-5


def text():
    path = FOLDER / "text"
    if not path.exists():
        path.write_text("".join(letter * 3 for letter in "a rank sends a bucket and waits for it. ") * 60)
    return path


def arguments(kind, ranks, *flags):
    shape = ("--layers", 2, "--dim", 32, "--heads", 4, "--context", 32, "--batch", 4)
    return [str(a) for a in (LOCKSTEP, "train", kind, "-n", ranks, "--data", text(), *shape, *flags)]


def emptied(name):
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def ranks_of(mesh):
    ranks = 1
    for axis in mesh.split(","):
        ranks *= int(axis.split("=")[1])
    return ranks


def losses(kind, mesh, *flags, steps=8):
    path = FOLDER / "losses"
    ranks = ranks_of(mesh) if mesh else 1
    command(*arguments(kind, ranks, "--steps", steps, "--log-losses", path, *(("--mesh", mesh) if mesh else ()), *flags))
    return [float(line.split()[-1]) for line in path.read_text().splitlines()]


def check_close(got, want):
    assert len(got) == len(want) and all(abs(a - b) <= CLOSE * b for a, b in zip(got, want)), (got, want)


@test
def layers_of_a_gpt_are_divided():
    for dropout in ("0", "0.1"):
        want = losses("gpt", None, "--dropout", dropout)
        for mesh, *flags in (("tp=2",), ("tp=4",), ("tp=2", "--sequence"), ("tp=4", "--sequence")):
            check_close(losses("gpt", mesh, "--dropout", dropout, *flags), want)


@test
def layers_of_a_bert_are_divided():
    flags = ("--dropout", "0.1", "--vocab", 257)  # and three special tokens
    want = losses("bert", None, *flags, steps=4)
    for mesh, *more in (("tp=2",), ("tp=2", "--sequence"), ("tp=4",)):
        check_close(losses("bert", mesh, *flags, *more, steps=4), want)


VIT = ("--model", "vit", "--patch", 8, "--layers", 2, "--dim", 32, "--heads", 4, "--classes", 4, "--optim", "adamw", "--lr", 1e-3,
       "--batch", 4, "--crop-padding", 1, "--flip")


def image_losses(mesh, *flags, steps=8):
    path = FOLDER / "losses"
    command(LOCKSTEP, "train", "image", "-n", ranks_of(mesh), "--mesh", mesh, "--data", training.images(FOLDER), *VIT, "--steps",
            steps, "--log-losses", path, *flags)
    return [float(line.split()[-1]) for line in path.read_text().splitlines()]


@test
def layers_of_a_vision_transformer_are_divided():
    want = image_losses("dp=1")
    for mesh, *flags in (("tp=2",), ("tp=4",), ("tp=2", "--sequence")):
        check_close(image_losses(mesh, *flags), want)
    want = image_losses("dp=2")
    for mesh, *flags in (("dp=2,tp=2",), ("tp=2,dp=2", "--sequence")):
        check_close(image_losses(mesh, *flags), want)
    check_close(image_losses("tp=2", "--model", "mlp"), image_losses("dp=1", "--model", "mlp"))


@test
def checkpoints_of_images_go_on_with_any_mesh():
    meshes, want = ("dp=2", "dp=2,tp=2"), None
    for mesh in meshes:
        for other in meshes:
            saved = emptied("saved")
            image_losses(mesh, "--save", saved, steps=4)
            got = image_losses(other, "--resume", saved)[4:]
            want = want or got  # of dp=2 that goes on as it was
            check_close(got, want)
    weights = [FOLDER / name for name in ("whole", "parts")]
    for mesh, path in zip(("dp=2", "dp=2,tp=2"), weights):
        image_losses(mesh, "--resume", saved, "--export", path, steps=4)
    assert weights[0].read_bytes() == weights[1].read_bytes()


@test
def sequences_of_a_gpt_are_divided():
    want = losses("gpt", None, "--dropout", 0.1)
    for mesh, *flags in (("cp=2",), ("cp=4",), ("tp=2,cp=2",), ("tp=2,cp=2", "--sequence")):
        check_close(losses("gpt", mesh, "--dropout", 0.1, *flags), want)


@test
def all_axes_at_once():
    want = losses("gpt", "dp=2", "--dropout", 0.1)
    check_close(losses("gpt", "dp=2,tp=2,cp=2", "--dropout", 0.1), want)
    check_close(losses("gpt", "dp=2,cp=2,tp=2", "--dropout", 0.1, "--sequence"), want)


MOE = ("--model", "moe", "--experts", 8, "--top-k", 2, "--dropout", 0.1)


@test
def experts_are_divided_and_their_counts_recorded():
    for capacity in (0, 1.25):
        flags = (*MOE, "--capacity", capacity)
        log = FOLDER / "experts.jsonl"
        want = losses("gpt", "dp=4", *flags)
        for mesh, *more in (("dp=2,ep=2",), ("ep=4",), ("ep=4", "--recompute"), ("ep=2,dp=2", "--feed", "scatter")):
            check_close(losses("gpt", mesh, *flags, *more, "--log", log), want)
        last = [json.loads(line) for line in log.read_text().splitlines() if "dropped_share" in line][-1]
        assert (last["dropped_share"] > 0) == (capacity > 0) == (last["dropped"] > 0), last
        # One of 2 blocks has experts, of which each of 4 x 4 x 32 tokens visits 2.
        assert len(last["expert_rows"]) == 8 and sum(last["expert_rows"]) + last["dropped"] == 4 * 4 * 32 * 2, last
        assert last["idlest_expert"] <= 1 <= last["busiest_expert"] <= 8, last


@test
def tensorboard_has_a_curve_for_each_expert():
    """Its rows in a step by their mean over the experts."""
    log, board, experts = FOLDER / "curves.jsonl", emptied("board"), 20
    losses("gpt", "ep=2", *MOE, "--experts", experts, "--log", log, "--tensorboard", board, steps=2)
    shown = event_file.scalars_of_folder(board)
    assert sum(tag.startswith("experts/") for tag in shown) == experts, shown.keys()
    steps = [line for line in map(json.loads, log.read_text().splitlines()) if "expert_rows" in line]
    for line in steps:
        for expert, rows in enumerate(line["expert_rows"]):
            share = rows * experts / sum(line["expert_rows"])
            assert abs(shown[f"experts/{expert}"][line["step"]] - share) < 1e-5, (expert, line)
    assert len(steps) == 2, steps


@test
def rows_of_experts_are_those_of_the_tokens_of_a_step():
    """Each of the 4 x 32 tokens of a micro-batch visits 2 experts of one block, whatever ranks it is on."""
    log = FOLDER / "rows.jsonl"
    flags = (*MOE, "--eval-every", 2, "--log", log)
    for passes, mesh, *more in (
        (1, "tp=2"),
        (1, "tp=2", "--sequence"),
        (1, "cp=2"),
        (3, "dp=1", "--accum", 3),
        (1, "dp=1", "--recompute"),
        (3, "pp=2", "--micro-batches", 3),
        (6, "pp=2,dp=2", "--micro-batches", 3),
        (2, "pp=2", "--micro-batches", 2, "--schedule", "gpipe", "--recompute"),
        (2, "pp=2,tp=2", "--micro-batches", 2),
    ):
        losses("gpt", mesh, *flags, *more, steps=3)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        counts = [sum(line["expert_rows"]) + line["dropped"] for line in lines if "expert_rows" in line]
        assert counts == 3 * [passes * 4 * 32 * 2], (mesh, more, counts)


@test
def what_experts_on_4_ranks_have_learned_goes_on_on_2_and_writes_text():
    saved, export = emptied("saved"), emptied("export")
    # 29 windows: the ranks judge 8 and 7, in batches of 16
    losses("gpt", "ep=4", *MOE, "--eval-windows", 29, "--save", saved, "--export", f"{export}/", steps=20)
    text = generated("--checkpoint", saved)
    assert text == generated("--weights", export) and len(text) > 6, text
    want = losses("gpt", "ep=4", "--resume", saved, steps=24)[20:]
    check_close(losses("gpt", "dp=2,ep=2", "--resume", saved, steps=24)[20:], want)
    check_close(losses("gpt", "ep=2", "--resume", saved, "--batch", 8, steps=24)[20:], want)


MIXTRAL = ("--model", "mixtral", "--kv-heads", 1, "--hidden", 24, "--experts", 4, "--top-k", 2)


@test
def a_mixtral_goes_through_folders_of_hugging_faces():
    saved, first, second = emptied("saved"), emptied("first"), emptied("second")
    losses("gpt", "ep=2,tp=2", *MIXTRAL, "--save", saved, "--export", f"{first}/", steps=10)
    config = json.loads((first / "config.json").read_text())
    assert (config["model_type"], config["architectures"], config["num_key_value_heads"], config["num_local_experts"],
            config["intermediate_size"], config["rope_parameters"]["rope_theta"]) == (
        "mixtral", ["MixtralForCausalLM"], 1, 4, 24, 1e6), config
    header = (first / "model.safetensors").read_bytes()
    names = json.loads(header[8:8 + int.from_bytes(header[:8], "little")])
    assert names["model.layers.1.block_sparse_moe.experts.3.w2.weight"]["shape"] == [config["hidden_size"], 24], names
    text = generated("--checkpoint", saved)
    assert text == generated("--weights", first) and len(text) > 6, text
    for folder in (first, second):
        (folder / "run.json").unlink(missing_ok=True)  # as if transformers had written it
        losses("gpt", "dp=2,ep=2", "--init", first, "--lr", 0, "--weight-decay", 0, "--export", f"{second}/", steps=1)
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert json.loads((second / "config.json").read_text()) == config
    for from_it, said in ((("--init", first), '--%s contradicts "%s", whose model has %lld; leave it out'),
                          (("--resume", saved), '%s contradicts the checkpoints in "%s", whose model has %s; leave the flag out')):
        for flag in ("--experts-per-token", "--top-k"):
            says(refused(1, *from_it, flag, 1), said)


@test
def a_mixtral_is_divided_over_any_mesh():
    """The gate's loss is that of a pass, so the meshes have equal passes."""
    want = losses("gpt", "dp=2", *MIXTRAL)
    for mesh, *flags in (("dp=2,tp=2",), ("dp=2,tp=4", "--sequence"), ("dp=2,cp=2",), ("ep=2,tp=2", "--sequence"),
                         ("dp=2,tp=2", "--recompute", "--sequence")):
        check_close(losses("gpt", mesh, *MIXTRAL, *flags), want)


LLAMA = ("--model", "llama", "--kv-heads", 2, "--hidden", 24)
WHOLE_ATTENTION = "model.layers.*.mlp.gate_proj=column model.layers.*.mlp.up_proj=column model.layers.*.mlp.down_proj=row"
WHOLE_MLPS = "model.layers.*.self_attn.q_proj=column model.layers.*.self_attn.k_proj=column model.layers.*.self_attn.v_proj=column " \
             "model.layers.*.self_attn.o_proj=row"


@test
def a_llama_goes_through_folders_of_hugging_faces_and_over_any_mesh():
    saved, first, second = emptied("saved"), emptied("first"), emptied("second")
    for tied in ((), ("--tied",)):
        want = losses("gpt", "dp=2", *LLAMA, *tied)
        for mesh, *flags in (("dp=2,tp=2", "--sequence"), ("dp=2,tp=4",), ("dp=2,cp=2",),
                            ("pp=2", "--micro-batches", 2), ("dp=2,tp=2", "--tensor-plan", WHOLE_ATTENTION),
                            ("dp=2,tp=2", "--tensor-plan", WHOLE_MLPS)):
            check_close(losses("gpt", mesh, *LLAMA, *tied, *flags), want)
    losses("gpt", "tp=2", *LLAMA, "--tied", "--save", saved, "--export", f"{first}/", steps=10)
    config = json.loads((first / "config.json").read_text())
    assert (config["model_type"], config["architectures"], config["num_key_value_heads"], config["tie_word_embeddings"],
            config["intermediate_size"], config["rope_parameters"]["rope_theta"]) == (
        "llama", ["LlamaForCausalLM"], 2, True, 24, 1e4), config
    text = generated("--checkpoint", saved)
    assert text == generated("--weights", first) and len(text) > 6, text
    for folder in (first, second):
        (folder / "run.json").unlink(missing_ok=True)  # as if transformers had written it
        losses("gpt", "dp=2", "--init", first, "--lr", 0, "--weight-decay", 0, "--export", f"{second}/", steps=1)
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert json.loads((second / "config.json").read_text()) == config
    scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 16}
    (first / "config.json").write_text(json.dumps({**config, "rope_parameters": {**scaled, "rope_theta": 1e4}}))
    plain = losses("gpt", "dp=2", "--init", second, steps=3)
    (second / "run.json").unlink()
    slower = losses("gpt", "dp=2", "--init", first, "--save", emptied("saved"), "--export", f"{second}/", steps=3)
    assert slower != plain
    again = json.loads((second / "config.json").read_text())
    assert again["rope_scaling"] == again["rope_parameters"] == {**scaled, "rope_theta": 1e4}, again
    assert generated("--checkpoint", saved) == generated("--weights", second)


@test
def checkpoints_go_on_with_any_mesh():
    meshes = (("dp=2",), ("dp=2,tp=2",), ("dp=2,tp=4", "--sequence"), ("dp=2,cp=2",))
    want = None
    for mesh, *flags in meshes:
        saved = FOLDER / "saved"
        shutil.rmtree(saved, ignore_errors=True)
        losses("gpt", mesh, *flags, "--save", saved, steps=6)
        for other, *more in meshes:
            copy = FOLDER / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(saved, copy)
            got = losses("gpt", other, *more, "--resume", copy, steps=10)[6:]
            want = want or got  # of dp=2 that goes on as it was
            check_close(got, want)


def small_gpt2():
    folder = emptied("gpt2")
    folder.mkdir()
    gpt2_folder.model(folder, vocab=256, c=16, heads=4, random=random.Random(1))
    return ("--model", "gpt2", "--init", folder, "--layers", 1, "--dim", 16, "--heads", 4)


def check_export(kind, mesh, *flags):
    """What the ranks of a mesh export is, byte for byte, what one process exports of their checkpoint."""
    saved, ours, theirs = emptied("saved"), emptied("ours"), emptied("theirs")
    losses(kind, mesh, *flags, "--save", saved, "--export", f"{ours}/", steps=3)
    command(LOCKSTEP, "train", kind, "--resume", saved, "--steps", 3, "--mesh", "dp=1", "--export", f"{theirs}/")
    want = {path.name: path.read_bytes() for path in theirs.iterdir() if path.name != "run.json"}
    assert "model.safetensors" in want
    for name, content in want.items():
        assert (ours / name).read_bytes() == content, (kind, mesh, flags, name)
    assert json.loads((ours / "run.json").read_text())["flags"]["steps"] == 3
    assert sorted(path.name for path in ours.iterdir()) == sorted([*want, "run.json"])  # nothing temporary


@test
def parts_of_layers_are_exported_as_one_model():
    for mesh, *flags in (("tp=2",), ("tp=4",), ("dp=2,tp=2",), ("tp=2,dp=2", "--sequence"), ("tp=2,cp=2",)):
        check_export("gpt", mesh, "--dropout", 0 if "cp" in mesh else 0.1, *flags)
    for mesh in ("tp=2", "tp=4"):
        check_export("bert", mesh, "--vocab", 257)
    check_export("gpt", "tp=2", *small_gpt2())
    check_export("gpt", "pp=2,tp=2", *small_gpt2(), "--micro-batches", 2)  # a tied embedding
    file = FOLDER / "alone.safetensors"
    losses("gpt", "tp=2", "--dropout", 0, "--export", file, steps=3)
    losses("gpt", None, "--dropout", 0, "--init", file, steps=1)  # all of it is there
    assert file.stat().st_size > 4 * 2 * 12 * 32 * 32


@test
def a_disk_that_is_full_ends_an_export_on_all_ranks():
    script = 'mount -t tmpfs -o size=100k none "$0" && "$@"; status=$?; test -z "$(ls -A "$0")" || echo "disk is left"; exit $status'
    disk = FOLDER / "disk"
    disk.mkdir()
    inside = ["unshare", "-rm", "sh", "-c", script, disk]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        raise Skip("no file system can be mounted (needs unshare -rm)")
    words = arguments("gpt", 2, "--steps", 1, "--mesh", "tp=2", "--export", disk / "weights")
    done = subprocess.run([*inside, *words], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60)
    assert done.returncode == 1 and "disk is left" not in done.stdout, done.stdout
    says(done.stdout, 'cannot write "%s": %s: the file needs %zu bytes, and %lld more are free there; remove files, or give a '
                      'folder on another file system')
    assert done.stdout.count("error: ") <= 3 and "No space left on device" in done.stdout, done.stdout


def generated(*flags):
    return command(LOCKSTEP, "generate", *flags, "--prompt", "a rank", "--tokens", 40, "--greedy").splitlines()[0]


@test
def one_process_writes_text_from_what_a_mesh_has_learned():
    flags = ("--dropout", 0, "--lr", 1e-2)
    for mesh, *more in (("tp=4",), ("tp=2", "--sequence")):
        saved, export = emptied("saved"), emptied("export")
        losses("gpt", mesh, *flags, *more, "--save", saved, "--export", f"{export}/", steps=60)
        text = generated("--checkpoint", saved)
        assert text == generated("--weights", export) and len(set(text[6:])) > 1, text


def refused(ranks, *flags, kind="gpt"):
    done = subprocess.run(arguments(kind, ranks, "--steps", 2, *flags), text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    assert done.returncode != 0, done.stdout
    return done.stdout


@test
def what_goes_not_together_is_refused():
    says(refused(2, "--mesh", "xp=2"),
         '--mesh is "%s"; training has the axes dp, replicas with other data, pp, the stages of a pipeline, tp, parts of each '
         'layer, cp, parts of each sequence, and ep, experts, and none that is called "%.*s"')
    for axis, zero, group in (("tp", 3, 0), ("tp", 2, 2), ("ep", 3, 0)):
        says(refused(2, "--mesh", f"{axis}=2", "--zero", zero, *(("--shard-group", group) if group else ()),
                     *(("--model", "moe") if axis == "ep" else ())),
             "%s with an axis %s of --mesh: all ranks gather in one order, and those along %s have other parameters; give "
             "--zero 1 or 2 without --shard-group")
    says(refused(2, "--mesh", "pp=2", "--zero", 3),
         "--zero 3 with a pipeline: a stage would gather its parameters for each micro-batch, in an order that differs from "
         "rank to rank; give --zero 2")
    says(refused(2, "--mesh", "ep=2", "--model", "moe", "--exact", "layout"),
         "--exact layout is for replicas of whole models, and the ranks of ep have other experts; give --mesh dp alone")
    for flag in ("--top-k", "--balance-loss"):
        says(refused(1, flag, 1), "--%s is for --model %s, and this is %s; leave it out, or give --model")
    for flags, words in (
            (("--model", "lstm"), "--heads is for --model gpt, moe, llama or mixtral, and this is lstm"),
            (("--model", "gpt2", "--init-std", 0.1), "--init-std is for --model gpt, moe, llama or mixtral, and this is gpt2"),
            (("--init", "nowhere", "--init-std", 0.1),
             sentence("--init-std is of values that are drawn, and --init loads them; leave one of them out"))):
        said = refused(1, *flags)
        assert words in said, said
    says(refused(1, "--model", "moe", "--experts", 2, "--top-k", 3),
         "--experts-per-token %lld of --experts %lld; give at most all")
    says(refused(4, "--model", "moe", "--experts", 6, "--mesh", "ep=4"),
         '--experts %lld cannot be divided over the %lld ranks along ep of --mesh "%s"; give a multiple')
    says(refused(2, "--mesh", "cp=2", "--sequence"),
         "--sequence divides what lies between the layers over the ranks of an axis tp; give --mesh one, as in --mesh dp=2,tp=2")
    says(refused(2, "--mesh", "tp=2", "--exact", "layout"),
         "--exact layout is for replicas of whole models; give --mesh dp alone")
    says(refused(2, "--mesh", "tp=2", "--feed", "scatter"),
         "--feed scatter gives every rank other samples, and the ranks of tp and cp need the same; give --feed split")
    assert "axis tp has 3 ranks" in refused(3, "--mesh", "tp=3")
    assert "cannot be cut into the 6 chunks of all ranks on axis cp" in refused(3, "--mesh", "cp=3")


@test
def models_that_an_axis_cannot_divide_are_refused_before_the_first_step():
    images = ("--data", training.images(FOLDER, 3), "--classes", 4)
    for kind, mesh, named, flags in (
            ("bert", "cp=2", "inputs of a model bert", ()),
            ("gpt", "dp=1,cp=2", "inputs of a model gpt2", small_gpt2()),
            ("gpt", "tp=2", "layers of a model lstm", ("--model", "lstm")),
            ("gpt", "ep=2", "experts of a model gpt", ()),
            ("image", "tp=2", "layers of a model cnn", (*images, "--model", "cnn")),
            ("image", "tp=2", "layers of a model resnet", (*images, "--model", "resnet18")),
            ("image", "dp=1,cp=2", "inputs of a model vit", (*images, "--model", "vit"))):
        heads = () if "lstm" in flags else ("--heads", 2)
        shape = () if kind == "image" else ("--data", text(), "--layers", 1, "--dim", 16, *heads)
        done = subprocess.run([str(a) for a in (LOCKSTEP, "train", kind, "-n", 2, "--mesh", mesh, "--steps", 1, *shape, *flags)],
                              text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        assert done.returncode == 2 and "before training" not in done.stdout, done.stdout
        says(done.stdout, '--mesh is "%s"; the %s of a model %s cannot be divided by %s in this version; leave %s out, and give '
                          'more replicas (dp) or stages (pp)')
        assert named in done.stdout, done.stdout


@test
def a_plan_that_was_found_trains_as_one_process():
    """`lockstep plan tensor` prints words, which --tensor-plan takes."""
    shape = ("--layers", 2, "--dim", 32, "--heads", 4, "--context", 32, "--batch", 1)
    printed = command(LOCKSTEP, "plan", "tensor", "gpt", "--data", text(), *shape, "--mesh", "tp=2", "--cluster", "2:10gbyte",
                      "--device", "1gflop,10gbyte")
    words = next(line[4:] for line in printed.splitlines() if line.startswith("tp: "))
    assert "blocks.*.qkv=column(3)" in words and "blocks.*.down=row" in words, printed
    check_close(losses("gpt", "tp=2", "--tensor-plan", words, steps=4), losses("gpt", None, steps=4))


@test
def a_plan_with_one_layer_of_a_pair_names_the_other():
    for words, named in (("blocks.*.up=column", "add blocks.0.down=row to the plan"),
                         ("blocks.*.qkv=column(3)", "add blocks.0.proj=row to the plan"),
                         ("blocks.*.down=row", "or leave blocks.0.down=row out"),
                         ("blocks.*.proj=row", "or leave blocks.0.proj=row out")):
        printed = refused(2, "--mesh", "tp=2", "--tensor-plan", words)
        assert named in printed and "(--tensor-plan)" in printed, printed


@test
def a_search_that_is_asked_for_wrongly_is_refused():
    def tensor(*flags):
        shape = ("--data", text(), "--layers", 1, "--dim", 16, "--heads", 2)
        done = subprocess.run([str(a) for a in (LOCKSTEP, "plan", "tensor", "gpt", *shape, *flags)], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        assert done.returncode != 0, done.stdout
        return done.stdout
    says(tensor(), "--mesh is missing; give axes, such as tp=4")
    says(tensor("--mesh", "tp=2", "--cluster", "2" * 600), "--mesh, --cluster and --device have more than %zu characters together")
    says(tensor("--mesh", "tp=2", "--dtype", "bf16"), "--tensor-search looks at a float32 model and one micro-batch in one "
         "process; leave -n, --mesh, --plan, --accum and --dtype out")
    assert "--tensor-search: ls_tensor_plan_find: the mesh \"a=2,b=2,c=2\" has 3 axes" in tensor("--mesh", "a=2,b=2,c=2")
    says(refused(1, "--tensor-plan", "tokens=vocab"), "--tensor-plan says how the ranks of an axis tp share the layers; give "
         "--mesh one, as in --mesh tp=2")


if __name__ == "__main__":
    run()
