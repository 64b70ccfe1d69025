# SPDX-License-Identifier: Apache-2.0
"""A virtual environment with a CPU build of PyTorch, for comparisons without a given interpreter.

The version is pinned with "+cpu". Without it pip takes the higher version of PyPI's index and the CPU index,
and PyPI's builds contain CUDA, whose libraries would count as memory of the peer.
"""

import pathlib
import subprocess
import sys

INDEX = "https://download.pytorch.org/whl/cpu"
VERSION = "2.13.0+cpu"  # of the tables in docs/measurements.md
CUDA = "import torch; print(torch.version.cuda)"


def pip_arguments():
    return ["install", "-q", "numpy", f"torch=={VERSION}", "--extra-index-url", INDEX]


def cuda_of(python):
    """The CUDA version of an interpreter's torch. None for a CPU build, and without torch."""
    done = subprocess.run([python, "-c", CUDA], text=True, capture_output=True, cwd="/")
    found = done.stdout.strip()
    return found if done.returncode == 0 and found != "None" else None


def warn_of_cuda(python):
    """Warns that the memory column would count CUDA's libraries."""
    cuda = cuda_of(python)
    if cuda is not None:
        print(f"warning: the torch of {python} is built for CUDA {cuda}: its memory includes CUDA's "
              f"libraries; for the CPU's build: pip {' '.join(pip_arguments())}", flush=True)


def install(venv):
    """Makes the environment. Ends the program unless its torch can be imported and is a CPU build."""
    venv = venv.absolute()  # its torch is asked in another folder
    print(f"installing PyTorch {VERSION} into {venv}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", *pip_arguments()], check=True)
    subprocess.run([venv / "bin/python", "-c", CUDA], check=True, stdout=subprocess.DEVNULL, cwd="/")
    cuda = cuda_of(str(venv / "bin/python"))
    if cuda is not None:
        sys.exit(f"the torch that pip installed into {venv} is built for CUDA {cuda} and not for the CPU; "
                 f"remove the folder and give an interpreter with the CPU's build (--python)")
    print("torch.version.cuda is None: this is the build for the CPU", flush=True)


LOOK = """import torch
torch.ones(64, 64) @ torch.ones(64, 64)
maps = open("/proc/self/maps").read()
print(torch.__version__, "reference" if "/blas/libblas.so" in maps else "fast")"""


def look_at(python):
    """(version of its torch, whether it multiplies with the reference BLAS, which is not a fair peer);
    (None, False) without torch."""
    done = subprocess.run([python, "-c", LOOK], text=True, capture_output=True, cwd="/")
    version, blas = done.stdout.split() if done.returncode == 0 else (None, "")
    return version, blas == "reference"


def find_peers(build, python=None, old=None):
    """Interpreters with the versions of their torch."""
    if python is None:
        venv = (build / "torch-venv").absolute()
        python = str(venv / "bin/python")
        if not pathlib.Path(python).exists():
            install(venv)
    peers = {}
    for p in dict.fromkeys(p for p in (python, old) if p):
        version, slow = look_at(p)
        if version is None:
            print(f"skipped: {p} has no torch", flush=True)
        elif slow:
            print(f"skipped: the torch of {p} multiplies with the reference BLAS; install "
                  "libopenblas0", flush=True)
        else:
            warn_of_cuda(p)
            peers[p] = version
    return peers


if __name__ == "__main__":
    install(pathlib.Path(sys.argv[1]))
