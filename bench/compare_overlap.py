#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of the communication a computation hides, between two hosts at 1 Gbit/s: MPI_Iallreduce of Open MPI
and MPICH, of which nothing is called until the wait, beside Lockstep over the same two MPIs and over TCP.

    bench/compare_overlap.py --build build [--part loop|ddp] [--rounds 5] [--seconds 200]

The hosts are those of `scripts/slurm-two-nodes --hosts`, with `tc tbf` on both ends of their cable; needs root. In
turns, a job of mpirun for each row:

  loop  bench/dev/overlap.c: all-reduces, FACTOR times as long a computation, and both at once.
  ddp   `lockstep bench ddp`: steps of ResNet-18 with all-reduces during backward, after it, and without any.

Hidden is the share of the communication's time for which nothing waits after the computation. Longer is what both at
once take more than the computation alone, as a share of the same: the wait, and the processor's time for the protocols.
With a rank for each core that time is taken from the computation.

A row whose bytes did not cross the cable is an error. Rows: medians over the jobs, quartiles in brackets.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import conditions

SOURCE = pathlib.Path(__file__).resolve().parent.parent
RATE, BUCKETS, BYTES, FACTOR, TURNS = "1gbit", 4, 2 << 20, 1.25, 3
TARGET = 0.9
NOT_HERE = 77  # status of scripts/slurm-two-nodes
MPIS = {"openmpi": "Open MPI", "mpich": "MPICH"}
PLANES = {"mpi": "over {}", "": "over TCP with TLS", "plain": "over TCP"}


class Row:
    def __init__(self, mpi, plane=None):
        """plane None: MPI's own all-reduce."""
        self.mpi, self.plane = mpi, plane
        self.title = (f"MPI_Iallreduce of {MPIS[mpi]}" if plane is None else
                      "Lockstep " + PLANES[plane].format(MPIS[mpi]))
        self.hidden, self.comm, self.longer = [], [], []  # of each job


def rows_of(part, mpis):
    peers = [Row(mpi) for mpi in mpis] if part == "loop" else []
    planes = ("", "plain") if part == "loop" else ("plain",)
    return peers + [Row(mpi, "mpi") for mpi in mpis] + [Row(mpis[0], plane) for plane in planes]


# ---- one job ------------------------------------------------------------------------------------

def launcher(row, build):
    """The words before the program, and the variables."""
    nodes = os.environ["TWO_NODES"]
    variables = {"LOCKSTEP_THREADS": "1", "LOCKSTEP_TUNE_FILE": "/dev/null", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                 "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "tcp,self",
                 "OMPI_MCA_btl_tcp_if_include": "10.98.0.0/24", "OMPI_MCA_oob_tcp_if_include": "10.98.0.0/24",
                 "OMPI_MCA_plm_rsh_agent": f"{nodes}/rsh", "UCX_TLS": "tcp,self"}  # not the memory that they share
    if row.plane:
        variables["LOCKSTEP_DATA_PLANE"] = row.plane
    if row.plane == "mpi":
        variables["LOCKSTEP_MPI"] = str(build / f"src/comm/mpi/ls_backend_mpi_{row.mpi}.so")
    passed = [word for name in variables if name.startswith("LOCKSTEP_") for word in ("-x", name)]
    hosts = pathlib.Path(nodes, f"hosts.{row.mpi}")
    hosts.write_text("n1 slots=1\nn2 slots=1\n" if row.mpi == "openmpi" else "n1:1\nn2:1\n")
    words = (["mpirun.openmpi", "--bind-to", "none", "--hostfile", hosts, *passed] if row.mpi == "openmpi" else
             ["mpirun.mpich", "-f", hosts, "-launcher", "rsh", "-launcher-exec", f"{nodes}/rsh"])
    return [str(word) for word in (*words, "-n", "2")], variables


def crossed():
    """Bytes that node 1 has sent."""
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("tn1:"))


