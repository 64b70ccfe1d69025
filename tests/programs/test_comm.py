# SPDX-License-Identifier: Apache-2.0
"""--comm: every trainer sends its gradients by a communication hook, whose state a resumed run goes on with."""

import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
from sentences import says
from tap import BUILD, run, test
from training import SMALL, hash_of, images, judged, text, train

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-comm-")
FOLDER = pathlib.Path(SCRATCH.name)
HOOKS = ("powersgd:rank=2,start=2", "top_k:density=0.05", "random_k:density=0.05", "int8", "one_bit:start=2", "bf16")


def gpt(ranks, *flags):
    return train("train_gpt", ranks, "--data", text(FOLDER, 3000), *SMALL, "--batch", 2, "--dropout", 0.1,
                 "--eval-windows", 8, *flags, cwd=FOLDER)


def refused(*flags):
    done = subprocess.run([BUILD / "programs/train_gpt", "--data", text(FOLDER, 3000), *map(str, flags)], cwd=FOLDER,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, text=True)
    assert done.returncode == 2 and "step 1/" not in done.stdout, (flags, done.stdout, done.stderr)
    return done.stderr


@test
def every_trainer_takes_a_hook():
    flags = ("--steps", 3, "--comm")
    gpt_printed = gpt(2, *flags, "top_k")
    assert "gradients are sent by --comm top_k\n" in gpt_printed, gpt_printed
    assert hash_of(gpt_printed) != hash_of(gpt(2, *flags, "plain")) == hash_of(gpt(2, "--steps", 3))
    windows = ("--data", text(FOLDER, 3000), "--layers", 1, "--dim", 32, "--heads", 2, "--context", 32, "--batch", 2)
    bert = train("train_bert", 2, *windows, *flags, "powersgd:rank=2,start=0", cwd=FOLDER)
    image = train("train_image", 2, "--data", images(FOLDER), "--classes", 4, "--model", "mlp", "--batch", 4, *flags,
                  "int8", cwd=FOLDER)
    for printed in (bert, image):
        assert "gradients are sent by --comm" in printed and hash_of(printed), printed


@test
def a_hook_that_cannot_be_used_is_refused_before_the_first_step():
    says(refused("--comm", "zip"),
         'communication hook "%s" is unknown; give plain, fp16, bf16, powersgd, top_k, random_k, int8 or one_bit, with '
         "settings after a colon: powersgd:rank=4,start=100")
    assert '--comm: communication hook "top_k:rank=2": "rank=2" is not understood; give NAME=NUMBER of: density' in refused(
        "--comm", "top_k:rank=2")
    says(refused("--comm", "int8", "--exact", "layout"),
         "--comm %s with --exact layout: a hook sends other bits on other numbers of ranks; leave one of them out, or give "
         "--comm plain")
    for mesh in ("pp=2", "tp=2", "dp=1,cp=2"):
        says(refused("--comm", "int8", "--mesh", mesh),
             "--comm %s with %s: hooks are for replicas of whole models in this version, since ranks with other parts would "
             "save their residuals under one name; give --comm plain, or --mesh dp alone")


@test
def one_rank_sends_nothing():
    printed = gpt(0, "--steps", 3, "--comm", "one_bit")
    says(printed, "one rank sends no gradients: --comm %s changes nothing")
    assert hash_of(printed) == hash_of(gpt(0, "--steps", 3))


def resumed(ranks, *flags):
    """From step 6 of `halves`, to step 9."""
    shutil.rmtree(FOLDER / "again", ignore_errors=True)
    shutil.copytree(FOLDER / "halves", FOLDER / "again")
    return gpt(ranks, "--steps", 9, "--resume", "again", "--log-losses", "rest", *flags)


def halves(hook):
    """A run of 9 steps, of which `halves` has the checkpoint of the sixth; what it printed."""
    for old in ("halves", "whole", "rest"):
        shutil.rmtree(FOLDER / old, ignore_errors=True)
        (FOLDER / old).unlink(missing_ok=True)
    whole = gpt(2, "--steps", 9, "--save", "halves", "--every", 3, "--log-losses", "whole", *hook)
    shutil.rmtree(FOLDER / "halves/step-00000009")
    return whole


@test
def a_resumed_run_with_a_hook_ends_with_the_same_bits():
    for hook in HOOKS:
        whole = halves(("--comm", hook))
        (FOLDER / "rest").write_text("".join((FOLDER / "whole").read_text().splitlines(True)[:6]))
        rest = resumed(2)  # the folder says the hook
        assert f"gradients are sent by --comm {hook}\n" in rest and "going on at step 6\n" in rest, rest
        assert "residuals" not in rest and hash_of(rest) == hash_of(whole), (hook, rest, whole)
        assert (FOLDER / "rest").read_bytes() == (FOLDER / "whole").read_bytes(), hook


ANEW = "%s: no state of --comm %s on %d rank%s, because that run had another hook, none, or another number of ranks: its " \
       "residuals start from zero"


@test
def a_run_says_that_it_starts_a_hook_anew():
    halves(("--comm", "powersgd:rank=2,start=2"))
    for ranks, *hook in ((3,), (1,), (2, "--comm", "powersgd:rank=1"), (2, "--comm", "top_k"), (2, "--comm", "fp16")):
        printed = resumed(ranks, *hook)
        says(printed, ANEW)
        assert "going on at step 6\n" in printed and judged(printed)[-1] < judged(printed)[0], printed
    says(resumed(2, "--comm", "plain"),
         "%s: the run so far had a communication hook, and this one has none: what the hook had not sent yet is dropped")
    whole = halves(())
    says(resumed(2, "--comm", "int8"), ANEW)
    assert hash_of(resumed(2)) == hash_of(whole)


@test
def a_residual_is_kept_where_two_hooks_have_the_same():
    halves(("--comm", "top_k:density=0.05"))
    kept, anew = resumed(2, "--comm", "random_k"), resumed(2, "--comm", "powersgd")
    assert "start from zero" not in kept and "start from zero" in anew, (kept, anew)


run()
