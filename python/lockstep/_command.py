# SPDX-License-Identifier: Apache-2.0
"""The command `lockstep` of a wheel that brings it."""

import os
import pathlib
import sys


def main() -> None:
    path = pathlib.Path(__file__).resolve().parent / "lockstep"
    os.execv(path, ["lockstep", *sys.argv[1:]])
