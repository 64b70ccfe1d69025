# SPDX-License-Identifier: Apache-2.0
"""programs/train_gpt: it learns text, alike on any number of ranks, and goes on to the bit."""

import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from gpt2_folder import gpt2
from sentences import says, sentence
from tap import BUILD, SOURCE, Skip, command, run, test
import training
from training import SMALL, hash_of, judged

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-train-gpt-")
FOLDER = pathlib.Path(SCRATCH.name)
TOKENIZER = SOURCE / "tests/unit/tokenizer/fixture/one_word"  # no expression: builds without PCRE2 read it


def text():
    return training.text(FOLDER, 3000, 12345)


def train(ranks, *flags):
    shape = SMALL if "lstm" not in flags else ("--layers", 1, "--dim", 32, "--context", 32)
    return training.train("train_gpt", ranks, "--data", text(), *shape, *flags, cwd=FOLDER)


@test
def it_learns_text_alike_on_one_and_two_ranks():
    one = train(0, "--steps", 60, "--batch", 8, "--lr", 5e-3, "--dropout", 0.1, "--log", "one.jsonl")
    two = train(2, "--steps", 60, "--batch", 4, "--lr", 5e-3, "--dropout", 0.1, "--log", "two.jsonl")
    assert judged(one)[0] > 5 and judged(one)[-1] < 2.7, one
    assert abs(judged(one)[-1] - judged(two)[-1]) < 0.002, two
    logs = [[json.loads(line) for line in open(FOLDER / name)] for name in ("one.jsonl", "two.jsonl")]
    assert len(logs[0]) == len(logs[1]) == 60 + 2
    for a, b in zip(*logs):
        if "loss" in a:
            assert abs(a["loss"] - b["loss"]) < 1e-4 * a["loss"], (a, b)
            assert a["tokens_per_second"] > 0


@test
def an_lstm_learns_text_alike_on_one_and_two_ranks():
    flags = ("--model", "lstm", "--steps", 60, "--lr", 1e-2, "--lr-schedule", "constant", "--batch")
    one, two = train(0, *flags, 8), train(2, *flags, 4)
    assert judged(one)[0] > 5 and judged(one)[-1] < 3.0, one
    assert abs(judged(one)[-1] - judged(two)[-1]) < 0.002, two


def refused(*flags):
    """Standard error of a run that ends at once: status and text."""
    done = subprocess.run([BUILD / "programs/train_gpt", *map(str, flags)], cwd=FOLDER, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, text=True)
    assert done.returncode != 0 and "step 1/" not in done.stdout, (flags, done.stdout, done.stderr)
    return done.stderr


def resumed(*flags):
    """Of a run to step 3 from the checkpoint of `described`: what it prints, and its notes."""
    shutil.rmtree(FOLDER / "again", ignore_errors=True)
    shutil.copytree(FOLDER / "described", FOLDER / "again")
    done = subprocess.run([BUILD / "programs/train_gpt", "--resume", "again", "--steps", "3", *map(str, flags)],
                          cwd=FOLDER, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=120, text=True)
    assert done.returncode == 0, (flags, done.stdout, done.stderr)
    return done.stdout, done.stderr


