#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The drawings of docs/guide: docs/images/guide.py writes docs/images/guide/*.svg. Nothing in them is measured."""

import html
import math
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent / "guide"
BLUE, ORANGE, GREEN, RED, GRAY, YELLOW = "#3a86c8", "#e07b39", "#2e8b57", "#c0392b", "#8a8a8a", "#d4a72c"
PALE = "#eef2f6"
WIDTH = 760


class Picture:
    def __init__(self, height, width=WIDTH):
        self.height, self.width, self.parts = height, width, []

    def box(self, x, y, w, h, words="", fill=PALE, ink=None):
        ink = ink or ("#222" if fill == PALE else "#fff")
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="3" fill="{fill}" stroke="#fff"/>')
        if words:
            self.text(x + w / 2, y + h / 2 + 4, words, "middle", ink)

    def text(self, x, y, words, anchor="start", ink="#222", size=12):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{ink}" font-size="{size}">'
                          f"{html.escape(words, quote=False)}</text>")

    def line(self, x1, y1, x2, y2, ink=GRAY, arrow=False, dashed=False):
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{ink}" stroke-width="1.5"'
                          + (' marker-end="url(#tip)"' if arrow else "") + (' stroke-dasharray="4 3"' if dashed else "")
                          + "/>")

    def arrow(self, x1, y1, x2, y2, ink="#555", short=0):
        """`short`: how far from both points it ends."""
        length = math.hypot(x2 - x1, y2 - y1) or 1
        dx, dy = (x2 - x1) / length * short, (y2 - y1) / length * short
        self.line(x1 + dx, y1 + dy, x2 - dx, y2 - dy, ink, arrow=True)

    def node(self, x, y, words, r=13, fill=BLUE):
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{r}" fill="{fill}"/>')
        self.text(x, y + 4, words, "middle", "#fff")

    def svg(self):
        tip = ('<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
               'orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>')
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
                f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="#fff"/>\n{tip}\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def timeline(rows, scale, end=None):
    """rows: (label, [(begin, length, words, color)]), one below the other; `end`: (time, words) of a dashed line."""
    p = Picture(34 * len(rows) + 50)
    for k, (label, spans) in enumerate(rows):
        y = 12 + 34 * k
        p.text(8, y + 18, label)
        for begin, length, words, color in spans:
            p.box(120 + begin * scale, y, length * scale, 26, words, color)
    bottom = 16 + 34 * len(rows)
    p.line(120, bottom, WIDTH - 10, bottom, "#555", arrow=True)
    p.text(120, bottom + 18, "time →")
    if end:
        p.line(120 + end[0] * scale, 6, 120 + end[0] * scale, bottom, RED, dashed=True)
        p.text(120 + end[0] * scale, bottom + 18, end[1], "middle", RED)
    return p


def naive():
    many = [(15 + k, 1, "", YELLOW) for k in range(12)]
    return timeline([("computation", [(0, 5, "forward", BLUE), (5, 10, "backward", ORANGE), (27, 2, "step", GREEN)]),
                     ("communication", many)], 21, (27, "all averaged"))


def overlap():
    return timeline([("after backward", [(0, 5, "forward", BLUE), (5, 10, "backward", ORANGE), (15, 8, "all-reduce", YELLOW),
                                         (23, 2, "step", GREEN)]),
                     ("overlapped", [(0, 5, "forward", BLUE), (5, 10, "backward", ORANGE), (17, 2, "step", GREEN)]),
                     ("", [(8, 3, "bucket 0", YELLOW), (11, 3, "bucket 1", YELLOW), (15, 2, "2", RED)])],
                    24, (17, "exposed: bucket 2"))


def accumulation():
    parts = [(7 * k + d, n, w, c) for k in range(3) for d, n, w, c in ((0, 2.5, "F", BLUE), (2.5, 4.5, "B", ORANGE))]
    return timeline([("computation", parts + [(22.5, 1.5, "step", GREEN)]),
                     ("gradient", [(2.5, 4.5, "g1", GRAY), (9.5, 4.5, "g1 + g2", GRAY), (16.5, 4.5, "g1 + g2 + g3", GRAY)]),
                     ("communication", [(18, 4.5, "all-reduce", YELLOW)])], 25, (14, "no_sync ends"))


