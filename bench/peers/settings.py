# SPDX-License-Identifier: Apache-2.0
"""The peers' best known settings: a table for each kind of processor, and the settings that a sweep tries.

A table is a file of this folder, settings-amd.json or settings-intel.json: the machine, and one row for
each peer, operation, number of ranks and size with the variables of the environment that were fastest
there, their time, and that of the defaults. A size between two rows takes the nearer one's.
`compare.py --sweep` writes it.

What is tried is bounded: huge pages, on top of them (if they helped) each algorithm that a library has for
the operation, and on top of the best one its settings of shared memory, waiting and binding.
"""

import json
import math
import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]
from conditions import processor
from pages import kind_of

HERE = pathlib.Path(__file__).resolve().parent
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
HUGE_FROM = 10**6  # bytes: below, all measured sizes got slower by them


class Table:
    def __init__(self, path, content=None):
        self.path = path
        content = content or {"machine": {}, "rows": []}
        self.machine = content["machine"]
        self.rows = {(r["peer"], r["operation"], r["ranks"], r["bytes"]): r for r in content["rows"]}

    @classmethod
    def of_this_machine(cls):
        """This processor's table, or with no such file Intel's, which is the older one."""
        path = HERE / f"settings-{kind_of(processor())}.json"
        source = path if path.exists() else HERE / "settings-intel.json"
        return cls(path, json.loads(source.read_text()) if source.exists() else None)

    def best(self, peer, operation, ranks, size):
        """The variables of the nearest row: of the number of ranks first, then of the size."""
        def distance(row):
            return abs(math.log(row["ranks"] / ranks)), abs(math.log(row["bytes"] / size))
        fitting = [r for r in self.rows.values() if (r["peer"], r["operation"]) == (peer, operation)]
        return dict(min(fitting, key=distance)["settings"]) if fitting else {}

    def put(self, row):
        self.rows[row["peer"], row["operation"], row["ranks"], row["bytes"]] = row

    def write(self):
        rows = sorted(self.rows.values(), key=lambda r: (r["peer"], r["operation"], r["ranks"], r["bytes"]))
        lines = ",\n".join("  " + json.dumps(row) for row in rows)
        self.path.write_text(f'{{"machine": {json.dumps(self.machine)},\n "rows": [\n{lines}\n]}}\n')


# ---- what a sweep tries ------------------------------------------------------------------------

SMALL, LARGE = (0, 65536), (16384, math.inf)  # bytes of the sizes that an algorithm is for
ANY = (0, math.inf)


def openmpi_algorithms(operation):
    """The tuned component's (ompi_info --param coll tuned --level 9); @ gives the size of a segment."""
    variable, choices = {
        "all_reduce": ("allreduce", {"1": SMALL, "2": SMALL, "3": ANY, "4": LARGE, "5@131072": LARGE,
                                     "5@524288": LARGE, "6": LARGE}),
        "all_gather": ("allgather", dict.fromkeys("1 2 3 4 5 6".split(), ANY)),
        "broadcast": ("bcast", dict.fromkeys("1 2@131072 3@131072 3@524288 4 6 8 9".split(), ANY)),
        "reduce_scatter": ("reduce_scatter_block", dict.fromkeys("1 2 3 4".split(), ANY)),
        "all_to_all": ("alltoall", dict.fromkeys("1 2 4".split(), ANY)),  # 3, bruck: for bytes
    }[operation]
    for choice, sizes in choices.items():
        algorithm, _, segment = choice.partition("@")
        found = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
                 f"OMPI_MCA_coll_tuned_{variable}_algorithm": algorithm}
        if segment:
            found[f"OMPI_MCA_coll_tuned_{variable}_algorithm_segmentsize"] = segment
        yield found, sizes


def openmpi_others(btl):
    limits = ("eager_limit", "rndv_eager_limit", "max_send_size")
    yield {f"OMPI_MCA_btl_{btl}_{limit}": "131072" for limit in limits}, ANY
    yield {"OMPI_MCA_coll_sm_priority": "100"}, SMALL
    yield {"OMPI_MCA_hwloc_base_binding_policy": "none"} if btl == "vader" else \
        {"OMPI_MCA_mpi_yield_when_idle": "1"}, ANY


