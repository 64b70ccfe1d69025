#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MPI_Allreduce of an unchanged program with and without the interposer, in turns: a table for docs/mpi.md.

    extra/pmpi/compare.py [--build BUILD] [--turns N]
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--build", default="build")
parser.add_argument("--turns", type=int, default=5)
options = parser.parse_args()
BUILD = pathlib.Path(options.build).resolve()
RANKS = (2, 4)
# --bind-to none: Open MPI binds two ranks to cores by itself, but not four.
MPIS = {"openmpi": ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none"], "mpich": ["mpirun.mpich"]}
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def latencies(mpi, ranks, served):
    """bytes -> microseconds; the interposer says with its report that it served."""
    extra = ["env", f"LD_PRELOAD={BUILD}/extra/pmpi/liblockstep_pmpi_{mpi}.so", "LOCKSTEP_PMPI_REPORT=1"] if served else []
    done = subprocess.run([*MPIS[mpi], "-n", str(ranks), *extra, f"{BUILD}/extra/pmpi/latency_{mpi}"],
                          env=ENVIRONMENT, text=True, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert served == bool(re.search(r"MPI_Allreduce: [1-9]", done.stderr)), done.stderr
    return {int(b): float(us) for b, us in re.findall(r"^(\d+) ([\d.]+)$", done.stdout, re.MULTILINE)}


def table(mpi, ranks):
    turns = [(latencies(mpi, ranks, False), latencies(mpi, ranks, True)) for _ in range(options.turns)]
    for size in turns[0][0]:
        alone, served = ([turn[i][size] for turn in turns] for i in (0, 1))
        ratios = sorted(a / s for a, s in zip(alone, served))
        print(f"| {mpi} | {ranks} | {size} | {statistics.median(alone):.2f} | {statistics.median(served):.2f} | "
              f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}] |", flush=True)


if __name__ == "__main__":
    print("| MPI | ranks | bytes | MPI alone, us | with the interposer, us | ratio |\n|---|---|---|---|---|---|")
    for name in MPIS:
        for count in RANKS:
            table(name, count)
