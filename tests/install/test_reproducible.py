# SPDX-License-Identifier: Apache-2.0
"""The same sources and options give the same files: in another folder, at another time, for another user.

The short form looks for names of the build's own folders in what it installs; the long form builds twice, in folders
whose names have different lengths, and compares every installed file and the wheels.
"""

import filecmp
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, Skip, command, none_of, run, test
from trees import copy_of_the_sources

LONG = os.environ.get("TEST_LONG") is not None


def is_for_a_debugger():
    return "buildtype=debug" in command(BUILD / "lockstep", "info")


@test
def what_is_installed_does_not_name_the_folders_of_its_build():
    if is_for_a_debugger():
        raise Skip("a build for a debugger names its folder")
    problems = []
    for name in command(SOURCE / "scripts/installed", BUILD).split():
        text = (BUILD / name).read_bytes()
        problems += [f"{name}: {folder}" for folder in (BUILD, SOURCE) if f"{folder}/".encode() in text
                     or f"{folder}\0".encode() in text]
        if b"../src/" in text:
            problems.append(f"{name}: ../src/, from the folder of the build")
    none_of(problems, "another folder would give other files; see `prefix_maps` in meson.build")


def build(home, name, **variables):
    """Builds a copy of the sources in home/name and installs it below home/root; (root, wheel)."""
    tree, root = copy_of_the_sources(home / name), home / "root"
    where = dict(os.environ, **variables)
    said = pathlib.Path(home / "said")

    def step(*arguments):
        with said.open("a") as out:
            done = subprocess.run([str(a) for a in arguments], cwd=tree, env=where, stdin=subprocess.DEVNULL, stdout=out,
                                  stderr=subprocess.STDOUT)
        assert done.returncode == 0, f"{arguments}: {said.read_text()[-3000:]}"

    step("meson", "setup", "build", "--buildtype=release", "--prefix=/usr/local", "--libdir=lib", "-Dtests=false")
    step("ninja", "-C", "build")
    step("meson", "install", "-C", "build", "--no-rebuild", "--destdir", root)
    step(sys.executable, "python/make_wheel.py", home)
    return root, next(home.glob("*.whl"))


def names_below(root):
    return {p.relative_to(root) for p in root.rglob("*") if p.is_symlink() or p.is_file()}


if LONG:
    @test
    def two_builds_in_different_folders_are_equal():
        with tempfile.TemporaryDirectory(prefix="lockstep-reproducible-") as folder:
            one, its_wheel = build(pathlib.Path(folder) / "one", "lockstep", TZ="UTC", LC_ALL="C", HOME="/nonexistent")
            two, other_wheel = build(pathlib.Path(folder) / "the-second", "lockstep-0.2/sources", TZ="Asia/Tokyo",
                                     LC_ALL="C.UTF-8")
            names = names_below(one)
            none_of(names ^ names_below(two), "installed by one build only")
            kinds = ("bin/lockstep", "liblockstep.so.0.2.0", "liblockstep.a", "ls_backend_nccl.so", "train_gpt", "lockstep.1")
            none_of((kind for kind in kinds if not any(str(name).endswith(kind) for name in names)), "not installed")
            none_of((name for name in sorted(names) if not filecmp.cmp(one / name, two / name, shallow=False)),
                    f"of {len(names)} files these differ")
            assert its_wheel.name == other_wheel.name, (its_wheel, other_wheel)
            assert filecmp.cmp(its_wheel, other_wheel, shallow=False), f"{its_wheel.name} differs"
else:
    @test
    def two_builds_in_different_folders_are_equal():
        raise Skip("builds the library twice; part of make test-long")

run()
