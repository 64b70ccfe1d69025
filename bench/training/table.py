# SPDX-License-Identifier: Apache-2.0
"""The rows of compare_training.py as tables in Markdown.

    table.py build/compare-training.json                     prints both
    table.py build/compare-training.json --into README.md docs/measurements.md
                 writes the short one into the first, the long one into the second, between the
                 marker lines of the processor that the rows were measured on (../pages.py); the
                 first page need not have them
"""

import argparse
import json
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]
import pages

NAME = "compare-training"
LONG = ["a training step", "threads", "Lockstep ms", "peer ms", "peer", "ratio", "range", "turns",
        "CPU ms, ours / peer", "peak MB, ours / peer"]
SHORT = ["a training step", "1 thread, ms", "PyTorch ms", "ratio", "2 threads, ms", "PyTorch ms", "ratio",
         "peak MB, ours / PyTorch"]


def rule(rows):
    ways = "" if rows[0].get("eager", True) else ", each eagerly and compiled (torch.compile)"
    return (f"PyTorch ran with its defaults and tuned (fused optimizer, huge pages){ways}, image networks in both memory formats "
            "as well; the fastest counts and is named. ")


def ms(value):
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def is_step(row):
    return "threads" in row


def conditions(rows):
    about = rows[0]["conditions"]
    return (f"Measured on {about['date']} at commit {about['commit']} with `make compare-training` in "
            f"{about['minutes']} minutes ({pages.machine(about)}). ")


def long_page(rows):
    steps = [[r["net"], str(r["threads"]), ms(r["ours_ms"]), ms(r["peer_ms"]), r["peer"], f"{r['ratio']:.2f}",
              pages.range_text(r), str(r["turns"]), f"{ms(r['ours_cpu_ms'])} / {ms(r['peer_cpu_ms'])}",
              f"{r['ours_peak_mb']:.0f} / {r['peer_peak_mb']:.0f}"] for r in rows if is_step(r)]
    starts = [[r["name"].split(": ")[1], f"{r['ours_ms']:.0f}", f"{r['peer_ms']:.0f}", r["peer"],
               f"{r['starts'][0]}, {r['starts'][1]}"] for r in rows if not is_step(r)]
    page = conditions(rows) + rule(rows) + ("Medians of the turns; ratio = peer's time / Lockstep's time in each pair of turns; "
                                      "range: the quartiles of the ratios, or (*) with fewer than 9 turns the lowest "
                                      "and the highest.\n\n") + pages.table([LONG, *steps])
    if starts:
        page += "\n" + pages.table([["from exec to the first step", "Lockstep ms", "peer ms", "peer",
                                     "starts, ours, peer's"], *starts])
    return page


def short_page(rows):
    """The table of README.md: only the first peer, which is the newest."""
    steps = [r for r in rows if is_step(r)]
    newest = steps[0]["peer"].split(",")[0]
    steps = [r for r in steps if r["peer"].split(",")[0] == newest]
    lines = [SHORT]
    for net in dict.fromkeys(r["net"] for r in steps):
        by_threads = {r["threads"]: r for r in steps if r["net"] == net}
        cells = [by_threads.get(threads) for threads in (1, 2)]
        line = [net]
        for r in cells:
            line += [ms(r["ours_ms"]), ms(r["peer_ms"]), f"{r['ratio']:.2f}"] if r else ["", "", ""]
        last = cells[1] or cells[0]
        lines.append(line + [f"{last['ours_peak_mb']:.0f} / {last['peer_peak_mb']:.0f}" if last else ""])
    turns = [r["turns"] for r in steps]
    return (conditions(rows) + f"Compared with {newest}. " + rule(rows) + "Ratio = PyTorch's time / Lockstep's time, the median "
            f"of {min(turns)} to {max(turns)} pairs of turns.\n\n" + pages.table(lines))


def main():
    parser = argparse.ArgumentParser(prog="table.py", usage=__doc__)
    parser.add_argument("rows")
    parser.add_argument("--into", nargs=2, type=pathlib.Path)
    options = parser.parse_args()
    rows = json.loads(pathlib.Path(options.rows).read_text())
    parts = (short_page(rows), long_page(rows))
    if options.into is None:
        print(*parts, sep="\n", end="")
    kind = pages.kind_of(rows[0]["conditions"]["processor"])
    for path, part, put in zip(options.into or (), parts, (pages.put_where_marked, pages.put_into)):
        path.write_text(put(path.read_text(), NAME, kind, part))


if __name__ == "__main__":
    main()