MPICH_ALGORITHMS = {
    "all_reduce": ("ALLREDUCE", ["recursive_doubling", "reduce_scatter_allgather"], ["ring", "recexch"]),
    "all_gather": ("ALLGATHER", ["recursive_doubling", "brucks", "ring"], ["recexch_doubling", "k_brucks"]),
    "broadcast": ("BCAST", ["binomial", "scatter_recursive_doubling_allgather", "scatter_ring_allgather"],
                  ["tree", "pipelined_tree"]),
    "reduce_scatter": ("REDUCE_SCATTER_BLOCK", ["recursive_halving", "recursive_doubling", "pairwise"], []),
    "all_to_all": ("ALLTOALL", ["pairwise", "scattered"], []),
}


def mpich_algorithms(operation, newer):
    variable, old, new = MPICH_ALGORITHMS[operation]
    plain = {f"MPIR_CVAR_{variable}_DEVICE_COLLECTIVE": "0"}
    yield plain, ANY
    for algorithm in old + (new if newer else []):
        yield {**plain, f"MPIR_CVAR_{variable}_INTRA_ALGORITHM": algorithm}, ANY
    if operation in ("all_reduce", "broadcast"):
        yield {f"MPIR_CVAR_{variable}_POSIX_INTRA_ALGORITHM": "release_gather"}, ANY


def mpich_others(newer):
    yield {"UCX_RNDV_THRESH": "128K"}, ANY
    if newer:
        yield {"MPIR_CVAR_CH4_CMA_ENABLE": "1"}, LARGE
        yield {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1"}, ANY


def intelmpi_algorithms(operation):
    """Presets of the control library (impi_info -v I_MPI_ADJUST_...)."""
    variable, presets = {"all_reduce": ("ALLREDUCE", (1, 2, 3, 5, 7, 8, 9, 10, 11, 12)),
                         "all_gather": ("ALLGATHER", range(1, 6)),
                         "broadcast": ("BCAST", (1, 3, 7, 8, 10, 11, 12, 13)),
                         "reduce_scatter": ("REDUCE_SCATTER_BLOCK", range(1, 5)),
                         "all_to_all": ("ALLTOALL", range(1, 5))}[operation]
    for preset in presets:
        yield {f"I_MPI_ADJUST_{variable}": str(preset)}, ANY


def intelmpi_others():
    yield {"I_MPI_FABRICS": "shm"}, ANY
    yield {"I_MPI_FABRICS": "shm", "I_MPI_THREAD_YIELD": "2"}, ANY
    yield {"I_MPI_FABRICS": "shm", "I_MPI_PIN": "0"}, ANY
    yield {"I_MPI_FABRICS": "shm", "I_MPI_SHM_HEAP": "1"}, LARGE


def oneccl_algorithms(operation):
    variable, names = {"all_reduce": ("ALLREDUCE", ["direct", "rabenseifner", "nreduce", "ring", "recursive_doubling"]),
                       "all_gather": ("ALLGATHER", ["direct", "naive"]),
                       "broadcast": ("BCAST", ["direct", "ring", "double_tree"]),
                       "reduce_scatter": ("REDUCE_SCATTER", ["direct", "naive", "ring"]),
                       "all_to_all": ("ALLTOALL", ["direct", "naive", "scatter"])}[operation]
    for name in names:
        yield {f"CCL_{variable}": name}, ANY


def oneccl_others():
    yield {"I_MPI_FABRICS": "shm", "CCL_YIELD": "sched_yield"}, ANY
    yield {"CCL_ATL_TRANSPORT": "ofi", "CCL_ATL_SHM": "1", "FI_PROVIDER": "shm", "CCL_YIELD": "sched_yield"}, ANY


ALGORITHMS = {"openmpi4": openmpi_algorithms, "openmpi5": openmpi_algorithms,
              "mpich4": lambda operation: mpich_algorithms(operation, False),
              "mpich5": lambda operation: mpich_algorithms(operation, True),
              "intelmpi": intelmpi_algorithms, "oneccl": oneccl_algorithms}
OTHERS = {"openmpi4": lambda: openmpi_others("vader"), "openmpi5": lambda: openmpi_others("sm"),
          "mpich4": lambda: mpich_others(False), "mpich5": lambda: mpich_others(True),
          "intelmpi": intelmpi_others, "oneccl": oneccl_others}


def huge_pages():
    yield HUGE_PAGES, (HUGE_FROM, math.inf)


def short(variables):
    """For people: without the prefixes that all variables of a library have."""
    names = (re.sub(r"OMPI_MCA_|MPIR_CVAR_|coll_tuned_|_ALGORITHM|_algorithm", "", f"{name}={value}")
             for name, value in variables.items() if "use_dynamic_rules" not in name)
    return " ".join(names) or "defaults"
