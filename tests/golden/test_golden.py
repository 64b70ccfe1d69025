"""What users read: every case of the golden programs prints what expected/ says, to the letter.

What varies from run to run (process numbers, host, seconds, line numbers, scratch folders) is replaced by
its kind in angle brackets. After a change of texts: UPDATE_GOLDEN=1 tests/run --only golden, and read the
difference before it is committed.
"""

import concurrent.futures
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, run, test

HERE = pathlib.Path(__file__).resolve().parent
COMMAND = str(BUILD / "lockstep")
CASE_SECONDS = 60
SHORT_DEADLINE, LONG_DEADLINE = "2", "40"  # seconds, of the jobs' LOCKSTEP_TIMEOUT
GIVEN, GIVING = set(), threading.Lock()  # ports
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"
SET_BY_OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
PLAIN = {name: value for name, value in os.environ.items()
         if not name.startswith(("LOCKSTEP_", "OMPI_", "PMI_", "SLURM_", "TORCH_"))
         and name not in SET_BY_OTHERS}

VARIES = [
    (re.compile(r"/tmp/lockstep-golden-\w+"), "<tmp>"),
    (re.compile(re.escape(str(SOURCE)) + "/"), ""),
    (re.compile(re.escape(str(BUILD)) + "/"), "<build>/"),
    (re.compile(r"(?:\.\./)+(?=tests/)"), ""),
    (re.compile(r"\.\.\.(?=[\w/]*/tests/golden/)[\w/]*/(?=tests/golden)"), ""),
    (re.compile(r"(\.[ch]):\d+"), r"\1:<line>"),
    (re.compile(r"(\.safetensors\.)\d+(\.part)"), r"\1<pid>\2"),
    (re.compile(r"(\.tmp-\w+-\d+-)[0-9a-f]{16}"), r"\1<number>"),
    (re.compile(r"(kill -CONT|\bpid) \d+"), r"\1 <pid>"),
    (re.compile(r"(layout [\d.]+?|board of )\d[\d.]*"), r"\1<bytes>"),
    (re.compile(r"\bprocess \d+"), "process <pid>"),
    (re.compile(r"\bowner \d+, this user is \d+"), "owner <uid>, this user is <uid>"),
    (re.compile(r"\((?=[^)]*(?::|\d\.\d+\.))([0-9a-f.:]+(?:, |(?=\))))+\)"), "(<addresses>)"),
    (re.compile(r"\([0-9a-f]{16}\)"), "(<hash>)"),
    (re.compile(r"\bhost " + re.escape(socket.gethostname()) + r"\b"), "host <host>"),
    (re.compile(r"\b\d+\.\d+ s\b"), "<seconds> s"),
    (re.compile(r"0x[0-9a-f]{6,}"), "<address>"),
    (re.compile(r"\bcpu=\w+"), "cpu=<cpu>"),
    (re.compile(r"\d+ compute threads?, \w+ kernels"), "<n> compute threads, <cpu> kernels"),
    (re.compile(r"(LOCKSTEP_THREADS=.*; )\d+ is"), r"\1<n> is"),
    (re.compile(r"libcrypto \([^)]*\)"), "libcrypto (<version>)"),
    (re.compile(r"(--rendezvous \S+|\b127\.0\.0\.1):\d+"), r"\1:<port>"),
]


def normal(text):
    for pattern, put in VARIES:
        text = pattern.sub(put, text)
    # Ranks print when they come to it: in the order of ranks, a rank's log lines first (they take
    # another way than its results), the launcher's own words last.
    def place(line):
        rank = re.match(r"\[(\d+)\] (\[rank)?", line)
        if rank:
            return int(rank.group(1)), rank.group(2) is None
        return (-1 if not line.startswith("lockstep: ") else 1 << 20), True
    return "".join(line.rstrip() + "\n" for line in sorted(text.splitlines(), key=place))


def output_of(command, **environment):
    try:
        done = subprocess.run(command, env=dict(PLAIN, **environment), text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=CASE_SECONDS)
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode() + "not finished in time\n", -1
    return done.stdout, done.returncode


def case_of(program, name, ranks, hosts):
    """The deadline is short only where the agreed words say that it passed: on a busy machine it
    would otherwise strike a case that is about something else."""
    if int(ranks) <= 1:
        text, status = output_of([program, name])
    else:
        agreed = expected(os.path.basename(program)).partition(f"== {name}\n")[2].partition("\n== ")[0]
        deadline = SHORT_DEADLINE if "LS_ERR_TIMEOUT" in agreed else LONG_DEADLINE
        text, status = output_of([COMMAND, "run", "-n", ranks, program, name],
                                 LOCKSTEP_TIMEOUT=deadline, LOCKSTEP_HOSTS=hosts)
    return name, normal(text) + (f"status {status}\n" if status != 0 else "")


def free_port():
    """A port that no other case has been given, since cases run beside each other."""
    while True:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = str(s.getsockname()[1])
        with GIVING:
            if port not in GIVEN:
                GIVEN.add(port)
                return port


def command_of(line):
    words = shlex.split(line)
    settings = {}
    while "=" in words[0] and not words[0].startswith("-"):
        name, value = words.pop(0).split("=", 1)
        settings[name] = value
    program = {"lockstep": COMMAND, "sh": "sh"}.get(words[0], str(BUILD / words[0]))
    with tempfile.TemporaryDirectory(prefix="lockstep-golden-") as folder:
        port = free_port()

        def fill(word):
            for name, value in (("FOLDER", folder), ("BUILD", str(BUILD)), ("SOURCE", str(SOURCE)), ("PORT", port)):
                word = word.replace(f"@{name}@", value)
            return word
        words = [fill(word) for word in words[1:]]
        settings = {name: fill(value) for name, value in settings.items()}
        text, status = output_of([program, *words], **settings)
    return line, normal(text) + f"status {status}\n"


def at_a_time(calls):
    """Their results in order. Most wait for something, so some may run beside each other."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return [done.result() for done in [pool.submit(*call) for call in calls]]


def cases_of(program):
    """A call for each case, which gives its (name, text)."""
    listed = [line.split() for line in output_of([program, "--list"])[0].splitlines()]
    return [(case_of, program, *line) for line in listed]


def commands():
    """Command lines of commands.txt, a case each; run in an empty folder."""
    lines = (HERE / "commands.txt").read_text().splitlines()
    return [(command_of, line) for line in lines if line and not line.startswith("#")]


def shown(case, text):
    return f"== {case}\n{text}\n"


def expected(name):
    path = HERE / "expected" / f"{name}.txt"
    return path.read_text() if path.exists() else ""


def check(name, calls):
    path, want = HERE / "expected" / f"{name}.txt", expected(name)
    results = at_a_time(calls)
    got = "".join(shown(*result) for result in results)
    if UPDATE:
        path.write_text(got)
        return
    if got != want:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as new:
            new.write(got)
            new.flush()
            diff = subprocess.run(["diff", "-u", str(path), new.name], text=True,
                                  capture_output=True).stdout
        raise AssertionError(diff + "UPDATE_GOLDEN=1 tests/run --only golden writes the new texts")


def program_test(name):
    def body():
        check(name, cases_of(str(BUILD / "tests/golden" / name)))
    body.__name__ = f"the_words_of_{name}_are_as_agreed"
    test(body)


for source in sorted(HERE.glob("*.c")):
    if source.stem != "golden":
        program_test(source.stem)


@test
def the_words_of_the_command_are_as_agreed():
    check("commands", commands())


run()
