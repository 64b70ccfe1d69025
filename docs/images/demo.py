#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recording of the demo that the README shows.

    docs/images/demo.py record BUILD    trains twice, kills a rank of the first run, and writes demo.json
    docs/images/demo.py draw            demo.json -> demo.svg

demo.json holds what was printed, with its times; nothing in the picture is written by hand but the two commands and
the line that says how many lines were left out. Times longer than a moment are shortened in the picture.
"""

import html
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
TEXT = "examples/data/pride_and_prejudice.txt"
RANKS, KILLED, LINES_BEFORE = 4, 2, 5
COMMAND = f"$ lockstep run -n {RANKS} build/examples/03_gpt_text --data {TEXT}"
COLUMNS, CHARACTER, LINE, MARGIN, TITLE = 104, 7.8, 17, 14, 30
PAUSE_MAX = 1.2  # seconds between two lines of the picture
COLORS = {"command": "#8ae234", "output": "#d3d7cf", "report": "#ff8a80", "dim": "#888a85", "good": "#fce94f"}


def processes():
    for path in pathlib.Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                yield int(path.name), (path / "environ").read_bytes().split(b"\0"), (path / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended, or is another user's


def process_of_rank(rank, mark):
    for pid, environment, command in processes():
        if mark in environment and f"RANK={rank}".encode() in environment and b"03_gpt_text" in command:
            return pid
    raise SystemExit("demo.py: the rank was not found")


def run(build, kill):
    """[(seconds, line)] of a run of the demo; with `kill` one rank is killed on the way."""
    mark = f"DEMO_RECORDING={time.monotonic_ns()}"
    name, value = mark.split("=")
    command = [str(build / "lockstep"), "run", "-n", str(RANKS), str(build / "examples/03_gpt_text"), "--data", TEXT]
    job = subprocess.Popen(command, cwd=SOURCE, env={**os.environ, name: value}, text=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    begin, lines = time.monotonic(), []
    for line in job.stdout:
        lines.append((round(time.monotonic() - begin, 2), line.rstrip("\n")))
        if kill and len(lines) == LINES_BEFORE:
            pid = process_of_rank(KILLED, mark.encode())
            lines.append((lines[-1][0] + 0.8, f"$ kill -9 {pid}"))
            threading.Timer(0.8, os.kill, (pid, signal.SIGKILL)).start()
    return lines, job.wait()


def record(build):
    killed, status = run(build, True)
    if status == 0:
        raise SystemExit("demo.py: the run was not killed")
    whole, status = run(build, False)
    if status != 0:
        raise SystemExit("demo.py: the second run failed")
    (HERE / "demo.json").write_text(json.dumps({"killed": killed, "whole": whole}, indent=1) + "\n")


def told_by_ranks(line):
    return re.match(r"\[\d+\] (\[rank \d+\] error|rank \d+): ", line) is not None


def shortened(recorded):
    """[(seconds, kind, line)]: the ranks' own reports, which are alike, as one line."""
    script, left_out = [(0.0, "command", COMMAND)], 0
    for seconds, line in recorded["killed"]:
        if told_by_ranks(line):
            left_out += 1
            continue
        if line.startswith("lockstep: ") and left_out:
            script.append((seconds, "dim", f"    … {left_out} lines in which the other ranks report the same"))
            left_out = 0
        kind = "command" if line.startswith("$ ") else "report" if line.startswith("lockstep: ") else "output"
        script.append((seconds, kind, line))
    last = script[-1][0]
    script.append((last + 1.5, "command", COMMAND))
    whole = recorded["whole"]
    steps = [i for i, (_, line) in enumerate(whole) if re.match(r"\[0\] step +\d+/", line)]
    script.append((last + 2.0, "dim", f"    … the same {steps[0]} lines, then"))
    for i in range(steps[0], len(whole)):
        if i in steps and i not in steps[:1] + steps[len(steps) // 2:len(steps) // 2 + 1] + steps[-1:]:
            continue
        seconds, line = whole[i]
        good = re.match(r"\[0\] (held-out loss|replicas identical)", line)
        script.append((last + 2.5 + seconds, "good" if good else "output", line))
    return script


def wrapped(script):
    """The same in lines of COLUMNS at most, with times whose pauses are bounded."""
    shown, now, before = [], 0.4, 0.0
    for seconds, kind, line in script:
        now += min(max(seconds - before, 0.08), PAUSE_MAX)
        before = seconds
        for part in textwrap.wrap(line, COLUMNS, subsequent_indent="    ", drop_whitespace=False) or [""]:
            shown.append((now, kind, part))
    return shown


def draw():
    shown = wrapped(shortened(json.loads((HERE / "demo.json").read_text())))
    width = int(2 * MARGIN + COLUMNS * CHARACTER)
    height = TITLE + len(shown) * LINE + 2 * MARGIN
    total = shown[-1][0] + 0.1  # plays once and stays
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
             f'height="{height}" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" '
             'font-size="13">',
             "<style>@media (prefers-reduced-motion: no-preference) { text.line { animation: "
             f"{total:.1f}s linear 1 both; }} }}"]
    for moment in sorted({now for now, _, _ in shown}):
        share = 100 * moment / total
        parts.append(f"@keyframes t{int(100 * moment)} {{ 0%, {share:.2f}% {{ opacity: 0; }} {share + 0.01:.2f}%, 100% "
                     "{ opacity: 1; } }")
    parts += ["</style>", f'<rect width="{width}" height="{height}" rx="8" fill="#1e2326"/>']
    parts += [f'<circle cx="{18 + 18 * i}" cy="16" r="5" fill="{color}"/>'
              for i, color in enumerate(("#ef5350", "#ffca28", "#66bb6a"))]
    for i, (moment, kind, line) in enumerate(shown):
        if line.strip():
            parts.append(f'<text class="line" x="{MARGIN}" y="{TITLE + MARGIN + (i + 0.7) * LINE:.0f}" '
                         f'fill="{COLORS[kind]}" xml:space="preserve" textLength="{len(line) * CHARACTER:.1f}" '
                         f'style="animation-name: t{int(100 * moment)}">{html.escape(line, quote=False)}</text>')
    return "\n".join(parts + ["</svg>", ""])


def main():
    if sys.argv[1:2] == ["record"] and len(sys.argv) == 3:
        record(pathlib.Path(sys.argv[2]).resolve())
    elif sys.argv[1:] != ["draw"]:
        raise SystemExit(__doc__)
    (HERE / "demo.svg").write_text(draw())


if __name__ == "__main__":
    main()
