#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predictions of `lockstep sim` beside measured steps: a GPT on 1, 2, 4 and 8 ranks of this machine, over shared memory and
TCP, and on two ranks over 1 Gbit/s.

    bench/compare_sim.py --build build [--row dp-2/shm,tp-2/tcp,...] [--rounds 3] [--json FILE]

What the model needs is measured on other things than those that are judged, in as many processes at the same time as the row has
ranks: matrix products and attention of a smaller GPT by one thread (the device's efficiency by size), its norms, sums, GELU and
optimizer (its memory), and the cost of a collective and of a message between computations (bench/dev/meet). Of the link: two sizes of an all-reduce of two ranks (latency and bandwidth), and over TCP, at 1 Gbit/s as
well, how much longer a computation takes beside one (the bytes that a core moves in a second). Cores that ranks share are part of
the model (--cores).
Kernels and the job take turns within a round, each round measures all once more, and a row is the median; an error is the
prediction over the measured step, minus 1, and the range is over rounds. 1 Gbit/s is a link between two network namespaces, which
needs root.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

from link import SOURCE, Job, Refused, Wire, link_of
from pages import write_rows

AIM = 0.10  # of the error
MODEL = {"layers": 4, "dim": 256, "heads": 8, "context": 128}  # judged; calibration has half of its dim
BATCH = 8
STEPS = 8
COLD = 8 << 20  # bytes written between pointwise kernels: activations have left the cache of a core when backward reads them
PASSES = 5  # of the kernels and of a job, in turns: a virtual machine's processors change their speed from second to second
TEXT = 30000  # bytes of the data: training evaluates a tenth of them at its end
VOCABULARY = 256  # of bytes
DATA = SOURCE / "examples" / "data" / "pride_and_prejudice.txt"
ROWS = ["dp-1/shm", "dp-2/shm", "dp-4/shm", "dp-8/shm", "dp-2/tcp", "dp-4/tcp", "dp-8/tcp", "tp-2/shm", "tp-4/shm", "tp-2/tcp",
        "cp-2/shm", "pp-2/shm", "pp-2/tcp", "dp-2/1gbit"]


# ---- calibration --------------------------------------------------------------------------------

def run(command, more={}):
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True, env=dict(os.environ, **more))
    if done.returncode != 0:
        raise Refused(f"{' '.join(map(str, command[:4]))}: {done.stderr.strip()[-300:]}")
    return done.stdout


# Layers of bench/dev/kernels: inputs and outputs, in dims; the head has outputs of its own.
LAYERS = {"qkv": (1, 3), "proj": (1, 1), "ff1": (1, 4), "ff2": (4, 1)}


# Pointwise kernels of a layer, forward and backward, and its optimizer: how often, and elements of [rows,dim] or bytes that each
# moves by the formula of src/cost/gpt.c.
POINTWISE = {"layer norm": (2, 2), "layer norm backward": (2, 3), "add [rows,dim]": (4, 3), "gelu erf forward": (1, 8),
             "gelu erf backward": (1, 12), "AdamW [rows*4dim]": (1, 28)}


ATTENTION = ("attention forward", "attention backward")
HEADS = 4  # of attention in bench/dev/kernels


def times_of(said):
    """Seconds of each kernel that bench/dev/kernels prints."""
    return {name.strip(): float(us) * 1e-6 for name, us in re.findall(r"^(\w.{0,33}?) +([\d.]+) us", said, re.M)}


def slowest(printed):
    """Seconds of each kernel from what copies of bench/dev/kernels print: those of the slowest copy, since ranks wait for each
    other in every step."""
    copies = [times_of(said) for said in printed]
    if any(name not in times for times in copies for name in (*POINTWISE, *ATTENTION, "qkv forward")):
        raise Refused("bench/dev/kernels prints no products, no attention, or no pointwise kernels")
    return {name: max(times[name] for times in copies) for name in copies[0]}


def products_of(times, rows, dim):
    """(m, n, k, seconds)"""
    for layer, factors in LAYERS.items():
        inputs, outputs = (dim * factor for factor in factors)
        sizes = {"forward": (rows, outputs, inputs), "dX": (rows, inputs, outputs), "dW": (outputs, inputs, rows)}
        yield from ((*size, times[f"{layer} {part}"]) for part, size in sizes.items() if f"{layer} {part}" in times)


