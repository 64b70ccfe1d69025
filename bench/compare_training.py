#!/usr/bin/env python3
"""A training step in one process beside PyTorch eager, in turns in one run: forward, loss, backward and
AdamW of the same model over the same batch, float32. All contenders of a row are alive, those whose
turn it is not are asleep. A turn counts with the median of its steps; the ratio, the peer's time by
ours, is made within each pair of turns that follow each other; median and quartiles are printed, with
the CPU time of a step and the most memory a process had (torch's own libraries included).

    bench/compare_training.py --build build [--python PYTHON]... [--models mlp,gpt] [--threads 1,2]

--python: interpreters that have torch; without it what is found: a virtual environment below the
build, into which PyTorch for the CPU is installed if there is none, and /usr/bin/python3.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
INDEX = "https://download.pytorch.org/whl/cpu"
STEPS_MS = 400  # a turn takes about as long, and three steps at least
NAMES = {"mlp": "MLP 784-512-512-10, batch 64",
         "gpt": "GPT 6 layers, d 384, T 256, V 8192, batch 8",
         "gpt-tiny": "GPT 2 layers, d 32, T 16, V 64, batch 2"}


def version_of(python):
    done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], text=True,
                          capture_output=True, cwd="/")
    return done.stdout.strip() if done.returncode == 0 else None


def find_pythons(build):
    venv = build / "torch-venv"
    if not (venv / "bin/python").exists():
        print(f"installing PyTorch for the CPU into {venv}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "-q", "numpy", "torch", "--extra-index-url",
                        INDEX], check=True)
    return [p for p in (str(venv / "bin/python"), "/usr/bin/python3") if version_of(p)]


class Contender:
    def __init__(self, name, command, threads):
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), LOCKSTEP_THREADS=str(threads),
                   OPENBLAS_CORETYPE="SkylakeX", PYTHONWARNINGS="ignore")
        self.name, self.turns, self.last = name, [], None
        self.process = subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        self.parameters = int(self.line().split()[1])
        self.last = self.ask(3)
        self.steps = min(500, max(3, round(STEPS_MS / statistics.median(self.last["ms"]))))

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name}: ended with {self.process.wait()}")
        return line

    def ask(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return json.loads(self.line())

    def turn(self):
        self.last = self.ask(self.steps)
        self.turns.append(statistics.median(self.last["ms"]))

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def measure(model, threads, pythons, options):
    ours = Contender("Lockstep", [options.build / "bench/contender_training", model], threads)
    peers = [Contender(f"PyTorch {version_of(p)}",
                       [p, SOURCE / "bench/training/contender_torch.py", model, str(threads)], threads)
             for p in pythons]
    for peer in peers:
        if peer.parameters != ours.parameters:
            sys.exit(f"{model}: {peer.parameters} parameters, ours has {ours.parameters}")
    for _ in range(options.turns):
        for contender in (ours, *peers):
            contender.turn()
    for peer in peers:
        ratios = [p / o for p, o in zip(peer.turns, ours.turns)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        yield {"name": f"{NAMES[model]}, {threads} threads" if threads > 1
               else f"{NAMES[model]}, 1 thread", "peer": peer.name,
               "ours_ms": round(statistics.median(ours.turns), 4),
               "peer_ms": round(statistics.median(peer.turns), 4), "ratio": round(middle, 3),
               "spread": [round(low, 3), round(high, 3)],
               "ours_cpu_ms": round(ours.last["cpu_ms"], 4),
               "peer_cpu_ms": round(peer.last["cpu_ms"], 4),
               "ours_peak_mb": ours.last["peak_mb"], "peer_peak_mb": round(peer.last["peak_mb"], 1),
               "turns": len(ratios)}
    for contender in (ours, *peers):
        contender.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build")
    parser.add_argument("--python", action="append", help="may be given several times")
    parser.add_argument("--models", default="mlp,gpt")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--turns", type=int, default=11)
    options = parser.parse_args()
    options.build = options.build.resolve()
    pythons = options.python or find_pythons(options.build)
    unknown = [m for m in options.models.split(",") if m not in NAMES]
    if unknown:
        parser.error(f"--models: there is no {unknown[0]}; there are {', '.join(NAMES)}")
    print("| a training step | Lockstep ms | peer ms | peer | ratio | quartiles | CPU ms, ours / peer "
          "| peak MB, ours / peer |\n|---|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for model in options.models.split(","):
        for threads in map(int, options.threads.split(",")):
            for r in measure(model, threads, pythons, options):
                rows.append(r)
                print(f"| {r['name']} | {r['ours_ms']:.2f} | {r['peer_ms']:.2f} | {r['peer']} | "
                      f"{r['ratio']:.2f} | {r['spread'][0]:.2f}-{r['spread'][1]:.2f} | "
                      f"{r['ours_cpu_ms']:.2f} / {r['peer_cpu_ms']:.2f} | "
                      f"{r['ours_peak_mb']:.0f} / {r['peer_peak_mb']:.0f} |", flush=True)
    (options.build / "compare-training.json").write_text(json.dumps(rows, indent=1) + "\n")


main()