@test
def a_checkpoint_knows_its_model_and_its_run():
    flags = ("--dropout", 0.1, "--eval-windows", 10, "--batch", 2, "--lr-schedule", "constant")
    other = FOLDER / "other-text"
    other.write_text(text().read_text().replace("rank", "bank"))
    train(0, *flags, "--steps", 2, "--save", "described")
    whole = train(0, *flags, "--steps", 3)
    printed, notes = resumed()  # nothing is given again
    assert hash_of(printed) == hash_of(whole) and notes == "", (printed, notes)
    printed, notes = resumed("--data", text(), *SMALL, *flags)  # and all of it
    assert hash_of(printed) == hash_of(whole) and notes == "", (printed, notes)
    for flag, value, before in (("dropout", 0.3, 0.1), ("dtype", "bf16", "float32"), ("clip", 2.5, "1.0"), ("batch", 4, 2)):
        said = resumed(f"--{flag}", value)[1]
        says(said, "%s: the run so far had %s; it goes on with %s")
        assert f"had --{flag} {before}; it goes on with --{flag} {value}" in said, said
    assert f"it goes on with --data {other}" in resumed("--data", other)[1]
    mine = text().read_text()
    text().write_text(other.read_text())
    try:
        says(resumed()[1], "%s: the data is not that of the run so far (%lld samples then, %lld now; %d of them were compared)")
    finally:
        text().write_text(mine)
    said = refused("--resume", "described", "--steps", 3, "--optim", "sgd")
    says(said, '%s contradicts the checkpoints in "%s", whose optimizer state is that of %s; leave the flag out')
    assert "--optim sgd contradicts" in said and "that of --optim adamw;" in said, said
    said = refused("--resume", "described/step-00000002", "--steps", 3)
    assert 'give --resume the folder above it, "described", of which' in said, said
    (FOLDER / "step-by-step").mkdir()  # no checkpoint, but a folder of that name
    assert "holds no checkpoint" in refused("--resume", "step-by-step", "--data", text(), "--steps", 3)
    train(0, "--model", "lstm", "--steps", 1, "--batch", 2, "--eval-windows", 4, "--save", "any-context")
    said = refused("--resume", "any-context", "--steps", 2, "--context", 16)  # an LSTM has no positions: the windows differ
    assert "contradicts" not in said and "the saved position is in a data set of" in said, said
    for flag, value, before in (("heads", 4, 2), ("layers", 2, 1), ("model", "lstm", "gpt"), ("vocab", 300, 256),
                                ("context", 16, 32)):
        said = refused("--resume", "described", "--steps", 3, f"--{flag}", value)
        says(said, '%s contradicts the checkpoints in "%s", whose model has %s; leave the flag out')
        assert f"--{flag} {value} contradicts" in said and f"has --{flag} {before};" in said, said
    shutil.copytree(FOLDER / "described", FOLDER / "older")
    (FOLDER / "older/run.json").unlink()
    done = subprocess.run(list(map(str, [BUILD / "programs/train_gpt", "--data", text(), *SMALL, *flags, "--steps", 3,
                                         "--resume", "older"])), cwd=FOLDER, text=True, capture_output=True, timeout=100)
    older = done.stdout
    says(refused("--data", text(), *SMALL, *flags, "--steps", 3, "--resume", "older", "--optim", "sgd"),
         "%s. If the checkpoint's run had another --optim, give that one")
    says(done.stderr, "%s: no run.json, because an earlier version saved there; the model's heads, --dropout, --dtype, "
                      "--batch and the data are not compared")
    assert hash_of(older) == hash_of(whole), older
    record = json.loads((FOLDER / "described/run.json").read_text())
    for damaged, words in (
            ({"flags": 3}, sentence('"%s" is damaged: %s; without it the flags of the run must be given again')),
            ({"flags": 3}, sentence('it has no object "flags"')),
            (dict(record, flags=dict(record["flags"], batch="two")), sentence('" has %s, which %s does not take')),
            (dict(record, program="train image"), sentence('the checkpoints in "%s" are of %s, and this is %s'))):
        (FOLDER / "older/run.json").write_text(json.dumps(damaged))
        says(refused("--resume", "older"), words)


@test
def the_place_of_an_export_is_tried_before_the_first_step():
    (FOLDER / "file").write_text("mine")
    (FOLDER / "there").mkdir()
    (FOLDER / "there/mine").write_text("mine")
    short = ("--data", text(), *SMALL, "--steps", 1, "--batch", 1, "--eval-windows", 1)
    says(refused(*short, "--model", "mixtral", "--dropout", 0.1), "--dropout %g: a %s has none; leave it out")
    for path, reason in (("nowhere/x.safetensors", "No such file"), ("nowhere/x/", "No such file"),
                         ("file/x.safetensors", "Not a directory"), ("file/", "Not a directory"),
                         ("/proc/x.safetensors", "cannot be written"), ("", "is empty")):
        said = refused(*short, "--export", path)
        assert reason in said, (path, said)
        if path:
            says(said, '--export %s: "%s" cannot be written: %s')
        else:
            says(said, "--export is empty; give a file or a folder")
    os.mkfifo(FOLDER / "weights-pipe")
    for path in ("/dev/null", "/dev/full", "weights-pipe"):
        said = refused(*short, "--export", path)
        says(said, '--export %s: "%s" is a device, a pipe or a socket, which cannot hold weights; give a file or a folder')
        assert "before training" not in said and not pathlib.Path(path).is_file(), said
    assert (FOLDER / "file").read_text() == "mine"
    training.command(BUILD / "programs/train_gpt", *short, "--export", "there", cwd=FOLDER)
    assert sorted(p.name for p in (FOLDER / "there").iterdir()) == ["mine", "model.safetensors", "run.json"]
    assert "No such file" in refused(*short, "--log", "nowhere/log")


