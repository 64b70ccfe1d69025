# SPDX-License-Identifier: Apache-2.0
"""docs/algorithms.md is what `build/bench/dev/measure algorithms` counts from the programs. After a change of algorithms:
UPDATE_GOLDEN=1 tests/run --only docs/test_algorithms
"""

import os
import pathlib
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, run, test

PAGE = SOURCE / "docs/algorithms.md"


def bench(*arguments):
    return subprocess.run([str(BUILD / "bench/dev/measure"), *arguments], text=True, capture_output=True, timeout=60)


@test
def the_page_is_what_is_counted():
    counted = bench("algorithms")
    assert counted.returncode == 0, counted.stderr
    if os.environ.get("UPDATE_GOLDEN") == "1":
        PAGE.write_text(counted.stdout)
    assert PAGE.read_text() == counted.stdout, (
        "docs/algorithms.md is not what the programs cost; UPDATE_GOLDEN=1 tests/run --only algorithms writes it")


@test
def the_table_of_the_lectures_has_its_rows():
    table = bench("cost-table", "-n", "8")
    assert table.returncode == 0, table.stderr
    rows = {line[:28].strip(): line[28:].split() for line in table.stdout.splitlines()[2:11]}
    # steps, peak per step and in all, total per step and in all, of 8 ranks by hand
    assert rows["reduce at a root"] == ["1", "7.000", "7.000", "7.000", "7.000"], rows
    assert rows["broadcast from a root"] == ["1", "7.000", "7.000", "7.000", "7.000"], rows
    assert rows["all-reduce via a root"] == ["2", "7.000", "7.000", "7.000", "14.000"], rows
    assert rows["full exchange"] == ["1", "7.000", "7.000", "56.000", "56.000"], rows
    assert rows["ring"] == ["14", "0.125", "1.750", "1.000", "14.000"], rows
    assert rows["recursive halving"] == ["3", "0.500", "0.875", "4.000", "7.000"], rows
    assert rows["recursive halving-doubling"] == ["6", "0.500", "1.750", "4.000", "14.000"], rows
    assert rows["recursive doubling"] == ["3", "1.000", "3.000", "8.000", "24.000"], rows  # K log K
    assert "draws recursive doubling" in table.stdout
    for wrong in (["-n", "1"], ["-n", "many"], ["-n"], ["8"]):
        refused = bench("cost-table", *wrong)
        assert refused.returncode == 2 and "from 2 to 64" in refused.stderr, refused


run()
