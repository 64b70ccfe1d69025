# SPDX-License-Identifier: Apache-2.0
"""The Dockerfiles: their commands exist, and are those that scripts/bare-image runs in a bare system of the same suite.
Where root may make namespaces, `lockstep run` is process 1 in one of its own, as in a container."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, Skip, run, test

TEXT, OF_CUDA = [(SOURCE / name).read_text() for name in ("Dockerfile", "Dockerfile.cuda")]


def lines_of(text):
    return [line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]


LINES = lines_of(TEXT)


def of(word):
    return [rest for first, rest in LINES if first == word]


@test
def files_commands_and_targets_of_the_dockerfile_exist():
    for rest in of("COPY"):
        source = [part for part in rest.split() if not part.startswith("--")][0]
        assert (SOURCE / source).exists(), rest
    commands = [command.split() for rest in of("RUN") for command in rest.split(" && ")]
    ours = [words for words in commands if words[0] not in ("rm", "useradd", "chown")]
    assert ours == [["scripts/bootstrap"], ["make"]], ours
    shown = re.findall(r"^#.* lockstep run .*?(build/\S+)", TEXT, re.MULTILINE)
    assert of("CMD") == ['["./demo"]'] and shown and all((BUILD.parent / path).exists() or (
        SOURCE / path.replace("build/", "", 1)).with_suffix(".c").exists() for path in shown), shown
    for path in ("scripts/bootstrap", "demo"):
        assert os.access(SOURCE / path, os.X_OK), path
    assert re.search(r"^all: build$", (SOURCE / "Makefile").read_text(), re.MULTILINE)


@test
def the_dockerfile_does_what_a_bare_image_is_tested_with():
    """As an ordinary user, after root has installed the packages, on a suite of `make images`."""
    suite = re.fullmatch(r"debian:(\w+)-slim", of("FROM")[0]).group(1)
    assert f'image {suite} "./demo ./check" somebody' in (SOURCE / "Makefile").read_text(), suite
    order = [first for first, _ in LINES]
    assert order.index("USER") < len(order) - 1 - order[::-1].index("RUN"), order  # what builds is no root
    assert of("USER") == ["somebody"] and "useradd --create-home --shell /bin/sh somebody" in " ".join(of("RUN"))


@test
def the_variant_for_cuda_differs_in_its_base_and_an_option_that_there_is():
    changed = [pair for pair in zip(LINES, lines_of(OF_CUDA), strict=True) if pair[0] != pair[1]]
    assert [words[0] for words, _ in changed] == ["FROM", "RUN", "CMD"], changed
    assert changed[1][1][1] == "make OPTIONS=-Dcuda=enabled" and of("RUN")[-1] == "make", changed
    assert "option('cuda'" in (SOURCE / "meson_options.txt").read_text()
    assert "meson setup" in (SOURCE / "Makefile").read_text().split("$(OPTIONS)")[0].splitlines()[-1]
    base = re.fullmatch(r"nvidia/cuda:(\d+)\.\d+\.\d+-cudnn-devel-ubuntu\d\d\.04", changed[0][1][1])
    assert base and f'"libcublasLt.so.{base.group(1)}"' in (SOURCE / "src/cuda/blas.c").read_text(), changed[0]
    assert '"libcudnn.so.9"' in (SOURCE / "src/cuda/dnn.c").read_text()  # of the base, for whichever CUDA
    for command in re.findall(r"^#.* --gpus all lockstep-cuda (.+)$", OF_CUDA, re.MULTILINE):
        assert command == "make gpu-check" or command.startswith("lockstep train gpt "), command


@test
def builds_and_caches_do_not_go_into_the_image():
    ignored = (SOURCE / ".dockerignore").read_text().split()
    assert {".git", ".cache", "build*"} <= set(ignored), ignored


@test
def process_1_of_a_namespace_can_be_the_launcher():
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise Skip("needs root and unshare")
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--ipc", "--uts"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        raise Skip("namespaces are not permitted here")
    # An empty and read-only /dev/shm: the memory that ranks share is not there.
    script = 'mount -t tmpfs -o ro,size=4k tmpfs /dev/shm && exec "$@"'
    done = subprocess.run([*inside, "--mount", "sh", "-c", script, "sh", BUILD / "lockstep", "run", "-n", "4",
                           BUILD / "examples/01_hello_all_reduce"], text=True, capture_output=True, timeout=60)
    assert done.returncode == 0 and "3" in done.stdout, done.stdout + done.stderr


run()
