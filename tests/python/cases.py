# SPDX-License-Identifier: Apache-2.0
"""Runs on every rank: the cases of a script one after the other, each noted in a file of this rank.

A script decorates functions with @case and calls run() with what starts and ends a world. Its
arguments are the folder for the notes and, after it, names of cases (all). A case is fine when it
returned on all ranks; after one that failed no other is run, because the ranks are apart then.
"""

import json
import os
import pathlib
import sys
import traceback

_cases = []


def case(function):
    if function.__module__ == "__main__":  # a script may import from another one
        _cases.append(function)
    return function


def case_of_cpu(function):
    """One that is left out with tensors of another device (TEST_DEVICE)."""
    return function if os.environ.get("TEST_DEVICE") else case(function)


def only(world_sizes):
    """A case for these numbers of ranks."""
    def decorate(function):
        function.world_sizes = world_sizes
        return case(function)
    return decorate


def raises(kind, call, *words):
    """The text of the error that call() must raise; it holds the words."""
    try:
        call()
    except kind as error:
        text = str(error)
        for word in words:
            assert word in text, f"{word!r} is not in: {text}"
        return text
    raise AssertionError(f"no {kind.__name__} was raised")


def _note(folder, rank, notes):
    path = pathlib.Path(folder) / f"rank-{rank}.json"
    path.with_suffix(".new").write_text(json.dumps(notes))
    path.with_suffix(".new").replace(path)


def run(begin, end):
    folder, wanted = sys.argv[1], sys.argv[2:]
    rank, size, notes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), {}
    try:
        begin()
        for function in _cases:
            name = function.__name__
            if (wanted and name not in wanted) or size not in getattr(function, "world_sizes", (size,)):
                continue
            function()
            notes[name] = "ok"
            _note(folder, rank, notes)
        end()
        notes["(end)"] = "ok"
    except BaseException:
        name = locals().get("name", "(begin)")
        notes["(end)" if notes.get(name) == "ok" else name] = traceback.format_exc()
        _note(folder, rank, notes)
        raise
    _note(folder, rank, notes)


def names(path, device=False):
    """The cases of a script, without running it; of tensors of another device."""
    lines = pathlib.Path(path).read_text().splitlines()
    return [line[4:line.index("(")] for before, line in zip(lines, lines[1:])
            if before.startswith(("@case", "@only")) and line.startswith("def ")
            and not (device and before == "@case_of_cpu")]
