# SPDX-License-Identifier: Apache-2.0
"""What can be read off the text of the sources: lengths, white space, words, layout."""

import functools
import pathlib
import re
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
import dialect
from tap import SOURCE, Skip, command, none_of, run, test

FUNCTION_LINES_MAX = 70
FOLDERS = ("include", "src", "tests", "tools", "examples", "programs", "models", "extra", "bench", "paper", "scripts", "python",
           "cmake", "docs")

# Functions that cannot be called safely, or have a checked twin.
UNSAFE = re.compile(r"\b(strcpy|strcat|sprintf|vsprintf|gets|strtok|alloca|tmpnam|mktemp|rand|"
                    r"srand|system|bzero|setjmp|longjmp)\s*\(")
# Notes to oneself (in pieces, so that this file passes) and places of one machine.
LEFT_OVER = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) +
                       r")\b|/ho" + r"me/\w|/ro" + r"ot/")


@functools.cache
def all_files():
    found = [p for folder in FOLDERS for p in (SOURCE / folder).rglob("*")]
    found += list(SOURCE.glob("*"))
    return sorted(p for p in found if p.is_file() and "__pycache__" not in p.parts and "corpus" not in p.parts)


def files(*suffixes):
    return [p for p in all_files() if p.suffix in suffixes or not suffixes]


def texts(*suffixes):
    for path in files(*suffixes):
        try:
            yield path.relative_to(SOURCE), path.read_text()
        except UnicodeDecodeError:
            continue  # a binary test input


def functions(text):
    """(line, lines) of each function: its brace stands alone at the left, and so does its end."""
    lines = text.splitlines()
    begin = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            begin = number
            while begin > 1 and re.match(r"[\w ].*[\w,)*]$", lines[begin - 2]):
                begin -= 1
        elif line.startswith("}") and begin is not None:
            yield begin, number - begin + 1
            begin = None


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.DOTALL)
    return re.sub(r'//[^\n]*|"(?:\\.|[^"\\\n])*"', '""', text)


# Folders in which a condition says what a pointer is compared with.
POINTERS = ("src", "tools", "programs", "examples", "models", "bench", "paper")


@test
def functions_are_at_most_70_lines_long():
    none_of((f"{path}:{line}: {length} lines" for path, text in texts(".c", ".h")
             for line, length in functions(text) if length > FUNCTION_LINES_MAX), "split these")


@test
def the_function_counter_counts():
    text = "/* about */\nstatic int f(int a,\n             int b)\n{\n" + "    a++;\n" * 80 + "}\n"
    assert list(functions(text)) == [(2, 84)], list(functions(text))


@test
def c_files_start_with_their_idea():
    none_of((path for path, text in texts(".c", ".h") if not re.match(r"(/\* SPDX-[^\n]*\n)?/\*", text)),
            "no comment at the top, below the line of the licence")


@test
def no_line_ends_in_white_space_or_holds_a_tab():
    problems = []
    for path, text in texts():
        for number, line in enumerate(text.split("\n"), 1):
            if line != line.rstrip() or ("\t" in line and path.name != "Makefile"):
                problems.append(f"{path}:{number}")
        if text and not text.endswith("\n"):
            problems.append(f"{path}: no newline at the end")
    none_of(problems, "white space")


@test
def no_unsafe_functions_are_called():
    none_of((f"{path}:{number}: {UNSAFE.search(line).group(1)}" for path, text in texts(".c", ".h")
             for number, line in enumerate(without_comments(text).split("\n"), 1)
             if UNSAFE.search(line)), "unsafe functions")


@test
def no_notes_to_oneself_or_places_of_one_machine_are_left():
    none_of((f"{path}:{number}: {line.strip()[:70]}" for path, text in texts()
             for number, line in enumerate(text.split("\n"), 1) if LEFT_OVER.search(line)),
            "left over")


@test
def the_layout_is_that_of_clang_format():
    tool = shutil.which("clang-format-14")
    if tool is None:
        raise Skip("no clang-format-14 (apt-get install clang-format-14)")
    done = subprocess.run([tool, "--dry-run", "-Werror", *map(str, files(".c", ".h"))], text=True,
                          capture_output=True)
    wrong = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "error:" in line})
    none_of((pathlib.Path(p).relative_to(SOURCE) for p in wrong), "run `make format`")


@test
def pointers_are_compared_with_NULL():
    none_of((path.relative_to(SOURCE) for path in files(".c")
             if path.relative_to(SOURCE).parts[0] in POINTERS
             and dialect.rewritten(path.read_text()) != path.read_text()),
            "python3 tests/tidy/dialect.py FILE rewrites these")


CHAIN = re.compile(r"\b(\w+) = \1 == LS_OK \?")  # status = status == LS_OK ? f() : status


@test
def a_status_ends_a_function_early_and_is_not_chained():
    none_of((f"{path}:{text.count(chr(10), 0, m.start()) + 1}" for path, text in texts(".c", ".h")
             if path.parts[0] in POINTERS for m in CHAIN.finditer(text)), "return early, or use LS_TRY or goto")


COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
NAMED = re.compile(r"(?<![\w/.>])([a-z][a-z0-9_]*\.[ch])\b")
NOTE = re.compile(r"Notes? \[([^\]\n]+)\](?:\s+in\s+(?:\*\s+)?`?(?:[\w/]*/)?(\w+\.[ch]))?")
# Files of other projects, and of the examples of error texts.
ELSEWHERE = {"llm.c", "train.c", "out.c"}


def comments(path):
    return " ".join(re.sub(r"\s*\n\s*\*?\s*", " ", c) for c in COMMENT.findall(path.read_text()))


@test
def files_that_comments_of_the_library_name_exist():
    names = {path.name for path in files(".c", ".h")} | ELSEWHERE
    none_of((f"{path.relative_to(SOURCE)}: {name}" for path in files(".c", ".h")
             if path.relative_to(SOURCE).parts[0] in ("src", "include")
             for name in NAMED.findall(comments(path)) if name not in names and "<" not in name
             and name not in ("transformer.h",)), "named in comments, not there")


@test
def notes_that_comments_refer_to_stand_where_they_say():
    homes = {}
    for path in files(".c", ".h"):
        for title in re.findall(r"^\s*(?:/?\*+)\s*Note \[([^\]]+)\]\s*$", path.read_text(), re.MULTILINE):
            homes.setdefault(title, set()).add(path.name)
    problems = []
    for path in files(".c", ".h"):
        for title, home in NOTE.findall(comments(path)):
            if title not in homes or (home and home not in homes[title]):
                problems.append(f"{path.relative_to(SOURCE)}: Note [{title}]" + (f" in {home}" if home else "") +
                                f" (stands in {', '.join(sorted(homes.get(title, ['no file'])))})")
    none_of(problems, "referred to, not there")


@test
def shell_scripts_parse():
    for script in ("scripts/bootstrap", "demo", "check"):
        command("sh", "-n", SOURCE / script)
    command("sh", "-n", SOURCE / "docs/troubleshooting/reproduce")
    command("bash", "-n", SOURCE / ".ci/run")


# Elements of tensors are touched by kernels alone (src/device/device.h, Note [Devices]): the places of the library
# that still read or write them on the host are counted, and their number may only fall.
ELEMENT_FOLDERS = {*(f"src/{name}" for name in ("tensor", "autograd", "nn", "optim", "data", "ddp", "reduce", "parallel")), "models",
                   "programs"}

# A pointer for the host, a copy, a conversion or a look at elements.
HOST = re.compile(r"\b(?:ls_data\(|ls__convert(?:_load|_store|_fill)?\(|ls__nonfinite_find\(|\*ls__record_floats\("
                  r"|\*ls__record_data\(|mem(?:cpy|set|move)\([^;]*(?:->data\b|ls__record_(?:data|floats)\b|\bgrad\b|->user\b))")

# Storages that hold the library's own notes, not elements: these never leave the host.
NOTES = {
    "src/autograd/engine.c": 1,
    "src/autograd/function_call.c": 2,
    "src/autograd/joint.c": 2,
    "src/autograd/observers.c": 1,
    "src/autograd/pass.c": 1,
    "src/autograd/segment.c": 1,
    "src/tensor/record.c": 1,
    "src/tensor/rng_stream.c": 1,
}

# What is left; lower a number, or take a line away, with the place it counts.
LEFT = {
    "models/kv_cache.c": 1,  # of a copy on the processor
    "programs/export.c": 1,  # of a copy on the processor
    "programs/federated.c": 2,  # the same, and what a visitor shows
    "programs/generate.c": 1,  # it computes on the processor
    "programs/judge.c": 2,  # of copies on the processor
    "src/autograd/gradcheck.c": 4,  # a check of rules on the processor
    "src/data/sample.c": 2,  # samples, which are no tensors
    "src/data/tensor_dataset.c": 1,  # of a tensor of the processor
    "src/nn/init.c": 1,  # for its message
    "src/parallel/pipeline/values.c": 3,  # messages: tensors of the program (across.h)
    "src/reduce/nonfinite.c": 1,  # buckets are memory of the program
    "src/tensor/access.c": 2,  # ls_data itself, and ls_item of a copy
    "src/tensor/cast.c": 1,  # of a view for the host
    "src/tensor/convert.c": 7,  # the conversions themselves
    "src/tensor/create.c": 3,  # staged
    "src/tensor/integers.c": 2,  # of views for the host
    "src/tensor/pad.c": 1,  # staged
    "src/tensor/print.c": 2,  # of a view for the host
}


def host_places():
    for path, text in texts(".c"):
        if "/".join(path.parts[:2]) in ELEMENT_FOLDERS or path.parts[0] in ELEMENT_FOLDERS:
            found = HOST.findall(without_comments(text))
            if found:
                yield str(path), len(found)


@test
def no_more_places_touch_elements_on_the_host():
    found = dict(host_places())
    known = {path: LEFT.get(path, 0) + NOTES.get(path, 0) for path in {*LEFT, *NOTES, *found}}
    none_of((f"{path}: {found.get(path, 0)}, known are {count}" for path, count in sorted(known.items())
             if found.get(path, 0) != count), "use a kernel (copy, zero, nonfinite), ls__device_read or ls_copy_out; "
            "where there are fewer now, lower the number in tests/tidy/test_text.py")


run()
