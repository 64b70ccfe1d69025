# SPDX-License-Identifier: Apache-2.0
"""Runs are seen: `lockstep report` of logs and traces, also of damaged ones, `lockstep top` of a running job, and what
`lockstep doctor` says of this machine."""

import errno
import fcntl
import html.parser
import json
import os
import pathlib
import pty
import pwd
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from sentences import says
from tap import BUILD, SOURCE, Skip, command, run, test

LOCKSTEP = BUILD / "lockstep"
SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-runs-")
FOLDER = pathlib.Path(SCRATCH.name)


def asked(*words, status=0, **options):
    """(standard output, standard error)"""
    done = subprocess.run([str(LOCKSTEP), *map(str, words)], text=True, capture_output=True, timeout=120, cwd=FOLDER,
                          stdin=subprocess.DEVNULL, **options)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


# ---- report -------------------------------------------------------------------------------------


def row(step, loss, seconds=0.1, exposed=0.02, speed=1000.0):
    return {"step": step, "dtype": "float32", "loss": loss, "lr": 0.01, "seconds": seconds, "exposed_seconds": exposed,
            "tokens_per_second": speed}


def log(name, rows, more=""):
    path = FOLDER / name
    path.write_text("".join(json.dumps(r) + "\n" for r in rows) + more)
    return path


def span(category, begin, end, rank, **arguments):
    return {"ph": "X", "name": "x", "cat": category, "pid": rank, "tid": 1, "ts": begin, "dur": end - begin,
            "args": arguments}


def trace(name):
    """Two ranks, of which rank 1 works for 30 ms of 40 and rank 0 for 10."""
    events = []
    for rank, work in ((0, 10_000), (1, 30_000)):
        for step, begin in ((0, 0), (1, 50_000), (2, 100_000)):
            events += [span("step", begin, begin + 40_000, rank, step=step),
                       span("backward", begin, begin + 40_000, rank), span("exposed", begin + work, begin + 40_000, rank)]
    ranks = [{"rank": r, "host": "h", "node": 0, "finalized": True, "dropped": 0} for r in range(2)]
    path = FOLDER / name
    path.write_text(json.dumps({"otherData": {"lockstep_trace": 1, "world_size": 2, "ranks": ranks}, "traceEvents": events}))
    return path


class Page(html.parser.HTMLParser):
    """Its elements, each closed by the end of the one that it stands in; what it loads; its text."""

    EMPTY = {"meta", "br", "line", "rect", "circle", "path"}

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], ""
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data):
        self.text += data

    def count(self, tag):
        return sum(name == tag for name, _ in self.elements)


def page(name="report.html"):
    text = (FOLDER / name).read_text()
    made = Page(text)
    assert not {"script", "link", "img", "iframe"} & {name for name, _ in made.elements}
    assert not re.findall(r'(?:src|href)=|url\(|@import|[ ">-](?:nan|inf)\b', text), "it loads nothing, and draws numbers only"
    return made


@test
def runs_stand_beside_each_other_on_a_page_of_its_own():
    first = log("a & <b>.jsonl", [{"step": 0, "held_out_loss": 5.0, "peak_memory_bytes": 2**20},
                                  *(row(s, 5.0 - s, 0.1 * s, 0.01 * s, 1000 + s) for s in range(1, 4)),
                                  {"step": 3, "held_out_loss": 2.5, "peak_memory_bytes": 3 * 2**20,
                                   "estimated_memory_bytes": 4 * 2**20}])
    second = log("second.jsonl", [row(s, 3.0) for s in range(1, 9)])
    said, _ = asked("report", first, trace("t.json"), second)
    lines = said.splitlines()
    assert lines[2].split()[:9] == ["3", "2.0000", "2.5000", "300.00", "1003", "10.0", "1", "3.0", "4.0"], lines[2]
    assert lines[3].split()[:9] == ["8", "3.0000", "-", "100.00", "1000", "20.0", "-", "-", "-"], lines[3]
    made = page()
    assert made.count("svg") == 4 and made.count("circle") == 2, "loss, speed, exposed, ranks; two evaluations"
    assert made.count("path") == 6, "a curve for each run in three plots"
    assert "a & <b>.jsonl" in made.text and "rank 1: 30.0 ms, mean 20.0" in made.text, made.text


