# SPDX-License-Identifier: Apache-2.0
"""The sources as a whole: their files, a copy for tests that build elsewhere, their version and options. And an installation."""

import fcntl
import pathlib
import re
import shutil
import subprocess

from tap import BUILD, SOURCE, command

VERSION = re.search(r"version: '([\d.]+)'", (SOURCE / "meson.build").read_text())[1]


def build_options():
    """{name: type} of meson_options.txt"""
    return dict(re.findall(r"option\('(\w+)', type: '(\w+)'", (SOURCE / "meson_options.txt").read_text()))


def source_files():
    """From the root: what git knows or would add; without git all but builds and caches."""
    done = subprocess.run(["git", "-C", str(SOURCE), "ls-files", "-co", "--exclude-standard"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if done.returncode == 0:
        names = done.stdout.splitlines()
    else:
        names = [p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*") if "__pycache__" not in p.parts]
    return sorted(name for name in names if (SOURCE / name).is_file() and not name.startswith((".git/", "build")))


def copy_of_the_sources(folder):
    folder = pathlib.Path(folder)
    for name in source_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(SOURCE / name, folder / name)
    return folder


def install_below(root):
    """Meson's list of what it has installed. A build has one, that of its last installation: tests take turns."""
    logs = BUILD / "meson-logs"
    with open(logs / "turn-to-install", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        command("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", root)
        return (logs / "install-log.txt").read_text()
