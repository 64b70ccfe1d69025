"""The rows of compare.py as tables in Markdown.

    table.py build/compare-collectives.json                    prints them
    table.py build/compare-collectives.json --into docs/performance.md
                                   writes them between the two lines
                                   <!-- compare-collectives --> and <!-- end of compare-collectives -->

plot.py draws the README's picture from the page.
"""

import argparse
import json
import pathlib
import sys

from compare import ratio_text, size_name, time_text

BEGIN, END = "<!-- compare-collectives -->", "<!-- end of compare-collectives -->"
BUSY = 0.15  # cores that others used; more is no quiet machine
MEASURED = ("all_reduce", "all_gather", "broadcast", "reduce_scatter")


def pairs(rows, operations):
    """(registered, private) of each cell, in the order they were measured."""
    cells = {}
    for row in rows:
        if row["operation"] in operations:
            key = (row["operation"], row["ranks"], row["bytes"])
            cells.setdefault(key, {})[row["buffers"]] = row
    return [(cell["registered"], cell["private"]) for cell in cells.values() if len(cell) == 2]


def table(cells, with_operation):
    head = ["operation, ranks × size" if with_operation else "ranks × size", "ours, registered", "ours, private", "best peer", "ratio, registered",
            "ratio, private"]
    lines = [head, ["---"] * len(head)]
    for registered, private in cells:
        name = f"{private['ranks']} × {size_name(private['bytes'])}"
        if with_operation:
            name = f"{private['operation']} {name}"
        lines.append([name, time_text(registered["ours_ms"]), time_text(private["ours_ms"]),
                      f"{time_text(private['peer_ms'])} {private['peer']}", ratio_text(registered),
                      ratio_text(private)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def sentences(rows):
    launch = [row for row in rows if row["operation"] == "launch"]
    floor = [row for row in rows if row["operation"] == "floor"]
    found = []
    if floor:
        each = ", ".join(f"{row['ranks']} ranks {1.0 / row['ratio']:.2f}" for row in floor)
        found.append(f"An all-reduce of {size_name(floor[0]['bytes'])} in registered memory takes, as a "
                     f"multiple of the same memory traffic without any communication: {each}.")
    if launch:
        each = ", ".join(f"{row['peer']} {time_text(row['peer_ms'])}" for row in launch)
        found.append(f"From the launcher's start to the first finished all-reduce of "
                     f"{launch[0]['ranks']} ranks: Lockstep {time_text(launch[0]['ours_ms'])}, {each}.")
    return found


def conditions(row):
    about = row["conditions"]
    quiet = about["others_cores"] <= BUSY
    load = "nothing else ran" if quiet else (
        f"**not on a quiet machine**: others kept {about['others_cores']:.2f} cores busy, from which peers "
        "that spin suffer most, so the ratios are not to be relied on")
    return (f"Measured on {about['date']} with `{about['command']}` ({about['processor']}, "
            f"{about['cores']} cores; {load}). float32 sums, every result checked; medians; ratio = the "
            "best of Open MPI, MPICH and gloo (at the best settings known for each size) over ours, "
            "with the lowest and the highest round. *Registered* is memory from `ls_group_alloc`, where "
            "gradients live; *private* is any other.")


def page(rows):
    if not rows:
        return "(nothing was measured)\n"
    parts = [conditions(rows[0])]
    for operations, with_operation in ((MEASURED[:1], False), (MEASURED[1:], True)):
        cells = pairs(rows, operations)
        if cells and with_operation:
            parts.append("<details><summary>all_gather, broadcast, reduce_scatter</summary>\n\n" +
                         table(cells, True) + "\n\n</details>")
        elif cells:
            parts.append("all_reduce:\n\n" + table(cells, False))
    return "\n\n".join(parts + sentences(rows)) + "\n"


def put_into(text, part):
    """`text` with what stands between the two lines replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"table.py: the page needs the lines {BEGIN} and {END}, once and in this order")
    return text[:text.index(BEGIN) + len(BEGIN)] + "\n" + part + text[text.index(END):]


def main():
    parser = argparse.ArgumentParser(prog="table.py", usage=__doc__)
    parser.add_argument("rows")
    parser.add_argument("--into")
    options = parser.parse_args()
    part = page(json.loads(pathlib.Path(options.rows).read_text()))
    if options.into is None:
        sys.stdout.write(part)
    else:
        target = pathlib.Path(options.into)
        target.write_text(put_into(target.read_text(), part))


if __name__ == "__main__":
    main()