def why():
    p = Picture(150)
    p.text(8, 40, "one H100")
    p.box(150, 20, 80 * 1.4, 30, "80 GB", GREEN)
    p.text(8, 85, "weights, 16 bit")
    for k in range(5):
        p.box(150 + 112 * k, 65, 112 if k < 4 else 42, 30, f"{80 if k < 4 else 30} GB", ORANGE)
    p.text(660, 85, "350 GB in all")
    p.text(8, 130, "with gradients and Adam: 2800 GB, the memory of 35")
    return p


def parameter_server():
    p = Picture(250)
    p.text(180, 20, "parameter server P", "middle")
    p.node(180, 125, "P", 22, RED)
    for k in range(8):
        angle = math.pi * k / 4
        x, y = 180 + 95 * math.cos(angle), 125 + 85 * math.sin(angle)
        p.line(180 + 24 * math.cos(angle), 125 + 24 * math.sin(angle), x, y)
        p.node(x, y, str(k))
    p.text(180, 240, "the server's link: n S in, n S out", "middle", RED)
    p.text(560, 20, "ring all-reduce", "middle")
    ring(p, 560, 125, 8, 85)
    p.text(560, 240, "each link: 2 S (n-1)/n, whatever n is", "middle", GREEN)
    return p


def ring(p, x, y, n, r):
    places = [(x + r * math.cos(2 * math.pi * k / n), y + r * math.sin(2 * math.pi * k / n)) for k in range(n)]
    for k in range(n):
        p.arrow(*places[k], *places[(k + 1) % n], short=15)
        p.node(*places[k], str(k))


def costs():
    p = Picture(265)
    p.text(120, 20, "star: 2 steps", "middle")
    for k in range(1, 8):
        y = 40 + 25 * k
        p.arrow(190, y, 62, 140, short=16)
        p.node(190, y, str(k), 11)
    p.node(60, 140, "0", 13, RED)
    p.text(370, 20, "ring: 2 (n-1) steps", "middle")
    ring(p, 370, 140, 8, 85)
    p.text(630, 20, "halving, then doubling: 2 log n steps", "middle")
    for step, distance in enumerate((4, 2, 1)):
        x = 520 + 75 * step
        p.text(x + 37, 42, ("S/2", "S/4", "S/8")[step], "middle", RED)
        for k in range(8):
            p.line(x, 62 + 24 * k, x + 75, 62 + 24 * (k ^ distance), ORANGE if k & distance else BLUE)
    for step in range(4):
        for k in range(8):
            p.node(520 + 75 * step, 62 + 24 * k, str(k), 9)
    p.text(630, 257, "and back with S/8, S/4, S/2", "middle")
    return p


def api():
    p = Picture(190)
    for rank in range(2):
        y = 20 + 90 * rank
        p.text(8, y + 30, f"rank {rank}")
        for k, (words, color) in enumerate((("batch", GRAY), ("forward", BLUE), ("backward", ORANGE), ("gradient", YELLOW),
                                            ("step", GREEN))):
            p.box(70 + 138 * k, y, 110, 50, f"{words} {rank}" if k in (0, 3) else words, color)
            if k < 4:
                p.arrow(181 + 138 * k, y + 25, 207 + 138 * k, y + 25)
    p.arrow(539, 72, 539, 108, RED)
    p.arrow(539, 108, 539, 72, RED)
    p.text(550, 95, "all-reduce: both have the average", ink=RED)
    return p


def bucketing():
    p = Picture(215)
    p.text(8, 45, "parameters()")
    names = ("conv1", "bn1", "conv2", "bn2", "fc.weight", "fc.bias")
    for k, name in enumerate(names):
        p.box(120 + 103 * k, 25, 98, 32, name, (ORANGE, ORANGE, BLUE, BLUE, GREEN, GREEN)[k])
        target = 120 + 103 * (5 - k)
        p.arrow(169 + 103 * k, 60, target + 49, 128)
        p.box(target, 130, 98, 32, name, (ORANGE, ORANGE, BLUE, BLUE, GREEN, GREEN)[k])
    p.text(8, 150, "buckets")
    for b in range(3):
        p.text(222 + 206 * b, 182, f"bucket {b}", "middle")
    p.text(120, 205, "gradients of the last layer are ready first: they are sent first")
    return p


