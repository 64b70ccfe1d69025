# SPDX-License-Identifier: Apache-2.0
"""Every axis at once: on any mesh `lockstep train` learns what one process does, or refuses with the reason.

The table of docs/parallelism.md is made here: each row was run, and its numbers are the largest relative distance of a loss
from that of one process with the same samples. TEST_LONG=1 runs all rows, else SAMPLE.
UPDATE_TABLE=1 TEST_LONG=1 tests/run --only programs/test_parallelism writes the table.
"""

import itertools
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
import training
from sentences import says, sentence
from tap import BUILD, SOURCE, Skip, command, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-parallelism-")
FOLDER = pathlib.Path(SCRATCH.name)
LOCKSTEP = BUILD / "lockstep"
LONG = os.environ.get("TEST_LONG") is not None
UPDATE = os.environ.get("UPDATE_TABLE") == "1"
PAGE = SOURCE / "docs" / "parallelism.md"
CLOSE, NORM_CLOSE = 1e-5, 1e-6
DIGIT = 1e-9  # of the losses that a run records

PASSES = 8  # forwards and backwards of a step, over all replicas and micro-batches
STEPS = 5
WITHOUT_HEADS = ("--layers", 4, "--dim", 32, "--context", 32)
DECODER = (*WITHOUT_HEADS, "--heads", 4)
EXPERTS = ("--model", "moe", "--experts", 8, "--experts-per-token", 2)
DATA = ("--batch", 1, "--dropout", 0, "--eval-windows", 24)
SHAPE = (*DECODER, *DATA)
MODELS = {
    "gpt": ("gpt", SHAPE),
    "moe": ("gpt", (*SHAPE, *EXPERTS)),
    "bert": ("bert", ("--layers", 2, "--dim", 32, "--heads", 4, "--context", 32, "--batch", 1, "--dropout", 0, "--vocab", 257)),
    "lstm": ("gpt", (*WITHOUT_HEADS, *DATA, "--model", "lstm")),
    "cnn": ("image", ("--model", "cnn", "--classes", 4, "--batch", 2, "--optim", "adamw", "--lr", 1e-3)),
    "vit": ("image", ("--model", "vit", "--patch", 8, "--layers", 2, "--dim", 32, "--heads", 4, "--classes", 4, "--batch", 2,
                      "--optim", "adamw", "--lr", 1e-3)),
}


def text():
    path = FOLDER / "text"
    if not path.exists():
        path.write_text("".join(letter * 3 for letter in "a rank sends a bucket and waits for it. ") * 60)
    return path


def emptied(name):
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def sizes_of(mesh):
    return {axis: int(size) for axis, size in (word.split("=") for word in mesh.split(","))} if mesh else {}


def product(numbers):
    result = 1
    for number in numbers:
        result *= number
    return result


def words(model, mesh, *flags, steps=STEPS):
    """The command line that trains on a mesh; one process without. A step has the same samples on all of them."""
    kind, shape = MODELS[model]
    sizes = sizes_of(mesh)
    passes = PASSES // (sizes.get("dp", 1) * sizes.get("ep", 1))
    data = training.images(FOLDER, 3) if kind == "image" else text()
    return [str(word) for word in (
        LOCKSTEP, "train", kind, "-n", product(sizes.values()), "--data", data, *shape, "--steps", steps,
        "--micro-batches" if "pp" in sizes else "--accum", passes, *(("--mesh", mesh) if mesh else ()), *flags)]


def on(ranks, line):
    at = line.index("-n") + 1
    return [*line[:at], str(ranks), *line[at + 1:]]


class Result:
    def __init__(self, losses, norms, printed, weights):
        self.losses, self.norms, self.judged, self.weights = losses, norms, training.judged(printed), weights


def trained(model, mesh, *flags, steps=STEPS, done=0, weights=None):
    """Losses and norms of the gradients, from step `done` on; the model in the end, if it is exported."""
    log, losses = FOLDER / "log", FOLDER / "losses"
    flags = (*flags, *(("--export", weights) if weights else ()))
    printed = command(*words(model, mesh, *flags, "--log", log, "--log-losses", losses, steps=steps))
    rows = [json.loads(line) for line in log.read_text().splitlines() if "grad_norm" in line]
    return Result([float(line.split()[-1]) for line in losses.read_text().splitlines()][done:],
                  [row["grad_norm"] for row in rows][done:], printed, weights.read_bytes() if weights else None)


