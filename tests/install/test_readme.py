# SPDX-License-Identifier: Apache-2.0
"""The README's listing and the diff that makes it data-parallel: both programs compile and run. And the commands of
docs/models.md: they run."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from gpt2_folder import gpt2
from printed import DIFF, ddp_listing, listings, page
from tap import BUILD, SOURCE, Skip, command, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-readme-")
LIBRARY = BUILD / "src"


def build(name):
    source, program = (pathlib.Path(SCRATCH.name) / n for n in (name, name.removesuffix(".c")))
    source.write_text(ddp_listing() if name == "ddp.c" else listings("README.md")[name])
    command("gcc", "-std=c17", "-Wall", "-Wextra", "-Werror", source, "-o", program,
            "-I", SOURCE / "include", f"-L{LIBRARY}", "-llockstep", f"-Wl,-rpath,{LIBRARY}", "-lm")
    return program


@test
def the_diff_is_the_one_line_that_makes_it_ddp():
    hunk = DIFF.search(page("README.md")).group(1)
    changed = [line for line in hunk.splitlines() if line[0] in "+-"]
    assert len(changed) == 1 and changed[0].startswith("+"), hunk
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


SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@test
def the_commands_for_models_and_programs_run():
    found = SHELL.search(page("docs/models.md"))
    assert found, "docs/models.md has no commands"
    folder = pathlib.Path(SCRATCH.name) / "programs"
    folder.mkdir()
    (folder / "build").symlink_to(BUILD)
    for part in ("examples", "scripts"):
        (folder / part).symlink_to(SOURCE / part)
    gpt2(folder / "gpt2")
    # Two steps and a small evaluation are enough to see that a command is one.
    text = re.sub(r"--steps \d+", "--steps 2", found.group(1))
    text = re.sub(r"(train (?:gpt|bert) (?:-n \d+ )?)", r"\1--eval-windows 4 ", text)
    done = subprocess.run(["sh", "-e", "-u", "-c", text], cwd=folder, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240)
    if "this build has no PCRE2" in done.stdout:
        raise Skip("this build has no PCRE2, which the last command needs")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("replicas identical") == found.group(1).count("lockstep train "), done.stdout
    assert "You may" in done.stdout and "The answer is" in done.stdout, done.stdout


run()
