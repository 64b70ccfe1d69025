# SPDX-License-Identifier: Apache-2.0
"""Keeps the results of tests/mutate/run, and the list of survivors.

BUILD/planted.txt has a line for each planted change: its key, outcome, the number of tests that run it and of those
that were left out, the budget in seconds, and the test that noticed. survivors.txt, which is part of the sources, has
a line for each that survived: its key, kind, file, what was changed, and the answer. The kind is "open" until somebody
writes "equivalent" (no promised behaviour changes) or "accepted" (it does, and no test is worth it) and why.
"""

import os
import pathlib
import re
import sys

sys.dont_write_bytecode = True
from folders import FOLDERS

HERE = pathlib.Path(__file__).resolve().parent
PLANTED = HERE.parent.parent / "build-mutate/planted.txt"
SURVIVORS = HERE / "survivors.txt"
KINDS = ("equivalent", "accepted", "open")
HEAD = """# Planted changes that no test noticed (tests/mutate/run), and why: key, kind, file | change | answer. See table.py.
"""


def entry_of(folder, site, outcome, tests, left, budget_s, by):
    return {"key": site.key, "folder": folder, "path": site.path, "line": site.line, "rule": site.rule,
            "before": site.before.strip(), "after": site.after.strip(), "outcome": outcome, "tests": tests,
            "left": left, "budget": budget_s, "by": by}


def line_of(entry):
    return " ".join(str(entry[name]) for name in ("key", "outcome", "tests", "left", "budget", "by")).rstrip() + "\n"


def results(sites):
    """{key: entry}; of `sites`, {key: (folder, site)}, so without the changes of lines that are no more. A later
    line replaces an earlier one."""
    found = {}
    for line in PLANTED.read_text().splitlines() if PLANTED.exists() else []:
        key, outcome, tests, left, budget, *by = line.split(" ", 5)
        if key in sites:
            found[key] = entry_of(*sites[key], outcome, int(tests), int(left), float(budget), "".join(by))
    return found


def keep(entry):
    with PLANTED.open("a") as file:
        file.write(line_of(entry))


def answers():
    """{key: kind}"""
    found = {}
    for line in SURVIVORS.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            key, kind, _ = line.split(None, 2)
            if kind not in KINDS:
                sys.exit(f"survivors.txt: {key}: {kind} is not one of {', '.join(KINDS)}")
            found[key] = kind
    return found


def fragment(text, begin, end):
    """The part that changed, with the word on either side."""
    left = re.search(r"[^\s(]*[\s(]*$", text[:begin]).start()
    right = end + re.match(r"[\s)]*[^\s)]*", text[end:]).end()
    return text[left:right].strip()


def change(rule, before, after):
    before, after = before.strip(), after.strip()
    if rule in ("status dropped", "call deleted", "assignment deleted"):
        return f"{before}: {rule}"
    begin = len(os.path.commonprefix([before, after]))
    same = min(len(os.path.commonprefix([before[:begin - 1:-1], after[:begin - 1:-1]])), len(before) - begin, len(after) - begin)
    return f"{fragment(before, begin, len(before) - same)} -> {fragment(after, begin, len(after) - same)}"


def survivor_line(key, kind, path, rule, before, after, answer):
    return f"{key} {kind} {path.removeprefix('src/')} | {change(rule, before, after)} | {answer}".rstrip() + "\n"


def shown(entry):
    return (f"{entry['outcome']:9}  {entry['key']}  {entry['path']}:{entry['line']}  {entry['rule']}, {entry['tests']} "
            f"tests run it, {entry['seconds']} s\n    - {entry['before']}\n    + {entry['after'] or '(nothing)'}"
            + (f"\n    by {entry['by']}" if entry["by"] else "")
            + (f"\n    {entry['left']} tests were not run (--budget)" if entry["left"] else ""))


def kind_of(entry, answered):
    """killed, equivalent, accepted, or open; None of what counts for nothing."""
    if entry["outcome"] == "killed":
        return "killed"
    return None if entry["outcome"] == "unbuilt" else answered.get(entry["key"], "open")


def write(done):
    """Adds the survivors that the list has not."""
    answered = answers()
    PLANTED.write_text("".join(sorted(map(line_of, done.values()))))
    left = [entry for entry in done.values() if entry["outcome"] in ("survived", "undecided")]
    left.sort(key=lambda entry: (list(FOLDERS).index(entry["folder"]), entry["path"], entry["key"]))
    with SURVIVORS.open("a") as file:
        for entry in left:
            if entry["key"] not in answered:
                file.write(survivor_line(entry["key"], "open", entry["path"], entry["rule"], entry["before"], entry["after"], ""))


def summary(done):
    answered = answers()
    kinds = [kind_of(entry, answered) for entry in done.values()]
    return "".join(f"{kind}: {kinds.count(kind)}\n" for kind in ("killed", *KINDS))
