# SPDX-License-Identifier: Apache-2.0
"""docs/coming-from-mpi.md: its programs compile; the port prints what the original prints; every MPI function of the
interposer stands in the table."""

import os
import pathlib
import re
import shutil
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from printed import listings, page
from tap import BUILD, SOURCE, Skip, command, none_of, run, test

PAGE, LISTINGS = page("docs/coming-from-mpi.md"), listings("docs/coming-from-mpi.md")
SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-mpi-page-")
LIBRARY = BUILD / "src"
PLAIN = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
MPI = {"openmpi": ("--oversubscribe",), "mpich": ()}
UNDER_ROOT = dict(PLAIN, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def build(name, compiler):
    source = pathlib.Path(SCRATCH.name) / name
    program = source.with_name(f"{source.stem}-{compiler}")
    source.write_text(LISTINGS[name])
    command(compiler, "-std=c17", "-Wall", "-Wextra", "-Werror", source, "-o", program, "-I", SOURCE / "include",
            f"-L{LIBRARY}", "-llockstep", f"-Wl,-rpath,{LIBRARY}", "-lm")
    return program


def mpis():
    found = [mpi for mpi in MPI if shutil.which(f"mpicc.{mpi}") and shutil.which(f"mpirun.{mpi}")]
    if not found:
        raise Skip("no mpicc.openmpi or mpicc.mpich (apt-get install libopenmpi-dev libmpich-dev mpich)")
    return found


def under(mpi, ranks, program):
    return command(f"mpirun.{mpi}", *MPI[mpi], "-n", ranks, program, env=UNDER_ROOT)


EXPECTED = "pi 3.1416, ranks add up to 3\n"


@test
def the_port_compiles_and_runs():
    said = command(BUILD / "lockstep", "run", "-n", "3", build("pi.c", "gcc"), env=PLAIN)
    assert EXPECTED in said, said


@test
def the_original_prints_the_same_and_the_port_runs_under_mpirun():
    port = build("pi.c", "gcc")
    for mpi in mpis():
        assert EXPECTED in under(mpi, 3, build("pi_mpi.c", f"mpicc.{mpi}"))
        assert EXPECTED in under(mpi, 3, port)


@test
def both_live_in_one_program():
    for mpi in mpis():
        said = under(mpi, 3, build("both.c", f"mpicc.{mpi}"))
        assert "2 ranks in this half, the last rank is 2\n" in said, said


@test
def every_listing_is_compiled_and_every_served_function_has_a_row():
    assert sorted(LISTINGS) == ["both.c", "pi.c", "pi_mpi.c"] and PAGE.count("```c\n") == 3
    served = re.findall(r'"(MPI_\w+)"', (SOURCE / "extra/pmpi/pmpi.h").read_text())
    table = re.sub(r"(MPI_\w+)\(v\)", r"\1 \1v", PAGE.split("## Which differences")[0])
    assert len(served) == 16, served
    none_of((name for name in served if not re.search(rf"\b{name}\b", table)), "not in the table")


run()
