"""The wheel that brings the library: one file, installed into an environment that has nothing else of
Lockstep, starts ranks and trains. And the notes in the source archive."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from jobs import BUILD, LONG, SOURCE, pythons_with, skipped
from tap import run, test

sys.path[:0] = [str(SOURCE / "python")]
import make_wheel

PYTHONS = pythons_with("torch", "numpy")

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


def check_by_auditwheel(wheel):
    """It finds the same tag, or an older one, by the symbols of all files, where it is installed."""
    if shutil.which("auditwheel") is None:
        return
    said = " ".join(subprocess.run(["auditwheel", "show", wheel], check=True, text=True, capture_output=True).stdout.split())
    tag = re.search(r'consistent with the following platform tag: "(manylinux_\d+_\d+\w+)"', said)
    assert tag and tag.group(1) in wheel.name, said


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


if PYTHONS and LONG:
    @test
    def one_file_is_all_that_has_to_be_installed():
        with tempfile.TemporaryDirectory(prefix="lockstep-wheel-") as folder:
            wheel = pathlib.Path(folder) / make_wheel.build_binary_wheel(folder, BUILD / "wheel")
            check_by_auditwheel(wheel)
            bin = environment_with(PYTHONS[0][0], pathlib.Path(folder) / "venv")
            subprocess.run([bin / "pip", "install", "-q", "--no-deps", "--no-index", wheel], check=True,
                           env=clean())
            program = pathlib.Path(folder) / "train.py"
            program.write_text(TRAIN)
            done = subprocess.run([bin / "lockstep", "run", "-n", "2", "train.py"], text=True, cwd=folder,
                                  timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  env=dict(clean(), LOCKSTEP_PYTHON=str(bin / "python"),
                                           PYTHONWARNINGS="ignore"))
            assert done.returncode == 0, done.stdout
            assert done.stdout.count(f"trained with {folder}/venv/lib") == 2, done.stdout
else:
    skipped("one_file_is_all_that_has_to_be_installed", "compiles the library; part of make test-long, "
                                                        "with a Python that has torch")

run()
