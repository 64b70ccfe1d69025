# SPDX-License-Identifier: Apache-2.0
"""LOCKSTEP_TRACE: what the file holds, also after a failure and with a buffer that is too small."""

import collections
import copy
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness"),
                str(pathlib.Path(__file__).resolve().parent)]
sys.dont_write_bytecode = True
from sentences import says, sentence
from tap import BUILD, Skip, command, none_of, run, test

import trace_format
from trace_format import end, of_phase, spans

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-trace-")
FOLDER = pathlib.Path(SCRATCH.name)
TRACED = BUILD / "tests/dist/train/traced"
STEPS = 5


def traced(ranks, *arguments, name="t.json", status=0, settings=None, launcher=True):
    """Runs the program with a trace; returns its path and what was printed."""
    path = FOLDER / name
    command = [BUILD / "lockstep", "run", "-n", ranks] if launcher else []
    done = subprocess.run([str(a) for a in (*command, TRACED, *arguments)], text=True, timeout=120,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "LOCKSTEP_TRACE": str(path), **(settings or {})})
    assert done.returncode == status, f"{done.returncode}\n{done.stdout}"
    return path, done.stdout


def trace_of(ranks, *arguments, **options):
    path, _ = traced(ranks, *arguments, **options)
    trace = trace_format.load(path)
    none_of(trace_format.problems(trace), "against the format")
    return trace


def within(inner, outer):
    return outer["ts"] <= inner["ts"] + trace_format.SLACK and end(inner) <= end(outer) + trace_format.SLACK


def check_steps(trace, ranks):
    for rank in range(ranks):
        steps = spans(trace, "step", rank)
        assert [s["args"]["step"] for s in steps] == list(range(STEPS)), steps
        for step in steps:
            here = collections.Counter(e["cat"] for e in spans(trace, rank=rank) if within(e, step))
            assert here["backward"] == here["optimizer"] == here["loader"] == 1, here
            assert here["forward"] >= 1 and here["module"] >= 4 and here["operation"] >= 5, here


@test
def a_world_of_one_traces_without_a_launcher_too():
    for launcher in (True, False):
        trace = trace_of(1, STEPS, launcher=launcher)
        check_steps(trace, 1)
        assert spans(trace, "read"), "no loader's thread"


@test
def every_rank_shows_each_step_with_its_parts():
    for ranks in (2, 4):
        for hosts in (None, "2", "64"):
            settings = {"LOCKSTEP_HOSTS": hosts} if hosts else {}
            trace = trace_of(ranks, STEPS, settings=settings)
            check_steps(trace, ranks)
            names = [e["args"]["name"] for e in of_phase(trace, "M") if e["name"] == "process_name"]
            assert [name.split(" (")[0] for name in names] == [f"rank {r}" for r in range(ranks)], names


@test
def buckets_lead_to_their_all_reduce_and_sends_to_their_receive():
    trace = trace_of(4, STEPS)
    arrows = collections.Counter(e["name"] for e in of_phase(trace, "s"))
    buckets = spans(trace, "bucket")
    assert arrows["launch"] == len(buckets) >= 4 * STEPS * 3, arrows
    assert arrows["message"] == len(spans(trace, "send")) == len(spans(trace, "recv")) == 4 * STEPS, arrows
    points = {e["id"]: e for e in of_phase(trace, "f") if e["name"] == "message"}
    for tail in of_phase(trace, "s"):
        if tail["name"] == "message":
            assert points[tail["id"]]["pid"] == (tail["pid"] + 1) % 4, "a message goes round the ring"
    for bucket in buckets:
        assert bucket["args"]["bytes"] > 0 and bucket["args"]["of"] == "ddp", bucket


@test
def the_wait_for_buckets_lies_within_backward_and_names_are_those_of_the_model():
    trace = trace_of(2, STEPS)
    for rank in (0, 1):
        backwards = spans(trace, "backward", rank)
        waits = [e for e in spans(trace, "exposed", rank) if e["name"] == sentence("wait for buckets")]
        assert len(waits) == STEPS and all(any(within(w, b) for b in backwards) for w in waits), waits
    of = {e["args"].get("of") for e in spans(trace, "operation")}
    assert {"0.weight", "2.0.weight", "3.weight"} <= of, of
    names = {e["name"] for e in spans(trace, "operation")}
    assert {"linear", "relu", "cross_entropy"} <= names, names


