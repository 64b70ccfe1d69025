# SPDX-License-Identifier: Apache-2.0
"""--mesh: the training programs run a model as a pipeline, to the bits of --accum on one rank."""

import itertools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
from sentences import says, sentence
from tap import BUILD, command, run, test
from training import TCP, images, judged, text

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-train-pipeline-")
LONG = os.environ.get("TEST_LONG") == "1"
FOLDER = pathlib.Path(SCRATCH.name)
STEPS = 20
FILES = itertools.count()


def gpt(*flags):
    """Eight parts, so that four ranks may have two stages each."""
    heads = () if "lstm" in flags else ("--heads", 2)
    return ("train_gpt", "--data", text(FOLDER), "--layers", 6, "--dim", 32, *heads, "--context", 16, "--dropout", 0.2,
            "--batch", 2, "--eval-windows", 40, "--steps", STEPS, *flags)


def image(*flags):
    return ("train_image", "--data", images(FOLDER), "--classes", 4, "--batch", 4, "--lr", 0.02, "--steps", 6, *flags)


def start(ranks, program, *flags, **variables):
    arguments = [BUILD / "lockstep", "run", "-n", ranks, BUILD / "programs" / program, *flags]
    return subprocess.Popen(list(map(str, arguments)), cwd=FOLDER, env={**os.environ, **variables}, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def train(ranks, program, *flags, **variables):
    """What it prints, and the file of its losses."""
    losses = FOLDER / f"losses{next(FILES)}"
    if "resnet18" in flags:  # convolutions are worth oneDNN's kernels (tests/run)
        variables["LOCKSTEP_ONEDNN"] = "1"
    printed = command(BUILD / "lockstep", "run", "-n", ranks, BUILD / "programs" / program, *flags, "--log-losses", losses,
                      cwd=FOLDER, env={**os.environ, **variables})
    return printed, losses.read_text()


ONE = {}


def accumulated(program):
    """The losses of --accum 8 on one rank; made once."""
    if program not in ONE:
        ONE[program] = train(1, *program, "--accum", 8)
    return ONE[program]


def check_equal(want, ranks, program, *flags, **variables):
    printed, losses = train(ranks, *program, *flags, **variables)
    assert losses == want[1] and losses.count("\n") > 0, (flags, variables, losses, want[1])
    assert judged(printed) == judged(want[0]), (flags, variables, printed, want[0])
    trained = re.search(r"trained \d+ steps in \w+, \S+ \w+", want[0]).group()
    assert trained in printed, (trained, printed)  # every sample counts once
    return printed


def check_schedules(ranks):
    """Over TCP with four ranks; tests/dist/train/test_pipeline.c runs every schedule over it with two."""
    for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1"):
        for variables in ({}, TCP) if ranks == 4 else ({},):
            check_equal(accumulated(gpt()), ranks, gpt(), "--mesh", f"pp={ranks}", "--schedule", schedule,
                        "--micro-batches", 8, **variables)


@test
def losses_of_two_stages_are_those_of_accumulation_to_the_byte():
    check_schedules(2)


@test
def losses_of_four_stages_are_those_of_accumulation_to_the_byte():
    check_schedules(4)


@test
def one_stage_cuts_by_names_and_recomputation_compute_the_same():
    for ranks, flags in ((1, ()), (3, ("--cut", "blocks.0 blocks.5")), (2, ("--schedule", "gpipe", "--recompute")),
                         (2, ("--schedule", "zb-h1", "--recompute")), (2, ("--schedule", "interleaved", "--chunks", 3))):
        check_equal(accumulated(gpt()), ranks, gpt(), "--mesh", f"pp={ranks}", *flags)


@test
def any_number_of_micro_batches_will_do():
    for micro in (1, 3):
        check_equal(train(1, *gpt("--accum", micro)), 4, gpt(), "--mesh", "pp=4", "--micro-batches", micro)


@test
def stages_with_replicas_compute_what_replicas_do():
    want = train(2, *gpt("--accum", 4))
    for mesh in ("pp=2,dp=2", "dp=*,pp=2", "dp=2"):
        pipeline = "pp" in mesh
        printed = check_equal(want, 4 if pipeline else 2, gpt(), "--mesh", mesh,
                              *(("--micro-batches", 4) if pipeline else ("--accum", 4)))
        assert re.search(r"replicas identical: (\d) of \1 ", printed), printed


@test
def a_residual_network_computes_the_same_with_batch_norm_for_each_micro_batch():
    program = image("--model", "resnet18", "--steps", 3)
    for ranks in (2, 4) if LONG else (4,):
        check_equal(accumulated(program), ranks, program, "--mesh", f"pp={ranks}", "--schedule", "1f1b")


@test
def other_models_compute_the_same():
    for ranks, program in ((2, image()), (3, image("--model", "cnn")),
                           (2, image("--model", "vit", "--layers", 2, "--clip", 1)),
                           (3, gpt("--model", "lstm", "--layers", 1)), (2, gpt("--dtype", "bf16"))):
        check_equal(accumulated(program), ranks, program, "--mesh", f"pp={ranks}")


def bert(*flags):
    return ("train_bert", "--data", text(FOLDER), "--layers", 2, "--dim", 32, "--heads", 2, "--context", 16, "--batch", 2,
            "--eval-windows", 20, "--steps", 6, *flags)


def close(a, b, relative):
    pairs = [[float(x.split()[1]) for x in lines.splitlines()] for lines in (a, b)]
    return len(pairs[0]) == len(pairs[1]) > 0 and all(math.isclose(*p, rel_tol=relative) for p in zip(*pairs))


@test
def a_tied_embedding_counts_once_in_the_norm_and_is_one_in_the_end():
    losses, norms = {}, {}
    for ranks, flags in ((1, ("--accum", 8)), (2, ("--mesh", "pp=2", "--cut", "bert.embeddings")),  # the mask alone
                         (4, ("--mesh", "pp=4", "--schedule", "zb-h1"))):
        losses[ranks] = train(ranks, *bert("--clip", 0.5, "--log", "norms", "--export", f"tied{ranks}", *flags))[1]
        lines = [json.loads(line) for line in open(FOLDER / "norms")]
        norms[ranks] = [line["grad_norm"] for line in lines if "grad_norm" in line]
    for ranks in (2, 4):
        assert close(losses[1], losses[ranks], 1e-5), losses
        assert all(math.isclose(*pair, rel_tol=1e-5) for pair in zip(norms[1], norms[ranks])), norms
        assert sorted(weights(f"tied{ranks}")) == sorted(weights("tied1"))


def weights(name):
    """Names and bytes of the tensors in a file."""
    raw = (FOLDER / name).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8:8 + length]), raw[8 + length:]
    header.pop("__metadata__", None)
    return {tensor: (about["shape"], data[slice(*about["data_offsets"])]) for tensor, about in header.items()}


