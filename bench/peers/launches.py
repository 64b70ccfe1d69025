# SPDX-License-Identifier: Apache-2.0
"""Starts that are compared: programs of one kind, each under its own launcher.

In C: `lockstep run` beside mpirun and mpiexec, every contender with --once. In Python: the same
program (torch_once.py), over Lockstep under `lockstep run`, over gloo under torchrun.
"""

import os
import pathlib

HERE = pathlib.Path(__file__).resolve().parent


def c_programs(field, ranks):
    return {field.labels[c.key]: (c.command(ranks, "--once"),
                                  c.environment(ranks, "all_reduce", 4, not field.options.untuned))
            for c in field.all if c.key != "gloo"}


def python_programs(field, ranks):
    build, python = os.path.abspath(field.options.build), field.options.python
    program = str(HERE / "torch_once.py")
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    bridge = {**quiet, "PYTHONPATH": str(HERE.parent.parent / "python"), "LOCKSTEP_LIBRARY": f"{build}/src"}
    return {"Lockstep": ([f"{build}/lockstep", "run", "-n", str(ranks), python, "-m", "lockstep.torch", program,
                          "lockstep"], bridge),
            f"torchrun, {field.labels['gloo']}":
                ([python, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), program, "gloo"], quiet)}


def of(field, ranks):
    """{kind of program: {name: (command, environment)}}, Lockstep first."""
    kinds = {"C programs": c_programs(field, ranks)}
    if "gloo" in field.labels:
        kinds["Python programs"] = python_programs(field, ranks)
    return kinds
