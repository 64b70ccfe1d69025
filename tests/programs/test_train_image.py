# SPDX-License-Identifier: Apache-2.0
"""programs/train_image: what it learns, what it writes, that it goes on to the bit, and what it refuses."""

import gzip
import hashlib
import json
import math
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
import event_file
from sentences import says, sentence
from tap import BUILD, SOURCE, run, test
import training
from training import hash_of, judged

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-train-image-")
FOLDER = pathlib.Path(SCRATCH.name)
SIDE, CLASSES = 6, 4
STEPS, EVERY = 12, 4
TIMES = ("seconds", "exposed_seconds", "images_per_second")
OF_THE_MACHINE = (*TIMES, "peak_memory_bytes")


def write_set(name, count, state):
    """Noise, and one bright quarter of the image, which is the class."""
    pixels, labels = bytearray(), bytearray()
    for i in range(count):
        label = i * 7 % CLASSES
        for y in range(SIDE):
            for x in range(SIDE):
                state = (state * 1664525 + 1013904223) % 2**32
                bright = (y >= SIDE // 2) * 2 + (x >= SIDE // 2) == label
                pixels.append((state >> 25) + (100 if bright else 0))
        labels.append(label)
    (FOLDER / "data" / f"{name}-images.idx").write_bytes(
        struct.pack(">HBBIII", 0, 8, 3, count, SIDE, SIDE) + pixels)
    (FOLDER / "data" / f"{name}-labels.idx").write_bytes(struct.pack(">HBBI", 0, 8, 1, count) + labels)


def data():
    if not (FOLDER / "data").exists():
        (FOLDER / "data").mkdir()
        write_set("train", 200, 1)
        write_set("test", 50, 2)
    return FOLDER / "data"


def train(ranks, *flags):
    """What the program prints."""
    return training.train("train_image", ranks, "--data", data(), "--classes", CLASSES,
                          "--hidden", 16, *flags, cwd=FOLDER)


def whole():
    """A run with everything that is written; made once. Returns its folder and what it printed."""
    folder = FOLDER / "whole"
    if not folder.exists():
        folder.mkdir()
        text = train(2, "--steps", STEPS, "--batch", 4, "--accum", 2, "--clip", 0.5, "--eval-every", EVERY,
                     "--save", folder / "save", "--every", EVERY, "--log", folder / "log.jsonl",
                     "--tensorboard", folder / "board", "--log-losses", folder / "losses")
        (folder / "printed").write_text(text)
    return folder, (folder / "printed").read_text()


def log_of(folder):
    lines = (folder / "log.jsonl").read_text().split("\n")
    assert lines.pop() == "", "the last line has its end"
    return [json.loads(line) for line in lines]


def without_times(lines):
    return [{name: value for name, value in line.items() if name not in OF_THE_MACHINE} for line in lines]


@test
def the_perceptron_learns_on_one_and_on_three_ranks():
    for ranks in (0, 3):
        text = train(ranks, "--steps", 60, "--batch", 12 if ranks == 0 else 4, "--lr", 0.2)
        before, after = [float(x) for x in re.findall(r"test loss (\d\.\d+)", text)]
        accuracy = [float(x) for x in re.findall(r"test accuracy (\d+\.\d+) %", text)][-1]
        assert before > 1.0 and after < 0.5 and accuracy > 90.0, text
        says(text, "test loss")
        says(text, "test accuracy")


@test
def without_images_to_be_judged_by_those_of_the_training_are():
    folder = FOLDER / "train only"
    shutil.copytree(data(), folder, ignore=shutil.ignore_patterns("test-*"))
    text = train(0, "--data", folder, "--steps", 20, "--batch", 12, "--lr", 0.2)
    says(text, "training loss")
    says(text, "training accuracy")


@test
def every_optimizer_and_schedule_trains():
    for flags in (("--optim", "adamw", "--lr", 0.01), ("--optim", "sgd", "--momentum", 0)):
        for schedule in ("constant", "linear", "cosine"):
            text = train(0, "--steps", 30, *flags, "--lr-schedule", schedule)
            before, after = [float(x) for x in re.findall(r"test loss (\d\.\d+)", text)]
            assert after < before, text


def float_file(path, shape, values, kind="<f4"):
    """A .npy file, version 1.0."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {tuple(shape)}, }}".ljust(117) + "\n"
    packed = struct.pack(f"<{len(values)}{'f' if kind == '<f4' else 'q'}", *values)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + packed)


@test
def cifar_and_arrays_are_found_by_the_names_of_their_files():
    cifar, arrays = FOLDER / "cifar", FOLDER / "arrays"
    cifar.mkdir(), arrays.mkdir()
    image = lambda i: bytes((i * 41 + j * 7 + (90 if i % 3 == j % 3 else 0)) % 256 for j in range(3072))
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        (cifar / name).write_bytes(b"".join(bytes([i % 3]) + image(i) for i in range(8)))
    for name, count in (("train", 24), ("test", 9)):
        labels = [i % 3 for i in range(count)]
        values = [0.1 * (j % 5) + (label == j % 3) for label in labels for j in range(2 * 3 * 4)]
        float_file(arrays / f"x_{name}.npy", (count, 2, 3, 4), values)
        float_file(arrays / f"y_{name}.npy", (count,), labels, "<i8")
    changed = ("--crop-padding", 2, "--flip", "--normalise", "cifar10")
    for folder, words, flags in ((cifar, "CIFAR-10, 40 images [3,32,32] to learn from, 8 to be judged by", changed),
                                 (arrays, ".npy, 24 images [2,3,4] to learn from, 9 to be judged by", ())):
        text = train(2, "--data", folder, "--steps", 4, "--batch", 4, "--lr", 0.001, *flags)
        assert words in text and "replicas identical: 2 of 2" in text, text


@test
def a_residual_network_trains_and_its_running_statistics_are_rank_0s():
    folder = FOLDER / "cifar"
    flags = ("--data", folder, "--model", "resnet18", "--batch", 2, "--steps", 2, "--lr", 0.01, "--export", "res")
    text = train(2, *flags)
    assert "resnet18: 11" in text and "replicas identical: 2 of 2" in text, text
    assert b'"layer1.0.bn1.running_mean"' in (FOLDER / "res").read_bytes()[:100000]


@test
def a_vision_transformer_learns_alike_on_one_and_two_ranks():
    flags = ("--model", "vit", "--patch", 3, "--layers", 1, "--dim", 32, "--heads", 2, "--optim", "adamw", "--lr", 8e-3,
             "--beta2", 0.95, "--clip", 1, "--steps", 200, "--seed", 9, "--log-losses")
    one = train(0, *flags, "vit.1", "--batch", 16)
    train(2, *flags, "vit.2", "--batch", 8)
    assert judged(one)[0] > 1.3 and judged(one)[-1] < 0.8, one
    losses = [[float(line.split()[1]) for line in open(FOLDER / name)] for name in ("vit.1", "vit.2")]
    assert all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(losses[0][:50], losses[1][:50])), losses


@test
def rank_0_may_read_for_all_and_the_bits_are_the_same():
    flags = ("--steps", 8, "--batch", 4)
    split, scatter, shared = (hash_of(train(2, *flags, "--feed", feed)) for feed in ("split", "scatter", "shared"))
    assert split == scatter != shared


@test
def exported_weights_are_those_to_begin_with():
    first = train(0, "--steps", 20, "--export", "end.safetensors")
    again = train(2, "--steps", 1, "--batch", 8, "--init", "end.safetensors")
    losses = lambda text: re.findall(r"test loss (\d\.\d+)", text)
    assert losses(again)[0] == losses(first)[-1] != losses(first)[0]


@test
def rates_follow_the_schedule():
    train(0, "--steps", 10, "--lr", 0.5, "--min-lr", 0.1, "--warmup", 2, "--lr-schedule", "linear", "--log",
          "rates.jsonl")
    rates = [line["lr"] for line in map(json.loads, open(FOLDER / "rates.jsonl")) if "lr" in line]
    want = [0.25, 0.5] + [0.5 - 0.05 * i for i in range(8)]
    assert all(math.isclose(a, b) for a, b in zip(rates, want)) and len(rates) == 10, rates


@test
def micro_batches_on_two_ranks_give_the_losses_of_one_process():
    folder, _ = whole()
    train(0, "--steps", STEPS, "--batch", 16, "--clip", 0.5, "--log-losses", "one")
    for ours, other in zip((folder / "losses").read_text().splitlines(), open(FOLDER / "one")):
        a, b = float(ours.split()[1]), float(other.split()[1])
        assert abs(a - b) < 1e-5 * b, (ours, other)


@test
def every_line_of_the_log_is_json_and_steps_stand_in_order():
    folder, _ = whole()
    lines = log_of(folder)
    steps = [line for line in lines if "loss" in line]
    evaluations = [line for line in lines if "test_loss" in line]
    assert len(steps) + len(evaluations) == len(lines)
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert [line["step"] for line in evaluations] == list(range(0, STEPS + 1, EVERY))
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    for line in steps:
        assert {"loss", "lr", "grad_norm", *TIMES} < set(line) and line["dtype"] == "float32", line
        assert line["seconds"] > 0 and line["images_per_second"] > 0
    assert all(line["peak_memory_bytes"] > 1e6 for line in evaluations), evaluations
    losses = [line.split()[1] for line in (folder / "losses").read_text().splitlines()]
    assert [float(loss) for loss in losses] == [line["loss"] for line in steps]


@test
def tensorboard_shows_what_the_log_has():
    folder, _ = whole()
    shown, wanted = event_file.scalars_of_folder(folder / "board"), {}
    for line in log_of(folder):
        group = "train" if "loss" in line else "eval"
        for name, value in line.items():
            if name not in ("step", "dtype"):
                wanted.setdefault(f"{group}/{name}", {})[line["step"]] = value
    assert shown.keys() == wanted.keys(), (shown.keys(), wanted.keys())
    for tag, steps in wanted.items():
        assert shown[tag].keys() == steps.keys(), tag
        assert all(math.isclose(shown[tag][s], steps[s], rel_tol=1e-6) for s in steps), tag


@test
def events_carry_the_time_of_day():
    folder, _ = whole()
    for path in (folder / "board").iterdir():
        times = [event["wall_time"] for event in event_file.events(path)]
        assert times == sorted(times) and abs(times[0] - time.time()) < 3600, times


@test
def the_reader_of_event_files_sees_damage():
    assert event_file.crc32c(b"123456789") == 0xE3069283
    folder, _ = whole()
    good = next((folder / "board").iterdir()).read_bytes()
    for at in (0, 9, 14, 30, len(good) - 1):
        bad = bytearray(good)
        bad[at] ^= 1
        try:
            list(event_file.records(bytes(bad)))
        except (AssertionError, struct.error):
            continue
        raise AssertionError(f"byte {at} may be anything")


@test
def a_resumed_run_ends_with_the_same_bits_and_files():
    folder, text = whole()
    again = FOLDER / "again"
    shutil.copytree(folder, again)
    shutil.rmtree(again / "save" / f"step-{STEPS:08}")
    rest = train(2, "--steps", STEPS, "--batch", 4, "--accum", 2, "--clip", 0.5, "--eval-every", EVERY,
                 "--save", again / "save", "--resume", again / "save", "--every", EVERY, "--log",
                 again / "log.jsonl", "--tensorboard", again / "board", "--log-losses", again / "losses")
    assert f"going on at step {STEPS - EVERY}\n" in rest
    assert hash_of(rest) == hash_of(text)
    for name in ("losses", f"save/step-{STEPS:08}/scalars.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name
    for path in (folder / "save" / f"step-{STEPS:08}").glob("*.safetensors"):
        assert path.read_bytes() == (again / path.relative_to(folder)).read_bytes(), path.name
    assert without_times(log_of(again)) == without_times(log_of(folder))
    assert len(list((again / "board").iterdir())) == 2
    whole_board, board = (event_file.scalars_of_folder(f / "board") for f in (folder, again))
    for tag in whole_board:
        if not tag.endswith(OF_THE_MACHINE):
            assert board[tag] == whole_board[tag], tag


@test
def a_resumed_run_that_ends_earlier_leaves_nothing_of_later_steps():
    folder, _ = whole()
    less, steps = FOLDER / "less", STEPS - 2
    shutil.copytree(folder, less)
    shutil.rmtree(less / "save" / f"step-{STEPS:08}")
    train(2, "--steps", steps, "--batch", 4, "--accum", 2, "--resume", less / "save", "--log",
          less / "log.jsonl", "--tensorboard", less / "board", "--log-losses", less / "losses")
    want = list(range(1, steps + 1))
    assert sorted(event_file.scalars_of_folder(less / "board")["train/loss"]) == want
    assert [line["step"] for line in log_of(less) if "loss" in line] == want
    assert [int(line.split()[0]) for line in (less / "losses").read_text().splitlines()] == want


def refused(ranks, status, words, *flags):
    launcher = [BUILD / "lockstep", "run", "-n", str(ranks)] if ranks else []
    done = subprocess.run([*launcher, BUILD / "programs/train_image", *map(str, flags)], cwd=FOLDER, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=60)
    says(done.stdout, words)
    assert done.returncode == status, (flags, done.returncode)


@test
def wrong_flags_are_refused_in_words():
    here = ("--data", data())
    refused(0, 2, "--data is missing")
    refused(0, 2, '--optim is "adam"; give sgd or adamw', *here, "--optim", "adam")
    refused(0, 2, '--lr-schedule is "step"; give constant, linear or cosine', *here, "--lr-schedule", "step")
    refused(0, 2, '--feed is "all"; give split, shared or scatter', *here, "--feed", "all")
    refused(0, 2, '--normalise is "grey"', *here, "--normalise", "grey")
    refused(0, 2, '--dtype is "float8"', *here, "--dtype", "float8")
    refused(0, 2, '--model is "perceptron"; give mlp, cnn, vit, alexnet', *here, "--model", "perceptron")
    refused(0, 2, '--momentum is "2"; give a number from 0 to 1', *here, "--momentum", 2)
    refused(0, 2, "unknown option --steppes", *here, "--steppes", 3)
    refused(2, 2, '--optim is "adam"', *here, "--optim", "adam")


def arrays(name, labels, side):
    """A folder of three images to learn from with these labels and kind, and one to be judged by of another side."""
    (FOLDER / name).mkdir()
    float_file(FOLDER / name / "x_train.npy", (3, 1, 2, 2), [0.0] * 12)
    float_file(FOLDER / name / "y_train.npy", (3,), *labels)
    float_file(FOLDER / name / "x_test.npy", (1, 1, side, side), [0.0] * side * side)
    float_file(FOLDER / name / "y_test.npy", (1,), [0], "<i8")
    return "--data", name, "--batch", 1


def flat_arrays():
    (FOLDER / "flat").mkdir()
    for part in ("train", "test"):
        float_file(FOLDER / "flat" / f"x_{part}.npy", (3, 4), [0.0] * 12)
        float_file(FOLDER / "flat" / f"y_{part}.npy", (3,), [0, 1, 2], "<i8")
    return "--data", "flat", "--batch", 1


@test
def images_and_labels_that_do_not_belong_together_are_told_before_the_first_step():
    long = [0, 1, 1 << 40], "<i8"
    for words, *flags in (
            ('"wide/y_train.npy": label 2, counted from 0, is 1099511627776; with --classes 10 labels are 0 to 9',
             *arrays("wide", long, 2)),
            ('"negative/y_train.npy": label 1, counted from 0, is -3; with', *arrays("negative", ([9, -3, 0], "<i8"), 2)),
            (sentence('--data: "%s": label %lld, counted from 0, is %lld; with --classes %lld labels are 0 to %lld'),
             "--data", "wide", "--batch", 1),
            (sentence('--data: "%s" holds %s of %d dimensions; labels are [N], int32 or int64'),
             *arrays("float", ([1.0, 2.0, 3.0], "<f4"), 2)),
            ('images of "sides" to learn from are [1,2,2], those to be judged by [1,3,3]; they belong to different sets',
             *arrays("sides", ([0, 1, 2], "<i8"), 3)),
            (sentence('--data: images of "%s" to learn from are [%lld,%lld,%lld], those to be judged by [%lld,%lld,%lld]; '
                   'they belong to different sets'), "--data", "sides", "--batch", 1),
            (sentence('--data: samples of "%s" are %s of %d dimensions; images have 3 (channels, height, width), float16, '
                      'float32, float64, uint8 or bool'), *flat_arrays())):
        refused(0, 1, words, *flags)


@test
def unusable_data_and_files_are_answered_in_words():
    (FOLDER / "empty").mkdir()
    (FOLDER / "plain").write_text("not a folder\n")
    one = ("--data", data(), "--steps", 1)
    for ranks in (0, 2):
        refused(ranks, 1, '--data: "empty" holds none of', "--data", "empty")
        refused(ranks, 1, '--data: "nowhere" holds none of', "--data", "nowhere")
        refused(ranks, 1, "samples are less than one step", *one, "--batch", 1000)
        refused(ranks, 1, "with --classes 2 labels are 0 to 1", *one, "--classes", 2)
        refused(ranks, 1, 'cannot make "plain/board": Not a directory', *one, "--tensorboard", "plain/board")
        refused(ranks, 1, "image 6, patch 4; there must be", *one, "--model", "vit")
        refused(ranks, 1, "the images are 3 x 4; --model vit takes square ones", "--data", "arrays", "--model", "vit")
        refused(ranks, 1, sentence("%s: the images are %lld x %lld; --model %s takes square ones"), "--data", "arrays",
                "--model", "vit")
        refused(ranks, 1, 'cannot read "nowhere"', *one, "--init", "nowhere")
        refused(ranks, 1, 'event log: cannot make "empty": Is a directory', *one, "--log", "empty")


# ---- other files ------------------------------------------------------------------------------

def write_npy(path, descr, shape, elements):
    """As numpy.save has it (format version 1.0)."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + elements)


def npy_set(name, descr, code, shape=(8, 1, 6, 6), factor=1.0):
    """A folder of arrays of one type; pixel i is i % 2 of it, or its largest."""
    folder, count = FOLDER / name, math.prod(shape)
    folder.mkdir()
    for part in ("train", "test"):
        pixels = struct.pack(f"<{count}{code}", *(type(factor)(i % 2 * factor) for i in range(count)))
        write_npy(folder / f"x_{part}.npy", descr, shape, pixels)
        write_npy(folder / f"y_{part}.npy", "<i8", (shape[0],), struct.pack(f"<{shape[0]}q", *range(shape[0])))
    return folder


def losses_of(folder, status=0):
    done = subprocess.run([BUILD / "programs/train_image", "--data", folder, "--steps", "2", "--hidden", "16",
                           "--batch", "4", "--log-losses", FOLDER / "losses"], text=True, capture_output=True, timeout=60)
    assert done.returncode == status, (folder, done.stdout, done.stderr)
    return (FOLDER / "losses").read_bytes() if status == 0 else done.stderr


@test
def arrays_of_every_type_of_images_train_as_those_of_float32():
    wanted = losses_of(npy_set("f4", "<f4", "f"))
    for name, descr, code, factor in (("f8", "<f8", "d", 1.0), ("f2", "<f2", "e", 1.0), ("u1", "|u1", "B", 255),
                                      ("b1", "|b1", "B", 1)):
        assert losses_of(npy_set(name, descr, code, factor=factor)) == wanted, name


@test
def arrays_that_are_no_images_are_named_with_their_type_and_shape():
    says(losses_of(npy_set("i4", "<i4", "i", factor=1), status=1),
         "--data: samples of \"%s\" are %s of %d dimensions; images have 3 (channels, height, width), float16, float32, "
         "float64, uint8 or bool")
    says(losses_of(npy_set("last", "|u1", "B", shape=(8, 6, 6, 3), factor=1), status=1),
         "--data: samples of \"%s\" are [%lld,%lld,%lld], which looks like height, width, channels; save "
         "x.transpose(0, 3, 1, 2) as a C-ordered array")


@test
def files_that_gzip_has_compressed_train_as_the_unpacked_ones():
    folder = FOLDER / "packed"
    folder.mkdir()
    for plain in (FOLDER / "f4").iterdir():
        (folder / f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    if "zlib" not in subprocess.run([BUILD / "lockstep", "info"], text=True, capture_output=True).stdout:
        says(losses_of(folder, status=1), "%s: \"%s\" is compressed by gzip, and this build has no zlib; run gunzip "
             "first, or install zlib1g-dev and build again")
        return
    assert losses_of(folder) == losses_of(FOLDER / "f4")
    (FOLDER / "idx").mkdir()
    for plain in data().iterdir():
        (FOLDER / "idx" / f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert losses_of(FOLDER / "idx") == losses_of(data())


@test
def the_digits_of_the_tree_are_written_as_idx_files():
    """Against bench/digits/digits.txt, read another way; the command line is README's."""
    done = subprocess.run([sys.executable, SOURCE / "scripts/make_digits_idx.py", FOLDER / "digits"], text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = (SOURCE / "bench/digits/digits.txt").read_text().splitlines()
    for part, which in (("test", lines[::5]), ("train", [line for i, line in enumerate(lines) if i % 5])):
        images = (FOLDER / "digits" / f"{part}-images.idx").read_bytes()
        labels = (FOLDER / "digits" / f"{part}-labels.idx").read_bytes()
        assert struct.unpack(">4I", images[:16]) == (0x803, len(which), 8, 8) and len(images) == 16 + 64 * len(which)
        assert labels == struct.pack(">2I", 0x801, len(which)) + bytes(int(line[0]) for line in which)
        dark = ["0123456789abcdefg".index(pixel) for line in which for pixel in line[2:]]
        assert all(abs(a - b * 255 / 16) <= 0.5 for a, b in zip(images[16:], dark))
    text = training.train("train_image", 2, "--data", "digits", "--model", "mlp", "--steps", 3, cwd=FOLDER)
    assert "1437 images [1,8,8] to learn from, 360 to be judged by" in text, text
# ---- values that are not finite ----

def spoiled():
    """The data with one sample that is NaN."""
    folder = FOLDER / "spoiled"
    if not folder.exists():
        folder.mkdir()
        for name, count in (("train", 200), ("test", 16)):
            pixels = [(i * 37 % 101) / 101 for i in range(count * 36)]
            if name == "train":
                pixels[36 * 117 + 5] = math.nan
            float_file(folder / f"x_{name}.npy", (count, 1, 6, 6), pixels)
            float_file(folder / f"y_{name}.npy", (count,), [i % 4 for i in range(count)], "<i8")
    return folder


def fails(ranks, *flags, cwd=FOLDER):
    """What a run prints that must not end well."""
    launcher = [BUILD / "lockstep", "run", "-n", ranks] if ranks else []
    flags = ("--data", spoiled(), "--hidden", 8, "--classes", 4, "--batch", 2, *flags)
    done = subprocess.run([str(a) for a in (*launcher, BUILD / "programs" / "train_image", *flags)], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, cwd=cwd)
    assert done.returncode != 0, done.stdout
    return done.stdout


def saved_floats(folder):
    for path in sorted(folder.glob("step-*/state-*")):
        data = path.read_bytes()
        size = struct.unpack_from("<Q", data)[0]
        for name, entry in json.loads(data[8:8 + size]).items():
            if entry.get("dtype") == "F32":
                begin, end = entry["data_offsets"]
                yield path, name, struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])


@test
def a_gradient_that_is_not_finite_ends_the_run_in_every_form():
    forms = ((0, ("--steps", 120)), (2, ()), (2, ("--accum", 3)), (2, ("--exact", "layout", "--shards", 4)),
             (2, ("--mesh", "pp=2")), (2, ("--mesh", "pp=2", "--schedule", "zb-h1")),
             (2, ("--mesh", "pp=2", "--schedule", "pipedream")), (2, ("--mesh", "pp=2", "--schedule", "pipedream-2bw")),
             (3, ("--mesh", "pp=3", "--replicas", "2,1")), (4, ("--mesh", "pp=2,dp=2")))
    for number, (ranks, form) in enumerate(forms):
        save = FOLDER / f"diverged {number}"
        text = fails(ranks, "--steps", 60, "--save", save, "--export", f"{FOLDER}/never/", "--every", 1, *form)
        step = int(re.search(r"error: step (\d+): ", text).group(1))
        assert re.search(r"not finite .*fc[12]\.(weight|bias)|fc[12]\.(weight|bias) is not finite", text), text
        if ranks > 1:
            told = re.search(r"lockstep: rank \d .* failed: .* not finite .*\(after optimizer step (\d+)\)\n", text)
            steps_often = any("pipedream" in flag for flag in form if isinstance(flag, str))
            assert told and (int(told.group(1)) == step - 1 or steps_often), text
        steps = sorted(int(f.name[5:]) for f in save.glob("step-*"))
        assert steps == list(range(max(step - 2, 1), step)), (steps, text)
        values = list(saved_floats(save))
        assert all(math.isfinite(x) for _, _, all_of in values for x in all_of), save
    assert not (FOLDER / "never").exists()


def resign(step, change):
    """Changes the bytes of a checkpoint's first file, and its hashes with them."""
    path, manifest = step / "state-00001-of-00001.safetensors", step / "manifest.json"
    before = path.read_bytes()
    path.write_bytes(change(before))
    digest = lambda data: hashlib.sha256(data).hexdigest()
    text = manifest.read_text().replace(digest(before), digest(path.read_bytes()))
    head = '{"hash":"'
    zeros = head + "0" * 64 + text[len(head) + 64:]
    manifest.write_text(head + digest(zeros.encode()) + zeros[len(head) + 64:])


@test
def a_run_does_not_go_on_from_weights_that_are_not_finite():
    save = FOLDER / "poisoned"
    train(0, "--steps", 2, "--save", save)
    name = "model.fc1.weight"

    def poison(data):
        size = struct.unpack_from("<Q", data)[0]
        at = 8 + size + json.loads(data[8:8 + size])[name]["data_offsets"][0] + 12
        return data[:at] + struct.pack("<f", math.inf) + data[at + 4:]

    resign(save / "step-00000002", poison)
    text = fails(0, "--data", data(), "--hidden", 16, "--steps", 4, "--resume", save)
    says(text, '%s: "%s" is not finite (element %lld of %lld here): the run that saved it had diverged, and '
         'training cannot go on from it. Give older weights (the folder of an older checkpoint counts if the newer '
         'ones are moved away), or start anew')
    assert f'--resume {save}: step 2: "{name}" is not finite (element 3 of' in text, text
    loose = FOLDER / "loose.safetensors"
    train(0, "--steps", 1, "--export", loose)
    header = json.loads(loose.read_bytes()[8:8 + struct.unpack_from("<Q", loose.read_bytes())[0]])
    assert "fc1.weight" in header
    at = 8 + struct.unpack_from("<Q", loose.read_bytes())[0] + header["fc1.weight"]["data_offsets"][0]
    loose.write_bytes(loose.read_bytes()[:at] + struct.pack("<f", math.nan) + loose.read_bytes()[at + 4:])
    text = fails(0, "--data", data(), "--hidden", 16, "--steps", 4, "--init", loose)
    assert f'--init {loose}: "model.fc1.weight" is not finite (element 0 of' in text, text


def set_weight(path, name, value):
    """Puts a value at the end of a tensor in a safetensors file."""
    content = path.read_bytes()
    size = 8 + struct.unpack_from("<Q", content)[0]
    end = size + json.loads(content[8:size])[name]["data_offsets"][1]
    path.write_bytes(content[:end - 4] + struct.pack("<f", value) + content[end:])


@test
def weights_that_are_not_finite_after_the_last_step_are_not_exported():
    flags = ("--data", data(), "--hidden", 16, "--classes", CLASSES + 1)  # no sample is of the last class
    for name, ranks, form in (("fc1.bias", 0, ()), ("fc1.bias", 2, ()), ("fc2.bias", 2, ("--mesh", "pp=2"))):
        path, out = FOLDER / f"{name}.safetensors", FOLDER / "out.safetensors"
        train(0, "--classes", CLASSES + 1, "--steps", 1, "--export", path)
        set_weight(path, name, -1e38)
        text = fails(ranks, *flags, "--init", path, "--lr", 1000, "--weight-decay", 1000, "--steps", 1, "--export", out, *form)
        says(text, 'step %lld: "%s" is not finite on rank %d (element %lld of %lld there): training has diverged, and '
             'nothing is exported. Give a lower --lr or --weight-decay, or --clip, and start anew or from an older '
             'checkpoint')
        assert f'error: step 1: "{name}" is not finite on rank {1 if form else 0} (element ' in text, text
        assert not out.exists()
    train(0, "--classes", CLASSES + 1, "--steps", 1, "--export", path)
    set_weight(path, "fc1.bias", -1e32)  # becomes 1e38, which is finite, but not its product
    text = fails(2, *flags, "--init", path, "--lr", 1000, "--weight-decay", 1000, "--steps", 1, "--export", out)
    says(text, "step %lld: the %s is not finite, though it was before and all weights are: outputs overflow, so training "
         "has diverged, and nothing is exported. Give a lower --lr or --weight-decay, or --clip, and start anew or from "
         "an older checkpoint")
    assert "error: step 1: the test loss is not finite, though it was before" in text and not out.exists(), text


@test
def an_evaluation_that_is_not_finite_is_said_and_the_weights_are_kept():
    folder, out = FOLDER / "unjudged", FOLDER / "unjudged.safetensors"
    folder.mkdir()
    for name, count in (("train", 200), ("test", 16)):
        pixels = [(i * 37 % 101) / 101 for i in range(count * 36)]
        if name == "test":
            pixels[36 * 7 + 5] = math.nan
        float_file(folder / f"x_{name}.npy", (count, 1, 6, 6), pixels)
        float_file(folder / f"y_{name}.npy", (count,), [i % 4 for i in range(count)], "<i8")
    for ranks in (0, 2):
        text = fails(ranks, "--data", folder, "--steps", 4, "--eval-every", 2, "--export", out)
        says(text, "%sthe %s is not finite before training, though all weights are; look for NaN and infinity in what is "
             "judged, and for outputs that overflow")
        assert text.count("the test loss is not finite before training, ") >= 2, text
        assert "error: the test loss is not finite before training, " in text and "replicas identical" in text, text
        assert out.exists()
        out.unlink()


run()
