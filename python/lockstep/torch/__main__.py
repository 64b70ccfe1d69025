# SPDX-License-Identifier: Apache-2.0
"""python -m lockstep.torch [--as NAME] PROGRAM ...: runs a program that knows nothing of lockstep."""

import argparse
import os
import runpy
import sys

from . import register
from ._alias import stand_in_for


def _arguments():
    parser = argparse.ArgumentParser(prog="python -m lockstep.torch", description=(
        "Runs a PyTorch program in which torch.distributed knows the backend lockstep."))
    parser.add_argument("--as", dest="name", metavar="NAME", help=(
        "groups that the program makes of this backend, such as gloo, are made of lockstep"))
    parser.add_argument("-m", dest="module", action="store_true",
                        help="PROGRAM is the name of a module, as for python -m")
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="ARGUMENTS")
    return parser.parse_args()


def main():
    given = _arguments()
    register()
    if given.name is not None:
        stand_in_for(given.name)
    sys.argv = [given.program, *given.rest]
    if given.module:
        runpy.run_module(given.program, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(given.program))  # as `python PROGRAM` has it
    runpy.run_path(given.program, run_name="__main__")


main()
