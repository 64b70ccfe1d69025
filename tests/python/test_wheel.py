# SPDX-License-Identifier: Apache-2.0
"""The wheel that brings the library: one file, installed into an environment that has nothing else of
Lockstep, starts ranks and trains. And the notes in the source archive."""

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from jobs import BUILD, LONG, SOURCE, pythons_with, skipped
from tap import Skip, none_of, run, test

sys.path[:0] = [str(SOURCE / "python")]
import make_wheel

PYTHONS = pythons_with("torch", "numpy")
SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-wheel-")

GATHER = """
import lockstep, lockstep.objects
lockstep.init()
assert lockstep.objects.all_gather(lockstep.rank()) == [0, 1]
print("gathered by", lockstep.__file__, flush=True)
lockstep.finalize()
"""

TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("lockstep")
import lockstep.objects
torch.manual_seed(dist.get_rank())
model = DDP(torch.nn.Linear(8, 2))
for step in range(3):
    model(torch.randn(4, 8)).pow(2).mean().backward()
weights = lockstep.objects.all_gather([p.grad.tolist() for p in model.parameters()])
assert all(w == weights[0] for w in weights)
print("trained with", lockstep.__file__, flush=True)
dist.destroy_process_group()
"""


def environment_with(python, folder):
    """A new environment in which the torch of `python` can be imported, and nothing else of it."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    code = "import torch, pathlib; print(pathlib.Path(torch.__file__).parent.parent)"
    packages = subprocess.run([python, "-c", code], check=True, text=True, capture_output=True, cwd="/",
                              env=clean()).stdout.strip()
    site = next(pathlib.Path(folder).glob("lib/python3*/site-packages"))
    (site / "torch-of-another.pth").write_text(packages + "\n")
    return pathlib.Path(folder) / "bin"


def clean():
    return {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "PYTHON"))}


@test
def the_source_archive_has_its_notes():
    with tempfile.TemporaryDirectory(prefix="lockstep-sdist-") as folder:
        name = make_wheel.build_sdist(folder)
        with tarfile.open(pathlib.Path(folder) / name) as archive:
            base = name[:-len(".tar.gz")]
            text = archive.extractfile(f"{base}/PKG-INFO").read().decode()
            assert archive.getmember(f"{base}/lockstep/py.typed").size == 0
    assert text.startswith("Metadata-Version: ") and f"\nVersion: {make_wheel._version()}\n" in text


@test
def the_library_of_the_wheel_is_built_below_the_folder_that_is_given():
    """The sources may belong to another user."""
    with tempfile.TemporaryDirectory(prefix="lockstep-wheel-") as folder:
        meson = pathlib.Path(folder) / "meson"
        meson.write_text('#!/bin/sh\necho "$2"\nexit 1\n')
        meson.chmod(0o755)
        done = subprocess.run([sys.executable, SOURCE / "python/make_wheel.py", "out"], cwd=folder, text=True, capture_output=True,
                              env=dict(clean(), PATH=f"{folder}:{os.environ['PATH']}"))
        assert done.stdout == f"{folder}/out/wheel\n", (done.stdout, done.stderr)


@functools.lru_cache(None)
def wheel():
    """The file, built once; its folder goes with this process."""
    return pathlib.Path(SCRATCH.name) / make_wheel.build_binary_wheel(SCRATCH.name, BUILD / "wheel")


def install_into(bin):
    subprocess.run([bin / "pip", "install", "-q", "--no-deps", "--no-index", wheel()], check=True, env=clean())


def run_on_two(bin, text, folder):
    """What two ranks of a program print that the installed command starts."""
    program = pathlib.Path(folder) / "program.py"
    program.write_text(text)
    done = subprocess.run([bin / "lockstep", "run", "-n", "2", program.name], text=True, cwd=folder, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=dict(clean(), PYTHONWARNINGS="ignore"))
    assert done.returncode == 0, done.stdout
    return done.stdout


if LONG:
    @test
    def an_empty_environment_gets_the_command_and_the_library():
        with tempfile.TemporaryDirectory(prefix="lockstep-wheel-") as folder:
            subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
            bin = pathlib.Path(folder) / "venv/bin"
            install_into(bin)
            said = run_on_two(bin, GATHER, folder)
            assert said.count(f"gathered by {folder}/venv/lib") == 2, said
            said = subprocess.run([bin / "lockstep", "version"], check=True, text=True, capture_output=True,
                                  env=clean()).stdout
            assert make_wheel._version() in said, said
            done = subprocess.run([bin / "lockstep", "train", "gpt"], text=True, capture_output=True, env=clean())
            assert done.returncode == 1 and "not as a wheel, which has no programs that train" in done.stderr, done
            subprocess.run([bin / "pip", "check"], check=True, env=clean())
            subprocess.run([bin / "pip", "uninstall", "-q", "-y", "lockstep"], check=True, env=clean())
            none_of(pathlib.Path(folder, "venv").rglob("*lockstep*"), "left behind")

    @test
    def the_wheel_has_the_licences_of_what_is_in_it():
        names = zipfile.ZipFile(wheel()).namelist()
        for name in (name for name, path in make_wheel.LICENSES.items() if pathlib.Path(path).exists()):
            assert f"lockstep-{make_wheel._version()}.dist-info/licenses/{name}" in names, names

    @test
    def auditwheel_gives_the_wheel_its_tag():
        """It finds the same tag, or an older one, by the symbols of all files."""
        tool = shutil.which("auditwheel")
        if tool is None:
            raise Skip("no auditwheel (pip install auditwheel)")
        said = " ".join(subprocess.run([tool, "show", wheel()], check=True, text=True, capture_output=True).stdout.split())
        tag = re.search(r'consistent with the following platform tag: "(manylinux_\d+_\d+\w+)"', said)
        assert tag and tag.group(1) in wheel().name, said
else:
    skipped("an_empty_environment_gets_the_command_and_the_library", "compiles the library; part of make test-long")

if PYTHONS and LONG:
    @test
    def one_file_is_all_that_has_to_be_installed():
        with tempfile.TemporaryDirectory(prefix="lockstep-wheel-") as folder:
            bin = environment_with(PYTHONS[0][0], pathlib.Path(folder) / "venv")
            install_into(bin)
            said = run_on_two(bin, TRAIN, folder)
            assert said.count(f"trained with {folder}/venv/lib") == 2, said
else:
    skipped("one_file_is_all_that_has_to_be_installed", "compiles the library; part of make test-long, "
                                                        "with a Python that has torch")

run()