def collectives():
    p = Picture(420, 600)
    before = {"broadcast": (["a", "", ""], ["a", "a", "a"]), "all-reduce": (["a", "b", "c"], ["a+b+c"] * 3),
              "reduce-scatter": (["a0 a1 a2", "b0 b1 b2", "c0 c1 c2"], ["a0+b0+c0", "a1+b1+c1", "a2+b2+c2"]),
              "all-gather": (["a", "b", "c"], ["a b c"] * 3)}
    for k, (name, (left, right)) in enumerate(before.items()):
        y = 20 + 100 * k
        p.text(8, y + 45, name)
        for rank in range(3):
            p.text(150, y + 20 + 27 * rank, f"rank {rank}", ink=GRAY)
            p.box(210, y + 2 + 27 * rank, 120, 24, left[rank] or "-")
            p.box(420, y + 2 + 27 * rank, 150, 24, right[rank], BLUE if left[rank] != right[rank] else PALE)
        p.arrow(345, y + 41, 405, y + 41)
    return p


def implementation():
    p = Picture(200)
    steps = (("backward writes", "gradient i into", "its bucket", ORANGE), ("ready(i):", "one gradient less", "is pending", YELLOW),
             ("none pending, and", "buckets before it", "are launched", YELLOW), ("all-reduce", "of the bucket,", "in place", RED),
             ("wait:", "all buckets", "reduced", GREEN))
    for k, (*words, color) in enumerate(steps):
        x = 10 + 150 * k
        p.box(x, 30, 130, 74, "", color)
        for n, word in enumerate(words):
            p.text(x + 65, 54 + 18 * n, word, "middle", "#fff")
        if k < 4:
            p.arrow(x + 131, 67, x + 149, 67)
    p.line(225, 106, 225, 140, "#555")
    p.line(225, 140, 75, 140, "#555")
    p.arrow(75, 140, 75, 106)
    p.text(150, 160, "pending: the next gradient", "middle")
    p.text(375, 130, "always in the order 0, 1, 2, …", "middle")
    p.text(375, 148, "on every rank", "middle")
    return p


def evaluation():
    p = Picture(300, 560)
    left, bottom, scale = 60, 250, 90
    p.arrow(left, bottom, left + 470, bottom)
    p.arrow(left, bottom, left, 20)
    p.text(left + 235, bottom + 36, "communication / backward", "middle")
    p.text(left + 8, 24, "time, backward = 1")
    for k in range(1, 3):
        p.text(left - 10, bottom - k * scale + 4, str(k), "end", GRAY)
        p.text(left + 2 * k * scale, bottom + 16, str(k), "middle", GRAY)
    p.line(left, bottom - scale, left + 200 * 1.5, bottom - scale * (1 + 300 / (2 * scale)), ORANGE)
    p.text(left + 306, bottom - 228, "one after the other: 1 + r", "start", ORANGE)
    p.line(left, bottom - scale, left + 2 * scale, bottom - scale, BLUE)
    p.line(left + 2 * scale, bottom - scale, left + 4.4 * scale, bottom - 2.2 * scale, BLUE)
    p.text(left + 240, bottom - 85, "overlapped, at best: max(1, r)", "start", BLUE)
    p.line(left + 2 * scale, bottom, left + 2 * scale, bottom - 2 * scale, RED, dashed=True)
    p.text(left + 2 * scale + 6, bottom - 10, "largest gain: 50 %", "start", RED)
    return p