@test
def a_save_has_a_span_and_its_writing_one_on_a_thread_of_its_own():
    trace = trace_of(2, STEPS, "save", FOLDER / "checkpoints")
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in of_phase(trace, "M") if e["name"] == "thread_name"}
    for rank in (0, 1):
        saves = spans(trace, "checkpoint", rank)
        of = {name: [e for e in saves if e["name"] == name] for name in ("save", "write")}
        assert len(of["save"]) == len(of["write"]) == STEPS, saves
        assert {e["args"]["of"][-11:] for e in saves} == {"checkpoints"}, saves
        assert {names[rank, e["tid"]] for e in of["save"]} == {"training"}, names
        assert all(names[rank, e["tid"]].startswith("checkpoint ") for e in of["write"]), names
        assert all(s["ts"] < end(w) for s, w in zip(of["save"], of["write"])), saves


@test
def a_program_with_gradients_of_its_own_has_steps_too():
    path = FOLDER / "own.json"
    command(BUILD / "lockstep", "run", "-n", "2", BUILD / "examples/04_bring_your_own_backward",
            env={**os.environ, "LOCKSTEP_TRACE": str(path)})
    trace = trace_format.load(path)
    none_of(trace_format.problems(trace), "against the format")
    for rank in (0, 1):
        steps = spans(trace, "step", rank)
        backwards = spans(trace, "backward", rank)
        assert len(backwards) == len(steps) + 1 > 10, (len(steps), len(backwards))
        assert all(within(b, s) for b, s in zip(backwards, steps)), steps[0]
        assert [s["args"]["step"] for s in steps] == list(range(len(steps)))
    rows, _ = summary(path)
    assert all(row["backward_ms"] > 0 and row["exposed_ms"] > 0 for row in rows["steps"]), rows["steps"][0]


@test
def a_rank_that_is_killed_leaves_its_spans_behind():
    for how, status in (("kill", 128 + 9), ("exit", 3)):
        path, printed = traced(3, STEPS, how, 1, 3, status=status, name=f"{how}.json")
        trace = trace_format.load(path)
        none_of(trace_format.problems(trace), "against the format")
        assert [s["args"]["step"] for s in spans(trace, "step", 1)] == [0, 1, 2], printed
        assert trace["otherData"]["ranks"][1]["finalized"] is False, trace["otherData"]
        says(printed, "the trace %s lacks %d of %d ranks, and %d ended before ls_finalize")
        assert "lacks 0 of 3 ranks, and 3 ended" in printed, printed


