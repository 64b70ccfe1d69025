# SPDX-License-Identifier: Apache-2.0
"""Weights go both ways between torchvision and models/: what PyTorch saved of a torchvision model is loaded here
and gives its logits, what is saved here loads there under the same names and gives ours, to 1e-4.

Needs a Python with torch, torchvision and safetensors. With TEST_LONG=1 the deep and the large ones follow, with
images as large as ImageNet's; those have torchvision's count of parameters, too.
"""

import pathlib
import re
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from jobs import BUILD, LONG, Skip, pythons_with
from tap import command, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-torchvision-")
FOLDER = pathlib.Path(SCRATCH.name)

THEIRS = """
import numpy, pathlib, sys, torch, safetensors.torch as st
try:
    import torchvision
except RuntimeError:  # its compiled part is for another PyTorch (with CUDA, say); models need none of that
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
    kept = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        kept.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision
torch.set_num_threads(1)
kind, batch, side, classes, folder = sys.argv[1], *map(int, sys.argv[2:5]), pathlib.Path(sys.argv[5])
make = {"vit": "vit_b_16"}.get(kind, kind)
more = {"image_size": side} if kind == "vit" else {}
torch.manual_seed(5)
model = getattr(torchvision.models, make)(num_classes=classes, **more)
"""
FIRST = THEIRS + """
with torch.no_grad():
    for name, value in model.named_parameters():  # biases, norms and a head of zeros matter, too
        value.add_((0.05 if value.ndim < 2 or "head" in name else 0.0) * torch.randn_like(value))
    if kind != "vit":
        model.train()(torch.randn(4, 3, 64, 64))  # running statistics
images = torch.randn(batch, 3, side, side)
with torch.no_grad():
    logits = model.eval()(images)
st.save_file(model.state_dict(), folder / "model.safetensors")
st.save_file({"inputs": images, "logits": logits}, folder / "inputs.safetensors")
print("parameters", sum(p.numel() for p in model.parameters()))
if kind == "resnet18":  # as a data set of .npy, and the loss on it
    labels = torch.arange(batch) % classes
    for part in ("train", "test"):
        numpy.save(folder / f"x_{part}.npy", images.numpy())
        numpy.save(folder / f"y_{part}.npy", labels.numpy())
    print("loss", torch.nn.functional.cross_entropy(logits, labels).item())
"""
SECOND = THEIRS + """
given, ours = st.load_file(folder / "inputs.safetensors"), st.load_file(folder / "logits.safetensors")["logits"]
print("ours against theirs", ((ours - given["logits"]).abs().max() / given["logits"].abs().max()).item())
before, saved = st.load_file(folder / "model.safetensors"), st.load_file(folder / "saved.safetensors")
assert {n: (v.shape, v.dtype) for n, v in saved.items()} == {n: (v.shape, v.dtype) for n, v in before.items()}
assert all(torch.equal(saved[n], v) for n, v in before.items())
model.load_state_dict(saved)  # strict: every name, and no other
with torch.no_grad():
    again = model.eval()(given["inputs"])
print("theirs after our save", ((again - ours).abs().max() / ours.abs().max()).item())
"""


def python_with_all():
    found = pythons_with("torchvision", "torch", "safetensors", "numpy")
    if not found:
        raise Skip("no Python here has torch, torchvision and safetensors")
    return found[-1][0]


def number(lines, what):
    return next(float(line.rsplit(" ", 1)[1]) for line in lines.splitlines() if line.startswith(what))


def both_ways(kind, batch, side, classes, parameters):
    python, folder = python_with_all(), FOLDER / kind
    folder.mkdir()
    sizes = [batch, side, classes]
    first = command(python, "-W", "ignore", "-c", FIRST, kind, *sizes, folder)
    assert number(first, "parameters") == parameters, first
    command(BUILD / "tests/unit/nn/foreign", kind,
            *(folder / f"{name}.safetensors" for name in ("model", "inputs", "logits", "saved")), *sizes)
    out = command(python, "-W", "ignore", "-c", SECOND, kind, *sizes, folder)
    for what in ("ours against theirs", "theirs after our save"):
        assert number(out, what) <= 1e-4, out
    if kind == "resnet18":
        starts_from(folder, classes, number(first, "loss"))
    for path in folder.iterdir():
        path.unlink()


def starts_from(folder, classes, loss):
    """A user's way: --init of the training program."""
    said = command(BUILD / "programs/train_image", "--model", "resnet18", "--classes", classes, "--data", folder,
                   "--init", folder / "model.safetensors", "--steps", 1, "--batch", 1)
    before = float(re.search(r"before training: test loss (\d+\.\d+)", said).group(1))
    assert abs(before - loss) <= 1e-3, (said, loss)


def large(kind, parameters):
    if not LONG:
        raise Skip("hundreds of megabytes: TEST_LONG=1")
    both_ways(kind, 1, 224, 1000, parameters)


@test
def resnet18_goes_both_ways_with_torchvision():
    both_ways("resnet18", 2, 64, 10, 11181642)


@test
def resnet50_goes_both_ways_with_torchvision():
    large("resnet50", 25557032)


@test
def resnet152_goes_both_ways_with_torchvision():
    large("resnet152", 60192808)


@test
def alexnet_goes_both_ways_with_torchvision():
    large("alexnet", 61100840)


@test
def a_vision_transformer_goes_both_ways_with_torchvision():
    large("vit", 86567656)


run()