@test
def a_trace_is_a_run_of_its_own_and_the_page_goes_where_it_is_asked():
    said, _ = asked("report", trace("alone.json"), "--out", "alone.html")
    assert said.splitlines()[2].split()[:8] == ["3", "-", "-", "40.00", "-", "50.0", "1", "-"], said
    assert page("alone.html").count("svg") == 1


@test
def a_long_run_makes_a_page_of_bounded_size():
    asked("report", log("long.jsonl", (row(s, 1 + 1 / s) for s in range(1, 20001))))
    assert (FOLDER / "report.html").stat().st_size < 60_000
    page()


@test
def what_a_training_program_writes_is_read():
    command(LOCKSTEP, "run", "-n", 2, BUILD / "programs/train_gpt", "--data", SOURCE / "LICENSE", "--steps", 4, "--layers", 1,
            "--dim", 16, "--heads", 2, "--context", 16, "--batch", 2, "--eval-windows", 4, "--log", "train.jsonl", cwd=FOLDER,
            env=dict(os.environ, LOCKSTEP_TRACE=str(FOLDER / "train.json")))
    said, errors = asked("report", "train.jsonl", "train.json")
    cells = said.splitlines()[2].split()
    assert cells[0] == "4" and errors == "" and float(cells[2]) > 0 and float(cells[7]) > 1, said
    assert cells[6] in ("0", "1"), said
    assert page().count("svg") == 4


@test
def files_that_are_no_runs_are_refused_in_words():
    def refused(*files, status=1):
        return asked("report", *files, status=status)[1]
    says(refused(log("empty.jsonl", [])),
         '"%s" is empty: its job has not ended a step yet; give the file of --log of a job that has')
    (FOLDER / "letter").write_text("Dear rank,\nall is well.\n")
    says(refused("letter"), '"%s" has no step in %lld lines; give the file that `lockstep train --log` wrote, or a trace of '
                            'LOCKSTEP_TRACE')
    says(refused("missing"), '"%s" cannot be read: %s')
    assert "it is not a regular file" in refused("/dev/null")
    os.mkfifo(FOLDER / "pipe")
    says(refused("pipe"), "it is not a regular file")
    many = [log(f"{i}.jsonl", [row(1, 1)]) for i in range(9)]
    says(refused(*many), '"%s" would be run %d; give at most %d')
    says(refused("0.jsonl", "--out", "no/page"), 'lockstep report: --out "%s" cannot be written: %s')
    says(refused("0.jsonl", "--out", "0.jsonl", status=2), '--%s would replace "%s", which this command reads; give another file')
    says(refused(status=2), "the files are missing; give the one of --log, and that of LOCKSTEP_TRACE if there is one")
    assert (FOLDER / "0.jsonl").read_text() == json.dumps(row(1, 1)) + "\n"


@test
def lines_that_are_damaged_are_counted_and_left_out():
    path = log("damaged.jsonl", [row(1, 5), row(2, 1e300), {"step": "3"}, {"step": -1, "loss": 2}, [1], row(4, 3)],
               '{"step": 5, "loss": 2')
    said, errors = asked("report", path)
    says(errors, "%s: %lld of %lld lines are damaged and left out")
    assert "4 of 7 lines" in errors and said.splitlines()[2].split()[:2] == ["3", "3.0000"], (said, errors)
    assert "4 of 7 lines are damaged" in page().text
    cut = FOLDER / "cut.json"
    cut.write_bytes(trace("whole.json").read_bytes()[:-200])
    says(asked("report", cut)[1], "%s ends in the middle; what comes before it is shown")
    # Of a run that went on from a checkpoint the later lines count.
    said, _ = asked("report", log("again.jsonl", [row(1, 9), row(2, 8), row(3, 7), row(2, 6)]))
    assert said.splitlines()[2].split()[:2] == ["2", "6.0000"], said