def job(row, build, command, least):
    words, variables = launcher(row, build)
    before = crossed()
    done = subprocess.run([*words, *map(str, command)], env=dict(os.environ, **variables), capture_output=True, text=True,
                          timeout=120)
    if done.returncode != 0:
        sys.exit(f"{row.title}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    if crossed() - before < least:
        sys.exit(f"{row.title}: {crossed() - before} bytes crossed the cable, at least {least} should have")
    return done.stdout


def loop(row, build, folder):
    program = folder / (f"overlap.{row.mpi}" if row.plane is None else "overlap")
    text = job(row, build, [program, BUCKETS, BYTES, FACTOR, TURNS], BUCKETS * BYTES * TURNS)
    turns = [[float(x) for x in line.split()[1:]] for line in text.splitlines() if line.startswith("ROUND ")]
    comm, alone, both, waited = (statistics.median(turn[k] for turn in turns) for k in range(4))
    row.hidden.append(1 - waited / comm)
    row.comm.append(comm)
    row.longer.append((both - alone) / comm)


def ddp(row, build, folder):
    path = folder / "ddp.json"
    job(row, build, [build / "lockstep", "bench", "ddp", "--model", "resnet18-cifar", "--batch", 48,
                     "--mode", "overlap,bucketed,local", "--buckets", 5, "--warmup", 1, "--steps", 2, "--rounds", 1,
                     "--json", path], 1e8)
    found = {each["mode"]: each for each in json.loads(path.read_text())}
    overlap, bucketed, local = (found[mode] for mode in ("overlap", "bucketed", "local"))
    comm = bucketed["exposed"]["mean_ms"]
    row.hidden.append(1 - overlap["exposed"]["mean_ms"] / comm)
    row.comm.append(comm)
    row.longer.append((overlap["round_ms"][0] - local["round_ms"][0]) / comm)


# ---- the comparison -----------------------------------------------------------------------------

def with_quartiles(values, factor, places):
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle * factor:.{places}f} ({low * factor:.{places}f} to {high * factor:.{places}f})"


HEADS = {"loop": "4 all-reduces of 2 MiB", "ddp": "a step of ResNet-18, batch 48, 45 MB of gradients"}


def line_of(row):
    return (f"| {row.title} | {with_quartiles(row.comm, 1, 0)} | {with_quartiles(row.hidden, 100, 1)} | "
            f"{with_quartiles(row.longer, 100, 0)} |")


def inside(options):
    """On node 1."""
    for k in (1, 2):
        subprocess.run([os.environ["TWO_NODES"] + f"/on", str(k), *f"tc qdisc add dev tn{k} root tbf rate {RATE} "
                        "burst 32k latency 20ms".split()], check=True)
    folder = pathlib.Path(os.environ["TWO_NODES"])
    mpis = [mpi for mpi in MPIS if build_programs(options, folder, mpi)]
    rows, watch = rows_of(options.part, mpis), conditions.Watch()
    begin, turns = time.monotonic(), 0
    while turns < options.rounds and (time.monotonic() - begin) * (turns + 1) <= options.seconds * max(turns, 1):
        turn, turns = turns, turns + 1
        for row in rows[turn % len(rows):] + rows[:turn % len(rows)]:
            {"loop": loop, "ddp": ddp}[options.part](row, options.build, folder)
    print(f"| {HEADS[options.part]} | communication, ms | hidden, % | longer, % |\n|---|---|---|---|")
    for row in rows:
        print(line_of(row))
    about = watch.conditions()
    print(f"\n{about['date']}, commit {about['commit']}, {about['processor']}, {about['cores']} cores, {turns} "
          f"jobs of each row; {about['seconds']} seconds")
    late = [row.title for row in rows if row.plane == "mpi" and statistics.median(row.hidden) < TARGET]
    sys.exit(f"hides less than {TARGET:.0%}: {'; '.join(late)}" if late else 0)


def build_programs(options, folder, mpi):
    """False: no such MPI."""
    source, plugin = SOURCE / "bench/dev/overlap.c", options.build / f"src/comm/mpi/ls_backend_mpi_{mpi}.so"
    library = options.build / "src"
    if not plugin.exists():
        print(f"no {plugin.name}: no rows of {MPIS[mpi]}")
        return False
    for output, words in ((folder / f"overlap.{mpi}", [f"mpicc.{mpi}", "-DOVER_MPI"]),
                          (folder / "overlap", ["cc", f"-I{SOURCE}/include", f"-I{library.parent}/include", f"-L{library}",
                                                f"-Wl,-rpath,{library}"])):
        more = [] if "-DOVER_MPI" in words else ["-llockstep"]
        subprocess.run([*words, "-O2", "-o", output, source, *more], check=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build")
    parser.add_argument("--part", choices=["loop", "ddp"], default="loop")
    parser.add_argument("--rounds", type=int, default=5, help="jobs of each row")
    parser.add_argument("--seconds", type=float, default=1e9, help="no further turn that would end later")
    options = parser.parse_args()
    options.build = options.build.resolve()
    if "TWO_NODES" in os.environ:
        inside(options)
    done = subprocess.run([SOURCE / "scripts/slurm-two-nodes", "--hosts", sys.executable, __file__, "--build",
                           options.build, "--part", options.part, "--rounds", str(options.rounds), "--seconds", str(options.seconds)])
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
