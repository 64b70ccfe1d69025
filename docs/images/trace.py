#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The picture of docs/tracing.md: one step of a trace.

    docs/images/trace.py take TRACE STEP    a step of a trace -> trace.json
    docs/images/trace.py draw               trace.json -> trace.svg

trace.json holds the spans that are drawn, with their times; nothing in the picture is made up.
"""

import html
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
WIDTH, LEFT, ROW, GAP, TOP = 960, 104, 18, 10, 26
CHARACTER = 5.6  # of a label, pixels
DRAWN = {"loader": "#9b59b6", "forward": "#3a86c8", "backward": "#e07b39", "exposed": "#c0392b",
         "optimizer": "#2e8b57", "operation": "#f3c29b", "bucket": "#d4a72c", "wire": "#8a8a8a"}
SHORTEST = 0.001  # of the step; shorter spans are left out


def take(path, number):
    trace = json.loads(pathlib.Path(path).read_text())
    events = trace["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    steps = {e["pid"]: e for e in events if e.get("cat") == "step" and e["args"]["step"] == number}
    begin, length = min(s["ts"] for s in steps.values()), max(s["dur"] for s in steps.values())
    rows = []
    for event in events:
        step = steps.get(event["pid"])
        inside = step and event["ph"] == "X" and event["cat"] in DRAWN and event["dur"] >= SHORTEST * length
        if inside and step["ts"] <= event["ts"] and event["ts"] + event["dur"] <= step["ts"] + step["dur"] + 1:
            track = names[event["pid"], event["tid"]]
            rows.append([event["pid"], track, event["cat"], event["name"], round((event["ts"] - begin) / 1e3, 3),
                         round(event["dur"] / 1e3, 3)])
    return {"length_ms": round(length / 1e3, 3), "spans": rows}


def row_of(track, category):
    """Operations stand below the part of the step that they belong to; a wait covers both."""
    return f"{track} " if category in ("operation", "exposed") else track


def draw():
    data = json.loads((HERE / "trace.json").read_text())
    rows, y, last = {}, TOP, None
    order = {"training": 0, "training ": 1, "buckets": 2, "engine": 3}
    for rank, row in sorted({(s[0], row_of(s[1], s[2])) for s in data["spans"]}, key=lambda r: (r[0], order.get(r[1], 9))):
        y += GAP if last not in (None, rank) else 0
        rows[rank, row] = y
        y, last = y + ROW, rank
    scale = (WIDTH - LEFT - 8) / data["length_ms"]
    height = y + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
           f'font-size="10"><rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="16" fill="#333333">one step of {data["length_ms"]:.1f} ms</text>']
    for (rank, row), at in rows.items():
        if not row.endswith(" "):
            out.append(f'<text x="4" y="{at + 13}" fill="#333333">rank {rank} {row}</text>')
    for rank, track, category, name, begin, length in data["spans"]:
        x, width = LEFT + begin * scale, max(length * scale, 0.5)
        at = rows[rank, row_of(track, category)]
        out.append(f'<rect x="{x:.1f}" y="{at + 1}" width="{width:.1f}" height="{ROW - 2}" fill="{DRAWN[category]}">'
                   f'<title>{html.escape(f"{name}: {length} ms")}</title></rect>')
        if len(name) * CHARACTER < width - 4:
            out.append(f'<text x="{x + 3:.1f}" y="{at + 13}" fill="#111111">{html.escape(name)}</text>')
    x = LEFT
    for category, color in DRAWN.items():
        out.append(f'<rect x="{x}" y="{y + 14}" width="10" height="10" fill="{color}"/>'
                   f'<text x="{x + 14}" y="{y + 23}" fill="#333333">{category}</text>')
        x += 30 + int(len(category) * 6.5)
    return "\n".join(out) + "\n</svg>\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["take"] and len(sys.argv) == 4:
        taken = take(sys.argv[2], int(sys.argv[3]))
        (HERE / "trace.json").write_text(json.dumps(taken).replace("], [", "],\n[") + "\n")
    elif sys.argv[1:] != ["draw"]:
        sys.exit(__doc__)
    (HERE / "trace.svg").write_text(draw())
