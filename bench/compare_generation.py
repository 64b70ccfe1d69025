#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of `lockstep generate` with weights of float32, bf16 and int8, beside CTranslate2's, in turns.

    bench/compare_generation.py [--build BUILD] [--turns N] [--threads 1,2]

GPT-2 (124 million parameters) with random values, a prompt of 64 tokens, 96 tokens greedily; the first is not counted.
CTranslate2 is installed from PyPI below the build folder.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

import conditions

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PEER = SOURCE / "bench/training/generation.py"
VERSION, TOKENS = "4.8.5", 96
PROMPT = "It is a truth universally acknowledged, that a single man in pos"  # 64 bytes, each a token
RATE = re.compile(r"([\d.]+) tokens/s after the first")


def prepare(build):
    """The interpreter with CTranslate2, and the folder of the models."""
    venv, models = build / "ctranslate2-venv", build / "generation"
    if not (venv / "bin/python").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "-q", f"ctranslate2=={VERSION}", "numpy"], check=True)
    if not (models / "int8/model.bin").exists():
        shutil.rmtree(models, ignore_errors=True)
        subprocess.run([venv / "bin/python", PEER, "make", models], check=True)
    return venv / "bin/python", models


def ours(options, models, kind, threads):
    done = subprocess.run([options.build / "lockstep", "generate", "--weights", models / "gpt2", "--tokenizer", "bytes",
                           "--prompt", PROMPT, "--greedy", "--tokens", str(TOKENS), "--dtype", kind],
                          env=dict(os.environ, LOCKSTEP_THREADS=str(threads)), stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, check=True, timeout=300)
    return float(RATE.search(done.stderr).group(1))


def theirs(python, models, kind, threads):
    done = subprocess.run([python, PEER, "time", models, kind, str(threads), str(TOKENS)], stdout=subprocess.PIPE,
                          text=True, check=True, timeout=300)
    return float(done.stdout.split()[0])


def span(values):
    return f"{statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]"


def ratio(above, below):
    return "{:.2f} [{:.2f}, {:.2f}]".format(*(of(a / b for a, b in zip(above, below)) for of in (statistics.median, min, max)))


def rows_of(options, python, models, threads):
    kinds = {"float32": "float32", "bf16": None, "int8": "int8"}
    got = {(who, kind): [] for kind in kinds for who in ("ours", "peer")}
    for _ in range(options.turns):
        for kind, peer in kinds.items():
            got["ours", kind].append(ours(options, models, kind, threads))
            if peer:
                got["peer", kind].append(theirs(python, models, peer, threads))
    for kind in kinds:
        own, peer = got["ours", kind], got["peer", kind]
        print(f"| {kind}, {threads} | {span(own)} | {ratio(own, got['ours', 'float32'])} | "
              + (f"{span(peer)} | {ratio(own, peer)} |" if peer else "- | - |"), flush=True)
        yield {"name": f"{kind}, {threads}", "ours": own, "peer": peer}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    options.build = options.build.resolve()
    python, models = prepare(options.build)
    watch = conditions.Watch()
    print(f"CTranslate2 {VERSION}; tokens/s\n| weights, threads | Lockstep | of float32's | CTranslate2 | ratio |\n"
          "|---|---|---|---|---|", flush=True)
    rows = [row for threads in options.threads.split(",") for row in rows_of(options, python, models, int(threads))]
    about = watch.conditions()
    (options.build / "compare-generation.json").write_text(json.dumps({"rows": rows, "conditions": about}, indent=1))
    print(f"\n{about['minutes']} minutes; other programs kept {about['others_cores']:.2f} processors busy", flush=True)


if __name__ == "__main__":
    main()
