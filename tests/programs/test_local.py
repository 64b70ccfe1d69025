# SPDX-License-Identifier: Apache-2.0
"""--local-steps: averages of parameters in the trainers; checkpoints within and between rounds."""

import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
from sentences import says
from tap import BUILD, command, run, test
from training import SMALL, hash_of, images, text, train

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-local-")
FOLDER = pathlib.Path(SCRATCH.name)
DILOCO = ("--local-steps", 4, "--outer", "diloco")


def flags_of(*flags):
    return ("--data", text(FOLDER, 3000), *SMALL, "--batch", 2, "--dropout", 0.1, "--eval-windows", 8, *flags)


def gpt(ranks, *flags):
    return train("train_gpt", ranks, *flags_of(*flags), cwd=FOLDER)


def refused(*flags):
    done = subprocess.run([BUILD / "programs/train_gpt", *map(str, flags_of(*flags))], cwd=FOLDER, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, text=True)
    assert done.returncode == 2 and "step 1/" not in done.stdout, (flags, done.stdout, done.stderr)
    return done.stderr


def fresh(name):
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    return FOLDER / name


def losses_of(ranks, *flags):
    """What a run prints, the losses that it writes, and its weights."""
    gone = [FOLDER / "losses", FOLDER / "end.safetensors"]
    for path in gone:
        path.unlink(missing_ok=True)
    printed = gpt(ranks, *flags, "--log-losses", gone[0], "--export", gone[1])
    return printed, gone[0].read_text(), gone[1].read_bytes()


@test
def every_trainer_takes_local_steps():
    said = "parameters are averaged every 2 steps\n"
    windows = ("--data", text(FOLDER, 3000), "--layers", 1, "--dim", 32, "--heads", 2, "--context", 32, "--batch", 2)
    for printed in (gpt(3, "--steps", 5, "--local-steps", 2),
                    train("train_bert", 2, *windows, "--steps", 4, "--local-steps", 2, cwd=FOLDER),
                    train("train_image", 2, "--data", images(FOLDER), "--classes", 4, "--model", "mlp", "--batch", 4, "--steps",
                          4, "--local-steps", 2, cwd=FOLDER)):
        assert said in printed and hash_of(printed), printed
    assert hash_of(gpt(0, "--steps", 4, "--local-steps", 2)) == hash_of(gpt(0, "--steps", 4))


@test
def one_local_step_of_sgd_is_that_of_averaged_gradients():
    sgd = ("--steps", 12, "--optim", "sgd", "--momentum", 0, "--lr", 0.05, "--clip", 0)
    ddp, local = (losses_of(4, *sgd, *flags)[1].split() for flags in ((), ("--local-steps", 1)))
    assert len(ddp) == 24 and all(abs(float(a) - float(b)) < 1e-4 for a, b in zip(ddp, local)), (ddp, local)
    adam = [losses_of(4, "--steps", 12, "--clip", 0, *flags)[1].split() for flags in ((), ("--local-steps", 1))]
    assert max(abs(float(a) - float(b)) for a, b in zip(*adam)) > 1e-4, adam


def check_resumed(ranks, every, kept, *flags):
    """A run that goes on from step `kept` of 24 ends as the one that was not interrupted."""
    folder = fresh("resumed")
    whole = losses_of(ranks, "--steps", 24, *flags)
    again = losses_of(ranks, "--steps", 24, *flags, "--save", folder, "--every", every)
    assert again[1:] == whole[1:] and "each rank's state" in again[0], again[0]
    shutil.rmtree(folder / "step-00000024")
    assert (folder / f"step-{kept:08d}").is_dir(), sorted(folder.iterdir())
    printed = gpt(ranks, "--steps", 24, *flags, "--resume", folder, "--export", FOLDER / "resumed.safetensors")
    assert f"going on at step {kept}\n" in printed and hash_of(printed) == hash_of(whole[0]), printed
    assert (FOLDER / "resumed.safetensors").read_bytes() == whole[2]


@test
def runs_go_on_from_within_a_round_and_from_between_two():
    for ranks in (1, 3, 4):
        check_resumed(ranks, 6, 18, *DILOCO)
    check_resumed(2, 8, 16, *DILOCO)
    check_resumed(3, 6, 18, "--local-steps", 4, "--outer", "slowmo:momentum=0.6", "--optim", "sgd", "--lr", 0.05)
    check_resumed(2, 6, 18, "--local-steps", 4, "--local-after", 6)
    check_resumed(2, 6, 18, "--local-steps", 5, "--local-after", 19, "--outer", "diloco")


