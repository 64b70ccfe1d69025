"""The rows of compare_training.py as tables in Markdown.

    table.py build/compare-training.json                     prints both
    table.py build/compare-training.json --into README.md docs/performance.md
                 writes the short one into the first, the long one into the second, between the two
                 lines <!-- compare-training --> and <!-- end of compare-training -->
"""

import argparse
import json
import pathlib

BEGIN, END = "<!-- compare-training -->", "<!-- end of compare-training -->"
BUSY = 0.15  # cores that other programs used; above this the machine does not count as quiet
LONG = ["a training step", "threads", "Lockstep ms", "peer ms", "peer", "ratio", "quartiles", "CPU ms, ours / peer",
        "peak MB, ours / peer"]
SHORT = ["a training step", "1 thread, ms", "PyTorch ms", "ratio", "2 threads, ms", "PyTorch ms", "ratio",
         "peak MB, ours / PyTorch"]


def table(lines):
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def ms(value):
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def is_step(row):
    return "threads" in row


def conditions(rows):
    about = rows[0]["conditions"]
    load = "nothing else ran" if about["others_cores"] <= BUSY else (
        f"**not on a quiet machine**: others kept {about['others_cores']:.2f} cores busy")
    return (f"Measured on {about['date']} with `make compare-training` in {about['minutes']} minutes "
            f"({about['processor']}, {about['cores']} cores; {load}). ")


def long_page(rows):
    steps = [[r["net"], str(r["threads"]), ms(r["ours_ms"]), ms(r["peer_ms"]), r["peer"], f"{r['ratio']:.2f}",
              f"{r['spread'][0]:.2f} to {r['spread'][1]:.2f}",
              f"{ms(r['ours_cpu_ms'])} / {ms(r['peer_cpu_ms'])}",
              f"{r['ours_peak_mb']:.0f} / {r['peer_peak_mb']:.0f}"] for r in rows if is_step(r)]
    starts = [[r["name"].split(": ")[1], f"{r['ours_ms']:.0f}", f"{r['peer_ms']:.0f}", r["peer"]]
              for r in rows if not is_step(r)]
    page = conditions(rows) + "Medians; ratio = peer's time / Lockstep's time.\n\n" + table([LONG, *steps])
    if starts:
        page += "\n" + table([["from exec to the first step", "Lockstep ms", "peer ms", "peer"], *starts])
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
    return conditions(rows) + f"Compared with {newest}; ratio = PyTorch's time / Lockstep's time.\n\n" + table(lines)


def put_into(text, part):
    """`text` with everything between the two marker lines replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"table.py: the page needs the lines {BEGIN} and {END}, once and in this order")
    return text[:text.index(BEGIN) + len(BEGIN)] + "\n" + part + text[text.index(END):]


def main():
    parser = argparse.ArgumentParser(prog="table.py", usage=__doc__)
    parser.add_argument("rows")
    parser.add_argument("--into", nargs=2, type=pathlib.Path)
    options = parser.parse_args()
    rows = json.loads(pathlib.Path(options.rows).read_text())
    parts = (short_page(rows), long_page(rows))
    if options.into is None:
        print(*parts, sep="\n", end="")
    for path, part in zip(options.into or (), parts):
        path.write_text(put_into(path.read_text(), part))


if __name__ == "__main__":
    main()