_alone = {}


def alone(model):
    if model not in _alone:
        _alone[model] = trained(model, None, weights=FOLDER / "weights")
    return _alone[model]


def distance(got, want):
    assert len(got) == len(want) > 0, (got, want)
    return max(abs(a - b) / abs(b) for a, b in zip(got, want))


def shown(number):
    """The next number with one digit that is not smaller."""
    exponent = math.floor(math.log10(number))
    digit = math.ceil(number / 10.0**exponent)
    return f"{digit}e{exponent}" if digit < 10 else f"1e{exponent + 1}"


def measured(model, mesh, *flags):
    """The distance from one process, as the table shows it."""
    got, want = trained(model, mesh, *flags, weights=FOLDER / "weights"), alone(model)
    far = distance(got.losses, want.losses)
    assert far <= CLOSE, (model, mesh, flags, far, got.losses, want.losses)
    assert distance(got.norms, want.norms) <= NORM_CLOSE, (model, mesh, flags, got.norms, want.norms)
    if model != "cnn":  # whose running statistics are those of the first replica's batches
        assert all(abs(a - b) < 0.0011 for a, b in zip(got.judged, want.judged, strict=True)), (got.judged, want.judged)
    return "0" if got.weights == want.weights else shown(max(far, DIGIT))


# ---- the rows ------------------------------------------------------------------------------------------------------


def meshes(axes, count, ranks):
    """All meshes of `count` of these axes, of 2 or 4 ranks each."""
    for chosen in itertools.combinations(axes, count):
        for sizes in itertools.product((2, 4), repeat=count):
            if product(sizes) == ranks:
                yield ",".join(f"{axis}={size}" for axis, size in zip(chosen, sizes))


AXES = ("pp", "dp", "ep", "cp", "tp")
MESHES = [*meshes(AXES, 1, 2), *meshes(AXES, 1, 4), *meshes(AXES, 2, 4), *meshes(AXES, 2, 8), *meshes(AXES, 3, 8)]
FURTHER = (  # with other flags, or more ranks
    ("pp=2", "--schedule", "gpipe", "--recompute"), ("pp=4", "--schedule", "zb-h1"),
    ("pp=2", "--schedule", "interleaved", "--chunks", "2"),
    ("dp=2,tp=2", "--sequence"), ("pp=2,tp=2", "--sequence"), ("cp=2,tp=2", "--sequence"),
    ("dp=2,tp=2", "--zero", "1"), ("dp=2,tp=2", "--zero", "2", "--sequence"), ("dp=2,cp=2", "--zero", "3"),
    ("pp=2,dp=2", "--zero", "2"), ("dp=2,ep=2", "--zero", "1"), ("dp=2,ep=2", "--zero", "2"),
    ("dp=2,pp=2,tp=2", "--schedule", "1f1b", "--zero", "1", "--sequence"),
    ("pp=2,ep=2,tp=2", "--zero", "2", "--sequence"),
    ("pp=2,dp=2", "--schedule", "gpipe", "--recompute"), ("pp=2,tp=2", "--schedule", "zb-h1"),
    ("pp=2,ep=2", "--schedule", "zb-h1"), ("pp=2,ep=2", "--schedule", "interleaved", "--chunks", "2"),
    ("pp=2,ep=2", "--schedule", "gpipe", "--recompute"), ("dp=2,ep=2", "--recompute"), ("pp=2,ep=2", "--recompute"),
    ("pp=2,dp=2,cp=2,tp=2", "--sequence"), ("pp=2,dp=2,ep=2,tp=2", "--zero", "1"), ("pp=2,ep=2,cp=2,tp=2", "--sequence"),
    ("pp=4,ep=2,tp=2", "--schedule", "1f1b"))
OTHERS = (("lstm", "pp=2"), ("lstm", "dp=2,pp=2"), ("bert", "dp=2,pp=2"), ("bert", "dp=2,tp=2"), ("bert", "pp=2,tp=2"),
          ("bert", "dp=2,pp=2,tp=2"), ("cnn", "pp=2"), ("cnn", "dp=2,pp=2"), ("vit", "dp=2,tp=2"), ("vit", "dp=2,pp=2"),
          ("vit", "pp=2,tp=2"), ("vit", "pp=2,tp=2", "--sequence"), ("vit", "dp=2,pp=2,tp=2"))