@test
def a_killed_run_goes_on():
    folder = fresh("killed")
    flags = ("--steps", 2000, "--lr-schedule", "constant", *DILOCO)
    going = [BUILD / "lockstep", "run", "-n", 2, BUILD / "programs/train_gpt", *flags_of(*flags), "--save", folder, "--every", 6]
    job = subprocess.Popen([str(a) for a in going], cwd=FOLDER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(list(folder.glob("step-*"))) < 2:
        time.sleep(0.01)
    job.send_signal(signal.SIGKILL)
    job.wait()
    time.sleep(1)
    newest = max(int(path.name[5:]) for path in folder.glob("step-*"))
    steps = newest + 9
    printed = gpt(2, "--steps", steps, *flags[2:], "--lr-schedule-steps", 2000, "--resume", folder, "--warmup", 160)
    whole = gpt(2, "--steps", steps, *flags[2:], "--lr-schedule-steps", 2000, "--warmup", 160)
    assert hash_of(printed) == hash_of(whole), (newest, printed, whole)


@test
def other_numbers_of_ranks_and_other_kinds_of_training_go_on_from_the_mean():
    folder, anew = fresh("mean"), "so the optimizer starts anew"
    gpt(3, "--steps", 18, *DILOCO, "--save", folder, "--every", 6)
    shutil.rmtree(folder / "step-00000018")
    assert (folder / "step-00000012").is_dir()
    for ranks, flags in ((1, DILOCO), (2, DILOCO), (4, ()), (3, ("--local-steps", 0))):
        printed = gpt(ranks, "--steps", 15, *flags, "--resume", folder)
        assert anew in printed and "going on at step 12" in printed and hash_of(printed), printed
    ddp = fresh("ddp")
    gpt(2, "--steps", 6, "--save", ddp)
    printed = gpt(2, "--steps", 12, *DILOCO, "--resume", ddp)
    assert anew not in printed and "going on at step 6" in printed and hash_of(printed), printed


@test
def text_is_generated_from_the_mean():
    folder = fresh("written")
    gpt(2, "--steps", 10, *DILOCO, "--save", folder, "--every", 7)
    shutil.rmtree(folder / "step-00000010")
    written = command(BUILD / "programs/generate", "--checkpoint", folder, "--prompt", "the ", "--tokens", 5, cwd=FOLDER)
    assert "the " in written, written


@test
def post_local_sgd_begins_with_averaged_gradients():
    plain = losses_of(3, "--steps", 16)[1].splitlines()
    post = losses_of(3, "--steps", 16, "--local-steps", 4, "--local-after", 8)[1].splitlines()
    assert plain[:9] == post[:9] and plain[9:] != post[9:], (plain, post)


@test
def a_signal_ends_training_after_a_round():
    folder = fresh("signal")
    going = [BUILD / "lockstep", "run", "-n", 2, BUILD / "programs/train_gpt", *flags_of("--steps", 100000, *DILOCO), "--save",
             folder, "--every", 50]
    job = subprocess.Popen([str(a) for a in going], cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not list(folder.glob("step-*")):
        time.sleep(0.01)
    job.send_signal(signal.SIGINT)
    printed = job.communicate(timeout=120)[0]
    step = int(re.search(r"stopped after step (\d+) of", printed).group(1))
    assert job.returncode == 0 and step % 4 == 0 and hash_of(printed), printed


@test
def federated_rounds_do_not_depend_on_the_number_of_ranks():
    flags = ("--steps", 16, "--local-steps", 4, "--clients", 10, "--per-round", 3, "--lr-schedule", "constant")
    printed, want, _ = losses_of(1, *flags)
    assert "parameters are averaged every 4 steps of 3 of 10 clients\n" in printed and want.count("\n") == 4, (printed, want)
    for ranks in (2, 3, 5):
        printed, losses, _ = losses_of(ranks, *flags)
        near = zip(want.split(), losses.split(), strict=True)
        assert hash_of(printed) and all(abs(float(a) - float(b)) < 1e-5 for a, b in near), (ranks, want, losses)
    other = losses_of(2, *flags, "--seed", 1)[1]
    assert other != want


@test
def federated_rounds_go_on_from_a_checkpoint_of_one_model():
    for ranks, outer in ((2, ()), (3, ("--outer", "diloco")), (4, ("--outer", "slowmo"))):
        folder = fresh("federated")
        flags = ("--steps", 22, "--local-steps", 4, "--clients", 7, "--per-round", 2, *outer)
        whole = gpt(ranks, *flags, "--save", folder, "--every", 6)
        shutil.rmtree(folder / "step-00000022")
        assert (folder / "step-00000020").is_dir(), sorted(folder.iterdir())
        again = gpt(ranks, "--steps", 22, "--resume", folder)
        assert "going on at step 20" in again and "anew" not in again and hash_of(again) == hash_of(whole), (whole, again)
        assert "going on at step 20" in gpt(4, "--steps", 22, "--resume", folder)


@test
def what_federated_rounds_exclude_is_refused_before_the_first_step():
    says(refused("--per-round", 2), "--per-round %lld is for federated rounds: give --clients, their number")
    says(refused("--clients", 2),
         "--clients is for federated rounds: give --local-steps, the steps of a client in a round")
    local = ("--local-steps", 4, "--clients", 8)
    for wrong in ((), ("--per-round", 9)):
        says(refused(*local, *wrong), "--per-round is %lld; give the clients of a round, from 1 to --clients %lld")
    for flags in (("--local-after", 4), ("--log-replay", FOLDER / "log"), ("--feed", "shared")):
        says(refused(*local, "--per-round", 2, *flags),
             "--clients with --%s: federated rounds begin with the first step, have no replay log, and each rank reads the "
             "samples of its clients; leave one of them out")
    says(refused("--local-steps", 4, "--clients", 100000, "--per-round", 2),
         "--clients %lld: %lld samples are less than --batch %lld for each; give fewer clients or a smaller batch")
    norms = subprocess.run([BUILD / "programs/train_image", "--data", images(FOLDER, 3), "--classes", "4", "--model", "resnet18",
                            "--batch", "2", "--local-steps", "2", "--clients", "4", "--per-round", "2"], cwd=FOLDER,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, text=True)
    assert norms.returncode == 2, norms
    says(norms.stderr,
         "--clients: the model has running statistics (batch norm), and those of one client would become the model's; give a "
         "model without")


def replay(log, *changes):
    """The command of the log's header, changed, in one process."""
    if not changes:
        return subprocess.run([BUILD / "lockstep", "replay", log], cwd=FOLDER, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=300, text=True)
    head = log.read_text().split("\n")[1]
    words = shlex.split(head.removeprefix("# command ").replace("\\\\", "\\"))
    assert words[:3] == ["lockstep", "train", "gpt"] and words[-2] == "--workers", words
    return subprocess.run([BUILD / "programs/train_gpt", *words[3:], "--replay", log, *map(str, changes)], cwd=FOLDER,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, text=True)


@test
def every_average_of_a_run_is_made_again_by_one_process():
    log = FOLDER / "it's a log"
    for ranks, averages, *flags in ((2, 4, "--local-steps", 4), (3, 5, *DILOCO, "--accum", 2, "--clip", 0.5),
                                    (5, 5, "--local-steps", 4, "--outer", "slowmo:momentum=0.6", "--optim", "sgd", "--lr", 0.05)):
        log.unlink(missing_ok=True)
        gpt(ranks, "--steps", 14, *flags, "--log-replay", log)
        done = replay(log)
        assert done.returncode == 0 and done.stdout.endswith(f": {averages} versions, each with the bits of the run\n"), done
    lines = log.read_text().split("\n")
    done = replay(log, "--seed", 1)
    assert done.returncode == 1 and f"line {3 + ranks}: average 1 has hash" in done.stdout, done
    says(replay(log, "--workers", 1).stdout, "the log has worker %d, and --workers is %d")
    two = subprocess.run([BUILD / "lockstep", "run", "-n", "2", BUILD / "programs/train_gpt", *map(str, flags_of(*DILOCO)),
                          "--replay", log, "--workers", "2"], cwd=FOLDER, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, timeout=120, text=True)
    assert two.returncode != 0, two
    says(two.stdout, "--replay runs in one process; call it without -n")
    lines[9] = lines[9].replace("worker=1", "worker=2")
    log.write_text("\n".join(lines))
    done = replay(log)
    assert done.returncode == 1 and "line 10: worker 1 of round 1 comes next" in done.stdout, done


@test
def what_local_steps_exclude_is_refused_before_the_first_step():
    for flag, value in (("local-after", 4), ("outer", "diloco")):
        says(refused(f"--{flag}", value),
             "--%s is for local steps: give --local-steps, the steps between two averages of the parameters")
    local = ("--local-steps", 4)
    for wrong in ("adam", "diloco:lr=0", "diloco:momentum=1", "slowmo:beta=2", "diloco:lr", "average:lr=0.5;"):
        says(refused(*local, "--outer", wrong),
             '--outer is "%s"; give average, diloco or slowmo, with settings after a colon: diloco:lr=0.7,momentum=0.9, lr '
             "above 0 and momentum from 0 to below 1")
    says(refused(*local, "--mesh", "dp=1"),
         "--local-steps with %s: local steps are for replicas of whole models in this version; leave one of them out")
    says(refused(*local, "--exact", "layout"),
         "--local-steps with --exact layout: local steps depend on the number of ranks; leave one of them out")
    says(refused(*local, "--zero", 1),
         "--local-steps with --zero: a rank of it steps its part of the parameters only; leave one of them out")
    says(refused(*local, "--comm", "int8"),
         "--local-steps with --comm: averages of parameters are sent as they are; leave one of them out")
    says(refused(*local, "--eval-every", 6),
         "--eval-every %lld with --local-steps %lld: within a round the ranks have different parameters, and none of them is "
         "the model; give a multiple of %lld that divides --local-after")
    says(refused(*local, "--log-replay", FOLDER / "log", "--local-after", 4),
         "--log-replay with --local-after: a replay log has averages of parameters only, and no gradients; leave one of them out")
    says(refused(*local, "--replay", FOLDER / "log"),
         "--replay is for lockstep replay, which takes the command from the log: lockstep replay %s")
    says(refused(*local, "--log-replay", FOLDER / "log", "--resume", FOLDER),
         "--log-replay with --resume: a replay begins with the first step; leave one of them out")


run()
