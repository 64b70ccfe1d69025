# SPDX-License-Identifier: Apache-2.0
"""The rows of compare.py as tables in Markdown.

    table.py build/compare-collectives.json                    prints them
    table.py build/compare-collectives.json --into README.md docs/performance.md docs/measurements.md
                 writes a picture's line into the first, the ratios into the second and the tables into
                 the third, between the marker lines of the processor that they were measured on
                 (../pages.py), and draws the picture (plot.py) into docs/images; the first two pages
                 need not have the lines
"""

import argparse
import json
import pathlib
import re
import sys

from compare import ratio_text, size_name, time_text
import pages
import plot

NAME = "compare-collectives"
ROW = re.compile(r"^\| (?:(\w+) )?(\d+) × (\d+ \w+) \| [^|]+\| [^|]+\| [^|]+\| ([\d.]+) \[[^|]+\| ([\d.]+) \[", re.MULTILINE)
MEASURED = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all")


def pairs(rows, operations):
    """(registered, private) of each cell, in the order they were measured."""
    cells = {}
    for row in rows:
        if row["operation"] in operations:
            key = (row["operation"], row["ranks"], row["bytes"])
            cells.setdefault(key, {})[row["buffers"]] = row
    return [(cell["registered"], cell["private"]) for cell in cells.values() if len(cell) == 2]


def table(cells, with_operation):
    lines = [["operation, ranks × size" if with_operation else "ranks × size", "ours, registered", "ours, private",
              "best peer", "ratio, registered", "ratio, private", "rounds"]]
    for registered, private in cells:
        name = f"{private['ranks']} × {size_name(private['bytes'])}"
        if with_operation:
            name = f"{private['operation']} {name}"
        lines.append([name, time_text(registered["ours_ms"]), time_text(private["ours_ms"]),
                      f"{time_text(private['peer_ms'])} {private['peer']}", ratio_text(registered),
                      ratio_text(private), str(private["rounds"])])
    return pages.table(lines).rstrip("\n")


def sentences(rows):
    launch = [row for row in rows if row["operation"] == "launch"]
    floor = [row for row in rows if row["operation"] == "floor"]
    found = []
    if floor:
        each = ", ".join(f"{row['ranks']} ranks {1.0 / row['ratio']:.2f}" for row in floor)
        found.append(f"An all-reduce of {size_name(floor[0]['bytes'])} in registered memory takes, as a "
                     f"multiple of the same memory traffic without any communication: {each}.")
    for program in dict.fromkeys(row["program"] for row in launch):
        same = [row for row in launch if row["program"] == program]
        each = ", ".join(f"{row['peer']} {time_text(row['peer_ms'])}" for row in same)
        found.append(f"From the launcher's start to the end of the first all-reduce of {same[0]['ranks']} ranks, "
                     f"{program} (medians of {same[0]['rounds']} starts): Lockstep {time_text(same[0]['ours_ms'])}, "
                     f"{each}.")
    return found


def conditions(row):
    about = row["conditions"]
    return (f"Measured on {about['date']} at commit {about['commit']} with `{about['command']}` "
            f"({pages.machine(about)}). Peers: {', '.join(about['peers'])}, with these settings: {about['settings']}.")


def short_page(rows):
    """The part of README.md: the picture, and where and when it was measured."""
    about = rows[0]["conditions"]
    kind = pages.kind_of(about["processor"])
    return (f"![Three plots of the speed of all_reduce relative to the best tuned peer, for 2, 4 and 6 ranks, on "
            f"{about['processor']}](docs/images/all_reduce-{kind}.svg)\n\nMeasured on {about['date']} at commit "
            f"{about['commit']} with `{about['command']}` ({pages.machine(about)}). Peers: {', '.join(about['peers'])}; "
            f"settings: {about['settings']}.\n")


def matrix(part):
    """The ratios of `part`, a page of tables: a row is an operation and a size, a column a number of ranks, a cell has
    those of registered and private buffers."""
    cells = {(operation or MEASURED[0], size, ranks): f"{registered}, {private}"
             for operation, ranks, size, registered, private in ROW.findall(part)}
    ranks = sorted({key[2] for key in cells}, key=int)
    lines = [["operation, size", *(f"{n} ranks" for n in ranks)]]
    for operation, size in dict.fromkeys(key[:2] for key in cells):
        lines.append([f"{operation}, {size}", *(cells.get((operation, size, n), "–") for n in ranks)])
    return pages.table(lines)


def page(rows):
    if not rows:
        return "(nothing was measured)\n"
    parts = [conditions(rows[0])]
    for operations, with_operation in ((MEASURED[:1], False), (MEASURED[1:], True)):
        cells = pairs(rows, operations)
        if cells and with_operation:
            parts.append("<details><summary>" + ", ".join(MEASURED[1:]) + "</summary>\n\n" +
                         table(cells, True) + "\n\n</details>")
        elif cells:
            parts.append("all_reduce:\n\n" + table(cells, False))
    return "\n\n".join(parts + sentences(rows)) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="table.py", usage=__doc__)
    parser.add_argument("rows")
    parser.add_argument("--into", nargs=3, type=pathlib.Path)
    options = parser.parse_args()
    rows = json.loads(pathlib.Path(options.rows).read_text())
    part = page(rows)
    if options.into is None:
        return print(short_page(rows), part, sep="\n", end="")
    kind = pages.kind_of(rows[0]["conditions"]["processor"])
    for target, text, put in zip(options.into, (short_page(rows), conditions(rows[0]) + "\n\n" + matrix(part), part),
                                 (pages.put_where_marked, pages.put_where_marked, pages.put_into)):
        target.write_text(put(target.read_text(), NAME, kind, text))
    picture = options.into[2].parent / f"images/all_reduce-{kind}.svg"
    picture.write_text(plot.picture(part))


if __name__ == "__main__":
    main()
