# SPDX-License-Identifier: Apache-2.0
"""--dtype bf16 of the training programs: they learn as in float32, are saved in float32, and go on to the bit."""

import json
import pathlib
import shutil
import struct
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import run, test
import training
from training import hash_of, judged

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-dtype-")
FOLDER = pathlib.Path(SCRATCH.name)
BOTH = ("float32", "bf16")


def text():
    path = FOLDER / "text"
    if not path.exists():
        path.write_text("".join(letter * 40 for letter in "abcdefghij") * 30)
    return path


def digits():
    """Ten patterns in IDX files."""
    folder = FOLDER / "digits"
    if not folder.exists():
        folder.mkdir()
        for part, count in (("train", 200), ("t10k", 50)):
            images = bytes((i % 10 * 37 + j * j * (1 + i % 10)) % 256 for i in range(count) for j in range(64))
            (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, count, 8, 8) + images)
            (folder / f"{part}-labels-idx1-ubyte").write_bytes(
                struct.pack(">2i", 0x801, count) + bytes(i % 10 for i in range(count)))
    return folder


SMALL = ("--layers", 1, "--dim", 32, "--heads", 2, "--context", 32, "--eval-windows", 20)
PROGRAMS = {
    "train_gpt": lambda: ("--data", text(), *SMALL, "--lr", 5e-3),
    "train_bert": lambda: ("--data", text(), *SMALL, "--lr", 1e-2),
    "train_image": lambda: ("--data", digits(), "--lr", 0.05),
}


def train(program, ranks, dtype, *flags):
    return training.train(program, ranks, *PROGRAMS[program](), "--dtype", dtype, *flags, cwd=FOLDER)


def dtypes_in(path):
    head = path.read_bytes()
    names = json.loads(head[8:8 + struct.unpack("<Q", head[:8])[0]])
    return {entry["dtype"] for name, entry in names.items() if name != "__metadata__"}


@test
def every_program_learns_in_bfloat16_as_in_float32():
    for program in PROGRAMS:
        ends = {}
        for dtype in BOTH:
            log = f"{program}-{dtype}.jsonl"
            printed = train(program, 2, dtype, "--steps", 60, "--batch", 8, "--log", log)
            first, last = judged(printed)
            assert last < 0.8 * first, printed
            assert f"trained 60 steps in {dtype}, " in printed, printed
            steps = [line for line in map(json.loads, open(FOLDER / log)) if "loss" in line]
            assert len(steps) == 60 and {line["dtype"] for line in steps} == {dtype}, steps[0]
            ends[dtype] = last, hash_of(printed), [line["loss"] for line in steps]
        # bfloat16 keeps 8 bits, so a loss is off by some percent at most; and it was used.
        assert ends["bf16"][1] != ends["float32"][1], program
        for a, b in zip(ends["float32"][2][:10], ends["bf16"][2]):
            assert abs(a - b) < 0.05 * a, (program, ends)
        assert abs(ends["bf16"][0] - ends["float32"][0]) < 0.15 * ends["float32"][0] + 0.05, (program, ends)


@test
def what_is_saved_is_float32_and_training_goes_on_to_the_bit():
    for program in PROGRAMS:
        save, weights = f"{program}-save", f"{program}.safetensors"
        flags = ("--steps", 6, "--batch", 4, "--save", save, "--every", 2)
        whole = train(program, 2, "bf16", *flags, "--export", weights)
        assert dtypes_in(FOLDER / weights) == {"F32"}
        found = set().union(*(dtypes_in(path) for path in (FOLDER / save).glob("step-*/*.safetensors")))
        assert found <= {"F32", "F64", "I64"} and "F32" in found, found
        shutil.rmtree(FOLDER / save / "step-00000006")
        rest = train(program, 2, "bf16", *flags, "--resume", save)
        assert "going on at step 4\n" in rest
        assert hash_of(rest) == hash_of(whole) and judged(rest)[-1] == judged(whole)[-1], (whole, rest)
        # The masters are float32, so it may go on in that.
        train(program, 2, "float32", "--steps", 7, "--batch", 4, "--resume", save)


run()
