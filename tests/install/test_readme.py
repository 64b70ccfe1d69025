"""The README's two listings: they compile, run, and differ by the one line that makes them DDP."""

import difflib
import os
import pathlib
import re
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, Skip, command, run, test

FENCE = re.compile(r"^```c\n/\* (\w+\.c) \*/\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-readme-")
LIBRARY = BUILD / "src"


def listings():
    page = SOURCE / "README.md"
    found = dict(FENCE.findall(page.read_text())) if page.exists() else {}
    if not {"local.c", "ddp.c"} <= found.keys():
        raise Skip("README.md has no listings yet (```c with /* local.c */ and /* ddp.c */)")
    return found


def build(name):
    source, program = (pathlib.Path(SCRATCH.name) / n for n in (name, name.removesuffix(".c")))
    source.write_text(listings()[name])
    command("gcc", "-std=c17", "-Wall", "-Wextra", "-Werror", source, "-o", program,
            "-I", SOURCE / "include", f"-L{LIBRARY}", "-llockstep", f"-Wl,-rpath,{LIBRARY}", "-lm")
    return program


@test
def the_listings_differ_by_the_one_line_that_makes_them_ddp():
    found = listings()
    lines = difflib.ndiff(found["local.c"].splitlines(), found["ddp.c"].splitlines())
    changed = [line for line in lines if line[0] in "+-"]
    assert len(changed) == 1 and changed[0].startswith("+"), "\n".join(changed)
    assert "ls_ddp_new" in changed[0], changed[0]


@test
def the_local_listing_compiles_and_runs_bare():
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    command(build("local.c"), env=environment)


@test
def the_ddp_listing_compiles_and_runs_on_two_ranks():
    program = build("ddp.c")
    launcher = BUILD / "lockstep"
    if not launcher.exists():
        raise Skip("the build has no lockstep command yet")
    command(launcher, "run", "-n", "2", program)


run()
