# SPDX-License-Identifier: Apache-2.0
"""What clang-format does not see, since it leaves comments as they are: their width, and declarations that it has broken
because a comment stood behind them. And names of internal types, which mean one thing."""

import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, none_of, run, test

COLUMNS = 100
FOLDERS = ("include", "src", "tests", "tools", "examples", "programs", "models", "extra", "bench", "paper", "python")

TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def texts():
    """(name, text) of every source file."""
    for folder in FOLDERS:
        for path in sorted((SOURCE / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".hpp") and path.is_file():
                yield path.relative_to(SOURCE).as_posix(), path.read_text()


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def wide_comments(text):
    """Lines beyond the last column that hold a comment or a part of one; a line that a macro goes on after has no choice."""
    found = set()
    for token in TOKEN.finditer(text):
        if token.group(0).startswith("/"):
            first = line_of(text, token.start())
            found |= set(range(first, first + token.group(0).count("\n") + 1))
    lines = text.split("\n")
    return [k for k in sorted(found) if len(lines[k - 1]) > COLUMNS and not lines[k - 1].endswith("\\")]


@test
def comments_end_at_column_100():
    none_of((f"{name}:{line}" for name, text in texts() for line in wide_comments(text)),
            "wrap these comments")


@test
def the_ruler_finds_what_is_too_wide():
    long, string = "x" * (COLUMNS - 4), '"/* ' + "x" * COLUMNS + '"'
    assert wide_comments(f"/* {long} */\nint a; /* b\n {long}xxxxx */\n") == [1, 3]
    assert wide_comments(f"f({string});\n{long}xxxxx\n/* {long[6:]} */\n") == []


# A type alone in its line, and in the next one what it declares.
BROKEN = re.compile(r"^[ \t]+\b(?!return\b|else\b|do\b|goto\b)(?:(?:const|static|extern|struct|enum|union|unsigned|_Atomic) )*"
                    r"[A-Za-z_]\w*\n[ \t]+\**[A-Za-z_]\w*(?:\[[^\]\n]*\])*;", re.MULTILINE)


def without_comments(text):
    return TOKEN.sub(lambda token: re.sub(r"[^\n]", " ", token.group(0)) if token.group(0)[0] == "/" else token.group(0), text)


def broken_declarations(text):
    bare = re.sub(r" +$", "", without_comments(text), flags=re.MULTILINE)
    return [line_of(bare, m.start()) for m in BROKEN.finditer(bare)]


@test
def declarations_are_not_broken_after_their_type():
    none_of((f"{name}:{line}" for name, text in texts() for line in broken_declarations(text)),
            "put the comment above the declaration")


@test
def the_check_finds_a_broken_declaration():
    assert broken_declarations("struct s {\n    int a;\n    bool\n        b; /* c */\n    const char\n        *d;\n};\n") == [3, 5]
    assert not broken_declarations("    do_it();\n    return\n        x;\n    bool b;\n") and not broken_declarations("f\n(x);\n")


# ---- types -------------------------------------------------------------------------------------

DEFINED = re.compile(r"^typedef (?:struct|union|enum)[^;{]*\{.*?^\}[^;\n]*\b(ls__\w+);|^(?:struct|union|enum) (ls__\w+) *\{|"
                     r"^typedef [^;{]*\(\*(ls__\w+)\)|^typedef (?!struct|union|enum)[^;{(]*\b(ls__\w+);",
                     re.MULTILINE | re.DOTALL)


def types_of(text):
    return [next(filter(None, found)) for found in DEFINED.findall(without_comments(text))]


@test
def a_name_of_an_internal_type_is_defined_once():
    homes = {}
    for name, text in texts():
        for kind in types_of(text) if not name.startswith("tests/") else ():
            homes.setdefault(kind, []).append(name)
    assert len(homes) > 300, len(homes)
    none_of((f"{kind}: {', '.join(names)}" for kind, names in sorted(homes.items()) if len(names) > 1),
            "one name, two meanings: let it carry its layer")


@test
def the_check_reads_all_forms_of_types():
    assert types_of("typedef struct ls__a {\n    int x; /* ls__no; */\n} ls__a;\ntypedef struct ls__b ls__b;\nstruct ls__b {\n"
                    "};\ntypedef void (*ls__c)(int);\ntypedef enum {\n    X\n} ls__d;\ntypedef float ls__e;\n") == [
                        "ls__a", "ls__b", "ls__c", "ls__d", "ls__e"]


run()