@test
def a_job_that_is_started_again_keeps_the_trace_of_each_attempt():
    mark = FOLDER / "mark"
    program = f"if [ -e {mark}$RANK ]; then exec {TRACED} 2; fi; touch {mark}$RANK; exec {TRACED} {STEPS} exit 0 1"
    done = subprocess.run([BUILD / "lockstep", "run", "-n", "2", "--max-restarts", "1", "sh", "-c", program], text=True,
                          env={**os.environ, "LOCKSTEP_TRACE": str(FOLDER / "again2.json")}, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    for name, steps in (("again2.json", 1), ("again2.attempt_1.json", 2)):
        trace = trace_format.load(FOLDER / name)
        none_of(trace_format.problems(trace), "against the format")
        assert len(spans(trace, "step", 1)) == steps, name


@test
def under_another_launcher_the_thread_of_local_rank_0_writes_the_file():
    path = FOLDER / "others.json"
    ranks = [subprocess.Popen([TRACED, str(STEPS)], env={**os.environ, "LOCKSTEP_TRACE": str(path), "RANK": str(r),
             "LOCAL_RANK": str(r), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(20000 + os.getpid() % 20000)}) for r in range(3)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0, 0]
    trace = trace_format.load(path)
    none_of(trace_format.problems(trace), "against the format")
    check_steps(trace, 3)


@test
def ranks_that_disagree_on_tracing_are_a_mismatch():
    program = f"if [ $RANK = 1 ]; then unset LOCKSTEP_TRACE; fi; exec {TRACED} 2"
    done = subprocess.run([BUILD / "lockstep", "run", "-n", "2", "sh", "-c", program], text=True, timeout=120,
                          env={**os.environ, "LOCKSTEP_TRACE": str(FOLDER / "half.json")},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode != 0 and "LOCKSTEP_TRACE" in done.stdout, done.stdout


@test
def a_full_buffer_keeps_the_newest_spans_and_counts_the_others():
    path, printed = traced(2, 20, settings={"LOCKSTEP_TRACE_EVENTS": "300"})
    trace = trace_format.load(path)
    none_of(trace_format.problems(trace), "against the format")
    for rank in trace["otherData"]["ranks"]:
        assert rank["events"] == 300 and rank["dropped"] > 100, rank
        steps = [s["args"]["step"] for s in spans(trace, "step", rank["rank"])]
        assert steps and steps[-1] == 19 and steps[0] > 5, steps
    dropped = sum(rank["dropped"] for rank in trace["otherData"]["ranks"])
    says(printed, "the trace %s lacks %llu spans, the oldest: raise LOCKSTEP_TRACE_EVENTS, or record fewer steps with "
                  "LOCKSTEP_TRACE_STEPS")
    assert f"lacks {dropped} spans" in printed, printed


@test
def only_the_steps_asked_for_are_recorded():
    for text, expected in (("2-3", [2, 3]), ("3-", [3, 4]), ("1", [1])):
        trace = trace_of(2, STEPS, settings={"LOCKSTEP_TRACE_STEPS": text})
        assert [s["args"]["step"] for s in spans(trace, "step", 1)] == expected, text
        backwards = spans(trace, "backward", 1)
        assert len(backwards) == len(expected), backwards


@test
def another_file_is_not_replaced_and_a_former_trace_is():
    path = FOLDER / "weights.json"
    path.write_text('{"weights": [1, 2, 3]}')
    _, printed = traced(2, 1, name="weights.json", status=1)
    says(printed, "ls_init: LOCKSTEP_TRACE=%s exists and is not a trace, so it would be lost; name another file, or "
                  "remove this one")
    assert path.read_text() == '{"weights": [1, 2, 3]}'
    for steps in (1, 3):
        path, _ = traced(1, steps, name="again.json")
        assert len(spans(trace_format.load(path), "step")) == steps
    assert not list(FOLDER.glob("*.part")), "left behind"


@test
def the_log_says_where_the_trace_is_or_why_it_is_not():
    path, printed = traced(2, 1, settings={"LOCKSTEP_DEBUG": "info"})
    says(printed, "the trace of %d rank%s is in %s")
    assert f"the trace of 2 ranks is in {path}" in printed, printed
    folder = FOLDER / "goes"
    folder.mkdir()
    command = [BUILD / "lockstep", "run", "-n", "2", "sh", "-c", f"{TRACED} 2; rm -rf {folder}"]
    done = subprocess.run(command, env={**os.environ, "LOCKSTEP_TRACE": str(folder / "t.json")}, text=True,
                          timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    says(done.stdout, "the trace %s was not written: %s")


@test
def settings_that_cannot_be_read_are_refused_before_training():
    for text in ("5-2", "x", "1-2-3", "-3"):
        _, printed = traced(1, 1, settings={"LOCKSTEP_TRACE_STEPS": text}, status=1)
        says(printed, "ls_init: LOCKSTEP_TRACE_STEPS=%s; give the first and the last step, counted from 0, as 10-20")
        assert f"LOCKSTEP_TRACE_STEPS={text};" in printed, printed
    _, printed = traced(1, 1, name="no/such/folder/t.json", status=1)
    says(printed, "ls_init: LOCKSTEP_TRACE=%s: the folder %s cannot be read: %s; make it first")
    _, printed = traced(1, 1, settings={"LOCKSTEP_TRACE": f"{'./' * 300}t.json"}, status=1)
    says(printed, "ls_init: the path of LOCKSTEP_TRACE is longer than %zu bytes; give a shorter one")


def summary(path, *arguments):
    """What `lockstep trace` writes with --json, and what it prints."""
    rows = FOLDER / "summary.json"
    printed = command(BUILD / "lockstep", "trace", path, "--json", rows, *arguments)
    return json.loads(rows.read_text()), printed


def refused(path):
    done = subprocess.run([BUILD / "lockstep", "trace", path], text=True, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 1, done.stdout
    return done.stdout


SHIFT = 5000  # seconds by which the clock of node 1 is ahead


def two_hosts(*arguments, name):
    """Two launchers, each with 2 ranks; the second one in a time namespace of its own."""
    if subprocess.run(["unshare", "-T", "--monotonic", str(SHIFT), "--fork", "true"], capture_output=True).returncode:
        raise Skip("no time namespaces (needs root and unshare -T)")
    secret = FOLDER / "secret"
    secret.unlink(missing_ok=True)
    command(BUILD / "lockstep", "secret", secret)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = []
    for node in (0, 1):
        line = [*(["unshare", "-T", "--monotonic", str(SHIFT), "--fork"] if node else []), BUILD / "lockstep", "run",
                "--nnodes", "2", "--node-rank", node, "--rendezvous", f"127.0.0.1:{port}", "--secret-file", secret,
                "-n", "2", TRACED, *arguments]
        nodes.append(subprocess.Popen([str(a) for a in line], text=True, stdin=subprocess.DEVNULL,
                                      env={**os.environ, "LOCKSTEP_TRACE": str(FOLDER / name)},
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    return [(node.communicate(timeout=120)[0], node.returncode) for node in nodes]


@test
def the_clocks_of_two_hosts_are_aligned_in_one_file():
    ended = two_hosts(STEPS, name="two.json")
    assert all(status == 0 for _, status in ended), ended
    trace = trace_format.load(FOLDER / "two.json")
    none_of(trace_format.problems(trace), "against the format")
    assert not list(FOLDER.glob("two.*node*")), "the other host's part is in the file"
    check_steps(trace, 4)
    error = 0.0
    for rank in trace["otherData"]["ranks"]:
        expected = -SHIFT * 1e6 if rank["rank"] >= 2 else 0.0
        assert abs(rank["clock_offset_us"] - expected) <= rank["clock_error_us"] + 0.01, rank
        assert rank["node"] == rank["rank"] // 2 and rank["finalized"], rank
        error = max(error, rank["clock_error_us"])
    assert 0.0 < error < 1e5, error
    # No rank ends a bucket's all-reduce before all have begun theirs.
    buckets = [[e for e in spans(trace, "wire", r) if e["name"] == "all_reduce" and e["args"]["bytes"] > 1000]
               for r in range(4)]
    assert len(buckets[0]) >= 3 * STEPS and len({len(b) for b in buckets}) == 1, [len(b) for b in buckets]
    for same in zip(*buckets):
        assert max(e["ts"] for e in same) <= min(end(e) for e in same) + 2 * error + 2000, same
    arrows = [e for e in of_phase(trace, "s") if e["name"] == "message"]
    assert len(arrows) == 4 * STEPS, "messages between the hosts, too"
    rows, printed = summary(FOLDER / "two.json")
    assert rows["hosts"] == 2 and "of 4 ranks on 2 hosts" in printed, printed


@test
def a_job_of_two_hosts_that_fails_leaves_a_file_on_each():
    ended = two_hosts(STEPS, "kill", 3, 3, name="lost.json")
    assert all(status != 0 for _, status in ended), ended
    for name, here in (("lost.json", {0, 1}), ("lost.node_1.json", {2, 3})):
        trace = trace_format.load(FOLDER / name)
        none_of(trace_format.problems(trace), "against the format")
        assert {e["pid"] for e in spans(trace)} == here, name
        assert {r["rank"] for r in trace["otherData"]["ranks"] if r.get("missing")} == {0, 1, 2, 3} - here, name
        _, printed = summary(FOLDER / name)
        assert all(f"rank {r} is missing" in printed for r in {0, 1, 2, 3} - here), printed


PARTS = ("forward", "backward", "exposed", "optimizer", "loader", "other")


@test
def the_parts_of_each_step_add_up_and_are_those_of_its_spans():
    path, _ = traced(4, STEPS)
    trace = trace_format.load(path)
    rows, printed = summary(path, "--steps")
    assert rows["world_size"] == 4 and rows["hosts"] == 1 and len(rows["steps"]) == 4 * STEPS, rows
    for row in rows["steps"]:
        step = next(s for s in spans(trace, "step", row["rank"]) if s["args"]["step"] == row["step"])
        assert abs(row["step_ms"] - step["dur"] / 1e3) < 1e-6, row
        assert abs(sum(row[f"{part}_ms"] for part in PARTS) / row["step_ms"] - 1) < 0.02, row
        here = [e for e in spans(trace, rank=row["rank"]) if e["tid"] == step["tid"] and within(e, step)]
        for part in ("optimizer", "loader"):
            expected = sum(e["dur"] for e in here if e["cat"] == part) / 1e3
            assert abs(row[f"{part}_ms"] - expected) < 1e-3, (part, row, expected)
        backward = next(e for e in here if e["cat"] == "backward")
        waits = [e for e in here if e["cat"] == "exposed"]
        outer = [e for e in waits if not any(e is not w and within(e, w) for w in waits)]
        inside = sum(e["dur"] for e in outer if within(e, backward)) / 1e3
        assert abs(row["exposed_ms"] - sum(e["dur"] for e in outer) / 1e3) < 1e-3, row
        assert abs(row["backward_ms"] - (backward["dur"] / 1e3 - inside)) < 1e-3, row
        assert row["other_ms"] > (1.5 if row["step"] > 0 else 0.0), "the program sleeps for 2 ms"
        assert 0 < row["wire_ms"] <= row["step_ms"], row
    assert f"{STEPS} steps (0 to {STEPS - 1}) of 4 ranks on 1 host" in printed, printed
    assert all(f"step {n} " in printed for n in range(STEPS)), printed
    assert {"linear", "relu", "cross_entropy"} <= {o["name"] for o in rows["operations"]}, rows["operations"]


def event(category, begin, end, rank=0, track=1, name="x", **arguments):
    return {"ph": "X", "name": name, "cat": category, "pid": rank, "tid": track, "ts": begin,
            "dur": end - begin, "args": arguments}


def written(events, name="made.json", **rank):
    path = FOLDER / name
    ranks = [{"rank": r, "host": f"h{r}", "node": r, "finalized": True, "dropped": 0, **rank}
             for r in sorted({e["pid"] for e in events} | {0})]
    head = {"lockstep_trace": 1, "world_size": len(ranks), "ranks": ranks}
    path.write_text(json.dumps({"otherData": head, "traceEvents": events}))
    return path


@test
def a_moment_counts_for_the_outermost_part_and_waits_are_exposed():
    rows, _ = summary(written([
        event("step", 0, 100_000, step=7),
        event("loader", 0, 10_000), event("exposed", 2_000, 9_000),  # rank 0 feeds: the loader's
        event("forward", 10_000, 30_000), event("forward", 12_000, 14_000),
        event("exposed", 15_000, 16_000),  # SyncBatchNorm
        event("backward", 30_000, 70_000),
        event("operation", 30_000, 50_000, name="linear"),
        event("operation", 35_000, 40_000, name="relu"),
        event("forward", 51_000, 52_000),  # a function's backward
        event("exposed", 60_000, 68_000), event("exposed", 61_000, 62_000),
        event("exposed", 72_000, 75_000),  # an all-reduce of the program's own
        event("optimizer", 80_000, 90_000),
        event("wire", 20_000, 40_000, track=2000), event("wire", 30_000, 60_000, track=2001),
        event("wire", 95_000, 120_000, track=2000)]))
    step = rows["steps"][0]
    expected = {"forward": 19, "backward": 32, "exposed": 12, "optimizer": 10, "loader": 10, "other": 17}
    assert {part: round(step[f"{part}_ms"], 6) for part in PARTS} == expected, step
    assert round(step["wire_ms"], 6) == 45 and step["step"] == 7, step
    operations = {o["name"]: (o["ms_per_step"], o["calls_per_step"]) for o in rows["operations"]}
    assert operations == {"linear": (15, 1), "relu": (5, 1)}, operations


@test
def the_slowest_rank_is_named_and_step_0_is_left_out_of_the_means():
    events = []
    for rank, work in ((0, 10_000), (1, 30_000), (2, 20_000)):
        for step, begin in ((0, 0), (1, 500_000), (2, 600_000)):
            length = 500_000 if step == 0 else 40_000
            events += [event("step", begin, begin + length, rank, step=step),
                       event("backward", begin, begin + length, rank),
                       event("exposed", begin + work, begin + length, rank)]
    rows, printed = summary(written(events))
    assert rows["slowest_rank"] == 1 and rows["hosts"] == 3 and rows["mean"]["step_ms"] == 40, rows
    assert "slowest: rank 1 (h1), which works for 30.000 ms of a step; the mean is 20.000 ms" in printed, printed


@test
def what_a_trace_lacks_is_said():
    path, _ = traced(3, STEPS, "kill", 1, 3, status=128 + 9, name="dead.json")
    _, printed = summary(path)
    assert "rank 1 ended before ls_finalize" in printed, printed
    path, _ = traced(2, 20, settings={"LOCKSTEP_TRACE_EVENTS": "300"})
    rows, printed = summary(path)
    assert "spans, the oldest, were dropped" in printed, printed
    for row in rows["steps"]:  # none of those whose spans are gone in part
        assert row["forward_ms"] > 0 and row["backward_ms"] > 0, row


@test
def a_damaged_file_is_refused_or_read_but_never_ends_the_command():
    path, _ = traced(2, 2)
    whole, random = path.read_bytes(), __import__("random").Random(7)
    damaged = FOLDER / "damaged.json"
    for _ in range(150):
        text = bytearray(whole)
        for _ in range(random.randrange(1, 6)):
            at = random.randrange(len(text))
            if random.random() < 0.5:
                text[at] = random.choice(b'"{}[]:,\\0-9e\x00\xff')
            else:
                del text[at:at + random.randrange(1, 2000)]
        damaged.write_bytes(text)
        done = subprocess.run([BUILD / "lockstep", "trace", damaged, "--steps"], capture_output=True, timeout=60)
        assert done.returncode in (0, 1), (done.returncode, done.stderr)


@test
def rows_that_cannot_be_written_are_an_error():
    done = subprocess.run([BUILD / "lockstep", "trace", written([event("step", 0, 5, step=0)]), "--json", "/no/rows"],
                          text=True, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 1, done.stdout
    says(done.stdout, "lockstep trace: --json %s: cannot be written")


@test
def a_file_that_is_cut_is_read_as_far_as_it_goes():
    path, _ = traced(2, STEPS)
    whole = path.read_bytes()
    cut = FOLDER / "cut.json"
    for share in (0.4, 0.7, 0.999):
        cut.write_bytes(whole[:int(len(whole) * share)])
        rows, printed = summary(cut)
        assert rows["steps"] and "the file ends in the middle" in printed, printed
    cut.write_bytes(whole[:40])
    says(refused(cut), "%s is not a trace of Lockstep: %s; LOCKSTEP_TRACE=FILE.json makes a job write one")


@test
def a_file_that_is_no_trace_is_refused_in_words():
    other = FOLDER / "other.json"
    for text, why in (("", "it is empty"), ("step,loss", "it is not JSON"), ("[]", "another program wrote it"),
                      ("{}", "another program wrote it"), ('{"traceEvents": []}', "another program wrote it"),
                      ('{"otherData": {"lockstep_trace": 1}}', "another program wrote it"), ("{", "another program"),
                      ('{"otherData"', "it is not whole JSON"), ("{nonsense", "it is not whole JSON")):
        other.write_text(text)
        printed = refused(other)
        says(printed, "%s is not a trace of Lockstep: %s; LOCKSTEP_TRACE=FILE.json makes a job write one")
        assert why in printed, (text, printed)
        if why.startswith("it is not whole"):
            says(printed, "it is not whole JSON")
    path = written([event("forward", 0, 5)])
    says(refused(path), "%s has no whole step: the job ended before its first ls_optim_step, does not call it, or "
                        "LOCKSTEP_TRACE_EVENTS was too small for one")
    other.write_text(written([event("step", 0, 5, step=0)]).read_text().replace('"ts"', '"ts" "ts"'))
    assert "its JSON is malformed" in refused(other)
    assert '": No such file or directory' in refused(FOLDER / "missing.json")


@test
def without_the_setting_no_file_appears():
    before = sorted(FOLDER.iterdir())
    done = subprocess.run([BUILD / "lockstep", "run", "-n", "2", TRACED, "2"], cwd=FOLDER, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and sorted(FOLDER.iterdir()) == before, done.stdout


@test
def the_checker_sees_what_is_wrong():
    sound = trace_of(2, STEPS)
    span = next(i for i, e in enumerate(sound["traceEvents"]) if e.get("cat") == "operation")
    arrow = next(i for i, e in enumerate(sound["traceEvents"]) if e["ph"] == "f")
    for index, change in ((span, {"ts": "0"}), (span, {"dur": 1e9}), (span, {"ts": -5.0}),
                          (span, {"ph": "Y"}), (arrow, {"id": 10**6}), (arrow, {"ts": -1.0})):
        wrong = copy.deepcopy(sound)
        wrong["traceEvents"][index].update(change)
        assert trace_format.problems(wrong), change
    assert json.loads(json.dumps(sound)) == sound


run()
