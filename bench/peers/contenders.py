# SPDX-License-Identifier: Apache-2.0
"""The contenders: how each library is started, and in which environment.

Settings are those of the table of this machine's processor (settings.py), found by `compare.py --sweep`
for each peer, operation, number of ranks and size; `compare.py --untuned` takes the defaults instead.
The table omits gloo, because PyTorch does not let programs change gloo's settings. Lockstep's private
buffers have huge pages from 10 MB on (glibc's tunable); a peer's have them where its sweep found
them faster.

MPI libraries of Debian are found by their names; those of PyPI lie in virtual environments below the
build (prepare installs them), one each, because their programs have the same names.
"""

import functools
import os
import re
import shutil
import subprocess

from settings import HUGE_PAGES, Table

# What Open MPI asks for in containers, where everybody is root.
ROOT_MAY = {f"{who}_ALLOW_RUN_AS_ROOT{more}": "1" for who in ("OMPI", "PRTE") for more in ("", "_CONFIRM")}


class Contender:
    key = name = ""
    registered = (False,)  # which memory its buffers are in

    def __init__(self, build, python, table=None):
        self.build, self.python = os.path.abspath(build), python
        self.table = table or Table.of_this_machine()

    def missing(self):
        """Why it cannot take part, or None."""
        command = self.command(1, "FOLDER")
        return next((f"there is no {program}" for program in (command[0], self.program())
                     if shutil.which(program) is None), None)

    def program(self):
        return f"{self.build}/peers/{self.key}"

    def always(self):
        """Without which it does not run, tuned or not."""
        return {}

    def environment(self, ranks, op, size, tuned=True):
        return {**self.always(), **(self.table.best(self.key, op, ranks, size) if tuned else {})}


class Lockstep(Contender):
    key, name = "lockstep", "Lockstep"
    registered = (True, False)

    def command(self, ranks, *arguments):
        return [f"{self.build}/lockstep", "run", "-n", str(ranks), self.program(), *arguments]

    def environment(self, ranks, op, size, tuned=True):
        return dict(HUGE_PAGES) if tuned and size >= 10_000_000 else {}


class OpenMPI4(Contender):
    key, name = "openmpi4", "Open MPI"
    launcher, version_of = "mpirun.openmpi", r"\((?:Open MPI|OpenRTE)\) (\S+)"
    flags = ("--oversubscribe",)

    def command(self, ranks, *arguments):
        return [self.launcher, *self.flags, "-n", str(ranks), self.program(), *arguments]

    def always(self):
        return ROOT_MAY

    def version(self):
        return said_by(self.version_of, self.launcher, "--version")


class FromPyPI(Contender):
    """An MPI whose launcher lies in a virtual environment."""
    folder, flags, version_of = "", (), r"Version:? *(\S+)"

    @property
    def launcher(self):
        return f"{self.build}/peers/{self.folder}/bin/mpiexec"

    command = OpenMPI4.command

    def version(self):
        return said_by(self.version_of, self.launcher, "--version")


class OpenMPI5(FromPyPI):
    key, name, folder = "openmpi5", "Open MPI", "openmpi5-pypi"
    flags = ("--oversubscribe", "--bind-to", "none")  # it refuses more ranks than cores when it binds
    version_of = r"mpi[a-z]+ \(Open MPI\) (\S+)"
    always = OpenMPI4.always


class MPICH4(OpenMPI4):
    key, name = "mpich4", "MPICH"
    launcher, flags, version_of = "mpiexec.mpich", (), r"Version: *(\S+)"
    always = Contender.always


class MPICH5(FromPyPI):
    key, name, folder = "mpich5", "MPICH", "mpich5-pypi"


class IntelMPI(FromPyPI):
    key, name, folder = "intelmpi", "Intel MPI", "intel-pypi"
    version_of = r"Version (\d\S*)"

    @property
    def launcher(self):
        return f"{self.build}/peers/{self.folder}/bin/mpiexec.hydra"

    def always(self):
        return {"I_MPI_ROOT": f"{self.build}/peers/{self.folder}"}


class OneCCL(IntelMPI):
    key, name = "oneccl", "oneCCL"

    def always(self):
        return {**super().always(), "CCL_ROOT": super().always()["I_MPI_ROOT"], "CCL_LOG_LEVEL": "error"}

    def version(self):
        python = f"{self.build}/peers/{self.folder}/bin/python"
        return said_by(r"(\S+)", python, "-c", "from importlib.metadata import version; print(version('oneccl'))")


class Gloo(Contender):
    key, name = "gloo", "gloo"

    def program(self):
        return self.python

    def command(self, ranks, *arguments):
        return [self.python, f"{HERE}/gloo.py", *arguments, str(ranks)]

    def missing(self):
        return None if self.version() != "torch ?" else f"{self.python} has no torch"

    def version(self):
        return "torch " + said_by(r"(\S+)", self.python, "-c",
                                  "import torch; print(torch.__version__)")


HERE = __file__.rpartition("/")[0] or "."
ALL = {kind.key: kind for kind in (Lockstep, OpenMPI4, OpenMPI5, MPICH4, MPICH5, IntelMPI, OneCCL, Gloo)}
PEERS = [key for key in ALL if key != "lockstep"]


@functools.cache
def said_by(pattern, *command):
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=120,
                              env={**os.environ, **ROOT_MAY}).stdout
    except OSError:
        return "?"
    found = re.search(pattern, text)
    return found.group(1) if found else "?"