def device_text(measured, dim):
    """The lines of --device of (rows, context, times), the largest rows first: products, no product's speed exceeded, attention,
    and memory, that of the largest rows. The model has twice the forward of attention in backward. Products that were measured
    once more with another context count once."""
    of_rows = {}
    for rows, _, times in measured:
        of_rows.setdefault(rows, times)
    products = [product for rows, times in of_rows.items() for product in products_of(times, rows, dim)]
    speed = max(2 * m * n * k / seconds for m, n, k, seconds in products)
    rows, _, times = measured[0]
    moved = 4 * rows * dim * sum(count * elements for count, elements in POINTWISE.values())
    memory = moved / sum(count * times[name] for name, (count, _) in POINTWISE.items())
    lines = [f"{speed * 1.001e-9:.3f}gflop", f"{memory * 1e-9:.3f}gbyte"]
    lines += [f"attention {rows * HEADS} {context} {dim // HEADS} {sum(times[name] for name in ATTENTION) / 3 * 1e6:.3f}us"
              for rows, context, times in measured]
    return "\n".join(lines + [f"matmul {m} {n} {k} {seconds * 1e6:.3f}us" for m, n, k, seconds in products]) + "\n"


def kernels_once(options, ranks, rows, dim, context):
    """Seconds of each kernel of a rank beside the others."""
    command = list(map(str, [options.build / "bench" / "dev" / "kernels", rows, dim, context, COLD]))
    copies = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(ranks)]
    return slowest([copy.communicate()[0] for copy in copies])


MEETINGS = {"wait": "sum", "message": "shift"}
MEETING = (300, 4096, 5)  # microseconds between meetings, bytes, rounds


def hosts_of(link):
    """Over TCP each rank is on a host of its own."""
    return {} if isinstance(link, Wire) or link.transport == "shm" else {"LOCKSTEP_HOSTS": "64"}


def meeting_of(options, link, ranks, kind):
    """Seconds of a core that a collective or a message takes a rank besides a computation; 0: it meets nobody."""
    command = [options.build / "lockstep", "run", "-n", ranks, options.build / "bench" / "dev" / "meet", MEETINGS[kind], *MEETING]
    return meeting_seconds(run(command, hosts_of(link)), max(1.0, ranks / os.cpu_count())) if ranks > 1 else 0.0


def meeting_seconds(said, crowding):
    rounds = [tuple(map(float, pair)) for pair in re.findall(r"ROUND ([\d.]+) ([\d.]+)", said)]
    return max(0.0, statistics.median(meets - alone for alone, meets in rounds) * 1e-6 / crowding)


def typical(passes):
    return {name: statistics.median(each[name] for each in passes) for name in passes[0]}


