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
import gpt2_folder
import training
from sentences import says
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
    return folder


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
        check_export("gpt", mesh, "--model", "gpt2", "--init", small_gpt2())
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
    says(refused(2, "--mesh", "ep=2"),
         '--mesh is "%s"; training has the axes dp, replicas with other data, pp, the stages of a pipeline, tp, parts of each '
         'layer, and cp, parts of each sequence, and none that is called "%.*s"')
    says(refused(4, "--mesh", "pp=2,tp=2"),
         '--mesh is "%s"; stages of a pipeline (pp) cannot be divided by tp or cp in this version; leave one of them out')
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
            ("gpt", "dp=1,cp=2", "inputs of a model gpt2", ("--model", "gpt2", "--init", small_gpt2())),
            ("gpt", "tp=2", "layers of a model lstm", ("--model", "lstm")),
            ("image", "tp=2", "layers of a model cnn", (*images, "--model", "cnn")),
            ("image", "tp=2", "layers of a model resnet", (*images, "--model", "resnet18")),
            ("image", "dp=1,cp=2", "inputs of a model vit", (*images, "--model", "vit"))):
        shape = () if kind == "image" else ("--data", text(), "--layers", 1, "--dim", 16, "--heads", 2)
        done = subprocess.run([str(a) for a in (LOCKSTEP, "train", kind, "-n", 2, "--mesh", mesh, "--steps", 1, *shape, *flags)],
                              text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        assert done.returncode == 2 and "before training" not in done.stdout, done.stdout
        says(done.stdout, '--mesh is "%s"; the %s of a model %s cannot be divided by %s in this version; leave %s out, and give '
                          'more replicas (dp) or stages (pp)')
        assert named in done.stdout, done.stdout


if __name__ == "__main__":
    run()
