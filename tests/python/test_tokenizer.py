# SPDX-License-Identifier: Apache-2.0
"""Ids beside those of the `tokenizers` package itself, on many random texts.

Runs where some Python has the package (TEST_PYTHON names one). With TEST_LONG=1 it is installed into a virtual
environment that is thrown away, where the machine can reach a package index."""

import pathlib
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from jobs import LONG, SOURCE, Skip, environment, pythons_with
from tap import BUILD, run, test

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE = 240  # seconds to install, and again to compare


def installed(folder):
    """An interpreter in a new environment with the package; Skip where there is no way to it."""
    made = subprocess.run([sys.executable, "-m", "venv", folder], text=True, capture_output=True)
    if made.returncode != 0:
        raise Skip("this Python has no venv module")
    python = str(pathlib.Path(folder) / "bin/python")
    try:
        done = subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check",
                               "--retries", "1", "tokenizers"], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        raise Skip("installing tokenizers took too long")
    if done.returncode != 0:
        raise Skip("pip could not install tokenizers")
    return python


def compare(python, count):
    done = subprocess.run([python, str(HERE / "tokenizer_ids.py"), str(BUILD), str(count)],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=environment(), timeout=DEADLINE)
    if "has no PCRE2" in done.stdout:
        raise Skip("this build has no PCRE2")
    assert done.returncode == 0, done.stdout
    return done.stdout


@test
def ids_of_fuzzed_texts_equal_those_of_the_package():
    found = pythons_with("tokenizers")
    if found:
        compare(found[0][0], 10000)
        return
    if not LONG:
        raise Skip("no Python with tokenizers was found; TEST_PYTHON names one, TEST_LONG=1 installs it")
    with tempfile.TemporaryDirectory(prefix="lockstep-venv-") as folder:
        compare(installed(folder), 10000)


run()
