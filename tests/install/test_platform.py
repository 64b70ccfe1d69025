# SPDX-License-Identifier: Apache-2.0
"""Systems that the library cannot run on are refused when it is built: by a line of text, not by a
wrong result later. The compiler and meson are told of such systems; no compiler for them is needed."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, Skip, run, test

HEADER = SOURCE / "src/base/compiler.h"
COMPILER = shlex.split(os.environ.get("CC", "gcc"))
CROSS_FILE = """[binaries]
c = {compiler}
[host_machine]
system = '{system}'
cpu_family = '{family}'
cpu = '{family}'
endian = '{endian}'
"""


def compiled(*flags):
    done = subprocess.run([*COMPILER, "-fsyntax-only", "-x", "c", *flags, str(HEADER)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    return done.returncode, done.stdout


def set_up(**machine):
    """What meson says to a cross build for such a machine."""
    if shutil.which("meson") is None:
        raise Skip("there is no meson")
    with tempfile.TemporaryDirectory(prefix="lockstep-platform-") as scratch:
        cross = pathlib.Path(scratch, "cross.ini")
        cross.write_text(CROSS_FILE.format(compiler=machine.pop("compiler", COMPILER), **machine))
        done = subprocess.run(["meson", "setup", "--cross-file", cross, f"{scratch}/build", SOURCE],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=120)
    return done.returncode, done.stdout


@test
def this_system_is_accepted():
    assert compiled() == (0, "")


@test
def big_endian_is_refused_by_the_compiler():
    status, output = compiled("-U__BYTE_ORDER__", "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__", "-w")
    assert status != 0 and "little-endian processors only" in output, output


@test
def pointers_of_32_bits_are_refused_by_the_compiler():
    status, output = compiled("-m32")
    if "unrecognized" in output or "unsupported option" in output:
        raise Skip(f"{COMPILER[0]} does not compile for 32 bits (-m32)")
    assert status != 0 and "64-bit systems only" in output, output


@test
def other_systems_are_refused_by_the_compiler():
    status, output = compiled("-U__linux__")
    assert status != 0 and "Linux only" in output, output


@test
def big_endian_is_refused_by_meson():
    status, output = set_up(system="linux", family="s390x", endian="big")
    assert status != 0 and "little-endian processors only, not on s390x" in output, output


@test
def other_systems_are_refused_by_meson():
    status, output = set_up(system="darwin", family="aarch64", endian="little")
    assert status != 0 and "Linux only, not on darwin" in output, output


@test
def pointers_of_32_bits_are_refused_by_meson():
    if compiled("-m32", "-U__SIZEOF_POINTER__", "-D__SIZEOF_POINTER__=8", "-w")[0] != 0:
        raise Skip(f"{COMPILER[0]} does not compile for 32 bits (-m32)")
    status, output = set_up(system="linux", family="x86", endian="little",
                            compiler=[*COMPILER, "-m32", "-nostdlib", "-ffreestanding"])
    if "could not invoke sanity" in output or "cannot compile programs" in output:
        raise Skip("there are no libraries of 32 bits to link with")
    assert status != 0 and "64-bit systems only, not on x86" in output, output


run()
