"""Keeps the results of tests/mutate/run, and makes survivors.md from them and the answers to survivors.

planted.txt has a line for each planted change: its key, outcome, the number of tests that run it and of
those that were left out, the budget in seconds, and the test that noticed. answers.txt has a line for each
survivor that no test needs to kill: its key, "equivalent" (no promised behaviour changes) or "accepted" (it
does, and no test is worth it), and why.
"""

import pathlib
import sys

sys.dont_write_bytecode = True
from folders import FOLDERS

HERE = pathlib.Path(__file__).resolve().parent
PLANTED = HERE / "planted.txt"
KINDS = ("equivalent", "accepted")
HEAD = """# Planted changes that no test noticed, and why

`make mutate` plants changes in the sources, one at a time, and runs the tests that run the changed line
(`tests/mutate/run`). This page is written by it, from its results (`planted.txt`) and from `answers.txt`. The results
of a first run, over all folders, are lost; the answers to its survivors are kept.

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
    PLANTED.write_text("".join(sorted(map(line_of, done.values()))))
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
