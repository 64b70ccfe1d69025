# SPDX-License-Identifier: Apache-2.0
"""programs/train_image and train_gpt learn as the same script in PyTorch does: tests/reference/learning has the
lessons, the script and what it reached. Each seed starts from the same weights and sees the same samples; with one
worker and with four the curve, the loss and the accuracy at the end are PyTorch's within the spread of its seeds.

TEST_LONG=1 adds a larger GPT, compares the digits with scikit-learn's, which it installs into an environment that is
thrown away, and asks PyTorch, where there is one, whether the stored numbers are its own.
TEST_VERBOSE=1 shows the figures.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent),
                str(pathlib.Path(__file__).resolve().parent.parent / "reference/learning")]
import lessons
from jobs import BUILD, LONG, SOURCE, Skip, environment, pythons_with
from tap import command, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-learning-")
FOLDER = pathlib.Path(SCRATCH.name)
STORED = json.loads(lessons.NUMBERS.read_text())
DEADLINE = 280  # seconds to install, and again to ask PyTorch
ANSWERS = {"train_image": 360, "train_gpt": 1000}  # an accuracy is of so many, and may be off by two


# ---- data -------------------------------------------------------------------------------------

def installed():
    if not LONG:
        raise Skip("no Python with scikit-learn; TEST_PYTHON names one, TEST_LONG=1 installs it")
    command(sys.executable, "-m", "venv", FOLDER / "venv")
    try:
        done = subprocess.run([FOLDER / "venv/bin/pip", "install", "-q", "scikit-learn"], text=True,
                              capture_output=True, timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        raise Skip("installing scikit-learn took too long")
    if done.returncode != 0:
        raise Skip(f"cannot install scikit-learn: {done.stderr.strip().splitlines()[-1]}")
    return FOLDER / "venv/bin/python"


@functools.lru_cache(None)
def python_with_digits():
    found = pythons_with("scikit-learn")
    return found[-1][0] if found else installed()


@functools.lru_cache(None)
def digits():
    command(sys.executable, SOURCE / "scripts/make_digits_idx.py", FOLDER / "digits")
    return FOLDER / "digits"


# ---- learning ---------------------------------------------------------------------------------

def learned(case, data, seed, ranks):
    """What the program reached: as lessons.summary has it."""
    start, log = FOLDER / "start.safetensors", FOLDER / "log.jsonl"
    log.unlink(missing_ok=True)
    lessons.write_start(case, seed, start)
    launcher = [BUILD / "lockstep", "run", "-n", ranks] if ranks > 1 else []
    command(*launcher, BUILD / "programs" / case.program, *case.flags(data, seed, ranks), "--init", start,
            "--log", log, env=environment())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    part = "test" if case.program == "train_image" else "held_out"
    return lessons.summary([line["loss"] for line in lines if "loss" in line],
                         lines[-1][f"{part}_loss"], lines[-1][f"{part}_accuracy"])


def flat(result):
    return {**{f"loss of fifth {i + 1}": x for i, x in enumerate(result["curve"])},
            "loss": result["loss"], "accuracy": result["accuracy"]}


def spreads(theirs, case):
    all_seeds = [flat(result) for result in theirs.values()]
    found = {what: max(r[what] for r in all_seeds) - min(r[what] for r in all_seeds) for what in all_seeds[0]}
    return found | {"accuracy": max(found["accuracy"], 2.01 / ANSWERS[case.program])}


def compare(name, data):
    case = lessons.CASES[name]
    for ranks in lessons.RANKS:
        theirs, share = STORED[name][f"{ranks} ranks"], 0.0
        allowed = spreads(theirs, case)
        for seed in lessons.SEEDS:
            got, want = flat(learned(case, data, seed, ranks)), flat(theirs[f"seed {seed}"])
            for what, x in want.items():
                far = abs(got[what] - x)
                share = max(share, far / allowed[what])
                assert far <= allowed[what], (f"{name}, {ranks} workers, seed {seed}: {what} is {got[what]:.6g}, "
                                              f"PyTorch's {x:.6g}, the spread of its seeds {allowed[what]:.3g}")
            if os.environ.get("TEST_VERBOSE"):
                print(f"# {name}, {ranks} workers, seed {seed}: loss {got['loss']:.5f} (PyTorch "
                      f"{want['loss']:.5f}), accuracy {got['accuracy']:.4f} ({want['accuracy']:.4f}); at most "
                      f"{share:.1g} of the spread off")


@test
def text_is_learned_as_pytorch_learns_it():
    compare("short gpt", lessons.TEXT)


@test
def more_text_is_learned_as_pytorch_learns_it():
    if not LONG:
        raise Skip("half a minute: TEST_LONG=1")
    compare("gpt", lessons.TEXT)


@test
def text_is_learned_in_bf16_as_pytorch_learns_it():
    if not LONG:
        raise Skip("TEST_LONG=1")
    compare("short gpt in bf16", lessons.TEXT)


@test
def digits_are_learned_by_a_perceptron_as_pytorch_learns_them():
    compare("mlp", digits())


@test
def digits_are_learned_by_convolutions_as_pytorch_learns_them():
    compare("cnn", digits())


SCIKIT = """
import sys, struct, pathlib, sklearn.datasets
digits, found = sklearn.datasets.load_digits(), {}
for part in ("train", "test"):
    images = (pathlib.Path(sys.argv[1]) / f"{part}-images.idx").read_bytes()
    labels = (pathlib.Path(sys.argv[1]) / f"{part}-labels.idx").read_bytes()
    count = struct.unpack(">I", images[4:8])[0]
    assert struct.unpack(">4I", images[:16]) == (0x803, count, 8, 8) and len(images) == 16 + 64 * count
    assert struct.unpack(">2I", labels[:8]) == (0x801, count) and len(labels) == 8 + count
    found[part] = [(images[16 + 64 * i:80 + 64 * i], labels[8 + i]) for i in range(count)]
assert len(found["train"]) == 1437 and len(found["test"]) == 360
kinds = {label: sum(l == label for _, l in found["test"]) for label in range(10)}
assert min(kinds.values()) >= 20, kinds
want = [(bytes(int(x * 255 / 16 + 0.5) for x in image.flat), int(label))
        for image, label in zip(digits.images, digits.target)]
assert sorted(found["train"] + found["test"]) == sorted(want)
"""


@test
def the_images_of_digits_are_scikit_learns():
    command(python_with_digits(), "-c", SCIKIT, digits())
    said = command(BUILD / "programs/train_image", "--data", digits(), "--steps", 1)
    assert "1437 images [1,8,8] to learn from, 360 to be judged by" in said, said


@test
def the_stored_numbers_are_those_of_pytorch_here():
    found = [python for python, version in pythons_with("torch", "numpy") if not version.startswith("1.")]
    if not LONG or not found:
        raise Skip("PyTorch 2 is asked again with TEST_LONG=1, where there is one")
    said = command(found[0], SOURCE / "tests/reference/learning/learn.py", "--digits", FOLDER, "--print",
                   "short gpt", env=environment())
    for name, by_ranks in json.loads(said).items():
        for ranks, seeds in by_ranks.items():
            for seed, result in seeds.items():
                for what, x in flat(result).items():
                    y = flat(STORED[name][ranks][seed])[what]
                    assert abs(x - y) <= 2e-3 * abs(y), (name, ranks, seed, what, x, y)


run()
