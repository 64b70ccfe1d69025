# SPDX-License-Identifier: Apache-2.0
"""Packages for Debian: they agree with the build, and where the tools are the long form builds them.

Every file that `meson install` puts somewhere stands in one list debian/*.install, and what the lists name is there.
"""

import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, Skip, command, none_of, run, test
from trees import VERSION, build_options, copy_of_the_sources, install_below

LONG = os.environ.get("TEST_LONG") is not None
SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-debian-")
SONAME = ".".join(VERSION.split(".")[:2])


def packages():
    """{package: its paragraph} of debian/control"""
    paragraphs = (SOURCE / "debian/control").read_text().split("\n\n")[1:]
    return {re.search(r"^Package: (\S+)", p, re.MULTILINE)[1]: p for p in paragraphs}


def lists():
    """{package: patterns below the root} of debian/*.install"""
    return {path.stem: [line.split()[0] for line in path.read_text().splitlines()]
            for path in sorted((SOURCE / "debian").glob("*.install"))}


def installed():
    """Every file, as one that is set up with the prefix /usr would be named."""
    root = pathlib.Path(SCRATCH.name) / "root"
    if not root.exists():
        install_below(root)
    prefix = next(root.rglob("bin/lockstep")).parent.parent
    libraries = next(prefix.rglob("liblockstep.so")).parent.relative_to(prefix)
    for path in prefix.rglob("*"):
        if path.is_symlink() or path.is_file():
            name = path.relative_to(prefix)
            yield f"usr/lib/triplet/{name.relative_to(libraries)}" if name.is_relative_to(libraries) else f"usr/{name}"


def takes(pattern, name):
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"{pattern}/*")


@test
def the_packages_have_the_version_of_the_build():
    entry = (SOURCE / "debian/changelog").read_text().splitlines()[0]
    assert re.fullmatch(rf"lockstep \({re.escape(VERSION)}-\S+\) \w+; urgency=\w+", entry), entry


@test
def the_shared_library_is_packaged_by_its_name():
    assert f"liblockstep{SONAME}" in packages(), list(packages())
    assert f"soversion: '{SONAME}'" in (SOURCE / "src/meson.build").read_text()


@test
def every_package_has_a_list_and_every_list_a_package():
    none_of(set(lists()) ^ set(packages()), "in debian/control or a list debian/*.install, not in both")


@test
def what_is_installed_is_in_one_package():
    names, problems = list(installed()), []
    assert len(names) > 200, names
    for name in names:
        homes = [package for package, patterns in lists().items() if any(takes(p, name) for p in patterns)]
        if len(homes) != 1:
            problems.append(f"{name}: {' '.join(homes) or 'in none'}")
    none_of(problems, "debian/*.install")


@test
def what_the_lists_name_is_installed():
    names = list(installed())
    mpis = {mpi for mpi in ("openmpi", "mpich") if not any(f"_{mpi}.so" in name for name in names)}
    none_of((f"{package}: {pattern}" for package, patterns in lists().items() for pattern in patterns
             if not pattern.startswith("usr/lib/python3/") and package.removeprefix("lockstep-") not in mpis
             and not any(takes(pattern, name) for name in names)), "not installed by the build")


@test
def options_that_the_packages_set_exist():
    rules = (SOURCE / "debian/rules").read_text()
    given = set(re.findall(r"-D(\w+)=", rules))
    none_of(given - set(build_options()), "not in meson_options.txt")
    features = {name for name, kind in build_options().items() if kind == "feature"} - {"cuda"}  # nvcc is not free
    none_of(features - given, "left to what the machine has")


@test
def what_the_build_needs_is_asked_for():
    """By scripts/bootstrap's table."""
    table = (SOURCE / "scripts/bootstrap").read_text().split("packages='\n")[1].split("\n'")[0]
    wanted = {line.split()[1] for line in table.splitlines()}
    wanted = {name for name in wanted if name.startswith("lib") and name.endswith("-dev")}
    asked = set(re.findall(r"^ ([\w.+-]+)", (SOURCE / "debian/control").read_text().split("\n\n")[0], re.MULTILINE))
    # libc6-dev and linux-libc-dev come with the compiler, libomp-dev is for clang, zstd for a static link.
    none_of(wanted - asked - {"libc6-dev", "libomp-dev", "libzstd-dev"}, "not in Build-Depends")


@test
def the_development_package_brings_what_its_pkg_config_file_requires():
    """pkg-config reads the files of those packages for `--cflags`, too; MPI's are for plug-ins alone."""
    needed = set(re.findall(r"^ ([\w.+-]+-dev),$", (SOURCE / "debian/control").read_text().split("\n\n")[0], re.MULTILINE))
    assert "libjansson-dev" in needed, needed
    needed.add("libzstd-dev")  # libcrypto.pc of Debian 13 says -lzstd for a static link, and libssl-dev does not bring it
    none_of(needed - set(re.findall(r"[\w.+-]+-dev", packages()["liblockstep-dev"].split("Depends:")[1])),
            "not in Depends of liblockstep-dev")


def built():
    """Builds the packages in a copy; the folder that has them."""
    for tool in ("dpkg-buildpackage", "dh", "dh_python3", "lintian"):
        if shutil.which(tool) is None:
            raise Skip(f"no {tool} (apt-get install dpkg-dev debhelper dh-python lintian)")
    tree = copy_of_the_sources(pathlib.Path(SCRATCH.name) / "debian/lockstep")
    both = all(subprocess.run(["pkg-config", "--exists", name]).returncode == 0 for name in ("ompi-c", "mpich"))
    profiles = [] if both else ["-Ppkg.lockstep.nompi"]
    # -d: meson or a library may have come another way, and the build says what is missing.
    done = subprocess.run(["dpkg-buildpackage", "-us", "-uc", "-b", "-d", *profiles], cwd=tree, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-4000:]
    return tree.parent


def unpacked(folder):
    root = folder / "root"
    for path in folder.glob("*.deb"):
        command("dpkg-deb", "-x", path, root)
    return root


if LONG:
    @test
    def debian_packages_are_built_clean_and_work():
        folder = built()
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", *folder.glob("*.changes")],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        root = unpacked(folder)
        libraries = next(root.rglob("liblockstep.so")).parent
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("LOCKSTEP_", "PYTHON"))}
        said = command(root / "usr/bin/lockstep", "info", "--backends", env=plain)
        assert "nccl" in said, said
        said = command("/usr/bin/python3", "-c", "import lockstep; print(lockstep.version())",
                       env=dict(plain, PYTHONPATH=str(root / "usr/lib/python3/dist-packages"),
                                LOCKSTEP_LIBRARY=str(libraries)))
        assert said.strip() == VERSION, said
else:
    @test
    def debian_packages_are_built_clean_and_work():
        raise Skip("compiles the library; part of make test-long")


run()
