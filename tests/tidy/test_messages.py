"""Every sentence that the sources can say to a user stands in a golden text, or in a list with the reason.

Read are the string literals of src/, tools/, bench/ and the examples that hold at least two words. One is
covered when the golden texts (tests/golden/expected) hold, whole, what its format could have made, or when a test
compares it whole (CHECK_SAYS, says). What needs a broken system or a broken library cannot be provoked;
tests/golden/not_shown.txt lists it.
"""

import ast
import functools
import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from sentences import CONVERSION, pattern
from tap import SOURCE, none_of, run, test

FOLDERS = ("src", "tools", "bench", "paper", "examples", "programs", "extra")
GOLDEN = SOURCE / "tests/golden"
# What is said to nobody (compiler directives, templates of JSON) or is no error (results on stdout).
SILENT_CALLS = {"_Static_assert", "_Pragma", "json_pack", "sscanf", "starts", "ends", "strncmp", "printf", "configure"}
SILENT_FILES = (
    "src/sim/",           # for the developers of the library, as tests are
    "src/comm/program/check",  # the checker of programs, which only tests call
    "bench/dev/",         # for the developers of the library; tests/docs/test_algorithms.py reads its tables
    "bench/report.c",
    "paper/arithmetic.c", "paper/breakdown.c", "paper/buckets.c", "paper/backends.c", "paper/call_sizes.c", "paper/convergence.c", "paper/cs336.c",
    "paper/question_buckets.c", "paper/question_ranks.c", "paper/questions.c",
    "paper/scaling.c", "paper/taxonomy.c",  # results
    "paper/round_robin.c", "paper/skipping.c", "paper/variance.c",  # the same
    "paper/script.c",         # of gnuplot
    "paper/page.c",           # HTML
    "tools/info_backends.c",  # a table on stdout
    "tools/plan_svg.c",       # a picture
    "bench/peers/",       # programs that answer compare.py
    "bench/training/",    # a program that answers compare_training.py
)
TOKEN = re.compile(r'''/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|\S''',
                   re.DOTALL)
WORDS = re.compile(r"[a-z]{2,}[,;:)]? \(?[a-z]{2,}", re.IGNORECASE)


def literals(text):
    """(line, literal, names of the calls it stands in); adjacent ones are joined."""
    calls, name, open_literal, found = [], None, None, []
    for match in TOKEN.finditer(text):
        token = match.group(0)
        if token.startswith(("/*", "//")):
            continue
        if token[0] == '"':
            if open_literal is None:
                open_literal = [text.count("\n", 0, match.start()) + 1, "", list(calls)]
            open_literal[1] += token[1:-1]
            continue
        if open_literal is not None:
            if token.startswith("PRI"):
                open_literal[1] += "lld"
                continue
            found.append(tuple(open_literal))
            open_literal = None
        if token == "(":
            calls.append(name)
        elif token == ")" and calls:
            calls.pop()
        elif token in "{}":
            calls = []
        name = token if re.match(r"[A-Za-z_]\w*$", token) else None
    return found


def unescape(literal):
    simple = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "r": "\r"}
    literal = re.sub(r"\\x[0-9a-f]{2}", "", literal)
    return re.sub(r"\\(.)", lambda m: simple.get(m.group(1), m.group(1)), literal)


def sentences(text):
    """(line, sentence): what a user may read, a line each."""
    for line, literal, calls in literals(text):
        if SILENT_CALLS & set(calls):
            continue
        for sentence in unescape(literal).split("\n"):
            if WORDS.search(CONVERSION.sub(" ", sentence)):
                yield line, sentence


def stands_in(text, sentence):
    """Whether a line of `text` is what the format could have made."""
    # The longest literal part first: a search for it is quick.
    longest = max(CONVERSION.split(sentence.strip()), key=len)
    at = text.find(longest)
    while at >= 0:
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        end = end if end >= 0 else len(text)
        if pattern(sentence).search(text, start, end):
            return True
        at = text.find(longest, end)
    return False


def all_sentences():
    for folder in FOLDERS:
        for path in sorted(p for p in (SOURCE / folder).rglob("*.c") if "tests" not in p.parts[len(SOURCE.parts):]):
            name = path.relative_to(SOURCE).as_posix()
            if not name.startswith(SILENT_FILES) and not name.endswith("settings.c"):
                for line, sentence in sentences(path.read_text()):
                    yield f"{name}:{line}", sentence


def golden_lines():
    """With the help of an option, which is wrapped, as the one line that it is in the source."""
    text = "".join(path.read_text() for path in sorted((GOLDEN / "expected").glob("*.txt")))
    return re.sub(r"\n {26}(?=\S)", " ", text)


@functools.cache
def compared():
    """Sentences that a test compares whole: CHECK_SAYS and SAYS in C, says() and sentence() in Python."""
    found = set()
    for path in (*(SOURCE / "tests").rglob("*.c"), *(SOURCE / "extra").rglob("tests/*.c")):
        text = path.read_text()
        if "SAYS(" in text:
            for _, literal, calls in literals(text):
                if "CHECK_SAYS" in calls or "SAYS" in calls:
                    found.update(line.strip() for line in unescape(literal).split("\n"))
    for path in (SOURCE / "tests").rglob("test_*.py"):
        text = path.read_text()
        if "says(" in text or "sentence(" in text:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("says", "sentence"):
                    found.update(a.value.strip() for a in node.args if isinstance(a, ast.Constant))
    return found


def is_shown(golden, sentence):
    return sentence.strip() in compared() or stands_in(golden, sentence)


def not_shown():
    lines = (GOLDEN / "not_shown.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


@test
def every_sentence_stands_in_a_golden_text():
    golden, excused = golden_lines(), set(not_shown())
    none_of((f"{where}: {sentence}" for where, sentence in all_sentences()
             if sentence.strip() not in excused and not is_shown(golden, sentence)),
            "provoke these in tests/golden, or compare them by CHECK_SAYS or says(), or say in not_shown.txt why "
            "nobody can")


@test
def what_is_excused_is_said_and_is_not_shown():
    golden, said = golden_lines(), {sentence.strip() for _, sentence in all_sentences()}
    none_of((line for line in not_shown() if line not in said), "in not_shown.txt, but nobody says it")
    none_of((line for line in not_shown() if line in said and is_shown(golden, line)),
            "in not_shown.txt, but a golden text has it")


@test
def the_reader_of_sentences_reads():
    text = '''f(a, "two words %d" /* not these */ " and %s" PRId64 "\\n", x); g("%s"); printf("no error");'''
    assert [s for _, s in sentences(text)] == ["two words %d and %slld"], list(sentences(text))
    assert stands_in("say: rank 3 has nothing", "rank %d has %s")
    assert not stands_in("rank 3 is here", "rank %d has %s")
    assert not stands_in("rank three has nothing", "rank %d has %s")
    assert not stands_in("a frank 3 has it", "rank %d has it")
    assert not stands_in("rank 3 has items", "rank %d has it")
    assert stands_in("process <pid> ends", "process %d ends")


run()
