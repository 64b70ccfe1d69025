# SPDX-License-Identifier: Apache-2.0
"""The pictures of the README are drawn from what was measured and recorded, and from nothing else."""

import json
import pathlib
import re
import sys
import xml.etree.ElementTree

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, run, test

IMAGES = SOURCE / "docs/images"
sys.path[:0] = [str(IMAGES), str(SOURCE / "bench/peers")]
import demo
import plot
import table
import trace

PAGE = (SOURCE / "docs/measurements.md").read_text()
PARTS = {kind: part for kind in ("amd", "intel")
         if "ranks × size" in (part := plot.pages.part_of(PAGE, "compare-collectives", kind))}


def texts_of(svg):
    return [t.text for t in xml.etree.ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@test
def the_plots_are_those_of_the_tables():
    assert PARTS
    for kind, part in PARTS.items():
        assert (IMAGES / f"all_reduce-{kind}.svg").read_text() == plot.picture(part), \
            f"run bench/peers/plot.py docs/measurements.md docs/images/all_reduce-{kind}.svg {kind}"


@test
def a_plot_has_every_row_of_its_table_and_follows_it():
    for part in PARTS.values():
        rows = plot.rows_of(part)
        assert len(rows) == 27 and {r[0] for r in rows} == {2, 4, 6}, rows
        svg = plot.picture(part)
        assert svg.count("<circle") == 2 * len(rows) + len(plot.SERIES)
        ratio = f"{rows[5][3][0]:.2f} ["
        assert part.count(f"| {ratio}") >= 1 and plot.picture(part.replace(f"| {ratio}", "| 1.50 [", 1)) != svg


@test
def the_ratios_of_performance_are_those_of_the_tables():
    shown = table.pages.part_of((SOURCE / "docs/performance.md").read_text(), table.NAME, "amd")
    assert shown.endswith("\n\n" + table.matrix(PARTS["amd"])) and shown.count("\n| all_reduce, ") == 9, shown


@test
def the_recording_is_that_of_the_data():
    assert (IMAGES / "demo.svg").read_text() == demo.draw(), "run docs/images/demo.py draw"


@test
def the_recording_shows_a_falling_loss_a_killed_rank_and_the_report():
    words = "\n".join(t for t in texts_of(demo.draw()) if t)
    losses = [float(x) for x in re.findall(r"step +\d+/\d+ +loss ([\d.]+)", words)]
    assert losses[0] > 3.5 and losses[-1] < 1.5, losses
    pid = re.search(r"^\$ kill -9 (\d+)$", words, re.MULTILINE).group(1)
    assert f"rank {demo.KILLED} (host" in words and f"pid {pid}) was killed by signal 9" in words, words
    model, trigram = re.search(r"held-out loss ([\d.]+) \(trigram ([\d.]+)\)", words).groups()
    assert float(model) < float(trigram) and "replicas identical: 4 of 4" in words, words


@test
def the_step_is_that_of_the_trace():
    assert (IMAGES / "trace.svg").read_text() == trace.draw(), "run docs/images/trace.py draw"
    spans = json.loads((IMAGES / "trace.json").read_text())["spans"]
    assert {(s[0], s[2]) for s in spans} >= {(r, c) for r in (0, 1) for c in ("forward", "backward", "bucket", "wire")}
    assert trace.draw().count("<title>") == len(spans) > 50


run()
