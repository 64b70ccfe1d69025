# SPDX-License-Identifier: Apache-2.0
"""--server: training with parameter servers learns what data parallelism over the workers does; its log is replayed."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
import training
from sentences import says, sentence
from tap import BUILD, command, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-server-")
FOLDER = pathlib.Path(SCRATCH.name)
LOCKSTEP = BUILD / "lockstep"
STEPS = 10


def arguments(ranks, *flags):
    text = training.text(FOLDER)
    small = ("--layers", 1, "--dim", 32, "--heads", 2, "--context", 32, "--batch", 4, "--dropout", 0.1,
             "--lr-schedule-steps", STEPS, "--eval-windows", 32, "--clip", 0)
    return [str(a) for a in (LOCKSTEP, "train", "gpt", "-n", ranks, "--data", text, *small, *flags)]


def train(ranks, *flags):
    return command(*arguments(ranks, *flags), cwd=FOLDER)


def fails(*words):
    done = subprocess.run([str(w) for w in words], cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode != 0, done.stdout
    return done.stdout


def emptied(name):
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    return FOLDER / name


def weights(ranks, *flags):
    train(ranks, "--steps", STEPS, "--export", "weights", "--log-losses", "losses", *flags)
    return (FOLDER / "weights").read_bytes(), (FOLDER / "losses").read_bytes()


@test
def a_synchronous_server_has_the_weights_and_losses_of_data_parallelism():
    averaged = weights(3, "--accum", 2, "--clip", 0.5)
    for ranks, how in ((4, "sync"), (5, "sync:servers=2"), (3, "sync:servers=2,colocated")):
        assert weights(ranks, "--accum", 2, "--clip", 0.5, "--server", how) == averaged, how


@test
def waits_of_pulls_and_pushes_are_exposed_communication():
    said = train(3, "--steps", STEPS, "--server", "sync")
    assert float(re.search(r"exposed communication (\d+\.\d) % of the time", said)[1]) > 0, said


@test
def rows_of_experts_are_recorded_beside_servers():
    """Of all workers that make a step together, else of rank 0. Servers take no part."""
    def rows(ranks, *flags):
        train(ranks, "--steps", 3, "--layers", 2, "--model", "moe", "--experts", 4, "--log", "rows.jsonl", *flags)
        lines = map(json.loads, (FOLDER / "rows.jsonl").read_text().splitlines())
        return [line["expert_rows"] for line in lines if "expert_rows" in line]

    averaged = rows(2)
    assert rows(3, "--server", "sync") == averaged
    assert [2 * sum(step) for step in rows(3, "--server", "async")] == [sum(step) for step in averaged]


@test
def checkpoints_go_from_servers_to_data_parallelism_and_back():
    whole, _ = weights(2)
    for first, then in (((4, "--server", "sync:servers=2"), (2,)), ((2,), (3, "--server", "sync"))):
        folder = emptied("run")
        train(*first, "--steps", 4, "--save", folder)
        train(*then, "--steps", STEPS, "--resume", folder, "--export", "weights")
        assert (FOLDER / "weights").read_bytes() == whole, (first, then)


def logged(ranks, how, *flags):
    train(ranks, "--steps", STEPS, "--server", how, "--log-replay", "the log", *flags)
    return FOLDER / "the log"


@test
def every_version_of_an_asynchronous_run_is_made_again():
    for ranks, how, versions in ((4, "async", 3 * STEPS), (5, "async:servers=2", 2 * 3 * STEPS),
                                 (3, "stale=1:colocated,servers=3", 3 * 3 * STEPS), (4, "sync:servers=2", 2 * STEPS),
                                 (3, "sync", STEPS)):
        clip = ("--clip", 0.5) if "sync" in how and "async" not in how else ()
        log = logged(ranks, how, "--accum", 2, *clip, "--save", emptied("run"), "--every", 4, "--eval-every", 5)
        said = command(LOCKSTEP, "replay", log, cwd=FOLDER)
        assert f"{log}: {versions} versions, each with the bits of the run" in said, said
        assert "no end" not in said, said
    log.write_text(log.read_text()[:-40])  # the end, and a part of the last push
    said = command(LOCKSTEP, "replay", log, cwd=FOLDER)
    says(said, sentence("the log has no end: the run was killed, its disk was full, or lines are missing"))
    assert f"{log}: {STEPS - 1} versions" in said, said


@test
def a_log_with_one_event_moved_fails_at_that_event():
    log = logged(4, "async")
    lines = log.read_text().splitlines()
    at = len(lines) - 5
    moved, other = (line.split() for line in lines[at:at + 2])
    moved[1:4], other[1:4] = other[1:4], moved[1:4]  # made and hash stay
    lines[at:at + 2] = " ".join(moved), " ".join(other)
    log.write_text("\n".join(lines) + "\n")
    said = fails(LOCKSTEP, "replay", log)
    assert f", line {at + 1}" in said, said


@test
def a_log_of_more_workers_than_its_command_says_is_refused():
    log = logged(4, "sync") # asynchronously, a version of other data might be compared before
    log.write_text(log.read_text().replace("--workers 3", "--workers 2"))
    refused(sentence("the log has worker %d, and --workers is %d"), LOCKSTEP, "replay", log)


@test
def a_job_whose_worker_dies_goes_on_from_its_checkpoint():
    folder = emptied("run")
    script = FOLDER / "once"
    script.write_text("#!/bin/sh\n[ $RANK != 1 ] || [ -e died ] || { touch died; (until ls run/step-* || ! kill -0 $$; do sleep 0.1; done; "
                      "kill -9 $$) >/dev/null 2>&1 & }\nexec \"$@\"\n")
    script.chmod(0o755)
    (FOLDER / "died").unlink(missing_ok=True)
    done = subprocess.run([str(w) for w in (LOCKSTEP, "run", "-n", 4, "--max-restarts", 1, script, *arguments(4)[:3],
                                            *arguments(4)[5:], "--steps", 2000, "--server", "async", "--save", folder,
                                            "--resume", folder, "--every", 50)],
                          cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert "going on at step" in done.stdout and "replicas identical: 4 of 4" in done.stdout, done.stdout


def refused(wanted, *words):
    says(fails(*words), wanted)


@test
def options_that_do_not_go_with_servers_are_refused():
    for how in ("fast", "sync:servers", "sync:fast=1", "stale=x"):
        refused(sentence("--server is \"%s\"; give sync, async or stale=N, and after a colon servers=N, backup=N or colocated, as in "
                "sync:servers=2,backup=1"), *arguments(2, "--server", how))
    refused(sentence("servers train replicas of whole models, whose gradients are sent as they are; leave one of them out"),
            *arguments(2, "--server", "sync", "--zero", 1))
    for how in ("async", "stale=1", "sync:backup=1"):
        refused(sentence("a version is not made of the gradients of all workers, so there is no common one whose norm could be "
                "limited; give --clip 0"), *arguments(4, "--server", how, "--clip", 1))
    for more in ((), ("--mesh", "pp=2")):
        refused(sentence("--log-replay is the log of servers, of averages or of a pipeline that steps within a batch; give --server, "
                         "--local-steps or --schedule pipedream as well"), *arguments(2, "--log-replay", "log", *more))
    refused(sentence("servers of %d ranks leave no worker; start more ranks"), *arguments(2, "--server", "sync:servers=2"))
    refused(sentence("--replay is for lockstep replay, which takes the command from the log: lockstep replay %s"),
            *arguments(1, "--replay", "log"))
    refused(sentence("--replay begins with the first values of the parameters, and the log of a run that went on from a checkpoint "
            "does not"), *arguments(1, "--replay", "log", "--workers", 1, "--resume", "run"))


@test
def a_replay_is_of_one_process():
    refused(sentence("--replay runs in one process; call it without -n"), LOCKSTEP, "run", "-n", 2, LOCKSTEP, "replay", logged(2, "sync"))


@test
def a_log_without_a_command_is_refused():
    (FOLDER / "none").write_text("# lockstep replay 1\n# shards 1\n")
    refused(sentence("a program of your own replays its log with ls_server_replay, ls_average_replay or ls_pipeline_replay"), LOCKSTEP, "replay", "none")
    assert "cannot read" in fails(LOCKSTEP, "replay", "missing")
    refused(sentence("give one log"), LOCKSTEP, "replay")


run()