@test
def a_resumed_run_ends_with_the_same_bits():
    flags = ("--steps", 9, "--batch", 2, "--dropout", 0.2, "--eval-windows", 10, "--save", "save", "--every", 3)
    whole = train(2, *flags)
    shutil.rmtree(FOLDER / "save" / "step-00000009")
    rest = train(2, *flags, "--resume", "save")
    assert "going on at step 6\n" in rest
    assert hash_of(rest) == hash_of(whole) and judged(rest)[-1] == judged(whole)[-1]


@test
def a_new_run_does_not_save_among_the_checkpoints_of_another():
    flags = ("--batch", 2, "--eval-windows", 4, "--every", 2)
    train(0, *flags, "--steps", 4, "--save", "of-others")
    train(0, *flags, "--steps", 2, "--save", "ours-too")
    before = {path: path.read_bytes() for path in sorted((FOLDER / "of-others").rglob("*.json"))}
    for ranks in (0, 2):
        for steps, more in ((8, ("--heads", 4)), (1, ()), (8, ("--resume", "ours-too"))):
            arguments = [*((BUILD / "lockstep", "run", "-n", ranks) if ranks else ()), BUILD / "programs/train_gpt",
                         "--data", text(), *SMALL, *flags, "--steps", steps, "--save", "of-others", *more]
            done = subprocess.run(list(map(str, arguments)), cwd=FOLDER, text=True, capture_output=True, timeout=100)
            says(done.stderr, '--save: "%s" holds checkpoints of another run, the newest of step %lld; give --resume %s to '
                 "go on from it, or --save another folder")
            assert done.returncode == 2 and "the newest of step 4; give --resume of-others to" in done.stderr, done
            assert "before training" not in done.stdout, done
    assert before == {path: path.read_bytes() for path in sorted((FOLDER / "of-others").rglob("*.json"))}
    (FOLDER / "link").symlink_to("of-others")  # one folder by two names
    assert "going on at step 4\n" in train(0, *flags, "--steps", 6, "--resume", "of-others/", "--save", "link")
    assert "going on at step 6\n" in train(0, *flags, "--steps", 8, "--resume", "of-others", "--save", "ours-too")
    for step in (FOLDER / "ours-too").glob("step-*"):  # as after a crash before the first checkpoint
        shutil.rmtree(step)
    train(0, *flags, "--steps", 2, "--dropout", 0.1, "--save", "ours-too")
    assert json.loads((FOLDER / "ours-too/run.json").read_text())["flags"]["dropout"] == 0.1


@test
def a_log_of_losses_that_is_none_is_refused_by_a_run_that_goes_on():
    flags = ("--batch", 2, "--eval-windows", 10, "--save", "logged")
    train(0, *flags, "--steps", 2)
    (FOLDER / "letter").write_text("Dear rank,\n")
    for path, words in (("letter", sentence('event log: "%s" holds something else than steps; give another file')),
                        ("/dev/null", sentence('event log: "%s" cannot be cut behind the step to go on from, as it is no regular file; give another file'))):
        arguments = [BUILD / "programs/train_gpt", "--data", text(), *SMALL, *flags, "--steps", 4, "--resume", "logged",
                     "--log-losses", path]
        done = subprocess.run(list(map(str, arguments)), cwd=FOLDER, text=True, capture_output=True, timeout=100)
        assert done.returncode == 1, done
        says(done.stdout + done.stderr, words)


@test
def a_log_is_a_new_file_and_no_link_or_pipe():
    (FOLDER / "precious").write_text("precious\n")
    (FOLDER / "to_precious").symlink_to("precious")
    os.mkfifo(FOLDER / "pipe")  # without a reader
    train(0, "--steps", 1, "--batch", 2, "--eval-windows", 10, "--log", "to_precious", "--log-losses", "pipe")
    assert (FOLDER / "precious").read_text() == "precious\n"
    for name in ("to_precious", "pipe"):
        assert not (FOLDER / name).is_symlink() and (FOLDER / name).is_file() and (FOLDER / name).stat().st_size > 0


@test
def what_a_run_reads_is_not_written_over():
    folder = FOLDER / "read"
    folder.mkdir()
    (folder / "data").write_bytes(text().read_bytes())
    (folder / "link").symlink_to("data")
    short = (*map(str, SMALL), "--steps", 1, "--batch", 1, "--eval-windows", 1)
    train(0, *short, "--export", "read/")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for ranks in (0, 2):
        for flag, path, read in (("log", "data", "data"), ("log-losses", "./data", "data"), ("tensorboard", "data", "data"),
                                 ("export", "data", "data"), ("log", "link", "data"), ("export", "", "model.safetensors"),
                                 ("export", "model.safetensors", "model.safetensors"), ("log", "config", "config")):
            model = ("--init", "read/model.safetensors") if read.startswith("model") else ()
            if read == "config":
                (folder / "config").write_text("{}")
                model = ("--tokenizer", "read/config")
            done = subprocess.run([str(word) for word in (
                *((BUILD / "lockstep", "run", "-n", ranks) if ranks else ()), BUILD / "programs/train_gpt", "--data",
                folder / "data", *short, *model, f"--{flag}", f"read/{path}")], cwd=FOLDER, capture_output=True, text=True)
            says(done.stderr, '--%s would replace "%s", which this command reads; give another file')
            assert done.returncode == 2 and f"--{flag} would" in done.stderr and f'{read}", which' in done.stderr, done
        assert (folder / "config").read_text() == "{}"
        (folder / "config").unlink()
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    said = refused("--data", folder / "data", *short, "--log", "twice", "--log-losses", "twice")
    says(said, '--%s and --%s write the same file, "%s"; give two')


