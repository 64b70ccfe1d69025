# SPDX-License-Identifier: Apache-2.0
"""The sentences that the sources can say to a user, and those that a test compares.

Read are the string literals of src/, tools/, bench/ and the examples that hold at least two words. A sentence is
covered when a golden case prints what its format can have made, or when a test compares it, whole or by a part that no
other sentence has (CHECK_SAYS, says). What needs a broken system or a broken library cannot be provoked; not_shown.txt lists it.
"""

import ast
import functools
import re

from sentences import CONVERSION, pattern
from tap import SOURCE

FOLDERS = ("src", "tools", "bench", "paper", "examples", "programs", "extra")
# What is said to nobody (compiler directives, templates of JSON) or is no error (results on stdout).
SILENT_CALLS = {"_Static_assert", "_Pragma", "json_pack", "sscanf", "starts", "ends", "strncmp", "printf", "configure"}
SILENT_FILES = (
    "src/sim/",           # for the developers of the library, as tests are
    "src/comm/program/check",  # the checker of programs, which only tests call
    "bench/dev/",         # for the developers of the library; tests/docs/test_algorithms.py reads its tables
    "bench/report.c",
    "paper/alpa.c", "paper/alpa_resnet.c", "paper/arithmetic.c", "paper/breakdown.c", "paper/buckets.c", "paper/backends.c", "paper/call_sizes.c", "paper/convergence.c", "paper/cs336.c",
    "paper/question_buckets.c", "paper/question_ranks.c", "paper/questions.c",
    "paper/scaling.c", "paper/taxonomy.c",  # results
    "paper/round_robin.c", "paper/skipping.c", "paper/variance.c",  # the same
    "paper/script.c",         # of gnuplot
    "paper/page.c",           # HTML
    "tools/info_backends.c",  # a table on stdout
    "tools/plan_svg.c",       # a picture
    "src/plan/auto_file.c",   # words of a plan along tp
    "tools/report_page.c", "tools/report_plot.c",  # HTML and its pictures
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


@functools.cache
def compared():
    """What tests compare: CHECK_SAYS and SAYS in C, says() and sentence() in Python."""
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


def covered_by_tests(sentences):
    """Those that a test compares whole, or by a part that stands in no other sentence."""
    found = compared() & sentences
    for part in compared() - sentences:
        having = [sentence for sentence in sentences if part in sentence]
        if len(having) == 1:
            found.add(having[0])
    return found
