# SPDX-License-Identifier: Apache-2.0
"""The table of environment variables and the code that reads them are the same set."""

import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, none_of, run, test

TABLE = SOURCE / "src/base/settings.c"


def rows():
    text = TABLE.read_text()
    table = text[text.index("table[] = {"):]
    return re.findall(r'^    \{"(\w+)",', table[:table.index("\n};")], re.MULTILINE)


def code():
    """Sources that read or set variables: the library, the command, the examples, the package."""
    for folder in ("src", "tools", "examples", "programs", "models", "extra", "bench", "paper", "python/lockstep"):
        for path in sorted((SOURCE / folder).rglob("*.[ch]" if folder != "python/lockstep" else "*.py")):
            text = path.read_text()
            yield path, text[text.index("\n};"):] if path == TABLE else text  # behind the table


@test
def the_table_is_found_and_holds_the_known_names():
    assert {"LOCKSTEP_DEBUG", "LOCKSTEP_TIMEOUT", "RANK", "WORLD_SIZE"} <= set(rows()), rows()


@test
def every_row_is_read_or_set_somewhere():
    everything = "\n".join(text for _, text in code())
    none_of((name for name in rows() if not re.search(rf'"{name}(=%\w+)?"', everything)),
            "in the table only")


@test
def every_variable_of_ours_in_the_code_stands_in_the_table():
    problems = []
    for path, text in code():
        for name in re.findall(r'"(LOCKSTEP_[A-Z_]+)[="]', text):
            if name not in rows():
                problems.append(f"{path.relative_to(SOURCE)}: {name}")
    none_of(problems, "not in the table of src/base/settings.c")


@test
def the_environment_is_read_through_the_table_only():
    none_of((path.relative_to(SOURCE) for path, text in code()
             if path != TABLE and re.search(r"\bgetenv\s*\(", text) and path.parts[len(SOURCE.parts)] == "src"
             and path.parent.name not in ("nccl", "cuda")),  # plug-ins, which do not link the library
            "ls__setting_get knows the table")


run()
