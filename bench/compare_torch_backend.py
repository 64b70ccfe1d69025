#!/usr/bin/env python3
"""A DDP training step of PyTorch over gloo and over Lockstep, in turns: the same program, the same
processes' start, only the backend's name differs. A step's time is that of its slowest rank; of a
run the median counts, and of the runs the median and the spread (largest less smallest, by the
median).

    bench/compare_torch_backend.py --build build [--python PYTHON] [--ranks 2,4] [--rounds 5]

Without --python one with torch is looked for; where there is none, PyTorch for the CPU is installed
into a virtual environment below the build.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
WIDTHS = (256, 1024, 1800)  # 0.8, 13 and 39 MB of gradients
INDEX = "https://download.pytorch.org/whl/cpu"


def version_of(python):
    done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], text=True,
                          capture_output=True, cwd="/")
    return done.stdout.strip() if done.returncode == 0 else None


def find_python(build):
    venv = build / "torch-venv"
    for python in (venv / "bin/python", sys.executable, "/usr/bin/python3"):
        if pathlib.Path(python).exists() and version_of(str(python)):
            return str(python)
    print(f"installing PyTorch for the CPU into {venv}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "-q", "numpy", "torch", "--extra-index-url", INDEX],
                   check=True)
    return str(venv / "bin/python")


def median_of_a_run(options, ranks, width, backend):
    env = dict(os.environ, PYTHONPATH=str(SOURCE / "python"), OMP_NUM_THREADS="1",
               LOCKSTEP_LIBRARY=str(options.build / "src"), PYTHONWARNINGS="ignore")
    done = subprocess.run([options.build / "lockstep", "run", "-n", str(ranks), options.python, "-m",
                           "lockstep.torch", SOURCE / "bench/torch_step.py", "--backend", backend,
                           "--width", str(width)], env=env, text=True, capture_output=True)
    times = [float(line.split()[-1]) for line in done.stdout.splitlines() if "step_ms" in line]
    if done.returncode != 0 or not times:
        sys.exit(f"{backend} with {ranks} ranks ended with {done.returncode}:\n{done.stdout}"
                 f"{done.stderr}")
    return statistics.median(times)


def row(options, ranks, width):
    ours, peer = [], []
    for turn in range(options.rounds):
        for backend in ("gloo", "lockstep") if turn % 2 == 0 else ("lockstep", "gloo"):
            (peer if backend == "gloo" else ours).append(
                median_of_a_run(options, ranks, width, backend))
    a, b = statistics.median(ours), statistics.median(peer)
    spread = max((max(t) - min(t)) / statistics.median(t) for t in (ours, peer))
    megabytes = (3 * width * (width + 1) + 10 * (width + 1)) * 4 / 1e6
    return {"name": f"ddp step, {ranks} ranks, {megabytes:.1f} MB of gradients", "peer": "gloo",
            "ours_ms": round(a, 3), "peer_ms": round(b, 3), "ratio": round(b / a, 3),
            "spread": round(spread, 3)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build")
    parser.add_argument("--python")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.python = options.python or find_python(options.build)
    print(f"PyTorch {version_of(options.python)}; medians of {options.rounds} runs in turns; "
          "ratio: gloo's time by Lockstep's")
    print(f"{'':44} {'lockstep':>9} {'gloo':>9} {'ratio':>6} {'spread':>7}")
    rows = []
    for ranks in map(int, options.ranks.split(",")):
        for width in WIDTHS:
            r = row(options, ranks, width)
            rows.append(r)
            print(f"{r['name']:44} {r['ours_ms']:6.2f} ms {r['peer_ms']:6.2f} ms {r['ratio']:6.2f} "
                  f"{r['spread'] * 100:5.0f} %", flush=True)
    (options.build / "compare-torch-backend.json").write_text(json.dumps(rows, indent=1) + "\n")


main()
