# SPDX-License-Identifier: Apache-2.0
"""What users read: golden programs and command lines provoke every message; each must have its shape.

- shape.py says what a message must hold: what was asked, what was found, what to do.
- expected/messages.txt has the wording of the messages that users meet most; expected/commands.txt what a command
  prints, whole, where that is a result, or a message of the first hour. After a change of those:
  UPDATE_GOLDEN=1 tests/run --only golden, and read the difference before it is committed.
- Every sentence of the sources (sources.py) must be provoked by a case here or compared by another test.

What varies from run to run (process numbers, host, seconds, line numbers, scratch folders) is replaced by its kind in
angle brackets. What the cases print lies in BUILD/tests/golden/printed.
"""

import concurrent.futures
import functools
import itertools
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
import shape
import sources
from tap import BUILD, SOURCE, none_of, run, test

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = sorted(source.stem for source in HERE.glob("*.c") if source.stem != "golden")
COMMAND = str(BUILD / "lockstep")
CASE_SECONDS = 60
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
    return "".join(line + "\n" for line in sorted(text.splitlines(), key=place))


def output_of(command, **environment):
    try:
        done = subprocess.run(command, env=dict(PLAIN, **environment), text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=CASE_SECONDS)
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode() + "not finished in time\n", -1
    return done.stdout, done.returncode


def case_of(program, name, ranks, hosts, deadline):
    if int(ranks) <= 1:
        text, status = output_of([program, name])
    else:
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


def calls_of(name):
    """A call for each case of a program, or for each line of commands.txt; each gives (case, text)."""
    if name == "commands":
        lines = (HERE / "commands.txt").read_text().splitlines()
        return [(command_of, line) for line in lines if line and not line.startswith("#")]
    program = str(BUILD / "tests/golden" / name)
    return [(case_of, program, *line.split()) for line in output_of([program, "--list"])[0].splitlines()]


@functools.cache
def printed(name):
    """What each case prints: {case: text}."""
    texts = dict(at_a_time(calls_of(name)))
    folder = BUILD / "tests/golden/printed"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text("".join(f"== {case}\n{text}\n" for case, text in texts.items()))
    return texts


# ---- pinned texts ------------------------------------------------------------------------------------------------------


def blocks(path):
    """(head, text) of each "== HEAD" and the lines below it."""
    for block in re.split(r"^== ", path.read_text(), flags=re.MULTILINE)[1:]:
        head, _, text = block.partition("\n")
        yield head, text.rstrip("\n") + "\n"


def answer_to(call, text):
    """The lines below a call in the output of a case."""
    lines = text.splitlines(keepends=True)
    if call + "\n" not in lines:
        return "(this call is not made)\n"
    at = lines.index(call + "\n") + 1
    below = itertools.takewhile(re.compile(r"(?:\[\d+\] )?    ").match, lines[at:])
    return "".join(below)


def now(kind, head):
    """What is printed today under a head of expected/."""
    if kind == "commands":
        return printed("commands").get(head, "(this line is not in commands.txt)\n")
    program, case, *call = head.split(" ", 2)
    text = printed(program).get(case, "(there is no such case)\n")
    return answer_to(call[0], text) if call else text


def compare(kind):
    path = HERE / "expected" / f"{kind}.txt"
    got = "\n".join(f"== {head}\n{now(kind, head)}" for head, _ in blocks(path))
    if UPDATE:
        path.write_text(got)
    elif got != path.read_text():
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as new:
            new.write(got)
            new.flush()
            diff = subprocess.run(["diff", "-u", str(path), new.name], text=True, capture_output=True).stdout
        raise AssertionError(diff + "UPDATE_GOLDEN=1 tests/run --only golden writes the new texts")


@test
def messages_that_users_meet_most_read_as_agreed():
    compare("messages")


@test
def results_and_first_errors_of_the_command_read_as_agreed():
    compare("commands")


# ---- shape -------------------------------------------------------------------------------------------------------------

EXCEPTIONS = shape.Exceptions(HERE / "shape_exceptions.txt")
MESSAGE = re.compile(r"(?:\[\d+\] )?(?:    |.*: )(LS_ERR_\w+|NULL): (.*)")
USAGE = re.compile(r"(lockstep [\w -]+: .*)")


