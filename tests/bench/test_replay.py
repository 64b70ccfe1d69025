# SPDX-License-Identifier: Apache-2.0
"""`lockstep bench replay`, and the timelines that `lockstep bench ddp --timeline` records. Times are only compared in
the direction that a busy machine cannot turn: a sleep is not shorter than it was asked for."""

import json
import math
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from sentences import says, sentence
from tap import BUILD, SOURCE, Skip, command, none_of, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-replay-")
RECORDED = SOURCE / "bench/timelines"
FORWARD, BACKWARD, OPTIMIZER = 0.004, 0.010, 0.002


def timeline(**changes):
    """A made-up one of four gradients; the layers' order is not that of readiness."""
    return {"name": "made-up", "title": "Made up", "batch": 3, "how": "by hand", "command": "none", "date": "2026-11-23",
            "machine": {"cpu": "P", "cores": 2}, "forward_s": FORWARD, "backward_s": BACKWARD, "optimizer_s": OPTIMIZER,
            "gradients": [{"name": f"g{i}", "elements": 1000 * (i + 1), "dtype": dtype, "ready_s": ready}
                          for i, (dtype, ready) in enumerate((("float32", 0.009), ("float32", 0.010),
                                                              ("bfloat16", 0.002), ("float64", 0.005)))], **changes}