@test
def numbers_of_a_step_may_have_lines_of_their_own():
    """As ls_event_log_add writes them."""
    lines = [{"step": 1, "loss": 4.0}, {"step": 1, "seconds": 0.1}, {"step": 1, "tokens_per_second": 50}, {"step": 1, "lr": 0.1},
             {"step": 2, "loss": 3.0}, {"step": 2, "seconds": 0.2}, {"step": 2, "exposed_seconds": 0.05},
             {"step": 2, "tokens_per_second": 70}, {"step": 2, "held_out_loss": 3.5}, {"step": 2, "peak_memory_bytes": 2**21}]
    said, errors = asked("report", log("single.jsonl", lines))
    assert said.splitlines()[2].split()[:8] == ["2", "3.0000", "3.5000", "200.00", "70", "25.0", "-", "2.0"], said
    assert errors == "" and page().count("circle") == 1, errors
    says(asked("report", log("other.jsonl", [{"step": 1, "train_loss": 4.0}, {"step": 2, "lr": 1}]), status=1)[1],
         '"%s" has steps, but no number that is shown: loss, seconds, exposed_seconds, held_out_loss or one that ends with '
         "_per_second; write them with ls_event_log_add")


@test
def no_damage_ends_the_command():
    """Bytes of a log and of a trace are changed or removed; numbers become extreme."""
    draws = random.Random(36)
    whole = (FOLDER / "train.jsonl").read_bytes(), trace("fuzz.json").read_bytes()
    extreme = (b"1e999", b"-1e308", b"1e-320", b"9223372036854775807", b"null", b"[]", b"1e29", b"\xff", b'"')
    for turn in range(40):
        text = bytearray(whole[turn % 2])
        for _ in range(draws.randrange(1, 6)):
            at = draws.randrange(len(text))
            if draws.random() < 0.4:
                text[at:at + draws.randrange(40)] = b""
            elif draws.random() < 0.6:
                numbers = [m.span() for m in re.finditer(rb"\d[\d.e+-]*", bytes(text))]
                begin, end = draws.choice(numbers) if numbers else (0, 0)
                text[begin:end] = draws.choice(extreme)
            else:
                text[at:at + 1] = bytes([draws.randrange(256)])
        (FOLDER / "fuzzed").write_bytes(text)
        done = subprocess.run([LOCKSTEP, "report", "fuzzed"], cwd=FOLDER, capture_output=True, timeout=60)
        assert done.returncode in (0, 1), (turn, done.returncode, done.stderr, bytes(text))
        if done.returncode == 0:
            page()


# ---- top ----------------------------------------------------------------------------------------


