# SPDX-License-Identifier: Apache-2.0
"""The tree is the architecture: includes point down the table of layers.py and nowhere else."""

import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
import layers
from tap import SOURCE, none_of, run, test

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


def includes(path):
    return INCLUDE.findall(path.read_text())


def c_files(folder):
    return sorted((SOURCE / folder).rglob("*.[ch]"))


def problem_of(row, bracket, name):
    """What is wrong with an include in a file of `row`, or None."""
    if name.startswith("lockstep/"):
        home = layers.HEADERS.get(name.removeprefix("lockstep/"))
        if name == "lockstep/lockstep.h" and row != layers.HEADERS["lockstep.h"]:
            return "the umbrella header is for users"
        if home is None:
            return f"{name} stands in no row of HEADERS"
        return None if layers.allowed(row, home) else f"{row} is not built on {home}"
    if bracket == "<":
        return None  # the system's
    if "/" not in name:
        return "write the path from src/ on"
    return None if layers.allowed(row, name) else f"{row} is not built on {layers.folder_of(name)}"


@test
def every_folder_of_the_library_stands_in_the_table():
    folders = {str(p.parent.relative_to(SOURCE / "src")) for p in c_files("src")}
    none_of((f for f in folders if layers.folder_of(f) is None), "not in ARROWS")


@test
def includes_of_the_library_follow_the_arrows():
    problems = []
    for path in c_files("src"):
        relative = str(path.relative_to(SOURCE / "src"))
        row = layers.folder_of(relative)
        for bracket, name in includes(path):
            problem = row and problem_of(row, bracket, name)
            if problem:
                problems.append(f"src/{relative}: {name}: {problem}")
    none_of(problems, "includes against the arrows")


@test
def libraries_are_called_where_the_table_says_only():
    problems = []
    for path in c_files("src"):
        relative = str(path.relative_to(SOURCE / "src"))
        for _, name in includes(path):
            homes = layers.LIBRARIES.get(name.split("/")[0])
            if homes and not any(layers.within(relative, home) for home in homes):
                problems.append(f"src/{relative}: {name}: only {homes} may")
    none_of(problems, "libraries called past their wrapper")


@test
def a_sibling_an_upper_layer_and_the_umbrella_are_refused():
    assert problem_of("nn", "<", "lockstep/data.h")
    assert problem_of("data", '"', "base/log.h") is None
    assert problem_of("base", "<", "lockstep/comm.h")
    assert problem_of("comm", "<", "lockstep/lockstep.h")
    assert problem_of("kernel", '"', "kernel/reduce/reduce.h")
    assert problem_of("comm", '"', "kernel/reduce/reduce.h") is None
    assert problem_of("comm", '"', "kernel/kernels.h")
    assert problem_of("launch", '"', "job/board.h") is None
    assert problem_of("launch", '"', "comm/program/program.h")
    assert problem_of("ddp", '"', "base/error.h") is None


@test
def public_headers_include_only_those_of_their_own_or_lower_layers():
    problems = []
    for path in c_files("include"):
        row = layers.HEADERS.get(path.name)
        for bracket, name in includes(path):
            home = layers.HEADERS.get(name.removeprefix("lockstep/"))
            if bracket == '"':
                problems.append(f"{path.name}: {name}: not public")
            elif row and name.startswith("lockstep/") and not (home and layers.allowed(row, home)):
                problems.append(f"{path.name}: {name}: {row} is not built on {home}")
    none_of(problems, "includes of public headers")


@test
def the_umbrella_includes_every_public_header():
    names = {name for _, name in includes(SOURCE / "include/lockstep/lockstep.h")}
    there = {f"lockstep/{p.name}" for p in (SOURCE / "include/lockstep").glob("*.h")}
    there -= {"lockstep/lockstep.h", "lockstep/mpi.h"}  # the latter needs the program's own mpi.h
    none_of(names ^ there, "in one and not the other")


@test
def models_examples_and_programs_use_public_headers_only():
    problems = []
    for path in c_files("models") + c_files("extra") + c_files("examples") + c_files("programs"):
        if "tests" in path.parts[len(SOURCE.parts):]:
            continue
        for bracket, name in includes(path):
            shared = path.parts[-2] == "programs" and name.startswith("tools/cli/")  # command lines
            if bracket == '"' and not shared and not (path.parent / name).exists():
                problems.append(f"{path.relative_to(SOURCE)}: {name}")
    none_of(problems, "private includes")


def rows_of(page):
    """{folder: what it is built on} of the lines `src/x/ src/y/ what it is -> a, b`."""
    form = re.compile(r"^((?:src/\S+\s+)+).*->\s*([^>]+?)\s*$", re.MULTILINE)
    rows = {}
    for folders, below in form.findall(page):
        for folder in folders.split():
            name = re.sub(r"/\{.*", "", folder.removeprefix("src/")).rstrip("/")
            rows[name] = {word.strip() for word in below.split(",")} - {"libc", "libcrypto"}
    return rows


@test
def the_table_equals_the_one_in_the_architecture():
    rows = rows_of((SOURCE / "ARCHITECTURE.md").read_text())
    built = lambda name: (SOURCE / "src" / name).exists()
    problems = []
    for name, below in layers.ARROWS.items():
        here = {b for b in below if built(b)}
        if built(name) and rows.get(name) != here:
            problems.append(f"{name}: {rows.get(name)} there, {here} here")
    none_of(problems, "ARCHITECTURE.md and tests/tidy/layers.py differ")


run()
