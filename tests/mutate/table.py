"""Makes survivors.md from the results of tests/mutate/run and the answers to survivors.

answers.txt has a line for each survivor that no test needs to kill: its key, "equivalent" (no promised
behaviour changes) or "accepted" (it does, and no test is worth it), and why.
"""

import json
import pathlib
import sys

sys.dont_write_bytecode = True
from folders import FOLDERS

HERE = pathlib.Path(__file__).resolve().parent
KINDS = ("equivalent", "accepted")
HEAD = """# Planted changes that no test noticed, and why

`make mutate` plants changes in the sources, one at a time, and runs the tests that run the changed line
(`tests/mutate/run`). This page is written by it, from its results and from `answers.txt`.

"""


def results(path):
    """The results by key; a later line replaces an earlier one."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["key"]: entry for entry in map(json.loads, lines)}


def answers():
    """{key: (kind, why)}"""
    lines = (HERE / "answers.txt").read_text().splitlines()
    found = {}
    for line in lines:
        if line.strip() and not line.startswith("#"):
            key, kind, why = line.split(None, 2)
            if kind not in KINDS:
                sys.exit(f"answers.txt: {key}: {kind} is not one of {', '.join(KINDS)}")
            found[key] = kind, why
    return found


def shown(entry):
    return (f"{entry['outcome']:9}  {entry['key']}  {entry['path']}:{entry['line']}  {entry['rule']}, {entry['tests']} "
            f"tests run it, {entry['seconds']} s\n    - {entry['before']}\n    + {entry['after'] or '(nothing)'}"
            + (f"\n    by {entry['by']}" if entry["by"] else "")
            + (f"\n    {entry['left']} tests were not run (--budget)" if entry["left"] else ""))


def kind_of(entry, answered):
    """killed, equivalent, accepted, or open; None of what counts for nothing."""
    if entry["outcome"] == "killed":
        return "killed"
    return None if entry["outcome"] == "unbuilt" else answered.get(entry["key"], ("open",))[0]


def count_table(done, answered):
    columns = ("killed", *KINDS, "open")
    rows = ["| folder | planted so far | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    folders = [*FOLDERS, "all"]
    for folder in folders:
        kinds = [kind_of(entry, answered) for entry in done.values() if folder in (entry["folder"], "all")]
        counts = [kinds.count(column) for column in columns]
        wanted = sum(entry.count for name, entry in FOLDERS.items() if folder in (name, "all"))
        rows.append(f"| {folder} | {sum(counts)} of {wanted} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(rows) + "\n"


def cell(code):
    return f"`{code.replace('|', chr(92) + '|')}`" if code and code != ";" else "(nothing)"


def survivor_table(entries, answered):
    rows = ["| key | place and rule | change | answer |", "|---|---|---|---|"]
    for entry in entries:
        kind, why = answered.get(entry["key"], ("open", ""))
        place = f"`{entry['path'].removeprefix('src/')}`: {entry['rule']}"
        left = f"{entry['left']} of {entry['tests']} tests were not run" if entry["left"] else ""
        rows.append(f"| {entry['key']} | {place} | {cell(entry['before'])} becomes {cell(entry['after'])} "
                    f"| {': '.join(filter(None, (kind, why or left)))} |")
    return "\n".join(rows) + "\n"


def write(done):
    answered = answers()
    left = [entry for entry in done.values() if entry["outcome"] in ("survived", "undecided")]
    left.sort(key=lambda entry: (list(FOLDERS).index(entry["folder"]), entry["path"], entry["key"]))
    unknown = sorted(set(answered) - {entry["key"] for entry in left})
    if unknown:
        print("answers.txt answers what did not survive, or was not planted:", *unknown)
    (HERE / "survivors.md").write_text(HEAD + count_table(done, answered) + "\n" + survivor_table(left, answered))


def summary(done):
    answered = answers()
    kinds = [kind_of(entry, answered) for entry in done.values()]
    return "".join(f"{kind}: {kinds.count(kind)}\n" for kind in ("killed", *KINDS, "open"))
