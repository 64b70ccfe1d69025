# SPDX-License-Identifier: Apache-2.0
"""PowerSGD averages as PyTorch's powerSGD_hook does: 20 steps in float64 from the same first Q."""

import pathlib
import re
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from jobs import HERE, by_fork, by_lockstep, pythons_with
from tap import BUILD, Skip, run, test


@test
def twenty_steps_of_powersgd_are_pytorchs():
    found = pythons_with("torch")
    if not found:
        raise Skip("no Python with torch was found; TEST_PYTHON names one")
    for ranks, rank in ((2, 1), (3, 4)):
        with tempfile.TemporaryDirectory(prefix="lockstep-powersgd-") as folder:
            status, said = by_lockstep(ranks, [BUILD / "tests/dist/compress/powersgd_steps", rank, 2, folder])
            assert status == 0, said
            status, said = by_fork(ranks, [found[0][0], HERE / "torch_powersgd.py", folder, rank, 2])
            worst = [(float(a), float(b)) for a, b in re.findall(r"WORST (\S+) OF (\S+)", said)]
            assert status == 0 and len(worst) == ranks, said
            assert all(difference < 1e-6 and largest > 1 for difference, largest in worst), worst


run()
