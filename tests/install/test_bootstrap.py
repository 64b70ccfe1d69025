# SPDX-License-Identifier: Apache-2.0
"""scripts/bootstrap where things are missing: a PATH of links, and an apt-get, dnf or apk that only
notes how it was called."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, Skip, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-bootstrap-")
SCRIPT = pathlib.Path(SCRATCH.name) / "scripts/bootstrap"  # beside a meson.build that it may touch
SCRIPT.parent.mkdir()
shutil.copy(SOURCE / "scripts/bootstrap", SCRIPT)
TOOLS = ("sh env id sed echo cat touch gcc g++ make meson ninja pkg-config python3 pgrep gnuplot").split()


class Machine:
    """A folder of links to this machine's tools but `missing`, run as root or as somebody else."""

    def __init__(self, name, missing, root=True, sudo=False, manager="apt-get", fails=False):
        self.bin = pathlib.Path(SCRATCH.name) / name
        self.log = self.bin / "log"
        self.bin.mkdir()
        for tool in TOOLS:
            if tool not in missing and shutil.which(tool):
                (self.bin / tool).symlink_to(shutil.which(tool))
        self.program("id", f"echo {0 if root else 1000}")
        self.program("apt-cache", "exit 0")
        if manager:
            end = 'case "$*" in *install*) exit 100;; esac' if fails else ""
            self.program(manager, f'echo "$DEBIAN_FRONTEND $*" >> {self.log}\n{end}')
        if sudo:
            self.program("sudo", f'echo sudo >> {self.log}; exec "$@"')

    def program(self, name, body):
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def bootstrap(self, *arguments, **more):
        environment = dict({k: v for k, v in os.environ.items() if k != "CC"}, **more)
        done = subprocess.run(["/bin/sh", SCRIPT, *arguments], text=True,
                              env=dict(environment, PATH=str(self.bin)), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        asked = self.log.read_text() if self.log.exists() else ""
        return done.returncode, done.stdout, asked


def complete():
    """The libraries are looked for where they are: without them nothing here can be told."""
    status, output, asked = Machine(f"probe{len(os.listdir(SCRATCH.name))}", []).bootstrap()
    if asked:
        raise Skip("this machine lacks " + output.splitlines()[0].split(":")[-1].strip())
    return status, output


@test
def nothing_is_done_when_all_is_there():
    assert complete() == (0, "bootstrap: everything needed is there\n")


@test
def what_is_missing_is_named_and_installed_as_root():
    complete()
    status, output, asked = Machine("bare", ["make", "meson", "ninja"]).bootstrap()
    assert status == 0, output
    assert output.startswith("bootstrap: installing with apt-get: make meson ninja-build\n"), output
    last = asked.splitlines()[-1]
    assert last.startswith("noninteractive ") and last.endswith(
        "install --no-install-recommends make meson ninja-build"), asked


@test
def libraries_that_are_missing_or_too_old_are_installed():
    complete()
    machine = Machine("libraries", [])
    machine.program("pkg-config", 'case "$*" in *"libcrypto >= 1.1.0"*) exit 1;; esac')
    assert machine.bootstrap()[2].rstrip().endswith("--no-install-recommends libssl-dev")
    machine.program("pkg-config", "exit 1")
    assert machine.bootstrap()[2].rstrip().endswith("libjansson-dev libssl-dev libpcre2-dev zlib1g-dev libutf8proc-dev")


@test
def a_compiler_without_openmp_gets_its_headers():
    complete()
    machine = Machine("clang", [])
    machine.program("somecc", 'case "$*" in *-fopenmp*) exit 1;; esac')
    assert machine.bootstrap()[2] == ""
    assert machine.bootstrap(CC="somecc -m64")[2].rstrip().endswith("libomp-dev")


@test
def somebody_else_uses_sudo():
    complete()
    status, output, asked = Machine("sudo", ["meson"], root=False, sudo=True).bootstrap()
    assert status == 0 and "installing with sudo apt-get: meson" in output, output
    assert "sudo\n" in asked and asked.rstrip().endswith("meson"), asked


@test
def without_sudo_the_command_to_ask_for_is_told():
    complete()
    status, output, asked = Machine("plain", ["meson"], root=False).bootstrap()
    assert status == 1 and asked == "" and "    apt-get install meson\n" in output, output


@test
def without_a_known_manager_the_missing_are_told():
    complete()
    status, output, _ = Machine("other", ["meson", "pgrep"], manager=None).bootstrap()
    assert status == 1 and "there is no apt-get, dnf or apk" in output, output
    assert output.endswith(": meson pgrep\n"), output


@test
def every_manager_is_asked_in_its_own_words():
    complete()
    words = {"dnf": ("install", "gcc-c++ meson ninja-build procps-ng jansson-devel openssl-devel pcre2-devel zlib-devel "
                     "utf8proc-devel"),
             "apk": ("add", "g++ meson samurai procps jansson-dev openssl-dev pcre2-dev zlib-dev utf8proc-dev")}
    for manager, (verb, packages) in words.items():
        machine = Machine(manager, ["g++", "meson", "ninja", "pgrep"], manager=manager)
        machine.program("pkg-config", "exit 1")
        status, output, asked = machine.bootstrap()
        assert status == 0 and f"installing with {manager}: {packages}\n" in output, output
        assert asked.splitlines()[-1].split()[-len(packages.split()) - 1:] == [verb, *packages.split()], asked


@test
def an_administrator_is_told_the_words_of_the_manager():
    complete()
    for manager, command in (("dnf", "dnf install meson"), ("apk", "apk add meson")):
        machine = Machine(f"plain-{manager}", ["meson"], root=False, manager=manager)
        status, output, asked = machine.bootstrap()
        assert status == 1 and asked == "" and output.endswith(f"    {command}\n"), output


@test
def a_static_link_that_needs_more_libraries_gets_their_headers():
    complete()
    machine = Machine("static", [])
    machine.program("pkg-config", """case "$*" in *--static*) echo -lcrypto -lz -lnone;; esac""")
    with_zlib = any(pathlib.Path(p, "zlib.h").exists() for p in ("/usr/include", "/usr/local/include"))
    assert ("zlib1g-dev" in machine.bootstrap()[2]) == (not with_zlib)


@test
def every_thing_that_is_looked_for_has_a_package_of_each_manager():
    script = (SOURCE / "scripts/bootstrap").read_text()
    rows = [line.split() for line in script.split("packages='")[1].split("'")[0].strip().splitlines()]
    assert all(len(row) == 4 for row in rows), rows
    looked_for = script.split("\nlook() {")[1].split("\n}")[0]
    needed = re.findall(r"\bneed ([a-z0-9+-]+)", looked_for)
    assert sorted(needed) == sorted(row[0] for row in rows), (needed, rows)


@test
def what_tests_use_besides_is_installed_where_it_can_be():
    complete()
    assert "strace" not in Machine("user", ["strace"]).bootstrap()[2]
    status, output, asked = Machine("tester", ["make"]).bootstrap("tests")
    assert status == 0 and "bootstrap: installing for tests: libopenmpi-dev openmpi-bin libmpich-dev mpich strace " in output, output
    assert "install --no-install-recommends make\n" in asked and " mpich strace " in asked.splitlines()[-1], asked
    some = Machine("old", [])
    some.program("apt-cache", 'case "$*" in *clang*) exit 1;; esac')
    assert "clang" not in some.bootstrap("tests")[2] and "strace" in some.bootstrap("tests")[2]


@test
def tests_run_without_what_cannot_be_installed():
    complete()
    status, output, asked = Machine("nobody", [], root=False).bootstrap("tests")
    assert status == 0 and asked == "" and "an administrator can help: apt-get install libopenmpi-dev " in output, output
    status, output, _ = Machine("offline", [], fails=True).bootstrap("tests")
    assert status == 0 and "some tests will be skipped" in output, output
    assert Machine("fedora", [], manager="dnf").bootstrap("tests")[::2] == (0, "")


@test
def a_failed_installation_fails():
    complete()
    status, output, _ = Machine("failing", ["meson"], fails=True).bootstrap()
    assert status != 0 and "bootstrap: done" not in output, output


run()
