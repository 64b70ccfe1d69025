"""python -m lockstep.torch PROGRAM ...: runs a program that knows nothing of lockstep."""

import runpy
import sys

from . import register

if len(sys.argv) < 2:
    sys.exit("usage: python -m lockstep.torch PROGRAM [ARGUMENTS]")
register()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
