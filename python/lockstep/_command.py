# SPDX-License-Identifier: Apache-2.0
"""The command `lockstep` of a wheel that brings it."""

import os
import pathlib
import sys


def main() -> None:
    path = pathlib.Path(__file__).resolve().parent / "lockstep"
    os.environ.setdefault("LOCKSTEP_PYTHON", sys.executable)  # scripts run where this package can be imported
    os.execv(path, ["lockstep", *sys.argv[1:]])