def device_of(options, link, folder, ranks, tokens, dim, context, between=lambda: None):
    """For a network of `dim`, that of half of it: products of twice its tokens, whose activations have as many bytes, and of a
    quarter, for what tp and micro-batches make smaller; attention also to a quarter of the keys, for what cp does. `between` is
    called after each pass."""
    quarter = max(context, tokens // 4)
    sizes = ((2 * tokens, context), (quarter, context), (quarter, max(16, context // 4)))
    passes, meetings = {size: [] for size in sizes}, {kind: [] for kind in MEETINGS}
    for _ in range(PASSES):
        for size in sizes:
            passes[size].append(kernels_once(options, ranks, size[0], dim // 2, size[1]))
        for kind, times in meetings.items():
            times.append(meeting_of(options, link, ranks, kind))
        between()
    path = folder / "device"
    path.write_text(device_text([(*size, typical(passes[size])) for size in sizes], dim // 2) +
                    "".join(f"{kind} {statistics.median(times) * 1e6:.3f}us\n" for kind, times in meetings.items()))
    return path


def link_cluster(options, link, folder):
    """One level whose latency and bandwidth explain two all-reduces of two ranks, 2 α + S β, and over TCP a core's speed."""
    path = folder / "link.json"
    command = [options.build / "lockstep", "bench", "all-reduce", "--sizes", "4K,8M", "--samples", 5, "--json", path]
    with Job(link.jobs(options.build, command)) as job:
        job.wait()
    within = not isinstance(link, Wire) and link.transport == "shm"
    return cluster_text(*json.loads(path.read_text())) + ("" if within else core_text(options, link, folder))


def cluster_text(small, large):
    byte = (large["time_ms"] - small["time_ms"]) * 1e-3 / (large["bytes"] - small["bytes"])
    latency = max(0.0, small["time_ms"] * 1e-3 - byte * small["bytes"]) / 2
    return f"{1e-9 / byte:.4f}gbyte@{latency * 1e6:.3f}us"


MOVED = 8 << 20  # bytes of an all-reduce beside a computation


def core_text(options, link, folder):
    """A computation beside an all-reduce of two ranks takes longer by the time in which the core moves bytes."""
    path = folder / "overlap"
    path.unlink(missing_ok=True)
    command = ["sh", "-c", f'exec "$0" "$@" >> {shlex.quote(str(path))}', options.build / "bench" / "dev" / "overlap", 1, MOVED, 1.25, 9]
    with launched(options, link, command, 2) as job:
        job.wait()
    return moved_text(path.read_text())


def moved_text(said):
    rounds = [tuple(map(float, line.split()[1:])) for line in said.splitlines() if line.startswith("ROUND ")]
    longer = statistics.median(both - alone for _, alone, both, _ in rounds) * 1e-3
    return f"/{MOVED / longer * 1e-9:.4f}gbyte" if longer > 0 else ""


# ---- judged rows --------------------------------------------------------------------------------

def job_options(axis, ranks):
    """Of the training program and of the simulator."""
    shape = [word for name, value in MODEL.items() for word in (f"--{name}", value)]
    return [*shape, "--batch", BATCH, "--mesh", f"{axis}={ranks}", *(["--micro-batches", 4 * ranks] if axis == "pp" else [])]


def launched(options, link, command, ranks):
    """The job of a program on this link; a rank computes with one thread."""
    commands = (link.jobs(options.build, command) if isinstance(link, Wire)
                else [[options.build / "lockstep", "run", "-n", ranks, *command]])
    return Job(commands, dict(os.environ, LOCKSTEP_THREADS="1", **hosts_of(link)))


def seconds_of(line):
    """Of a step, from a row of --log."""
    return json.loads(line)["seconds"]


def short_text(folder):
    path = folder / "text"
    path.write_bytes(DATA.read_bytes()[:TEXT])
    return path


def steps_of(options, link, axis, ranks, folder):
    """Seconds of the steps of a job, without the first ones."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    command = [options.build / "programs" / "train_gpt", "--data", short_text(folder), *job_options(axis, ranks), "--steps", STEPS,
               "--eval-every", 0, "--clip", 0, "--log", log]
    with launched(options, link, command, ranks) as job:
        job.wait()
    return [seconds_of(line) for line in log.read_text().splitlines() if '"seconds"' in line][2:]


def cluster_of(ranks, level, apart):
    """All ranks on one host, or hosts with a rank each; and the cores of a host."""
    return (f"1:1000gbyte,{ranks}:{level}", max(1, os.cpu_count() // ranks)) if apart else (f"{ranks}:{level}", os.cpu_count())


def predicted_ms(options, axis, ranks, cluster, cores, device):
    said = run([options.build / "lockstep", "sim", "--model", "gpt", *job_options(axis, ranks), "--vocab", VOCABULARY, "--dtype",
                "float32", "--cluster", cluster, "--cores", cores, "--device", device])
    return float(re.search(r"^step +([\d.]+) ms", said, re.M)[1])


def measure(options, folder, row):
    """(prediction, step) of each round; the inputs of the model are measured again in each."""
    (axis, ranks), name = row.split("/")[0].split("-"), row.split("/")[1]
    ranks, pairs = int(ranks), []
    with link_of(name) as link:
        for _ in range(options.rounds):
            steps = []
            cluster = cluster_of(ranks, link_cluster(options, link, folder), isinstance(link, Wire))
            device = device_of(options, link, folder, ranks, BATCH * MODEL["context"], MODEL["dim"], MODEL["context"],
                               lambda: steps.extend(steps_of(options, link, axis, ranks, folder)))
            pairs.append((predicted_ms(options, axis, ranks, *cluster, device), 1e3 * statistics.median(steps)))
    return row_of(row, pairs)


def row_of(name, pairs):
    errors = sorted(predicted / step - 1 for predicted, step in pairs)
    return {"name": name, "predicted_ms": round(statistics.median(p for p, _ in pairs), 3),
            "step_ms": round(statistics.median(s for _, s in pairs), 3), "error": round(statistics.median(errors), 4),
            "spread": [round(errors[0], 4), round(errors[-1], 4)], "rounds": len(pairs)}


HEAD = "| step | predicted ms | measured ms | error | range | rounds |\n|---|---|---|---|---|---|"


def line_of(row):
    low, high = row["spread"]
    return (f"| {row['name']} | {row['predicted_ms']:.4g} | {row['step_ms']:.4g} | {100 * row['error']:+.1f} % | "
            f"{100 * low:+.1f} to {100 * high:+.1f} % | {row['rounds']} |")


def missed(row):
    return f"missed: off by {100 * row['error']:+.1f} %, aim {100 * AIM:.0f} %" if abs(row["error"]) > AIM else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--row", type=lambda text: text.split(","), default=ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path, help="also write the rows to this file")
    options = parser.parse_args()
    options.build = options.build.resolve()
    rows = []
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory(prefix="lockstep-compare-sim-") as folder:
        for name in options.row:
            try:
                rows.append(measure(options, pathlib.Path(folder), name))
                print(line_of(rows[-1]), flush=True)
            except Refused as why:
                print(f"| {name} | left out: {why} |", flush=True)
            if options.json is not None:
                write_rows(options.json, rows, False)
    for row in rows:
        if missed(row):
            print(f"{row['name']}: {missed(row)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