@test
def a_training_in_two_runs_on_one_schedule_ends_with_the_same_bits():
    flags = ("--batch", 2, "--eval-windows", 10)
    whole = train(1, *flags, "--steps", 8)
    train(1, *flags, "--steps", 4, "--lr-schedule-steps", 8, "--save", "halves")
    rest = train(1, *flags, "--steps", 8, "--save", "halves", "--resume", "halves")
    assert hash_of(rest) == hash_of(whole)
    assert "schedule" not in rest and "has no effect" not in rest, rest


@test
def a_run_that_goes_on_says_what_differs():
    flags = ("--batch", 2, "--eval-windows", 10, "--save", "differs", "--resume", "differs")
    train(1, *flags, "--steps", 4, "--lr", 1e-3)
    rest = train(1, *flags, "--steps", 6, "--lr", 1e-3, "--seed", 7, "--weight-decay", 0.3)
    assert ("the schedule of the checkpoint's run was cosine from 0.001 to 0.0001 over 4 steps, 1 of them warm-up; "
            "this run's is cosine from 0.001 to 0.0001 over 6 steps, 1 of them warm-up: the learning rate goes on at "
            "0.000411 instead of 0.0001. ") in rest, rest
    assert "the checkpoint's --seed 0 is kept; --seed 7 has no effect" in rest, rest
    assert "the checkpoint's --weight-decay 0.1 is kept; --weight-decay 0.3 has no effect" in rest, rest
    done = train(1, *flags, "--steps", 6, "--lr", 1e-3)
    assert "the checkpoint is at step 6; --steps 6 leaves nothing to do\n" in done, done
    assert "has no effect" not in done and "trained" not in done, done
    assert hash_of(done) == hash_of(rest)


