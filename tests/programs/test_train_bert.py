# SPDX-License-Identifier: Apache-2.0
"""programs/train_bert: it learns what is masked, alike on any number of ranks, and goes on to the bit."""

import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, command, run, test
import training
from training import SMALL, hash_of, judged

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-train-bert-")
FOLDER = pathlib.Path(SCRATCH.name)
WORDS = SOURCE / "tests/unit/tokenizer/fixture/one_word"  # no expression: builds without PCRE2 read it


def text():
    path = FOLDER / "text"
    if not path.exists():
        path.write_text("".join(letter * 40 for letter in "abcdefghij") * 30)
    return path


def train(ranks, *flags):
    return training.train("train_bert", ranks, "--data", text(), *SMALL, *flags, cwd=FOLDER)


def losses(name):
    return [float(line.split()[-1]) for line in open(FOLDER / name)]


@test
def what_is_masked_is_learned():
    printed = train(2, "--steps", 150, "--batch", 8, "--lr", 1e-2, "--eval-every", 100, "--log", "log.jsonl",
                    "--tensorboard", "board")
    first, middle, last = judged(printed)
    assert first > 5 and last < 1.5 and middle < first, printed
    assert "5 of 30 are asked for" in printed  # 15 % of 30, rounded
    assert "vocabulary 259: [MASK] 256, [CLS] 257, [SEP] 258\n" in printed
    lines = [json.loads(line) for line in open(FOLDER / "log.jsonl")]
    assert len([line for line in lines if "loss" in line and "lr" in line]) == 150
    assert list((FOLDER / "board").glob("events.*"))


@test
def one_two_three_and_four_ranks_see_the_same_losses():
    flags = ("--steps", 12, "--lr", 5e-3, "--dropout", 0.1)
    alone = None
    for ranks, batch in ((1, 12), (2, 6), (3, 4), (4, 3)):
        name = f"losses-{ranks}"
        printed = train(ranks, *flags, "--batch", batch, "--log-losses", name)
        found = losses(name)
        alone = alone or found
        assert len(found) == 12 and all(abs(a - b) < 1e-4 * a for a, b in zip(alone, found)), (ranks, alone, found)
        assert f"replicas identical: {ranks} of {ranks}" in printed


@test
def micro_batches_give_the_losses_of_one_batch():
    flags = ("--steps", 6, "--lr", 5e-3)
    train(0, *flags, "--batch", 8, "--log-losses", "whole")
    train(2, *flags, "--batch", 2, "--accum", 2, "--log-losses", "parts")
    whole, parts = losses("whole"), losses("parts")
    assert len(whole) == len(parts) == 6 and all(abs(a - b) < 1e-4 * a for a, b in zip(whole, parts)), (whole, parts)


@test
def recomputed_layers_end_with_the_same_bits():
    flags = ("--steps", 6, "--batch", 2, "--dropout", 0.2, "--eval-windows", 10)
    assert hash_of(train(2, *flags)) == hash_of(train(2, *flags, "--recompute"))


@test
def a_resumed_run_ends_with_the_same_bits():
    flags = ("--steps", 9, "--batch", 2, "--dropout", 0.2, "--eval-windows", 10, "--save", "save", "--every", 3)
    whole = train(2, *flags)
    shutil.rmtree(FOLDER / "save" / "step-00000009")
    rest = train(2, *flags, "--resume", "save")
    assert "going on at step 6\n" in rest
    assert hash_of(rest) == hash_of(whole) and judged(rest)[-1] == judged(whole)[-1]


@test
def exported_weights_are_those_to_begin_with():
    first = train(0, "--steps", 3, "--batch", 2, "--export", "weights.safetensors")
    then = train(0, "--steps", 1, "--batch", 2, "--init", "weights.safetensors", "--lr", 0)
    assert judged(then)[0] == judged(first)[-1], (first, then)
    head = (FOLDER / "weights.safetensors").read_bytes()
    names = json.loads(head[8:8 + struct.unpack("<Q", head[:8])[0]])
    assert "bert.encoder.layer.0.attention.self.query.weight" in names
    assert names["bert.embeddings.word_embeddings.weight"]["shape"] == [259, 32]


@test
def words_of_a_tokenizer_and_shards_are_learned_alike():
    printed = train(0, "--tokenizer", WORDS, "--steps", 20, "--batch", 4, "--lr", 5e-3, "--sep-token", "<|endoftext|>",
                    "--eval-windows", 20)
    vocabulary, mask, first, last = map(int, re.search(
        r"vocabulary (\d+): \[MASK\] (\d+), \[CLS\] (\d+), \[SEP\] (\d+)", printed).groups())
    assert (mask, first, vocabulary) == (vocabulary - 2, vocabulary - 1, mask + 2) and last < mask, printed
    assert judged(printed)[-1] < judged(printed)[0], printed
    command(BUILD / "lockstep", "data", "tokens", text(), "--tokenizer", WORDS, "--out", "shards", cwd=FOLDER)
    shards = train(0, "--data", "shards", "--held-out", "shards", "--format", "tokens", "--vocab", mask, "--steps", 2,
                   "--batch", 2, "--cls-token", -1, "--sep-token", -1, "--eval-windows", 5)
    assert f"vocabulary {mask + 1}: [MASK] {mask}, [CLS] -1, [SEP] -1" in shards and "5 of 32 are asked for" in shards


@test
def wrong_flags_and_unusable_text_are_refused_in_words():
    (FOLDER / "short").write_text("too short")
    for status, words, *flags in (
            (2, "--data is missing"),
            (2, '--model is "gpt"; give bert or bert-base', "--data", text(), "--model", "gpt"),
            (2, "--dim 30 is not a multiple of --heads 4", "--data", text(), "--dim", 30),
            (2, "--held-out is for --format tokens", "--data", text(), "--held-out", text()),
            (2, "--vocab is 99; the tokenizer has 256 tokens", "--data", text(), "--vocab", 99),
            (2, '--context is "2"; give a whole number from 3 to 100000', "--data", text(), "--context", 2),
            (2, '--mask-token is "[mask]", which is not a token of the tokenizer', "--data", text(), "--mask-token", "[mask]"),
            (2, '--sep-token is "x", which is not a token; without a tokenizer give its number', "--data", text(),
             "--format", "tokens", "--sep-token", "x"),
            (2, "--mask-token is -1; a token is in 0", "--data", text(), "--mask-token", -1),
            (1, '"nowhere"', "--data", text(), "--tokenizer", "nowhere"),
            (1, "the longest has 7 tokens, a window of context 126 needs 127", "--data", "short", "--tokenizer", WORDS),
            (1, "shorter than a window", "--data", "short")):
        done = subprocess.run([BUILD / "programs/train_bert", *map(str, flags)], cwd=FOLDER, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=60)
        assert words in done.stdout and done.returncode == status, (flags, done.returncode, done.stdout)


run()
