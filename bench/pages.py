# SPDX-License-Identifier: Apache-2.0
"""Tables of measurements in Markdown pages: one part for each kind of processor, between two marker lines.

    <!-- compare-training amd -->
    <!-- end of compare-training amd -->

A comparison replaces the part of the processor that it ran on; the parts of others stay.
"""

import json
import re
import statistics

QUARTILES = 9  # turns from which on quartiles say something; with fewer the range is given
BUSY = 0.15  # cores that other programs used; above this the machine does not count as quiet


def kind_of(processor):
    """The name of a processor in marker lines and in the names of files: amd, intel, other."""
    return next((kind for kind in ("amd", "intel") if kind in processor.lower()), "other")


def markers(name, kind):
    return f"<!-- {name} {kind} -->", f"<!-- end of {name} {kind} -->"


def table(lines):
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def machine(about):
    """The processor, the cores, and whether other programs ran."""
    quiet = about["others_cores"] <= BUSY
    load = "nothing else ran" if quiet else f"**not quiet**: other programs kept {about['others_cores']:.2f} cores busy"
    return f"{about['processor']}, {about['cores']} cores; {load}"


def range_of(ratios):
    """The two ends of a row's range, and which ends they are."""
    if len(ratios) < QUARTILES:
        return min(ratios), max(ratios), "lowest to highest"
    low, _, high = statistics.quantiles(ratios, n=4)
    return low, high, "quartiles"


def write_rows(path, rows, keep):
    """After each row, so that a run that is cut short leaves those that it has. `keep`: other rows of the file stay."""
    former = json.loads(path.read_text()) if keep and path.exists() else []
    names = {row["name"] for row in rows}
    path.write_text(json.dumps([row for row in former if row["name"] not in names] + rows, indent=1) + "\n")


def range_text(row):
    """The range of a row's ratios; a star: from the lowest to the highest, not the quartiles."""
    return f"{row['spread'][0]:.2f} to {row['spread'][1]:.2f}" + ("" if row["spread_is"] == "quartiles" else " *")


def put_into(text, name, kind, part):
    """`text` with everything between the two marker lines replaced."""
    begin, end = markers(name, kind)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise SystemExit(f"the page needs the lines {begin} and {end}, once and in this order")
    return text[:text.index(begin) + len(begin)] + "\n" + part.rstrip("\n") + "\n" + text[text.index(end):]


def put_where_marked(text, name, kind, part):
    """The same; a page without the two lines does not show this processor and stays as it is."""
    return put_into(text, name, kind, part) if markers(name, kind)[0] in text else text


def part_of(text, name, kind):
    begin, end = map(re.escape, markers(name, kind))
    found = re.search(f"{begin}(.*?){end}", text, re.DOTALL)
    return found.group(1) if found else ""
