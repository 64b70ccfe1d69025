# SPDX-License-Identifier: Apache-2.0
"""The build files use nothing that the oldest Meson lacks for which meson.build asks: Debian 12 has 1.0."""

import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, none_of, run, test

LOG = BUILD / "meson-logs/meson-log.txt"


@test
def no_feature_is_newer_than_the_meson_that_is_asked_for():
    lines = LOG.read_text().splitlines()
    assert any(line.startswith("Build targets in project:") for line in lines), LOG
    none_of((line for line in lines if "uses feature introduced in" in line), "too new")


run()
