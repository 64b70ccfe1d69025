# SPDX-License-Identifier: Apache-2.0
"""The all_reduce table of docs/measurements.md as a picture, for one kind of processor.

    bench/peers/plot.py docs/measurements.md docs/images/all_reduce-amd.svg amd

Three panels, for 2, 4 and 6 ranks; x is the size of the buffer, y how many times faster than the best of the peers,
both logarithmic. A point is the ratio of the table's row, its bar the range over the rounds.
"""

import math
import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]
import pages

ROW = re.compile(r"^\| (\d+) × (\d+) (B|KB|MB) \| [^|]+\| [^|]+\| [^|]+\| ([\d.]+) \[([\d.]+), ([\d.]+)\] \| "
                 r"([\d.]+) \[([\d.]+), ([\d.]+)\] \|(?: \d+ \|)?$", re.MULTILINE)
CONDITIONS = re.compile(r"^Measured on (\S+)(?: at commit \S+)? with `make compare-collectives[^`]*` \((.+?); ", re.MULTILINE)
BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20}
PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP, GAP = 250, 240, 46, 76, 22
Y_LOW, Y_HIGH, TICKS = 0.25, 16.0, (0.5, 1, 2, 4, 8, 16)
SERIES = (("registered buffers (gradients live there)", "#0b6e99", 3), ("private buffers", "#c2661a", 6))


def rows_of(page):
    """[(ranks, bytes, size text, (ratio, low, high) registered, … private)] of the table in `page`."""
    found = []
    for ranks, number, unit, *figures in ROW.findall(page):
        figures = [float(f) for f in figures]
        found.append((int(ranks), int(number) * BYTES[unit], f"{number} {unit}", tuple(figures[:3]), tuple(figures[3:])))
    if not found:
        raise SystemExit("plot.py: the page has no rows of all_reduce")
    return found


def place_y(ratio):
    share = math.log(min(max(ratio, Y_LOW), Y_HIGH) / Y_LOW) / math.log(Y_HIGH / Y_LOW)
    return TOP + PANEL_HEIGHT * (1 - share)


def text(x, y, words, size=11, anchor="middle", color="#444", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}" '
            f'font-weight="{weight}">{words}</text>')


def line(x1, y1, x2, y2, color, width=1.0, dash=""):
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width}"'
            + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")


def frame(left, ranks, rows, first):
    """Axes of a panel and the places of its sizes."""
    parts = [text(left + PANEL_WIDTH / 2, TOP - 8, f"{ranks} ranks", 13, color="#222", weight="bold")]
    for tick in TICKS:
        y = place_y(tick)
        parts.append(line(left, y, left + PANEL_WIDTH, y, "#222" if tick == 1 else "#ddd", 1.2 if tick == 1 else 1))
        if first:
            parts.append(text(left - 6, y + 4, f"{tick:g} ×", anchor="end"))
    most = math.log(max(r[1] for r in rows) / 4)
    places = {r[1]: left + 8 + (PANEL_WIDTH - 16) * math.log(r[1] / 4) / most for r in rows}
    for _, size, name, *_ in rows:
        if name in ("4 B", "1 KB", "64 KB", "1 MB", "10 MB", "1000 MB"):
            parts.append(line(places[size], TOP + PANEL_HEIGHT, places[size], TOP + PANEL_HEIGHT + 4, "#888"))
            parts.append(text(places[size], TOP + PANEL_HEIGHT + 17, "1 GB" if name == "1000 MB" else name, 10))
    return parts, places


def series(rows, places, column, color, shift):
    points = [(places[r[1]] + shift - 4.5, *r[column]) for r in rows]
    parts = [f'<polyline fill="none" stroke="{color}" stroke-width="2" points="' +
             " ".join(f"{x:.1f},{place_y(ratio):.1f}" for x, ratio, _, _ in points) + '"/>']
    for x, ratio, low, high in points:
        parts.append(line(x, place_y(low), x, place_y(high), color, 1))
        parts.append(f'<circle cx="{x:.1f}" cy="{place_y(ratio):.1f}" r="3" fill="{color}"/>')
    return parts


def picture(page):
    rows = rows_of(page)
    worlds = sorted({r[0] for r in rows})
    width = LEFT + len(worlds) * (PANEL_WIDTH + GAP)
    height = TOP + PANEL_HEIGHT + 48
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
             f'height="{height}" font-family="Helvetica, Arial, DejaVu Sans, sans-serif">',
             f'<rect width="{width}" height="{height}" fill="#fff"/>',
             text(LEFT, 20, "all_reduce, float32, one host: speed relative to the best tuned peer", 14,
                  "start", "#222", "bold")]
    for i, ranks in enumerate(worlds):
        mine = [r for r in rows if r[0] == ranks]
        panel, places = frame(LEFT + i * (PANEL_WIDTH + GAP), ranks, mine, i == 0)
        parts += panel
        for column, (_, color, shift) in enumerate(SERIES, 3):
            parts += series(mine, places, column, color, shift)
    for i, (name, color, _) in enumerate(SERIES):
        x = LEFT + i * 310
        parts.append(f'<circle cx="{x + 5}" cy="{height - 12}" r="4" fill="{color}"/>')
        parts.append(text(x + 15, height - 8, name, 12, "start"))
    measured = CONDITIONS.search(page)
    machine = f"{measured.group(2)}, {measured.group(1)}; " if measured else ""
    parts.append(text(width - GAP, 40, f"{machine}bars: lowest and highest round", 11, "end", "#777"))
    return "\n".join(parts + ["</svg>", ""])


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    page = pages.part_of(pathlib.Path(sys.argv[1]).read_text(), "compare-collectives", sys.argv[3])
    pathlib.Path(sys.argv[2]).write_text(picture(page))


if __name__ == "__main__":
    main()