SAMPLE = (("gpt", "dp=2,pp=2,tp=2", "--schedule", "1f1b", "--zero", "1", "--sequence"), ("moe", "pp=2,ep=2,tp=2"),
          ("moe", "ep=2,cp=2"), ("moe", "pp=2,ep=2", "--schedule", "gpipe", "--recompute"))


def models_of(mesh):
    return ("moe",) if "ep" in mesh else ("gpt", "moe")


def rows():
    for mesh, *flags in (*((mesh,) for mesh in MESHES), *FURTHER):
        yield " ".join((mesh, *flags)), [(model, mesh, *flags) for model in models_of(mesh)]


def others():
    for model, mesh, *flags in OTHERS:
        yield " ".join((model, mesh, *flags)), (model, mesh, *flags)


def table():
    lines = ["| mesh | ranks | GPT | experts |", "|---|---|---|---|"]
    for name, runs in rows():
        cells = {run[0]: measured(*run) for run in runs}
        lines.append(f"| `{name}` | {product(sizes_of(runs[0][1]).values())} | {cells.get('gpt', '-')} | {cells['moe']} |")
    lines += ["", "| model and mesh | ranks | distance |", "|---|---|---|"]
    for name, run in others():
        lines.append(f"| `{name}` | {product(sizes_of(run[1]).values())} | {measured(*run)} |")
    return lines


BEGIN, END = "<!-- made by tests/programs/test_parallelism.py -->", "<!-- end -->"


def table_of_page():
    return PAGE.read_text().split(BEGIN + "\n")[1].split(END)[0].splitlines()


def shown_in_page(name, model):
    """What the table says of a run; None: nothing."""
    for line in table_of_page():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == f"`{name}`" and len(cells) == 4:
            return cells[2] if model == "gpt" else cells[3]
    return None


@test
def the_whole_table_is_what_one_process_learns():
    if not LONG:
        raise Skip("takes minutes (TEST_LONG=1)")
    now = table()
    if UPDATE:
        before, rest = PAGE.read_text().split(BEGIN + "\n")
        PAGE.write_text(before + BEGIN + "\n" + "\n".join(now) + "\n" + END + rest.split(END)[1])
        return
    equal = [line for line in table_of_page() if "| 0 " in line]
    assert [line for line in now if "| 0 " in line] == equal, "\n".join(now)


@test
def a_sample_of_the_table_is_what_one_process_learns():
    for model, mesh, *flags in SAMPLE:
        name = " ".join((mesh, *flags))
        got, said = measured(model, mesh, *flags), shown_in_page(name, model)
        assert said == "0" if got == "0" else said not in (None, "0", "-"), (name, model, got, said)


@test
def the_table_has_every_mesh():
    names = [line.split("`")[1] for line in table_of_page() if line.startswith("| `")]
    assert names == [name for name, _ in (*rows(), *others())]
    assert {tuple(sorted(sizes_of(mesh))) for mesh in MESHES if mesh.count("=") == 2} == {
        pair for pair in itertools.combinations(sorted(AXES), 2)}


# ---- checkpoints ---------------------------------------------------------------------------------------------------

SIX = (("dp=2",), ("pp=2", "--schedule", "1f1b"), ("dp=2,tp=2", "--sequence"), ("pp=2,tp=2",), ("cp=2,tp=2",),
       ("dp=2,pp=2", "--zero", "1"))
SIX_EXPERTS = (("dp=2",), ("ep=4",), ("dp=2,ep=2", "--zero", "1"), ("pp=2,ep=2",), ("ep=2,tp=2", "--sequence"),
               ("ep=2,cp=2",))
PAIRS = (("gpt", SIX[2], SIX[5]), ("moe", SIX_EXPERTS[2], SIX_EXPERTS[3]), ("moe", SIX_EXPERTS[3], SIX_EXPERTS[4]))


def check_pair(model, first, second, want):
    """What the first mesh has saved after 3 steps goes on with the second as it does on one process."""
    saved = emptied("saved")
    trained(model, *first, "--save", saved, steps=3)
    got = trained(model, *second, "--resume", saved, steps=8, done=3)
    assert distance(got.losses, want.losses) <= CLOSE, (model, first, second, got.losses, want.losses)
    assert distance(got.norms, want.norms) <= NORM_CLOSE * 10, (model, first, second, got.norms, want.norms)


