# SPDX-License-Identifier: Apache-2.0
"""Folders of the library use each other without a circle, by includes and by the symbols of the objects.

A reader who opens a folder needs only those below it, and a folder can be tested with them alone.
"""

import collections
import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
import circles
from tap import BUILD, SOURCE, command, none_of, run, test

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

# Folders of a circle -> why it stays. Agreed, not found: remove a row when its circle is cut.
AGREED = {
}


def folder(path):
    return path.rpartition("/")[0]


def included():
    """(file, header that it includes), below src/."""
    root = SOURCE / "src"
    for path in sorted(root.rglob("*.[ch]")):
        for name in INCLUDE.findall(path.read_text()):
            yield str(path.relative_to(root)), name


def called():
    """(file, file that defines a symbol it uses), below src/. Variants of one source for several
    instruction sets define the same symbols and count for none."""
    root = SOURCE / "src"
    source = {str(p.relative_to(root))[:-2].replace("/", "_"): str(p.relative_to(root)) for p in root.rglob("*.c")}
    lines = command("nm", "-A", BUILD / "src/liblockstep.a").splitlines()
    for name, targets in circles.graph(circles.parse(lines)).items():
        for to in targets:
            if name in source and to in source:
                yield source[name], source[to]


def graph(pairs):
    """{folder: {folder that it uses: a pair of files}}"""
    arrows = collections.defaultdict(dict)
    for user, used in pairs:
        if "/" in used and folder(user) != folder(used):
            arrows[folder(user)].setdefault(folder(used), (user, used))
            arrows.setdefault(folder(used), {})
    return arrows


def circles_of(pairs):
    """One line for each circle: its folders, and of each arrow in it one pair of files."""
    arrows = graph(pairs)
    for circle in circles.components(arrows):
        if not any(name in AGREED for name in circle):
            within = [" -> ".join(arrows[a][b]) for a in circle for b in sorted(arrows[a]) if b in circle]
            yield f"{' '.join(circle)}: {'; '.join(within)}"


@test
def no_folders_include_each_other_in_a_circle():
    none_of(circles_of(included()), "move what both need into a folder below them")


@test
def no_folders_call_each_other_in_a_circle():
    none_of(circles_of(called()), "move what both need into a folder below them")


@test
def the_folders_of_comm_use_only_those_that_the_architecture_lists_before_them():
    page = (SOURCE / "ARCHITECTURE.md").read_text()
    order = re.findall(r"^src/comm/(\w+)/ ", page, re.MULTILINE)
    there = {p.parent.name for p in (SOURCE / "src/comm").glob("*/*.c")}
    none_of(there ^ set(order), "in src/comm or in ARCHITECTURE.md, not in both")
    place = {f"comm/{name}": at for at, name in enumerate(order)}
    none_of((f"{a} -> {b}" for a, b in [*included(), *called()]
             if place.get(folder(a), 0) < place.get(folder(b), 0) and folder(a) in place),
            "against the order in ARCHITECTURE.md")


@test
def a_circle_is_found_where_there_is_one():
    pairs = [("a/x.c", "b/y.h"), ("b/y.c", "c/z.h"), ("c/z.c", "c/z.h"), ("d/w.c", "a/x.h")]
    assert not list(circles_of(pairs))
    found = list(circles_of([*pairs, ("c/z.c", "a/x.h")]))
    assert found == ["a b c: a/x.c -> b/y.h; b/y.c -> c/z.h; c/z.c -> a/x.h"], found


run()
