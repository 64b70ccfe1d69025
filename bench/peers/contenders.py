"""Who takes part, and with which settings: the best ones found for each size (sweeps on a 2-core
Sapphire Rapids; `compare.py --untuned` takes the defaults instead).

Open MPI 4.1: shared memory's eager, rendezvous and fragment limits at 128 KiB; from 0.5 MB a
segmented ring (algorithm 5) with two ranks, Rabenseifner's (6) with more, and from 10 MB the ring in
segments of 512 or 128 KiB. Single copy (CMA) is its default where the system allows it. When ranks
outnumber cores it yields by itself.
MPICH 4.0: recursive doubling to 1 KB, UCX's rendezvous from 128 KB above. More ranks than cores is
what it has no remedy for: it spins.
All of them, ours too, with huge pages (glibc's tunable) from 10 MB, where they help everybody; below
they hurt. gloo: no setting found that helps; ranks are forked, one thread each, over loopback.
"""

import functools
import re
import shutil
import subprocess

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # in containers


def openmpi_settings(ranks, size):
    found = {**ROOT_MAY}
    for limit in ("eager_limit", "rndv_eager_limit", "max_send_size"):
        found[f"OMPI_MCA_btl_vader_{limit}"] = "131072"
    if size >= 500_000:
        large = size >= 10_000_000
        ring = large or ranks == 2
        segment = 262144 if not large else 524288 if ranks == 2 else 131072
        found["OMPI_MCA_coll_tuned_use_dynamic_rules"] = "1"
        found["OMPI_MCA_coll_tuned_allreduce_algorithm"] = "5" if ring else "6"
        if ring:
            found["OMPI_MCA_coll_tuned_allreduce_algorithm_segmentsize"] = str(segment)
    return found


def mpich_settings(ranks, size):
    if size <= 1024:
        return {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling"}
    return {"UCX_RNDV_THRESH": "128K"} if size < 1_000_000 else {}


class Contender:
    name = ""
    registered = (False,)  # which memory its buffers are in

    def __init__(self, build, python):
        self.build, self.python = build, python

    def missing(self):
        """Why it cannot take part, or None."""
        program = self.command(1, "FOLDER")[0]
        return None if shutil.which(program) else f"there is no {program}"

    def settings(self, ranks, size):
        return {}

    def environment(self, ranks, size, tuned=True):
        found = dict(self.settings(ranks, size)) if tuned else {}
        return {**found, **HUGE_PAGES} if tuned and size >= 10_000_000 else found


class Lockstep(Contender):
    name = "Lockstep"
    registered = (True, False)

    def command(self, ranks, *arguments):
        return [f"{self.build}/lockstep", "run", "-n", str(ranks), f"{self.build}/peers/lockstep",
                *arguments]


class OpenMPI(Contender):
    name = "Open MPI"

    def command(self, ranks, *arguments):
        return ["mpirun.openmpi", "--oversubscribe", "-n", str(ranks),
                f"{self.build}/peers/openmpi", *arguments]

    def settings(self, ranks, size):
        return openmpi_settings(ranks, size)

    def environment(self, ranks, size, tuned=True):
        return {**ROOT_MAY, **super().environment(ranks, size, tuned)}

    def version(self):
        return said_by(r"\((?:Open MPI|OpenRTE)\) (\S+)", "mpirun.openmpi", "--version")


class MPICH(Contender):
    name = "MPICH"

    def command(self, ranks, *arguments):
        return ["mpiexec.mpich", "-n", str(ranks), f"{self.build}/peers/mpich", *arguments]

    def settings(self, ranks, size):
        return mpich_settings(ranks, size)

    def version(self):
        return said_by(r"Version: *(\S+)", "mpiexec.mpich", "--version")


class Gloo(Contender):
    name = "gloo"

    def command(self, ranks, *arguments):
        return [self.python, f"{HERE}/gloo.py", *arguments, str(ranks)]

    def missing(self):
        return None if self.version() != "torch ?" else f"{self.python} has no torch"

    def environment(self, ranks, size, tuned=True):
        return {}  # one session for all sizes: importing torch takes seconds

    def version(self):
        return "torch " + said_by(r"(\S+)", self.python, "-c",
                                  "import torch; print(torch.__version__)")


HERE = __file__.rpartition("/")[0] or "."
ALL = {"lockstep": Lockstep, "openmpi": OpenMPI, "mpich": MPICH, "gloo": Gloo}


@functools.cache
def said_by(pattern, *command):
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    except OSError:
        return "?"
    found = re.search(pattern, text)
    return found.group(1) if found else "?"