def resumed_alone(model):
    saved = emptied("alone")
    trained(model, None, "--save", saved, steps=3)
    return trained(model, None, "--resume", saved, steps=8, done=3)


@test
def what_one_mesh_saves_another_goes_on_with():
    want = {model: resumed_alone(model) for model in ("gpt", "moe")}
    pairs = PAIRS
    if LONG:
        pairs = [(model, *pair) for model, six in (("gpt", SIX), ("moe", SIX_EXPERTS)) for pair in itertools.product(six, six)]
    for model, first, second in pairs:
        check_pair(model, first, second, want[model])


def generated(*flags):
    return command(LOCKSTEP, "generate", *flags, "--prompt", "a rank", "--tokens", 30, "--greedy").splitlines()[0]


def check_export(model, mesh, *flags):
    """What a mesh exports is, byte for byte, what one process exports of its checkpoint; it writes the same text."""
    saved, ours, theirs = emptied("saved"), FOLDER / "ours", FOLDER / "theirs"
    trained(model, mesh, *flags, "--save", saved, "--export", ours, steps=2)
    command(*words(model, None, "--resume", saved, "--export", theirs, steps=2))
    assert ours.read_bytes() == theirs.read_bytes() and ours.stat().st_size > 4 * 4 * 12 * 32 * 32, (model, mesh, flags)
    shape = (*DECODER, *(EXPERTS if model == "moe" else ()))
    assert generated("--checkpoint", saved) == generated("--weights", ours, *shape), (model, mesh, flags)


@test
def any_mesh_exports_the_whole_model():
    check_export("moe", "pp=2,ep=2,tp=2", "--zero", "1")
    for model, six in (("gpt", SIX), ("moe", SIX_EXPERTS)) if LONG else ():
        for mesh, *flags in six:
            check_export(model, mesh, *flags)


# ---- what is refused -----------------------------------------------------------------------------------------------