def broken_rules(case, text):
    usage_error = text.endswith("\nstatus 2\n")
    for line in text.splitlines():
        message, usage = MESSAGE.match(line), usage_error and USAGE.match(line)
        rules = list(shape.of_any(line))
        if message:
            rules += shape.of_message(*message.groups())
        elif usage:
            rules += shape.of_usage(usage.group(1))
        for rule in rules:
            if not EXCEPTIONS.allow(rule, line):
                yield f"{rule}: {case}: {line.strip()}"


def shape_test(name):
    def body():
        none_of((rule for case, text in printed(name).items() for rule in broken_rules(case, text)),
                "each message says what was asked, what was found and what to do (shape.py); these lack the part named, "
                "or belong into shape_exceptions.txt")
    body.__name__ = f"the_messages_of_{name}_have_their_shape"
    test(body)


for name in (*PROGRAMS, "commands"):
    shape_test(name)


@test
def every_exception_from_the_shape_is_needed():
    none_of(EXCEPTIONS.unused(), "in shape_exceptions.txt, but no message needs them")


# ---- coverage ----------------------------------------------------------------------------------------------------------


@functools.cache
def all_printed():
    """With the help of an option, which is wrapped, as the one line that it is in the source."""
    text = "".join(text for name in (*PROGRAMS, "commands") for text in printed(name).values())
    return re.sub(r"\n {26}(?=\S)", " ", text)


def not_shown():
    lines = (HERE / "not_shown.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def provoked():
    said = {sentence.strip() for _, sentence in sources.all_sentences()}
    tested = sources.covered_by_tests(said)
    return said, {sentence for sentence in said if sentence in tested or sources.stands_in(all_printed(), sentence)}


@test
def every_sentence_of_the_sources_is_provoked():
    excused, (_, shown) = set(not_shown()), provoked()
    none_of((f"{where}: {sentence}" for where, sentence in sources.all_sentences()
             if sentence.strip() not in excused and sentence.strip() not in shown),
            "provoke these in tests/golden, or compare them by CHECK_SAYS or says(), or say in not_shown.txt why "
            "nobody can")


@test
def what_is_excused_is_said_and_is_not_shown():
    said, shown = provoked()
    none_of((line for line in not_shown() if line not in said), "in not_shown.txt, but nobody says it")
    none_of((line for line in not_shown() if line in shown), "in not_shown.txt, but a case or a test provokes it")


@test
def the_reader_of_sentences_reads():
    text = '''f(a, "two words %d" /* not these */ " and %s" PRId64 "\\n", x); g("%s"); printf("no error");'''
    assert [s for _, s in sources.sentences(text)] == ["two words %d and %slld"], list(sources.sentences(text))
    assert sources.stands_in("say: rank 3 has nothing", "rank %d has %s")
    assert not sources.stands_in("rank 3 is here", "rank %d has %s")
    assert not sources.stands_in("rank three has nothing", "rank %d has %s")
    assert not sources.stands_in("a frank 3 has it", "rank %d has it")
    assert not sources.stands_in("rank 3 has items", "rank %d has it")
    assert sources.stands_in("process <pid> ends", "process %d ends")


@test
def a_message_that_lacks_a_part_breaks_a_rule():
    whole = 'npy: "a.npy" holds no elements; give another file'
    assert not list(shape.of_message("LS_ERR_INVALID", whole))
    assert list(shape.of_message("LS_ERR_INVALID", 'npy: "a.npy" holds no elements')) == ["advice"]
    assert list(shape.of_message("LS_ERR_INVALID", "npy: give another file")) == ["found"]
    assert list(shape.of_message("LS_ERR_INVALID", "npy: the file is wrong; give another file")) == ["found"]
    assert list(shape.of_message("LS_ERR_INVALID", "the file holds no elements; give another one")) == ["asked"]
    assert list(shape.of_message("LS_ERR_INVALID", whole + ".")) == ["one sentence"]
    assert list(shape.of_any("lr is %g; give one above 0")) == ["a conversion is left"]


run()