def hash_of_file(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def without_groups(folder):
    """Makes the checkpoint one of a version that had no groups of parameters. The manifest has the hash of the scalars,
    and first its own: that of its text with zeros in the place of the hash."""
    scalars, manifest = folder / "scalars.json", folder / "manifest.json"
    content, bytes_before, hash_before = json.loads(scalars.read_text()), scalars.stat().st_size, hash_of_file(scalars)
    for name in ("optim.group.1.lr_scale", "optim.group.1.weight_decay", "run.decay-all"):
        del content[name]
    scalars.write_text(json.dumps(content).ljust(bytes_before))
    text = manifest.read_text()
    assert hash_before in text
    text = text.replace(hash_before, hash_of_file(scalars)).replace(json.loads(text)["hash"], "0" * 64)
    manifest.write_text(text.replace("0" * 64, hashlib.sha256(text.encode()).hexdigest(), 1))


@test
def a_run_that_goes_on_with_other_groups_says_so():
    flags = ("--batch", 2, "--eval-windows", 10, "--lr-schedule-steps", 8, "--save", "groups", "--resume", "groups")
    said = ("biases and norms decayed in the checkpoint's run; in this one they do not (--decay matrices). "
            "--decay all goes on as before\n")
    printed = train(2, *flags, "--steps", 2)
    assert "decayed" not in printed, printed
    printed = train(1, *flags, "--steps", 4)
    assert "decayed" not in printed, printed
    done = subprocess.run([BUILD / "programs/train_gpt", "--data", text(), *map(str, (*SMALL, *flags, "--steps", 6)),
                           "--decay", "all"], cwd=FOLDER, text=True, capture_output=True, timeout=60)
    assert done.returncode == 1
    says(done.stderr, "%s. Biases and norms did not decay in the checkpoint's run: give --decay matrices")
    without_groups(FOLDER / "groups" / "step-00000004")
    printed = train(1, *flags, "--steps", 6)
    assert said in printed, printed
    shutil.rmtree(FOLDER / "groups")
    train(1, *flags, "--steps", 2, "--decay", "all")
    printed = train(1, *flags, "--steps", 4, "--decay", "all")
    assert "decayed" not in printed, printed
    assert said in train(1, *flags, "--steps", 6, "--decay", "matrices")


@test
def a_shard_that_is_shortened_during_training_is_named():
    (FOLDER / "cut").mkdir()
    path = FOLDER / "cut" / "short_train_000000.bin"
    shard(path, [i % 251 for i in range(400000)])
    shard(FOLDER / "cut" / "short_val_000000.bin", list(range(251)) * 4)
    job = subprocess.Popen([BUILD / "lockstep", "run", "-n", "2", BUILD / "programs/train_gpt", "--data", "cut",
                            "--format", "tokens", "--vocab", "256",
                            *map(str, SMALL), "--steps", "1000000", "--batch", "2", "--eval-windows", "2"],
                           cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in job.stdout:
        if "] step " in line:
            break
    os.truncate(path, 4096)
    printed = job.communicate(timeout=120)[0]
    assert job.returncode != 0
    assert 'short_train_000000.bin"' in printed, printed
    says(printed, 'lockstep: error: "')
    says(printed, '" was shortened, or cannot be read any more, while this process has it mapped; write new data to a '
                  'new file and rename it, and check the disk')
    assert "signal 7" in printed, printed


@test
def a_folder_that_a_job_saves_to_is_refused_at_the_start():
    import fcntl
    (FOLDER / "busy").mkdir()
    with open(FOLDER / "busy" / "lock", "w") as lock:
        lock.write("process 4711 on host far\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = subprocess.run([BUILD / "programs/train_gpt", "--data", text(), *map(str, SMALL), "--steps", "3",
                                  "--save", "busy"], cwd=FOLDER, capture_output=True, text=True)
    assert refused.returncode == 1, refused
    assert '"busy" is in use: process 4711 on host far writes to it' in refused.stderr, refused
    assert "before training" not in refused.stdout, refused


def shard(path, tokens):
    """As llm.c writes them: a header of 256 int32, then uint16."""
    head = struct.pack("<3i", 20240520, 1, len(tokens)).ljust(1024, b"\0")
    path.write_bytes(head + struct.pack(f"<{len(tokens)}H", *tokens))


@test
def token_shards_are_learned_and_others_judge():
    (FOLDER / "shards").mkdir()
    bytes_of_text = list(text().read_bytes())
    shard(FOLDER / "shards" / "words_train_000000.bin", bytes_of_text[:9000])
    shard(FOLDER / "shards" / "words_val_000000.bin", bytes_of_text[9000:11000])
    said = refused("--data", "shards", *SMALL)
    says(said, 'text: file %d of "%s" begins with %lld, the magic number of a shard of tokens, which is no text; give '
         "--format tokens")
    assert 'file 1 of "shards" begins with 20240520, the' in said, said
    said = refused("--data", "shards", "--tokenizer", TOKENIZER, *SMALL)
    assert 'file 1 of "shards" begins with 20240520, the' in said, said
    for form in (("--data", text(), "--held-out", text()), ("--data", "shards/words_train_000000.bin", "--held-out", text())):
        said = refused(*form, *SMALL, "--format", "tokens")
        says(said, '--format tokens: "%s" begins as a text, of which two characters would be a token; leave --format out, or '
             "make shards of it by lockstep data tokens")
        assert f'"{text()}" begins' in said, said
    (FOLDER / "page").write_text("\n<!DOCTYPE HTML>" + text().read_text())
    done = subprocess.run([str(word) for word in (BUILD / "programs/train_gpt", "--data", "page", *SMALL, "--steps", 1,
                                                  "--eval-windows", 1)], cwd=FOLDER, text=True, capture_output=True)
    says(done.stderr, "%s: %d of %d files begin as a page of HTML, whose tags are learned, too; look whether a server sent it "
         "in place of the text")
    assert done.returncode == 0 and "page: 1 of 1 files" in done.stderr, done
    (FOLDER / "plain.bin").write_bytes(struct.pack("<2000H", *bytes_of_text[9000:11000]))
    flags = ("--format", "tokens", "--vocab", 128, "--steps", 40, "--batch", 4, "--lr", 5e-3)
    folder = train(2, "--data", "shards", *flags)
    files = train(2, "--data", "shards/words_train_000000.bin", "--held-out", "plain.bin", *flags)
    for printed in (folder, files):
        assert "vocabulary 128" in printed and judged(printed)[0] > 4.5 and judged(printed)[-1] < 3, printed
    assert judged(folder) == judged(files)


def read_as_llm_c_does(path):
    """Tokens of a shard, with the checks of llm.c's data loader."""
    raw = path.read_bytes()
    magic, version, count = struct.unpack("<3i", raw[:12])
    wide = magic == 20240801
    assert (magic, version) in ((20240520, 1), (20240801, 7)) and len(raw) == 1024 + count * (4 if wide else 2)
    return list(struct.unpack(f"<{count}{'I' if wide else 'H'}", raw[1024:]))


@test
def shards_of_lockstep_data_are_read_by_a_twin_of_llm_cs_loader():
    printed = command(BUILD / "lockstep", "data", "tokens", text(), text(), "--tokenizer", "bytes", "--out", "made",
                      "--shard-tokens", 7000, "-j", 3, cwd=FOLDER)
    found = [token for path in sorted((FOLDER / "made").iterdir()) for token in read_as_llm_c_does(path)]
    assert found == 2 * list(text().read_bytes()), printed
    trained = train(0, "--data", "made/tokens_000000.bin", "--held-out", "made/tokens_000001.bin", "--format", "tokens",
                    "--vocab", 256, "--steps", 2, "--eval-windows", 10)
    assert "6968 windows of 32 tokens to learn from, 218 held out" in trained, trained


@test
def ids_above_65535_take_four_bytes():
    (FOLDER / "wide.json").write_text(json.dumps({
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        "added_tokens": [{"id": 70000, "content": "<z>"}]}))
    (FOLDER / "wide.txt").write_text("ab<z>ba" * 40)
    command(BUILD / "lockstep", "data", "tokens", "wide.txt", "--tokenizer", "wide.json", "--out", "wide", cwd=FOLDER)
    assert read_as_llm_c_does(FOLDER / "wide/tokens_000000.bin") == [2, 70000, 1, 0] * 40
    trained = train(0, "--data", "wide/tokens_000000.bin", "--held-out", "wide/tokens_000000.bin", "--format", "tokens",
                    "--vocab", 70001, "--dim", 4, "--steps", 1, "--batch", 1)
    assert "128 windows of 32 tokens to learn from" in trained, trained


@test
def a_model_of_transformers_is_trained_on_by_its_own_config():
    gpt2(FOLDER / "theirs")
    vocab = json.loads((FOLDER / "theirs/config.json").read_text())["vocab_size"]
    shard(FOLDER / "theirs.bin", list(range(256)) * 4)
    flags = ("--data", "theirs.bin", "--held-out", "theirs.bin", "--format", "tokens", "--steps", 2, "--batch", 2)
    printed = [command(BUILD / "programs/train_gpt", "--init", init, *flags, "--context", 64, cwd=FOLDER)
               for init in ("theirs", "theirs/model.safetensors")]
    for text_of in printed:
        # Its embeddings are zero, so at first all tokens are as probable.
        assert f"vocabulary {vocab}" in text_of and abs(judged(text_of)[0] - math.log(vocab)) < 1e-4, text_of
    assert hash_of(printed[0]) == hash_of(printed[1])
    says(command(BUILD / "programs/train_gpt", "--init", "theirs", "--data", text(), "--steps", 1, "--batch", 1, "--context", 8,
                 cwd=FOLDER),
         "note: the model has %lld tokens, and without --tokenizer a token of the text is a byte; give the tokenizer that it was "
         "trained with")
    refused = subprocess.run(list(map(str, (BUILD / "programs/train_gpt", "--init", "theirs", *flags, "--context", 129))),
                             cwd=FOLDER, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, timeout=60)
    assert refused.returncode == 2, refused.stdout
    assert "--context is 129," in refused.stdout, refused.stdout
    says(refused.stdout, "--context is %lld, the model of --init knows %lld positions")


@test
def recomputed_blocks_end_with_the_same_bits():
    flags = ("--steps", 6, "--batch", 2, "--dropout", 0.2, "--eval-windows", 10, "--layers", 3)
    assert hash_of(train(2, *flags)) == hash_of(train(2, *flags, "--recompute"))


@test
def what_does_not_fit_into_memory_is_refused_with_the_sum_before_it_is_allocated():
    flags = ("--model", "gpt2-xl", "--optim", "sgd", "--momentum", 0, "--batch", 1, "--context", 1024)
    command = [BUILD / "lockstep", "run", "-n", 2, BUILD / "programs/train_gpt", "--data", text(), *flags]
    done = subprocess.run(list(map(str, command)), cwd=FOLDER, text=True, env=dict(os.environ, LOCKSTEP_MEMORY="30000"),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert done.returncode != 0 and "before training" not in done.stdout, done.stdout
    # 1,477,609,600 parameters of 256 tokens, their gradients, 16 x 1600 x 48 + 8 x 1600 + 512 results of 1024 tokens
    assert "1477609600" in done.stdout and "5.50 + gradients 5.50 + optimizer 0.00 + activations 4.74 GiB" in done.stdout
    assert "needs 16.51 GiB per rank; this host runs 2 ranks" in done.stdout, done.stdout


@test
def a_split_text_is_learned_from_one_part_and_judged_by_the_other():
    command(BUILD / "lockstep", "data", "tokens", text(), "--tokenizer", "bytes", "--held-out", 0.1, "--out", "split",
            cwd=FOLDER)
    parts = {}
    for part in ("train", "val"):
        data = (FOLDER / f"split/tokens_{part}_000000.bin").read_bytes()[1024:]
        parts[part] = bytes(data[::2])  # tokens of bytes, two bytes each
    whole = pathlib.Path(text()).read_bytes()
    assert parts["train"] + parts["val"] == whole
    assert 0.09 < len(parts["val"]) / len(whole) < 0.11, len(parts["val"])
    printed = train(0, "--steps", 2, "--batch", 2, "--data", "split", "--format", "tokens", "--vocab", 256)
    says(printed, "held-out loss")
    says(printed, "held-out accuracy")
    again = subprocess.run([str(BUILD / "lockstep"), "data", "tokens", str(text()), "--tokenizer", "bytes", "--held-out",
                            "0.1", "--out", "split"], cwd=FOLDER, text=True, capture_output=True)
    assert again.returncode == 1 and "holds tokens_train_000000.bin already" in again.stderr, again


@test
def text_through_a_tokenizer_is_learned_as_the_shards_made_of_it():
    flags = ("--steps", 10, "--batch", 4, "--lr", 5e-3, "--eval-windows", 20, "--log-losses")
    printed = train(0, "--tokenizer", TOKENIZER, "--save", "words", *flags, "text.losses")
    vocabulary = int(re.search(r"vocabulary (\d+)", printed).group(1))
    assert judged(printed)[-1] < judged(printed)[0] < math.log(vocabulary) + 0.2, printed
    whole = text().read_bytes()
    held_out = int(len(whole) * 0.1)
    for name, part in (("first", whole[:-held_out]), ("last", whole[-held_out:])):
        (FOLDER / name).write_bytes(part)
        command(BUILD / "lockstep", "data", "tokens", name, "--tokenizer", TOKENIZER, "--begin", "none", "--out",
                f"of-{name}", cwd=FOLDER)
    shards = train(0, "--data", "of-first/tokens_000000.bin", "--held-out", "of-last/tokens_000000.bin", "--format",
                   "tokens", "--vocab", vocabulary, *flags, "shards.losses")
    assert (FOLDER / "shards.losses").read_text() == (FOLDER / "text.losses").read_text()
    assert judged(shards) == judged(printed)
    written = command(BUILD / "programs/generate", "--checkpoint", "words", "--tokenizer", TOKENIZER, *SMALL, "--prompt",
                      "the", "--tokens", 5, "--greedy", cwd=FOLDER)
    assert written.startswith("the"), written


@test
def zero_has_the_losses_of_data_parallelism():
    flags = ("--steps", 6, "--batch", 2, "--clip", 0.5, "--eval-windows", 4, "--eval-every", 2, "--log-losses")
    plain = train(3, "--export", "plain.safetensors", *flags, "plain.losses")
    for zero in (1, 2, 3):
        name = f"zero{zero}"
        printed = train(3, "--zero", zero, "--save", name, "--every", 3, "--export", f"{name}.safetensors", *flags,
                        f"{name}.losses")
        assert (FOLDER / f"{name}.losses").read_text() == (FOLDER / "plain.losses").read_text()
        assert (FOLDER / f"{name}.safetensors").read_bytes() == (FOLDER / "plain.safetensors").read_bytes()
        assert hash_of(printed) == hash_of(plain)
        says(printed, "zero %lld: a step sends %llu bytes on each rank; of the %llu bytes of all buckets %llu are padding")
        sent, bytes, padding = map(int, re.search(r"sends (\d+) bytes on each rank; of the (\d+) .* (\d+) are", printed).groups())
        assert sent == (3 if zero == 3 else 2) * 2 * bytes // 3 and padding < bytes / 20, printed


@test
def zero_within_groups_of_two_has_the_losses_of_data_parallelism():
    flags = ("--steps", 3, "--batch", 1, "--clip", 0.5, "--eval-windows", 4, "--log-losses")
    plain = train(4, *flags, "four.losses")
    divided = train(4, "--zero", 3, "--shard-group", 2, *flags, "pairs.losses")
    assert (FOLDER / "pairs.losses").read_text() == (FOLDER / "four.losses").read_text()
    assert hash_of(divided) == hash_of(plain)
    sent, bytes = map(int, re.search(r"sends (\d+) bytes on each rank; of the (\d+) ", divided).groups())
    assert sent == 3 * bytes // 2 + bytes // 2, divided  # within, and an all-reduce of half across


@test
def a_full_disk_under_zero_leaves_the_checkpoint_before():
    disk, kept = FOLDER / "small-disk", FOLDER / "kept"
    script = f'mount -t tmpfs -o size=600k none "$0" && "$@"; status=$?; cp -r "$0/saved" {kept}; exit $status'
    disk.mkdir()
    inside = ["unshare", "-rm", "sh", "-c", script, disk]
    if subprocess.run([*inside[:-2], "mount -t tmpfs none \"$0\"", disk], capture_output=True).returncode:
        raise Skip("no file system can be mounted (needs unshare -rm)")
    flags = ("--data", text(), *SMALL, "--batch", 1, "--zero", 3, "--every", 2)
    words = [BUILD / "lockstep", "run", "-n", 2, BUILD / "programs/train_gpt", *flags, "--steps", 6, "--save", disk / "saved"]
    done = subprocess.run([*map(str, inside), *map(str, words)], cwd=FOLDER, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    assert done.returncode == 1 and "No space left on device" in done.stdout and str(disk) in done.stdout, done.stdout
    assert sorted(path.name for path in kept.glob("step-*")) == ["step-00000002"], done.stdout
    assert "trained 1 steps" in train(2, "--resume", kept, "--steps", 3)


@test
def wrong_flags_and_unusable_text_are_refused_in_words():
    (FOLDER / "short").write_text("too short")
    said = command(BUILD / "lockstep", "train", "gpt", "--data", text(), *SMALL, "--dim", 16, "-n", 2, "--steps", 1, "--export",
                   "other.safetensors", cwd=FOLDER)
    assert "replicas identical: 2 of 2" in said, said  # -n may stand anywhere
    (FOLDER / "words.bin").write_bytes(b"\xff\xff" * 2000)
    for status, words, *flags in (
            (2, "--data is missing"),
            (2, '--model is "bert"; give gpt, moe, llama, mixtral, lstm, gpt2', "--data", text(), "--model", "bert"),
            (2, "--dim 30 is not a multiple of --heads 4", "--data", text(), "--dim", 30),
            (2, sentence("--shard-group %lld without --zero: nothing is divided; give --zero 1, 2 or 3, or leave --shard-group "
                      "out"), "--data", text(), "--shard-group", 2),
            (1, sentence("--shard-group %lld: %lld ranks have the same parameters, which are not a multiple of it; give a "
                      "divisor of %lld"), "--data", text(), "--zero", 1, "--shard-group", 2),
            (2, "--held-out is for --format tokens", "--data", text(), "--held-out", text()),
            (2, "--vocab is 99; the tokenizer has 256 tokens", "--data", text(), "--vocab", 99),
            (2, "--tokenizer is for --format text", "--data", text(), "--tokenizer", TOKENIZER, "--format", "tokens"),
            (1, '"nowhere"', "--data", text(), "--tokenizer", "nowhere"),
            (1, "the longest has 7 tokens, a window of context 128 needs 129", "--data", "short", "--tokenizer", TOKENIZER),
            (1, sentence("text: every file is shorter than a window: the longest has %lld tokens, a window of context %lld "
                      "needs %lld; give more text or a smaller context"), "--data", "short", "--tokenizer", TOKENIZER),
            (2, '--format is "words"; give text or tokens', "--data", text(), "--format", "words"),
            (1, '"nowhere"', "--data", "nowhere", "--format", "tokens"),
            (2, '--dtype is "half"; give float32 or bf16', "--data", text(), "--dtype", "half"),
            (1, 'error: tokens: "words.bin" has token 65535 at offset 0', "--data", "words.bin", "--format", "tokens",
             "--held-out", "words.bin", *SMALL),
            (1, sentence("--init: %s. The model is built as --model and its sizes say, or as the config.json beside the weights"),
             "--data", text(), *SMALL, "--init", "other.safetensors"),
            (1, 'cannot read "nowhere": No such file or directory', "--data", "nowhere"),
            (1, "shorter than a window", "--data", "short")):
        done = subprocess.run([BUILD / "programs/train_gpt", *map(str, flags)], cwd=FOLDER, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=60)
        assert done.returncode == status, (flags, done.returncode, done.stdout)
        says(done.stdout, words)


run()
