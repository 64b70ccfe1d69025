# SPDX-License-Identifier: Apache-2.0
"""A copy of the tree with a build of its own, in which changes are planted and tests are run."""

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from folders import FOLDERS, STARTED

OVER = (("", {}), (" [over tcp]", {"LOCKSTEP_HOSTS": "64"}), (" [over both]", {"LOCKSTEP_HOSTS": "2"}))
TARGETS_A_TURN = 20
SETUP = ("--buildtype=plain", "-Ddebug=false", "-Doptimization=1", "-Donednn=disabled", "-Dmutate=true")


@dataclass(frozen=True)
class Program:
    name: str  # with "[over tcp]" behind it
    path: str  # from the build folder
    variables: tuple  # of the environment, ((name, value), …)


class Worker:
    """Works in turns: in one, a command that `prefix` has started, say from a queue, waits beside it. A turn ends
    between two pieces of work, after turn_s seconds or when that command has ended by itself."""

    def __init__(self, source, home, prefix, turn_s):
        self.source, self.tree, self.build = source, home / "tree", home / "build"
        self.prefix, self.turn_s, self.waiting, self.since = shlex.split(prefix), turn_s, None, 0.0
        self.refresh()
        with self.turn():
            if not (self.build / "build.ninja").exists():
                mold = ["-Dc_link_args=-fuse-ld=mold"] if shutil.which("mold") else []
                self.command("meson", "setup", *SETUP, *mold, str(self.build), str(self.tree))
            self.ninja("build.ninja")  # a changed meson.build is seen
        self.paths = [os.path.relpath(line, self.build)
                      for line in (self.build / "tests/programs.txt").read_text().split()]
        self.library = re.search(r"^build src/(liblockstep\.so[.\d]+): ", (self.build / "build.ninja").read_text(), re.M)[1]

    @contextlib.contextmanager
    def turn(self):
        """A piece of work, in the turn that lasts or in a new one."""
        if self.prefix and self.waiting is None:
            self.waiting = subprocess.Popen([*self.prefix, "sh", "-c", "echo; read line"], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE)
            self.waiting.stdout.readline()
            self.since = time.monotonic()
        yield
        if self.prefix and (self.waiting.poll() is not None or time.monotonic() - self.since > self.turn_s):
            self.waiting.stdin.close()
            self.waiting.wait()
            self.waiting = None

    def command(self, *arguments):
        done = subprocess.run(arguments, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(f"{' '.join(arguments)}: {done.returncode}\n{done.stdout[-3000:]}")

    def refresh(self):
        """Makes the copy equal the working tree, which also takes back a change; what is equal keeps its time."""
        listed = subprocess.run(["git", "ls-files", "-c", "-o", "--exclude-standard"], cwd=self.source, text=True,
                                capture_output=True, check=True).stdout.splitlines()
        for name in listed:
            here, there = self.source / name, self.tree / name
            if here.is_file() and not (there.exists() and there.read_bytes() == here.read_bytes()):
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(here, there)

    def ninja(self, *targets, fails=False):
        """Whether it was built; a failure that is not the compiler's, or not allowed, ends the run."""
        done = subprocess.run(["ninja", "-C", str(self.build), "-j2", *targets], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0 and not (fails and "error:" in done.stdout):
            sys.exit(f"mutate: the build itself fails\n{done.stdout[-2000:]}")
        return done.returncode == 0

    def build_library(self, more):
        return self.ninja(f"src/{self.library}", *more, fails=True)

    def programs_of(self, folder):
        concern, found = FOLDERS[folder], []
        for start in concern.tests:
            for path in self.paths:
                overs = OVER if path.startswith(concern.over or ("-",)) else OVER[:1]
                found += [Program(path + over, path, tuple(variables.items())) for over, variables in overs
                          if path.startswith(start)]
        return list(dict.fromkeys(found))

    def build_programs(self, programs):
        targets = [path for path in dict.fromkeys(program.path for program in programs)]
        started = [target for start, more in STARTED.items() for target in more
                   if any(path.startswith(start) for path in targets)]
        targets = ["lockstep", *targets, *dict.fromkeys(started)]
        for at in range(0, len(targets), TARGETS_A_TURN):
            with self.turn():
                self.ninja(*targets[at:at + TARGETS_A_TURN])

    def run(self, program, arguments, limit, **variables):
        """What a test program printed, and its status; "" and None when the limit passed."""
        environment = dict(os.environ, LOCKSTEP_TUNE_FILE="/dev/null", OMP_WAIT_POLICY="passive", **variables)
        environment.update(program.variables)
        process = subprocess.Popen([str(self.build / program.path), *arguments], cwd=self.tree, env=environment,
                                   text=True, errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            text, _ = process.communicate(timeout=limit)
            return text, process.returncode
        except subprocess.TimeoutExpired:
            return "", None
        finally:
            end_session(process.pid)
            process.communicate()


def end_session(leader):
    """Ends all processes of a test program, also those with groups of their own."""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            session = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[3])
            if session == leader:
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError, IndexError):
            continue