REFUSED = (
    ("--zero 3 with pp", "gpt", "dp=2,pp=2", ("--zero", "3"),
     "a stage would gather its parameters for each of its micro-batches, in an order that differs from rank to rank",
     sentence("--zero 3 with a pipeline: a stage would gather its parameters for each micro-batch, in an order that differs from "
              "rank to rank; give --zero 2")),
    ("--zero 3 with tp or ep", "moe", "dp=2,ep=2", ("--zero", "3"),
     "parameters are gathered by all ranks in one order, and some ranks have others",
     sentence("%s with an axis %s of --mesh: all ranks gather in one order, and those along %s have other parameters; give "
              "--zero 1 or 2 without --shard-group")),
    ("--schedule pipedream with --zero", "gpt", "dp=2,pp=2", ("--zero", "1", "--schedule", "pipedream", "--clip", "0"),
     "it steps with versions of the parameters that lie elsewhere, and zero gathers them in place",
     sentence("ls_pipeline_backward: the optimizer steps while micro-batches are in flight, with versions of the parameters that "
              "lie elsewhere, and zero gathers parameters in place; leave zero out, or step after ls_pipeline_backward")),
    ("--zero with pp and a tied embedding", "bert", "dp=2,pp=2", ("--zero", "1"),
     "its gradients are added over the stages, which have other parts of the averages",
     sentence("ls_pipeline_backward: several stages use %.200s, so averages of its gradient are added over them, and with zero each "
              "rank has other parts of these; leave zero out, or give each stage a parameter of its own")),
    ("--replicas with tp, cp or ep", "gpt", "pp=3,tp=2", ("--replicas", "2,1"),
     "stages would have different numbers of ranks, and each the same parts of layers",
     sentence('--replicas %s gives stages different numbers of ranks, and --mesh "%s" the same parts of layers, sequences or '
              "experts to each stage; leave one of them out")),
    ("--feed scatter with tp or cp", "gpt", "tp=2", ("--feed", "scatter"), "it gives every rank other samples",
     sentence("--feed scatter gives every rank other samples, and the ranks of tp and cp need the same; give --feed split")),
    ("--feed scatter with pp", "gpt", "pp=2", ("--feed", "scatter"), "it gives every rank other samples",
     sentence("--feed scatter gives every rank other samples, and the stages of a pipeline need the same; give --feed split")),
    ("--exact layout with ep", "moe", "ep=2", ("--exact", "layout"), "it is for replicas of whole models",
     sentence("--exact layout is for replicas of whole models, and the ranks of ep have other experts; give --mesh dp alone")),
    ("--exact layout with tp or cp", "gpt", "cp=2", ("--exact", "layout"), "it is for replicas of whole models",
     sentence("--exact layout is for replicas of whole models; give --mesh dp alone")),
    ("--exact layout with pp", "gpt", "pp=2", ("--exact", "layout"), "a pipeline computes the bits of --accum on one rank without it",
     sentence("--exact layout is for replicas of whole models; a pipeline computes the bits of --accum on one rank without it")),
    ("--local-steps with --mesh", "gpt", "tp=2", ("--local-steps", "2"),
     "local steps are for replicas of whole models; without --mesh all ranks are such",
     sentence("--local-steps with %s: local steps are for replicas of whole models in this version; leave one of them out")),
    ("--server with --mesh", "gpt", "tp=2", ("--server", "sync"),
     "servers train replicas of whole models; without --mesh the workers are such",
     sentence("--server %s with %s: servers train replicas of whole models, whose gradients are sent as they are; leave one of them "
              "out")),
    ("--shares with --mesh", "gpt", "tp=2", ("--shares", "auto"),
     "shares are for replicas of whole models; without --mesh all ranks are such",
     sentence("--shares with %s: shares are for replicas that average gradients in every step and read their own part of an epoch; "
              "leave one of them out")),
    ("--clip with --schedule pipedream", "gpt", "pp=2", ("--schedule", "pipedream", "--clip", "1"),
     "each stage steps before the others' gradients, and so their norm, are known",
     sentence("--schedule %s steps each stage before the others' gradients are known, so their norm cannot be limited; give --clip "
              "0, or --schedule 1f1b")),
    ("--comm with tp, cp, ep or pp", "moe", "ep=2", ("--comm", "top_k"), "hooks are for replicas of whole models",
     sentence("hooks are for replicas of whole models in this version")),
    ("tp or cp of an LSTM", "lstm", "tp=2", (), "its recurrence has no plan for the axis",
     sentence('--mesh is "%s"; the %s of a model %s cannot be divided by %s in this version; leave %s out, and give more replicas '
              "(dp) or stages (pp)")),
    ("cp of BERT, GPT-2 and networks for images", "bert", "cp=2", (),
     "attention has no plan for the axis in BERT and GPT-2, and networks for images have no attention",
     sentence('--mesh is "%s"; the %s of a model %s cannot be divided by %s in this version; leave %s out, and give more replicas '
              "(dp) or stages (pp)")),
    ("ep of a model without experts", "gpt", "ep=2", (), "there is nothing that it could divide; replicas are dp",
     sentence('--mesh is "%s"; the %s of a model %s cannot be divided by %s in this version; leave %s out, and give more replicas '
              "(dp) or stages (pp)")),
    ("tp of a CNN or ResNet", "cnn", "tp=2", (), "convolutions have no plan for the axis",
     sentence('--mesh is "%s"; the %s of a model %s cannot be divided by %s in this version; leave %s out, and give more replicas '
              "(dp) or stages (pp)")),
)


@test
def every_refused_combination_says_why():
    for title, model, mesh, flags, _, said in REFUSED:
        ranks = product(sizes_of(mesh).values()) if "zero" in title else 1  # the others are found before the ranks meet
        done = subprocess.run(on(ranks, words(model, mesh, *flags)), text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        assert done.returncode != 0, (title, done.stdout)
        says(done.stdout, said)


@test
def the_page_lists_every_refused_combination():
    page = PAGE.read_text()
    for title, _, _, _, reason, _ in REFUSED:
        assert f"| {title} | {reason} |" in page.replace("`", ""), f"| {title} | {reason} |"


@test
def experts_that_ep_does_not_divide_are_refused_before_the_ranks_meet():
    done = subprocess.run(on(1, words("moe", "ep=3", "--experts", 8)), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=120)
    says(done.stdout, '--experts %lld cannot be divided over the %lld ranks along ep of --mesh "%s"; give a multiple')
    assert done.returncode == 2, done


@test
def an_axis_that_does_not_fit_is_named_as_it_was_given():
    done = subprocess.run(on(2, words("gpt", "tp=2,pp=3")), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=120)
    assert done.returncode != 0 and "tp=2,pp=3" in done.stdout and "dp=1" not in done.stdout, done.stdout


if __name__ == "__main__":
    run()