@test
def the_whole_model_is_exported_and_read_again():
    whole = train(1, *gpt("--accum", 8, "--export", "whole"))[0]
    train(4, *gpt("--mesh", "pp=4", "--export", "stages"))
    train(4, *gpt("--mesh", "pp=2,dp=2", "--micro-batches", 4, "--export", "replicas"))
    assert weights("stages") == weights("whole")
    assert sorted(weights("replicas")) == sorted(weights("whole"))
    again = train(2, *gpt("--mesh", "pp=2", "--init", "stages", "--steps", 1))[0]
    assert judged(again)[0] == judged(whole)[-1], (again, whole)


@test
def checkpoints_of_four_stages_go_on_with_two_and_one_and_back():
    flags = ("--lr-schedule-steps", STEPS, "--save", "save", "--resume", "save")
    parts = ((4, ("--mesh", "pp=4", "--schedule", "zb-h1"), 5), (2, ("--mesh", "pp=2", "--schedule", "gpipe"), 9),
             (1, ("--accum", 8), 12), (4, ("--mesh", "pp=4", "--schedule", "interleaved"), 16),
             (1, ("--mesh", "pp=1"), STEPS))
    lines, before = "", 0
    for ranks, layout, steps in parts:
        printed, losses = train(ranks, *gpt(*flags, *layout, "--steps", steps))
        assert (f"going on at step {before}\n" if before else "nothing to go on from") in printed, printed
        lines, before = lines + losses, steps
    assert lines == accumulated(gpt())[1], (lines, accumulated(gpt()))


@test
def checkpoints_of_stages_go_on_with_replicas_and_back():
    flags = ("--dropout", 0, "--lr-schedule-steps", STEPS, "--save", "mixed", "--resume", "mixed")
    parts = ((4, ("--mesh", "pp=4"), 5), (2, ("--accum", 4), 10), (4, ("--mesh", "pp=2,dp=2", "--micro-batches", 4), 15),
             (1, ("--accum", 8), STEPS))
    lines = "".join(train(ranks, *gpt(*flags, *layout, "--steps", steps))[1] for ranks, layout, steps in parts)
    want = train(1, *gpt("--dropout", 0, "--accum", 8))[1]
    assert close(lines, want, 1e-4), (lines, want)