def parallelism():
    p = Picture(190)
    for k, (name, kind) in enumerate((("data", "d"), ("pipeline", "p"), ("tensor", "t"), ("expert", "e"))):
        x = 15 + 187 * k
        p.text(x + 80, 20, name, "middle")
        for layer in range(4):
            for part in range(2):
                color = {"p": (BLUE, ORANGE)[layer // 2], "t": (BLUE, ORANGE)[part], "d": (BLUE, ORANGE)[part],
                         "e": (BLUE, ORANGE)[part] if layer % 2 else GRAY}[kind]
                gap = 12 if kind == "d" else 0
                p.box(x + part * (74 + gap), 32 + 28 * layer, 74, 24, f"layer {layer}" if kind == "d" else "", color)
            if kind != "d":
                p.text(x + 74, 48 + 28 * layer, f"layer {layer}", "middle", "#fff")
        words = {"d": "every rank has all layers", "p": "a rank has some layers", "t": "a rank has a part of each",
                 "e": "a rank has some experts"}[kind]
        p.text(x + 80, 165, words, "middle", size=11)
    return p


def pipeline():
    """GPipe and 1F1B of 3 stages and 4 micro-batches; a backward takes two units, a forward one."""
    rows = []
    for name, lists in (("GPipe", ["F0 F1 F2 F3 . . . . . . B0 B1 B2 B3", ". F0 F1 F2 F3 . . . B0 B1 B2 B3",
                                   ". . F0 F1 F2 F3 B0 B1 B2 B3"]),
                        ("1F1B", ["F0 F1 F2 . . . . B0 F3 B1 . B2 . B3", ". F0 F1 . . B0 F2 B1 F3 B2 . B3",
                                  ". . F0 B0 F1 B1 F2 B2 F3 B3"])):
        for rank, actions in enumerate(lists):
            at, spans = 0, []
            for action in actions.split():
                length = 2 if action[0] == "B" else 1
                if action != ".":
                    spans.append((at, length, action, ORANGE if length == 2 else BLUE))
                at += length
            rows.append((f"{name}, rank {rank}", spans))
    return timeline(rows, 34)


def planner():
    """A chain of four parts, widths by their time, and the plan 3-1 of it."""
    p = Picture(186)
    scale, x, y = 6, 40, 36
    p.text(8, 18, "parts: ms of forward and backward; MB that cross a cut; MB of parameters")
    for name, ms, crosses, weights in (("conv.0", 30, "2", "0.04"), ("conv.1", 30, "1", "0.08"), ("conv.2", 30, "0.2", "0.16"),
                                       ("fc", 24, "", "80")):
        p.box(x, y, ms * scale, 30, f"{name}: {ms} ms", BLUE)
        p.text(x + ms * scale / 2, y + 46, f"{weights} MB", "middle", GRAY)
        x += ms * scale
        if crosses:
            p.text(x, y - 4, crosses, "middle", RED)
    y += 64
    for k in range(3):
        p.box(40, y + 20 * k, 90 * scale, 18, f"stage 0, worker {k}: micro-batches {k}, {k + 3}, {k + 6}, ...", ORANGE)
    p.box(40 + 90 * scale, y, 24 * scale, 58, "stage 1, worker 3", GREEN)
    p.text(8, y + 78, "3-1: a micro-batch every max(90 / 3, 24) = 30 ms, where sums and transfers take less")
    return p


def simulator():
    """Two hosts of a cluster, 4:200gbyte,2:25gbyte, and equal ranks that share the link between them."""
    p = Picture(170)
    p.text(8, 18, "4:200gbyte,2:25gbyte with dp=2,pp=2,tp=2: what is equal is simulated once, and counts as often as it is")
    for h in range(2):
        x = 20 + 350 * h
        p.box(x, 34, 290, 84, "", PALE)
        p.text(x + 8, 50, f"host {h}: dp {h}")
        for k in range(4):
            p.box(x + 10 + 70 * k, 60, 60, 26, f"{4 * h + k}", ORANGE if k < 2 else GREEN)
        p.text(x + 75, 106, "stage 0", "middle")
        p.text(x + 215, 106, "stage 1", "middle")
    p.line(310, 76, 370, 76, RED)
    p.text(340, 68, "25", "middle", RED)
    p.text(8, 142, "stage 0 to 1: 200 GB/s of each rank; sums over dp: ranks 0 and 1 share 25 GB/s with each other,")
    p.text(8, 160, "and with ranks 2 and 3 while both stages sum")
    return p


def tensor():
    p = Picture(200)
    p.text(8, 18, "x, equal on both ranks; A cut by columns, B by rows; f and g meet the other rank")
    for k in range(2):
        y = 36 + 84 * k
        p.text(8, y + 30, f"rank {k}")
        p.box(70, y, 60, 52, "x", PALE)
        p.node(164, y + 26, "f")
        p.box(200, y, 96, 52, f"A: units {'0-3' if k == 0 else '4-7'}", BLUE)
        p.box(316, y, 60, 52, "gelu", GREEN)
        p.box(396, y, 96, 52, f"B: units {'0-3' if k == 0 else '4-7'}", ORANGE)
        p.node(528, y + 26, "g")
        p.box(564, y, 60, 52, "y", PALE)
        for x0, x1 in ((130, 150), (178, 200), (296, 316), (376, 396), (492, 514), (542, 564)):
            p.arrow(x0, y + 26, x1, y + 26)
    p.line(528, 76, 528, 132, RED)
    p.line(164, 76, 164, 132, RED, dashed=True)
    p.text(536, 110, "sum, forward", ink=RED)
    p.text(172, 110, "sum, backward", ink=RED)
    return p


def compression():
    """What a rank sends for a gradient of 16 columns; what stays is its residual."""
    p = Picture(262)
    p.text(8, 18, "gradient + residual"), p.text(250, 18, "crosses the wire"), p.text(560, 18, "stays as residual")
    rows = (("plain", 16 * (BLUE,), "all, 32 bits each", "nothing"),
            ("cast", 16 * (BLUE,), "all, 16 bits each", "nothing: rounding is lost"),
            ("int8", 16 * (BLUE,), "all, 8 bits each, and a scale", "what rounding left"),
            ("one_bit", 16 * (BLUE,), "all signs, and a scale", "distance to ± scale"),
            ("top_k", tuple(BLUE if k in (3, 4, 11) else PALE for k in range(16)), "largest values and places", "the others"),
            ("random_k", tuple(BLUE if k in (1, 8, 14) else PALE for k in range(16)), "values, at drawn places", "the others"),
            ("powersgd", 16 * (GREEN,), "P, then Q: two thin factors", "M - P Qᵀ"))
    lengths = (192, 96, 49, 8, 72, 36, 48)
    for k, ((name, cells, sent, stays), length) in enumerate(zip(rows, lengths)):
        y = 30 + 32 * k
        p.text(8, y + 15, name)
        for c, color in enumerate(cells):
            p.box(76 + 10 * c, y, 10, 22, "", color)
        p.box(250, y, length, 22, "", ORANGE)
        p.text(250 + length + 6, y + 15, sent)
        p.text(560, y + 15, stays)
    return p


def zero():
    p = Picture(320)
    rows = (("parameters", BLUE, 4), ("gradients", ORANGE, 4), ("AdamW", GREEN, 8))
    for k, stage in enumerate(("zero 0", "zero 1", "zero 2", "zero 3")):
        y = 30 + 70 * k
        p.text(8, y + 22, stage)
        x = 70
        for name, color, width in rows:
            divided = k > ("AdamW", "gradients", "parameters").index(name)
            for part in range(4):
                mine = not divided or part == 1
                p.box(x + part * 10.5 * width, y, 10.5 * width, 36, fill=color if mine else PALE)
            if k == 0:
                p.text(x, 22, f"{name}, {width} N bytes")
            x += 42 * width + 8
    p.text(8, 310, "rank 1 of 4, between two steps; pale: kept by other ranks")
    return p


def experts():
    p = Picture(236)
    tokens = (("t0", 0, 2), ("t1", 1, 3), ("t2", 0, 3), ("u0", 2, 3), ("u1", 0, 1), ("u2", 3, 2))
    colors = (BLUE, ORANGE, GREEN, YELLOW)
    for k, (name, first, second) in enumerate(tokens):
        y = 28 + 32 * k + (8 if k > 2 else 0)
        p.box(60, y, 34, 26, name, GRAY)
        p.box(100, y, 26, 26, f"{first}", colors[first])
        p.box(128, y, 26, 26, f"{second}", colors[second])
    p.text(8, 76, "rank 0")
    p.text(8, 180, "rank 1")
    p.text(60, 18, "tokens, their experts")
    p.text(300, 18, "rows at their expert, by (rank, token)")
    for e, color in enumerate(colors):
        y = 34 + 50 * e
        rows = [name for name, *chosen in tokens if e in chosen]
        p.box(300, y, 74, 30, f"expert {e}", color)
        for k, name in enumerate(rows):
            p.box(384 + 40 * k, y, 36, 30, name, GRAY)
    p.text(620, 80, "rank 0")
    p.text(620, 180, "rank 1")
    p.arrow(166, 70, 288, 70)
    p.arrow(166, 96, 288, 150)
    p.arrow(166, 180, 288, 180)
    p.arrow(166, 154, 288, 100)
    return p


def devices():
    return timeline([("program", [(0, 4, "forward", BLUE), (4, 5, "backward", ORANGE), (9, 1.5, "step", GREEN), (10.5, 8.5, "waits", PALE),
                                  (19, 4, "forward", BLUE)]),
                     ("stream", [(0.5, 6.5, "forward", BLUE), (7, 9, "backward", ORANGE), (16, 2.5, "step", GREEN),
                                 (19.5, 5, "forward", BLUE)])],
                    25, (19, "ls_item: the loss"))


PICTURES = (accumulation, api, bucketing, collectives, compression, costs, devices, evaluation, experts, implementation, naive, overlap,
            parallelism, parameter_server, pipeline, planner, simulator, tensor, why, zero)


def draw():
    """{name: text} of all pictures."""
    return {f"{make.__name__}.svg": make().svg() for make in PICTURES}


if __name__ == "__main__":
    for name, text in draw().items():
        (FOLDER / name).write_text(text)