def written(content, name="timeline.json"):
    path = pathlib.Path(SCRATCH.name) / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def bench(*arguments):
    done = subprocess.run([BUILD / "lockstep", "bench", *arguments], text=True, capture_output=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def rows_of(*arguments):
    path = pathlib.Path(SCRATCH.name) / "rows.json"
    status, _, errors = bench(*arguments, "--json", path)
    assert status == 0, errors
    return json.loads(path.read_text())


def replayed(*arguments):
    return rows_of("replay", written(timeline()), "--steps", "4", "--rounds", "2", *arguments)


@test
def a_replayed_step_is_not_shorter_than_the_recorded_one():
    for ranks, transport in ((1, "shm"), (3, "shm"), (2, "tcp")):
        rows = replayed("-n", str(ranks), "--transport", transport, "--buckets", "0.008,25")
        assert [(row["mode"], row["buckets"]) for row in rows] == [
            ("naive", "-"), ("flat", "-"), ("bucketed", "0.008"), ("bucketed", "25"), ("overlap", "0.008"),
            ("overlap", "25"), ("local", "-")], rows
        for row in rows:
            assert row["ranks"] == ranks and row["model"] == "made-up" and row["batch"] == 3, row
            for part, least in (("step", FORWARD + BACKWARD + OPTIMIZER), ("forward", FORWARD),
                                ("optimizer", OPTIMIZER)):
                assert all(ms >= least * 1e3 for ms in row["samples_ms"][part]), (part, row)
            whole = zip(*(row["samples_ms"][part] for part in ("forward", "backward", "exposed")))
            assert all(sum(ms) >= (FORWARD + BACKWARD) * 1e3 - 1e-6 for ms in whole), row
        assert rows[-1]["bucket_bytes"] == [] and len(rows[0]["bucket_bytes"]) == 4
        # A gradient each, in the order of readiness, filled up to lines of the cache for each rank.
        for bytes, least in zip(rows[0]["bucket_bytes"], (6000, 32000, 4000, 8000), strict=True):
            assert least <= bytes < least + 512, rows[0]


@test
def twice_the_speed_halves_what_is_slept():
    row, = replayed("-n", "1", "--mode", "local", "--speed", "2")
    _, output, _ = bench("replay", written(timeline()), "-n", "1", "--mode", "local", "--speed", "2", "--steps", "1")
    says(output, "%s, replayed as recorded on %s%s")
    assert "Made up, replayed as recorded on P, 2 cores, 2026-11-23, changed, batch 3" in output, output
    half = (FORWARD + BACKWARD + OPTIMIZER) * 1e3 / 2
    assert row["speed"] == 2 and all(ms >= half for ms in row["samples_ms"]["step"])


@test
def a_replay_divides_the_gradients_that_were_recorded_and_its_rows_have_the_same_keys():
    path = pathlib.Path(SCRATCH.name) / "recorded.json"
    arguments = ("--buckets", "0.001", "--steps", "3", "--rounds", "2")
    ddp = rows_of("ddp", "--model", "mlp-tiny", "-n", "2", "--timeline", path, *arguments)
    kept = json.loads(path.read_text())
    assert [(g["name"], g["elements"], g["dtype"]) for g in kept["gradients"]] == [
        ("0.weight", 96, "float32"), ("0.bias", 8, "float32"), ("2.weight", 64, "float32"), ("2.bias", 8, "float32"),
        ("4.weight", 32, "float32"), ("4.bias", 4, "float32")]
    assert all(0 <= g["ready_s"] <= kept["backward_s"] for g in kept["gradients"]), kept
    assert kept["gradients"][4]["ready_s"] < kept["gradients"][0]["ready_s"], kept  # backward begins with the last layer
    says(kept["how"], "medians of %d steps of %d rank%s; gradients reduced: %s")
    says(kept["command"], "lockstep bench ddp --model %s --batch %d -n %d --mode %s --steps %d --rounds %d")
    assert "of 6 steps of 2 ranks" in kept["how"] and "--batch 4 -n 2 --mode naive --steps 3" in kept["command"]
    assert kept["machine"]["cores"] >= 1 and "release" not in kept["machine"]
    again = rows_of("replay", path, "-n", "2", *arguments)
    more = {"recorded", "speed", "noise", "seed", "skip", "groups", "synchronised"}
    for a, b in zip(ddp, again, strict=True):
        assert set(b) - set(a) == more and set(a) <= set(b), set(a) ^ set(b)
        assert (a["compute"], b["compute"]) == ("measured", "replay")
        for key in ("name", "model", "batch", "ranks", "mode", "buckets", "bucket_bytes", "steps", "rounds", "machine"):
            assert a[key] == b[key], key
        assert set(a["samples_ms"]) == set(b["samples_ms"])


@test
def skipped_steps_do_not_synchronise_and_samples_are_means_over_cycles():
    rows = replayed("-n", "2", "--mode", "overlap,local", "--skip", "1,3,8", "--groups", "1,2")
    assert [(row["mode"], row["skip"], row["groups"], row["synchronised"]) for row in rows] == [
        ("overlap", 1, 1, 8), ("local", 1, 1, 0), ("overlap", 1, 2, 8), ("overlap", 3, 1, 4), ("overlap", 3, 2, 4),
        ("overlap", 8, 1, 2), ("overlap", 8, 2, 2)], rows
    for row in rows:
        samples = row["samples_ms"]["step"]
        assert len(samples) == 2 * math.ceil(4 / row["skip"]) and len(row["round_ms"]) == 2
        assert all(ms >= (FORWARD + BACKWARD + OPTIMIZER) * 1e3 for ms in samples)


@test
def steps_that_skip_synchronisation_reduce_nothing():
    trace = pathlib.Path(SCRATCH.name) / "trace.json"
    # Warm-up, the turn's steps that are not timed, those that are.
    for skip, untimed, reduced in (("1", 1, 1 + 1 + 8), ("4", 1, 1 + 1 + 8 // 4), ("1", 0, 1 + 8), ("1", 3, 1 + 3 + 8)):
        command(BUILD / "lockstep", "bench", "replay", written(timeline()), "-n", "2", "--mode", "naive", "--skip", skip,
                "--warmup", "1", "--rounds", "1", "--steps", "8", "--untimed", str(untimed),
                env=os.environ | {"LOCKSTEP_TRACE": str(trace)})
        made = [event for event in json.loads(trace.read_text())["traceEvents"]
                if event["name"] == "all_reduce" and "bucket" in event["args"].get("of", "") and event["pid"] == 0]
        assert len(made) == 4 * reduced, (skip, len(made))


def draw(seed, rank, step):
    """bench/replay.c's, in (0,1]."""
    mask = 2**64 - 1
    x = (seed * 0x9e3779b97f4a7c15 + (rank << 40) + step) & mask
    for _ in range(2):
        x = (x + 0x9e3779b97f4a7c15) & mask
        x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & mask
        x = ((x ^ x >> 27) * 0x94d049bb133111eb) & mask
        x ^= x >> 31
    return ((x >> 11) + 1) * 2.0**-53


@test
def noise_is_that_of_the_seed():
    row, = replayed("-n", "1", "--mode", "local", "--noise", "0.5", "--seed", "7")
    shares = [-0.5 * math.log(draw(7, 0, step)) for step in range(8)]
    assert 0.1 < sum(shares) / 8 < 2 and len(set(shares)) == 8
    for ms, share in zip(row["samples_ms"]["step"], shares, strict=True):
        assert ms >= ((FORWARD + BACKWARD) * (1 + share) + OPTIMIZER) * 1e3 - 1e-5, (ms, share)


@test
def the_timelines_of_the_command_are_those_of_the_repository():
    problems = []
    paths = sorted(RECORDED.glob("*.json"))
    _, text, _ = bench("replay", "--help")
    for path in paths:
        kept = json.loads(path.read_text())
        gradients = kept["gradients"]
        if kept["name"] != path.stem or path.stem not in text or len(gradients) < 6:
            problems.append(f"{path.stem}: {kept['name']}")
        if not all(kept[key] for key in ("how", "command", "date", "title")) or not 0 < kept["forward_s"] < kept["backward_s"]:
            problems.append(f"{path.stem}: how it was recorded, or how long it took")
        # The last layer's gradient is among the first to be ready, the first layer's among the last.
        order = sorted(range(len(gradients)), key=lambda i: gradients[i]["ready_s"])
        if order.index(0) < len(order) // 2:
            problems.append(f"{path.stem}: the first gradient is ready early")
    none_of(problems, "recorded timelines that are not as they should be")
    row, = rows_of("replay", "resnet18-cifar", "-n", "1", "--mode", "local", "--speed", "1000", "--steps", "1", "--rounds", "1")
    assert row["model"] == "resnet18-cifar" and row["recorded"].count(",") >= 2, row


def refusal(content, expected=1):
    status, output, errors = bench("replay", written(content, "broken.json"), "-n", "1", "--mode", "local")
    assert status == expected and output == "", (status, output, errors)
    return errors


@test
def a_file_that_is_no_timeline_is_refused():
    text, seconds = sentence("a text of 1 to 250 bytes"), sentence("a number of seconds from 0 to 3600")
    count, dtypes = sentence("a count within the limits"), sentence("float32, float64, float16 or bfloat16")
    whole = {"name": "a", "elements": 1, "dtype": "float32", "ready_s": 0}
    for key, changes, kind in (
            ("name", {"name": ""}, text), ("name", {"name": "x" * 251}, text), ("batch", {"batch": 0}, count),
            ("forward_s", {"forward_s": -1}, seconds), ("backward_s", {"backward_s": "long"}, seconds),
            ("optimizer_s", {"optimizer_s": 1e300}, seconds), ("cpu", {"machine": 3}, text), ("date", {"date": None}, text),
            ("gradients", {"gradients": []}, sentence("a list of 1 to 16384")), ("name", {"gradients": [7]}, text),
            ("elements", {"gradients": [{**whole, "elements": 0}]}, count),
            ("elements", {"gradients": [{**whole, "elements": 2**50}]}, count),
            ("dtype", {"gradients": [{**whole, "dtype": "int8"}]}, dtypes),
            ("ready_s", {"gradients": [{**whole, "ready_s": None}]}, seconds)):
        errors = refusal(timeline(**changes))
        says(errors, '%s: "%s" is missing or is not %s; lockstep bench ddp --timeline writes such files')
        assert f'"{key}" is missing or is not {kind};' in errors, errors
    errors = refusal(timeline(gradients=[{"name": "late", "elements": 1, "dtype": "float32", "ready_s": 1}]))
    says(errors, "%s: %s is ready after %g s, but backward ends after %g s")
    assert "late is ready after 1 s, but backward ends after 0.01 s" in errors
    assert "it is empty" in refusal(b"") and "8388608 are allowed" in refusal(b" " * (8 << 20) + b"{}")
    assert "levels of objects and arrays" in refusal(b"[" * 100000)
    status, _, errors = bench("replay", "no-such-timeline")
    says(errors, "%s: it is neither a file nor one of %s")
    assert status == 1 and "resnet18-cifar" in errors
    status, _, errors = bench("replay", SCRATCH.name)
    assert status == 1 and SCRATCH.name in errors, errors


@test
def a_damaged_file_is_refused_or_read_but_nothing_breaks():
    whole = json.dumps(timeline()).encode()
    pick = random.Random(20261123)
    for at in [*range(0, len(whole), 29)]:
        damaged = bytearray(whole[:at] if at % 2 else whole)
        if at % 2 == 0:
            damaged[pick.randrange(len(damaged))] = pick.randrange(256)
        status, _, errors = bench("replay", written(bytes(damaged), "damaged.json"), "-n", "1", "--mode", "local", "--steps",
                                  "1", "--rounds", "1", "--warmup", "1", "--speed", "1000000")
        assert status in (0, 1) and (status == 0 or errors.startswith("lockstep bench: ")), (at, status, errors)


HUGE = {"gradients": [{"name": "a", "elements": 2**38, "dtype": "float32", "ready_s": 0}]}


@test
def rows_that_do_not_fit_into_the_memory_of_all_ranks_of_a_machine_are_refused():
    path = written(timeline(**HUGE), "huge.json")
    replay = [BUILD / "lockstep", "bench", "replay", path, "--mode", "flat,overlap,local"]
    status, _, errors = bench(*replay[2:], "-n", "4")
    says(errors, "lockstep bench: %.0f rows of %d ranks with %.3g GB of gradients each need %.3g GB of memory; %.3g GB are "
                 "available: ask for fewer rows (--mode, --buckets, --skip, --groups) or ranks")
    assert status == 1 and errors.count("2 rows of 4 ranks with 1.1e+03 GB") == 1, errors
    # Two hosts of one machine share its memory, as those of lockstep paper --link do.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    secret = pathlib.Path(SCRATCH.name) / "secret"
    command(BUILD / "lockstep", "secret", secret)
    nodes = [subprocess.Popen([BUILD / "lockstep", "run", "--nnodes", "2", "--node-rank", str(node), "--rendezvous",
                               f"127.0.0.1:{port}", "--secret-file", secret, "-n", "1", *replay], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for node in (0, 1)]
    ended = [(node.communicate(timeout=60)[0], node.returncode) for node in nodes]
    assert all(status != 0 for _, status in ended) and "2 rows of 2 ranks with 1.1e+03 GB" in ended[0][0], ended
    mpirun = shutil.which("mpirun.openmpi")
    if mpirun is None:
        raise Skip("there is no mpirun of Open MPI (apt-get install openmpi-bin)")
    done = subprocess.run([mpirun, "--oversubscribe", "-n", "3", *replay], text=True, capture_output=True, timeout=60,
                          env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    assert done.returncode != 0 and "2 rows of 3 ranks with 1.1e+03 GB" in done.stderr, done


@test
def what_cannot_be_replayed_is_refused():
    path = written(timeline())
    for arguments, part in (
            ((), "name one timeline or file"), ((path, path), "name one timeline or file"),
            ((path, "--skip", "0"), '--skip: "0" is not a number from 1 to 100'),
            ((path, "--skip", "2x"), '--skip: "2x" is not a number from 1 to 100'),
            ((path, "--groups", "17"), '--groups: "17" is not a number from 1 to 16'),
            ((path, "--mode", "eager"), '--mode: "eager" is not known'),
            ((path, "--speed", "0"), "--speed")):
        status, _, errors = bench("replay", *arguments)
        assert status == 2 and part in errors, errors
    status, _, errors = bench("ddp", "--model", "mlp-tiny", "--mode", "local,flat", "--timeline", "/dev/null")
    assert status == 2 and "--timeline records the first mode, but local has no timeline; begin --mode with another one" in errors
    status, _, errors = bench("ddp", "--model", "mlp-tiny", "--timeline", "/dev/null/file")
    assert status == 1 and "cannot write to /dev/null/file" in errors


@test
def what_is_cut_short_leaves_the_turns_before():
    for arguments, key in ((("replay", written(timeline()), "--steps", "40", "--rounds", "10"), "round_ms"),
                           (("pieces", "--total", "4M", "--pieces", "1K", "--rounds", "100"), "round_ms")):
        path = pathlib.Path(SCRATCH.name) / "cut.json"
        path.unlink(missing_ok=True)
        process = subprocess.Popen([BUILD / "lockstep", "bench", *arguments, "--json", path], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while not path.exists():
            assert process.poll() is None, arguments
            time.sleep(0.01)
        process.terminate()
        process.wait(60)
        rows = json.loads(path.read_text())
        turns = {len(row[key]) for row in rows}
        assert len(turns) == 1 and 1 <= turns.pop() < int(arguments[-1]), (arguments, [row[key] for row in rows])


run()
