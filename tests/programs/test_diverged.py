# SPDX-License-Identifier: Apache-2.0
"""A run that diverges ends with an error in every trainer and parallel form, and keeps its finite checkpoints.

`test_train_image.py` has the forms of a network of layers, where one rank alone sees a sample that is not finite.
"""

import json
import math
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
import training
from tap import BUILD, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-diverged-")
FOLDER = pathlib.Path(SCRATCH.name)
# The decay multiplies matrices by -1e6 in each step: their products overflow before they do.
STEEP = ("--lr", 1000, "--weight-decay", 1000, "--lr-schedule", "constant", "--warmup", 0, "--steps", 12)
FORMS = {
    "gpt": ((1,), (2,), (2, "--accum", 2), (2, "--comm", "powersgd:rank=2"), (2, "--dtype", "bf16"),
            (2, "--zero", 1), (2, "--zero", 2), (2, "--zero", 3), (2, "--mesh", "tp=2"), (2, "--mesh", "tp=2", "--sequence"),
            (2, "--mesh", "cp=2"), (4, "--mesh", "dp=2,tp=2"), (2, "--mesh", "pp=2", "--schedule", "1f1b"),
            (2, "--model", "moe", "--experts", 2, "--mesh", "ep=2"), (2, "--local-steps", 4), (3, "--shares", "2,1,3"),
            (3, "--server", "sync"), (3, "--server", "async", "--clip", 0)),
    "bert": ((1,), (2,), (2, "--mesh", "tp=2", "--vocab", 257), (2, "--mesh", "pp=2"), (2, "--zero", 2)),
}


def floats(path):
    raw = path.read_bytes()
    begin = 8 + struct.unpack_from("<Q", raw)[0]
    for name, entry in json.loads(raw[8:begin]).items():
        if entry.get("dtype") == "F32":
            first, last = entry["data_offsets"]
            yield from struct.unpack(f"<{(last - first) // 4}f", raw[begin + first:begin + last])


def diverge(kind, ranks, *form):
    """The folder of its checkpoints, and what such a run prints."""
    save = FOLDER / f"{kind} {' '.join(map(str, (ranks, *form)))}".replace("/", " ")
    words = (BUILD / "lockstep", "train", kind, "-n", ranks, "--data", training.text(FOLDER, 2000), *training.SMALL, "--batch", 2,
             "--eval-windows", 8, *STEEP, "--save", save, "--every", 1, "--export", f"{FOLDER}/never/", *form)
    done = subprocess.run([str(w) for w in words], cwd=FOLDER, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300)
    assert done.returncode == 1, (words, done.returncode, done.stdout)
    return save, done.stdout


def check(kind):
    for form in FORMS[kind]:
        save, said = diverge(kind, *form)
        assert re.search(r"error: step \d+: .*(not finite|is (nan|inf))| not finite on rank \d .* in step \d", said), (form, said)
        steps = list(save.glob("step-*"))
        assert steps, (form, said)
        for path in (path for step in steps for path in step.glob("state-*")):
            assert all(map(math.isfinite, floats(path))), (form, path, said)
        assert not (FOLDER / "never").exists(), form


@test
def a_gpt_that_diverges_ends_with_an_error_in_every_form():
    check("gpt")


@test
def a_bert_that_diverges_ends_with_an_error_in_every_form():
    check("bert")


run()
