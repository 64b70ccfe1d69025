# SPDX-License-Identifier: Apache-2.0
"""--shares: how many samples of a step each rank gets, and what follows for losses, weights and checkpoints."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
from sentences import says
from tap import BUILD, run, test
from training import SMALL, hash_of, text, train

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-shares-")
FOLDER = pathlib.Path(SCRATCH.name)


def flags_of(*flags):
    return ("--data", text(FOLDER, 3000), *SMALL, "--dropout", 0.1, "--eval-windows", 8, *flags)


def gpt(ranks, *flags):
    return train("train_gpt", ranks, *flags_of(*flags), cwd=FOLDER)


def losses_of(ranks, *flags):
    path = FOLDER / "losses"
    path.unlink(missing_ok=True)
    printed = gpt(ranks, *flags, "--log-losses", path)
    return printed, [float(line.split()[1]) for line in path.read_text().splitlines()]


@test
def shares_train_what_one_rank_with_all_samples_does():
    """The mean over the samples, the dropout masks and the order of samples do not depend on the shares."""
    flags = ("--steps", 12, "--clip", 0.5)
    whole = losses_of(1, *flags, "--batch", 12)[1]
    for shares, ranks in (("11,1", 2), ("2,9,1", 3), ("6,6", 2)):
        printed, got = losses_of(ranks, *flags, "--batch", 12 // ranks, "--shares", shares)
        assert hash_of(printed) and len(got) == 12, printed
        assert max(abs(a - b) for a, b in zip(whole, got)) < 2e-4, (shares, whole, got)
    even, given = (losses_of(3, *flags, "--batch", 4, "--accum", 2, *shares)[1] for shares in ((), ("--shares", "4,4,4")))
    assert max(abs(a - b) for a, b in zip(even, given)) < 2e-4, (even, given)


@test
def equal_shares_give_equal_bits_and_a_resumed_run_goes_on_with_them():
    folder = FOLDER / "saved"
    flags = ("--steps", 12, "--batch", 4, "--shares", "6,1,5")
    printed = gpt(3, *flags, "--save", folder, "--every", 5)
    assert hash_of(printed) == hash_of(gpt(3, *flags))
    shutil.rmtree(folder / "step-00000012")
    assert hash_of(gpt(3, "--steps", 12, "--resume", folder)) == hash_of(printed)
    two = gpt(2, "--steps", 12, "--batch", 6, "--shares", "auto", "--resume", folder)
    assert "going on at step 10" in two and "starts anew" not in two and hash_of(two), two
    assert "going on at step 10" in gpt(2, "--steps", 12, "--shares", "even", "--resume", folder)


@test
def a_slow_rank_is_named_and_gets_fewer_samples():
    """Rank 1 is stopped for three quarters of the time; a run that goes on begins with the shares that were found."""
    folder, printed = FOLDER / "slow", FOLDER / "printed"
    flags = ("--batch", 16, "--dim", 64, "--layers", 2, "--shares", "auto", "--lr-schedule", "constant", "--warmup", 1)
    going = [BUILD / "lockstep", "run", "-n", 2, BUILD / "programs/train_gpt", *flags_of("--steps", 60, *flags), "--save", folder]
    with open(printed, "w") as out:
        job = subprocess.Popen([str(a) for a in going], cwd=FOLDER, stdout=out, stderr=subprocess.STDOUT)
    slow = None
    while job.poll() is None:
        slow = slow or rank_1_of(job.pid)
        if slow is None:
            continue
        try:
            os.kill(slow, signal.SIGSTOP)
            time.sleep(0.03)
            os.kill(slow, signal.SIGCONT)
            time.sleep(0.01)
        except ProcessLookupError:
            break
    assert job.wait() == 0, printed.read_text()
    said = re.search(r"step \d+: rank 1 needs (\S+) times as long as rank 0 for a sample; the shares 16,16 become (\d+),(\d+)\n",
                     printed.read_text())
    assert said and float(said[1]) > 1.2 and int(said[2]) > 16 > int(said[3]), printed.read_text()
    scalars = (folder / "step-00000060" / "scalars.json").read_text()
    found = [float(x) for x in re.findall(r'"ranks\.shares\.\d-of-2": *([\d.]+)', scalars)]
    assert len(found) == 2 and sum(found) == 32 and found[0] != 16, scalars
    again = gpt(2, "--steps", 64, *flags, "--resume", folder, "--save", FOLDER / "again")
    assert "going on at step 60" in again, again
    scalars = (FOLDER / "again" / "step-00000064" / "scalars.json").read_text()
    assert found == [float(x) for x in re.findall(r'"ranks\.shares\.\d-of-2": *([\d.]+)', scalars)], scalars


def rank_1_of(launcher):
    """The process of rank 1, once it is the trainer."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cmdline").read_bytes().split(b"\0")[0].endswith(b"train_gpt") and \
                    b"RANK=1" in (path / "environ").read_bytes().split(b"\0") and \
                    str(FOLDER).encode() in (path / "cmdline").read_bytes():
                return int(path.name)
        except OSError:
            pass
    return None


@test
def shares_that_cannot_be_are_refused_before_the_first_step():
    def refused(*flags):
        done = subprocess.run([BUILD / "programs/train_gpt", *map(str, flags_of("--batch", 4, *flags))], cwd=FOLDER,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, text=True)
        assert done.returncode == 2 and "step 1/" not in done.stdout, (flags, done.stdout, done.stderr)
        return done.stderr

    for wrong in ("5", "4,4", "fast", "0", "4;"):
        says(refused("--shares", wrong),
             '--shares is "%s"; give even, auto, or a list of %d numbers from 1 with the sum %lld (--batch times the ranks), as '
             "in 26,6")
    for flags in (("--local-steps", 2), ("--mesh", "dp=1"), ("--exact", "layout"), ("--feed", "shared")):
        says(refused("--shares", "auto", *flags),
             "--shares with %s: shares are for replicas that average gradients in every step and read their own part of an "
             "epoch; leave one of them out")


run()
