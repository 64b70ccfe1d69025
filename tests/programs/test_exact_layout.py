# SPDX-License-Identifier: Apache-2.0
"""--exact layout: the bits of a training do not depend on the number of ranks."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
from sentences import says, sentence
from tap import BUILD, command, run, test
from training import TCP, hash_of, images, text

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-exact-layout-")
FOLDER = pathlib.Path(SCRATCH.name)
RANKS = (1, 2, 4, 8)
LONG = os.environ.get("TEST_LONG") == "1"


def gpt(*flags):
    return ("train_gpt", "--data", text(FOLDER), "--layers", 2, "--dim", 64, "--heads", 2, "--context", 32, "--dropout",
            0.2, "--batch", 2, "--clip", 0.5, "--eval-windows", 8, *flags)


def resnet(*flags):
    return ("train_image", "--data", images(FOLDER, 3), "--classes", 4, "--model", "resnet18", "--batch", 2, "--optim",
            "sgd", "--lr", 0.02, *flags)


def train(ranks, program, *flags, **variables):
    """What it prints; the weights and the losses that it writes."""
    end, losses = FOLDER / "end.safetensors", FOLDER / "losses"
    losses.unlink(missing_ok=True)
    printed = command(BUILD / "lockstep", "run", "-n", ranks, BUILD / "programs" / program, *flags, "--exact", "layout",
                      "--export", end, "--log-losses", losses, cwd=FOLDER, env={**os.environ, **variables})
    return printed, end.read_bytes(), losses.read_text()


def check_equal(program, steps, ranks_of=RANKS):
    want = train(1, *program, "--steps", steps)
    assert want[2].count("\n") == steps
    for ranks in ranks_of[1:]:
        for variables in ({}, TCP) if ranks == 4 or LONG else ({},):
            printed, weights, losses = train(ranks, *program, "--steps", steps, **variables)
            assert losses == want[2], (ranks, variables, losses, want[2])
            assert weights == want[1], (ranks, variables)
            assert hash_of(printed) == hash_of(want[0])


@test
def a_gpt_with_dropout_has_the_same_bits_on_1_2_4_and_8_ranks():
    check_equal(gpt(), 5)


@test
def an_image_network_with_batch_norm_has_the_same_bits_on_1_2_4_and_8_ranks():
    check_equal(resnet(), 2, RANKS if LONG else (1, 4))


@test
def threads_and_buckets_do_not_change_the_bits():
    want = train(1, *gpt(), "--steps", 3, LOCKSTEP_THREADS="1")
    for variables, flags in (({"LOCKSTEP_THREADS": "3"}, ()), ({}, ("--bucket-bytes", 4096))):
        assert train(2, *gpt(), "--steps", 3, *flags, **variables)[1:] == want[1:], (variables, flags)


@test
def a_training_that_stops_on_4_ranks_ends_on_2_with_the_same_bits():
    for model, ranks in ((gpt, 8), (resnet, 1)):
        steps = ("--steps", 4, "--lr-schedule-steps", 4)
        want = train(ranks, *model(), *steps)
        shutil.rmtree(FOLDER / "save", ignore_errors=True)
        train(4, *model("--steps", 2, "--lr-schedule-steps", 4, "--save", "save"))
        printed, weights, losses = train(2, *model(), *steps, "--resume", "save")
        assert "going on at step 2\n" in printed
        assert weights == want[1] and losses == "".join(want[2].splitlines(True)[2:]), losses


@test
def the_default_depends_on_the_number_of_ranks_and_layout_is_another_sum():
    """Else the tests above would show nothing."""
    hashes = set()
    for ranks in (1, 2):
        printed = command(BUILD / "lockstep", "run", "-n", ranks, BUILD / "programs" / "train_gpt", *gpt()[1:],
                          "--steps", 3, "--batch", 16 // ranks, cwd=FOLDER)
        hashes.add(hash_of(printed))
    hashes.add(hash_of(train(1, *gpt(), "--steps", 3)[0]))
    assert len(hashes) == 3, hashes


@test
def wrong_divisions_are_refused():
    def refused(ranks, *flags):
        done = subprocess.run([str(a) for a in (BUILD / "lockstep", "run", "-n", ranks, BUILD / "programs" / "train_gpt",
                                                *gpt()[1:], "--steps", 1, "--exact", "layout", *flags)], text=True,
                              cwd=FOLDER, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode != 0, done.stdout
        return done.stdout

    says(refused(1, "--accum", 2), "--exact layout divides a step into --shards; leave --accum out")
    says(refused(3), "--exact layout: %lld shards on %lld ranks; both must be powers of two, and the ranks at most as "
                     "many as the shards")
    assert "6 shards on 1 ranks" in refused(1, "--shards", 6)
    assert "8 shards on 16 ranks" in refused(16)


run()