@test
def a_run_goes_on_with_its_micro_batches_whatever_they_are_called():
    kept = gpt("--lr-schedule-steps", STEPS, "--save", "called", "--resume", "called")
    forms = ((2, ("--mesh", "pp=2", "--micro-batches", 4), 2), (1, (), 4), (2, ("--mesh", "pp=2"), 6), (1, (), 8))
    lines = "".join(train(ranks, *kept, *layout, "--steps", steps)[1] for ranks, layout, steps in forms)
    assert lines == train(1, *gpt("--accum", 4, "--lr-schedule-steps", STEPS, "--steps", 8))[1], lines
    printed = train(2, *kept, "--mesh", "pp=2", "--micro-batches", 2, "--steps", 9)[0]
    says(printed, "%s: a step of the run so far had %lld micro-batches; it goes on with %lld")


@test
def statistics_of_batch_norm_and_tied_embeddings_come_back_from_checkpoints():
    for program, relative, each in ((image("--model", "resnet18", "--momentum", 0.9, "--steps", 3), 0, 1),
                                    (bert("--clip", 1), 1e-5, 2)):
        folder, lines = FOLDER / f"halves{next(FILES)}", ""
        for part, (ranks, layout) in enumerate(((2, ("--mesh", "pp=2")), (1, ("--accum", 8)), (4, ("--mesh", "pp=4")))):
            lines += train(ranks, *program, *layout, "--lr-schedule-steps", 3 * each, "--steps", (part + 1) * each,
                           "--save", folder, "--resume", folder)[1]
        want = accumulated(program)[1]
        assert lines == want if relative == 0 else close(lines, want, relative), (lines, want)


def until(job, words):
    """Reads what a job prints up to a line with these words."""
    printed = ""
    for line in job.stdout:
        printed += line
        if words in line:
            return printed
    raise AssertionError(f"no line with {words}:\n{printed}")


@test
def a_signal_stops_all_ranks_after_the_same_step_with_a_checkpoint():
    for ranks, mesh in ((4, "pp=4"), (4, "pp=2,dp=2")):
        folder = FOLDER / "stopped"
        shutil.rmtree(folder, ignore_errors=True)
        job = start(ranks, *gpt("--steps", 1000000, "--mesh", mesh, "--save", folder))
        until(job, "] step ")
        job.send_signal(signal.SIGTERM)
        printed = job.communicate(timeout=60)[0]
        assert job.returncode == 0, printed
        step = int(re.search(r"stopped after step (\d+) of 1000000, as a signal asked", printed).group(1))
        assert (folder / f"step-{step:08}").is_dir(), (printed, os.listdir(folder))
        going_on = train(2, *gpt("--steps", step + 1, "--mesh", "pp=2", "--resume", folder))[0]
        assert f"going on at step {step}\n" in going_on, going_on


def rank_of(pid):
    for setting in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        if setting.startswith(b"RANK="):
            return int(setting[5:])
    return None


def processes_of(job):
    """The ranks' processes: {rank: pid}."""
    below, found = [job.pid], {}
    while below:
        pid = below.pop()
        children = [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
                    for child in (task / "children").read_text().split()]
        below += children
        found.update({rank_of(child): child for child in children if rank_of(child) is not None})
    return found


@test
def a_stage_that_is_killed_is_named_by_every_rank():
    for variables in ({}, TCP):
        job = start(4, *gpt("--steps", 1000000, "--mesh", "pp=4"), **variables)
        until(job, "] step ")
        os.kill(processes_of(job)[2], signal.SIGKILL)
        killed = time.monotonic()
        printed = job.communicate(timeout=60)[0]
        assert job.returncode != 0 and time.monotonic() - killed < 30, printed
        for rank in (0, 1, 3):
            assert re.search(rf"^\[{rank}\].*rank 2 ", printed, re.M), (rank, variables, printed)
        assert "rank 2" in printed and "signal 9" in printed, printed


@test
def asynchronous_schedules_learn_and_repeat_their_bits():
    for schedule, mesh in (("pipedream", "pp=4"), ("pipedream-2bw", "pp=2"), ("pipedream", "pp=2,dp=2")):
        flags = ("--mesh", mesh, "--schedule", schedule, "--clip", 0, "--lr", 3e-3, "--dropout", 0)
        ranks = 4 if mesh != "pp=2" else 2
        printed, losses = train(ranks, *gpt(*flags))
        assert judged(printed)[-1] < judged(printed)[0] - 1.5, printed
        assert train(ranks, *gpt(*flags))[1] == losses
        assert schedule != "pipedream" or train(ranks, *gpt(*flags, "--vertical-sync"))[1] != losses