class Job:
    """Two ranks that train for long, stopped at the end."""

    def __init__(self, *flags, **options):
        self.process = subprocess.Popen([str(LOCKSTEP), "run", "-n", "2", str(BUILD / "programs/train_gpt"), "--data",
                                         str(SOURCE / "LICENSE"), "--steps", "1000000", "--layers", "1", "--dim", "16",
                                         "--heads", "2", "--context", "16", "--batch", "1", "--eval-windows", "2", *flags],
                                        cwd=FOLDER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def rows_of(pid, ready=lambda rows: True):
    """The rows of a job's table, once it has them and `ready` says so."""
    for _ in range(600):
        done = subprocess.run([LOCKSTEP, "top", "--once", str(pid)], text=True, capture_output=True, timeout=60)
        rows = [line.split(None, 8) for line in done.stdout.splitlines() if re.match(r" +\d+ +\d+ ", line)]
        if done.returncode == 0 and rows and ready(rows):
            return rows
        time.sleep(0.1)
    raise AssertionError((done.returncode, done.stdout, done.stderr))


@test
def top_shows_what_the_ranks_of_a_job_do():
    with Job() as job:
        rows = rows_of(job.pid, lambda rows: all(row[3] not in "-01" for row in rows))
        assert [row[0] for row in rows] == ["0", "1"] and all(row[2] in ("runs", "disk") for row in rows), rows
        assert all(int(row[4]) >= 1 for row in rows), rows
        words = "user|start|data|forward|backward|optimizer|collective|checkpoint|exit"
        assert all(re.fullmatch(words, row[5]) for row in rows), rows
        ranks = [int(row[1]) for row in rows]
        assert rows_of(ranks[1])[1][1] == str(ranks[1]), "found by a rank's process as well"
        os.kill(ranks[1], signal.SIGSTOP)
        try:
            rows_of(job.pid, lambda rows: rows[1][2] == "stopped")
        finally:
            os.kill(ranks[1], signal.SIGCONT)


@test
def top_follows_a_job_to_its_end():
    with Job() as job:
        rows_of(job.pid)
        seen = subprocess.Popen([LOCKSTEP, "top", "--interval", "0.1", str(job.pid)], text=True, stdout=subprocess.PIPE)
        tables = 0
        while tables < 3:
            tables += seen.stdout.readline().startswith("rank  process")
    rest, _ = seen.communicate(timeout=60)
    assert seen.returncode == 0 and rest.endswith("the job has ended\n"), rest


def to_the_end_of(terminal):
    """What a program whose terminal's other side is closed by now has written: a read ends where the kernel has not passed on more."""
    said = b""
    try:
        while more := os.read(terminal, 8192):
            said += more
    except OSError as why:
        if why.errno != errno.EIO:
            raise
    return said


@test
def a_row_is_a_line_of_a_narrow_terminal():
    with Job() as job:
        rows_of(job.pid, lambda rows: all(row[3] not in "-01" for row in rows))
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        done = subprocess.run([LOCKSTEP, "top", "--once", str(job.pid)], stdout=theirs, timeout=60)
        os.close(theirs)
        said = to_the_end_of(ours).decode()
        os.close(ours)
    rows = said.split("\r\n")
    assert done.returncode == 0 and len(rows) == 5 and rows[-1] == "", said
    assert [len(row) <= 60 for row in rows] == [True] * 5 and rows[1].startswith("rank  process state"), said
    assert rows[0].startswith("2 ranks on host "), said


@test
def top_ends_where_its_output_cannot_be_written():
    with Job() as job, open("/dev/full", "w") as full:
        rows_of(job.pid)
        done = subprocess.run([LOCKSTEP, "top", "--interval", "0.1", str(job.pid)], text=True, stdout=full, stderr=subprocess.PIPE,
                              timeout=60)
    assert done.returncode == 1, done
    says(done.stderr, "error: standard output cannot be written: %s; some of it is missing there")


@test
def several_jobs_are_told_apart():
    with Job() as one, Job() as two:
        rows_of(one.pid), rows_of(two.pid)
        _, errors = asked("top", status=1)
        says(errors, "lockstep top: %d jobs run; give the process of one:")
        says(errors, "lockstep top %d  #")
        says(errors, "%d rank%s on host %.63s, launcher %d%s%s")
        for job in (one, two):
            assert re.search(rf"lockstep top {job.pid}  # 2 ranks on host \S+, launcher {job.pid}: \S+/train_gpt", errors), errors


@test
def a_process_without_a_job_of_this_user_is_refused_in_words():
    _, errors = asked("top", os.getpid(), status=1)
    says(errors, "process %d is no launcher and no rank of a job; without a number `lockstep top` lists the jobs")
    ended = subprocess.Popen(["true"])
    ended.wait()
    says(asked("top", ended.pid, status=1)[1], "process %d does not run; without a number `lockstep top` lists the jobs")
    says(asked("top", "x", status=2)[1], '"%s" is no process; give the number of the launcher or of a rank')
    says(asked("top", 1, 2, status=2)[1], "give one process")
    if os.geteuid() != 0:
        _, errors = asked("top", 1, status=1)
    else:
        other = subprocess.Popen(["sleep", "60"], user="nobody")
        try:
            _, errors = asked("top", other.pid, status=1)
        finally:
            other.kill()
            other.wait()
        assert f"is nobody's (uid {pwd.getpwnam('nobody').pw_uid})" in errors, errors
    says(errors, "process %d is %s's (uid %ld), and a job is shown to its own user only; run lockstep top as that user")


@test
def without_a_job_top_says_so():
    if os.geteuid() != 0:
        raise Skip("another user, whose jobs are known, needs root")
    try:
        done = subprocess.run([LOCKSTEP, "top"], text=True, capture_output=True, timeout=60, user="nobody", cwd="/")
    except PermissionError:
        raise Skip("the build's folder is closed to other users") from None
    assert done.returncode == 1, done
    says(done.stderr, "lockstep top: no job of this user runs on this host; a process that is alone has nothing to show, start "
                      "it with `lockstep run -n 1`")


@test
def without_proc_top_says_where_it_looks():
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise Skip("a system without /proc needs root and unshare (util-linux)")
    hidden = f"mount -t tmpfs none /proc && exec '{LOCKSTEP}' top --once"
    done = subprocess.run(["unshare", "-m", "sh", "-c", hidden], text=True, capture_output=True, timeout=60)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        raise Skip(f"no namespace for mounts: {done.stderr}")
    assert done.returncode == 1, done
    says(done.stderr, "lockstep top: jobs are found in /proc, which this system does not show; mount it (mount -t proc proc /proc), "
                      "or run this outside of the container")


# ---- doctor -------------------------------------------------------------------------------------


@test
def the_doctor_ends_with_1_where_a_job_would_fail():
    def limited(*words):
        done = subprocess.run(["sh", "-c", 'ulimit -n 100; exec "$0" "$@"', LOCKSTEP, "doctor", *words], text=True,
                              capture_output=True, timeout=60, cwd=FOLDER)
        return done.returncode, done.stdout, done.stderr
    status, said, _ = limited("--json", "doctor.json")
    assert status == 1 and re.search(r"^fault   open files     up to 100, ", said, re.MULTILINE), said
    found = json.loads((FOLDER / "doctor.json").read_text())["findings"]
    by_subject = {f["subject"]: f for f in found}
    assert by_subject["open files"]["grade"] == "fault" and "nofile" in by_subject["open files"]["remedy"], found
    assert len(said.splitlines()) == len(found) + 1 and all(f["grade"] in ("ok", "advice", "fault") for f in found)
    assert all((f["grade"] == "ok") <= (f["remedy"] is None) for f in found), found
    says(limited("--json", "no/file")[2], "lockstep doctor: --json %s: cannot be written: %s")


@test
def the_doctor_judges_what_the_environment_asks_for():
    settings = dict(os.environ, LOCKSTEP_SECRET_FILE=str(FOLDER / "no-secret"), LOCKSTEP_BACKEND="nowhere",
                    OMP_WAIT_POLICY="active", LOCKSTEP_TIMEOUTS="3")
    said, errors = asked("doctor", status=1, env=settings)
    for line in (r"^fault   secret  .*no-secret", r'^fault   backend  .*backend "nowhere"', "^advice  spinning  .*OMP_WAIT_POLICY",
                 r"^advice  variables +1 named LOCKSTEP_\*"):
        assert re.search(line, said, re.MULTILINE), (line, said)
    assert "LOCKSTEP_TIMEOUTS" in errors, errors


run()