@test
def every_version_of_an_asynchronous_pipeline_is_made_again_by_one_process():
    log = FOLDER / "it's a log"
    few = ("--steps", 3, "--micro-batches", 4, "--clip", 0, "--log-replay", log)
    for ranks, versions, *flags in ((2, 2 * 12, "--schedule", "pipedream", "--mesh", "pp=2", "--vertical-sync", "--dtype", "bf16"),
                                    (2, 2 * 6, "--schedule", "pipedream-2bw", "--mesh", "pp=2"),
                                    (4, 2 * 12, "--schedule", "pipedream", "--mesh", "pp=2,dp=2", "--cut", "blocks.1")):
        train(ranks, *gpt(*few, *flags))
        said = command(BUILD / "lockstep", "replay", log, cwd=FOLDER)
        assert f"{log}: {versions} versions, each with the bits of the run" in said, said
    lines = log.read_text().split("\n")
    lines[8], lines[10] = lines[10], lines[8]
    log.write_text("\n".join(lines))
    done = subprocess.run([BUILD / "lockstep", "replay", log], cwd=FOLDER, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=120, text=True)
    assert done.returncode == 1 and "line 9: micro-batch 2 of stage 1 comes next" in done.stdout, done


def plan(**fields):
    """A file as lockstep plan pipeline writes it, of three ranks for the first stage and one for the last."""
    parts = ["embed", *(f"blocks.{i}" for i in range(6)), "head"]
    path = FOLDER / f"plan{next(FILES)}"
    stages = [{"first": "embed", "replicas": 3}, {"first": "blocks.4", "replicas": 1}]
    path.write_text(json.dumps({"format": "lockstep plan", "version": 1, "model": "gpt", "parts": parts, "workers": 4,
                                "schedule": "1f1b", "micro_batches": 8, "stages": stages, **fields}))
    return path


@test
def a_plan_with_replicated_stages_runs_as_printed():
    want = accumulated(gpt())
    for variables in ({}, TCP):
        printed, losses = train(4, *gpt("--plan", plan(), "--export", "planned"), **variables)
        assert "4 ranks run 1f1b; 1 replica x 2 windows x 8 micro-batches" in printed, printed
        assert "replicas identical: 4 of 4 " in printed, printed
        assert close(losses, want[1], 1e-4), (losses, want)
        assert math.isclose(judged(printed)[-1], judged(want[0])[-1], abs_tol=2e-3), printed
    by_hand = train(4, *gpt("--mesh", "pp=4", "--replicas", "3,1", "--cut", "blocks.4"))
    assert by_hand[1] == losses
    train(1, *gpt("--steps", 1, "--export", "names"))
    assert weights("planned").keys() == weights("names").keys()
    one = [{"first": "embed", "replicas": 2}]
    assert close(train(2, *gpt("--plan", plan(workers=2, stages=one)))[1], want[1], 1e-4)


def refused(ranks, words, program, *flags):
    arguments = [BUILD / "lockstep", "run", "-n", ranks, BUILD / "programs" / program, *flags]
    done = subprocess.run(list(map(str, arguments)), cwd=FOLDER, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert done.returncode != 0 and "before training" not in done.stdout, done.stdout
    says(done.stdout, words)


@test
def what_cannot_be_a_pipeline_is_refused_in_words():
    for ranks, words, flags in (
            (2, "and none that is called \"xp\"", ("--mesh", "pp=2,xp=1")),
            (2, "--mesh: mesh ", ("--mesh", "pp=4")),
            (2, "has no part \"block.3\"", ("--mesh", "pp=2", "--cut", "block.3")),
            (2, "makes 3 stages, and schedule 1f1b on 2 ranks has 2", ("--mesh", "pp=2", "--cut", "blocks.1 head")),
            (2, "it has no vertical sync; only pipedream has", ("--mesh", "pp=2", "--vertical-sync")),
            (2, "it has no chunks; only interleaved has", ("--mesh", "pp=2", "--chunks", 3)),
            (4, "has 3 parts, enough for 1 to 3 stages", ("--mesh", "pp=4", "--layers", 1))):
        refused(ranks, words, *gpt(*flags))
    refused(2, sentence('--schedule %s steps each stage by itself, and "%s" belongs to two; give --schedule 1f1b'),
            *bert("--mesh", "pp=2", "--schedule", "pipedream", "--clip", 0))
    refused(2, sentence("--schedule %s steps each stage by itself, and that of rank %d in pp has no parameters; give another "
                        "--cut, or --schedule 1f1b"),
            *bert("--mesh", "pp=2", "--schedule", "pipedream", "--clip", 0, "--cut", "bert.embeddings"))
    refused(2, "is for 4 ranks, and this job has 2; start it with -n 4", *gpt("--plan", plan()))
    refused(4, "--plan: ", *gpt("--plan", plan(), "--layers", 5))


run()
