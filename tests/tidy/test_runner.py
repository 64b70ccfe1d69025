# SPDX-License-Identifier: Apache-2.0
"""tests/run itself, on made-up builds whose programs pass, fail, skip, crash and lie."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, run, test

GOOD = "echo 1..2; echo 'ok 1 - a'; echo 'ok 2 - b'"
SKIPPING = "echo 1..2; echo 'ok 1 - c # SKIP no moon'; echo 'ok 2 - d'"
FAILING = "echo 1..2; echo 'not ok 1 - e'; echo '# because'; echo 'ok 2 - f'; exit 1"
CRASHING = "echo 1..3; echo 'ok 1 - g'; echo 'last words'; kill -SEGV $$"
LYING = "echo 1..1; echo 'ok 1 - h'; exit 5"


def runner(*arguments):
    return subprocess.run([SOURCE / "tests/run", *arguments], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)


def run_programs(*scripts):
    """(exit status, output) of tests/run on a build with these programs."""
    with tempfile.TemporaryDirectory() as folder:
        tests = pathlib.Path(folder) / "tests"
        tests.mkdir()
        for number, script in enumerate(scripts):
            program = tests / f"program{number}"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        listed = "\n".join(str(p) for p in sorted(tests.iterdir()))
        (tests / "programs.txt").write_text(listed + "\n")
        done = runner("--build", folder, "--programs-only")
        return done.returncode, done.stdout


def last_line(output):
    return output.splitlines()[-1]


@test
def all_passing_ends_with_the_sum_and_status_0():
    status, output = run_programs(GOOD, GOOD)
    assert status == 0 and last_line(output) == "4 passed, 0 failed, 0 skipped", output


@test
def a_skip_is_counted_and_its_reason_shown_above():
    status, output = run_programs(SKIPPING)
    assert status == 0 and last_line(output) == "1 passed, 0 failed, 1 skipped", output
    assert "skipped tests/program0: c: no moon\n" in output, output


@test
def one_line_names_the_packages_for_all_that_was_skipped():
    status, output = run_programs("echo 1..3; echo 'ok 1 - a # SKIP no y (apt-get install yy z-dev, then build)'; "
                                  "echo 'ok 2 - b # SKIP no x (apt-get install xx yy)'; echo 'ok 3 - c'")
    assert status == 0 and output.count("more tests run after: apt-get install xx yy z-dev\n") == 1, output
    assert "apt-get" not in run_programs("echo 1..1; echo 'ok 1 - a # SKIP no moon'")[1]


@test
def a_failure_is_counted_and_shown():
    status, output = run_programs(GOOD, FAILING)
    assert status == 1 and last_line(output) == "3 passed, 1 failed, 0 skipped", output
    assert "not ok - e" in output and "# because" in output, output
    assert output.index("failed tests/program1: e\n") > output.index("# because"), output  # again, where it is not overlooked


@test
def a_part_that_cannot_run_and_the_closest_promise_are_told():
    status, output = run_programs("echo 1..1; echo 'ok 1 - i'; echo '# PART SKIP no amx'; "
                                  "echo '# WITHIN 0.300 s of 0.500 s promised, 0.600 s allowed: slow-down 1.20'")
    assert status == 0 and last_line(output) == "1 passed, 0 failed, 0 skipped", output
    assert "skipped in part tests/program0: i: no amx\n" in output, output
    assert "promised time at 50% of its limit: tests/program0: i: 0.300 s of 0.500 s promised" in output, output
    assert "; parts that cannot run here: 1\n" in output, output


@test
def a_test_counts_once_and_each_of_its_variants_is_told():
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "tests/dist/comm/p"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{GOOD}\n")
        program.chmod(0o755)
        (pathlib.Path(folder) / "tests/programs.txt").write_text(f"{program}\n")
        output = runner("--build", folder, "--programs-only").stdout
    assert last_line(output) == "6 passed, 0 failed, 0 skipped", output
    assert ("2 tests in 6 variants: 2 in C (1 program), 2 of them also over TCP, 2 over TCP and shared memory, "
            "0 in Python (0 programs)\n") in output, output


@test
def a_quick_run_leaves_out_variants_and_what_takes_long_and_says_how_many():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tests/dist/comm/p", "tests/dist/comm/comm_test_storm"):
            program = pathlib.Path(folder) / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"#!/bin/sh\n{GOOD}\n")
            program.chmod(0o755)
        listed = "".join(f"{folder}/tests/dist/comm/{name}\n" for name in ("p", "comm_test_storm"))
        (pathlib.Path(folder) / "tests/programs.txt").write_text(listed)
        output = runner("--build", folder, "--programs-only", "--quick").stdout
    assert re.findall(r"^ok    (\S+)", output, re.MULTILINE) == ["tests/dist/comm/p"], output
    assert "left out: 5 programs and variants, which `./check all` runs\n" in output, output
    assert last_line(output) == "2 passed, 0 failed, 0 skipped", output


@test
def what_a_quick_run_leaves_out_is_there():
    text = (SOURCE / "tests/run").read_text()
    names = re.findall(r'"([^"]+)"', re.search(r"^THOROUGH = \((.*?)\)\n", text, re.MULTILINE | re.DOTALL).group(1))
    known = runner("--build", BUILD, "--list").stdout.splitlines()
    folders = {os.path.dirname(name) + "/" for name in known}  # a build without an MPI lacks one
    missing = [name for name in names if name.startswith(tuple(folders)) and not any(k.startswith(name) for k in known)]
    assert len(names) > 20 and not missing, missing


@test
def programs_that_wait_and_those_that_compute_run_once_each_and_their_times_are_told():
    with tempfile.TemporaryDirectory() as folder:
        names = [f"tests/{part}/p{k}" for part in ("grad", "dist/launch") for k in range(3)]
        for name in names:
            program = pathlib.Path(folder) / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"#!/bin/sh\ni=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; {GOOD}\n")
            program.chmod(0o755)
        (pathlib.Path(folder) / "tests/programs.txt").write_text("\n".join(f"{folder}/{name}" for name in names))
        output = runner("--build", folder, "--programs-only", "-j", "1").stdout
    told = re.findall(r"^ok    (\S+)  \(2 passed, [\d.]+ s, computed ([\d.]+) s\)$", output, re.MULTILINE)
    assert sorted(name for name, _ in told) == sorted(names) and all(float(seconds) > 0 for _, seconds in told), output
    whole, = re.findall(r"^took \d+ s, in which programs computed (\d+) s$", output, re.MULTILINE)
    assert abs(int(whole) - sum(float(seconds) for _, seconds in told)) < 1, output
    assert last_line(output) == "12 passed, 0 failed, 0 skipped", output


@test
def a_program_that_is_not_there_ends_the_run():
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "tests").mkdir()
        (pathlib.Path(folder) / "tests/programs.txt").write_text(f"{folder}/tests/nothing\n")
        done = runner("--build", folder, "--programs-only")
    assert done.returncode != 0 and "tests/nothing" in done.stdout, done.stdout


@test
def a_program_that_crashes_before_its_plan_is_done_fails():
    status, output = run_programs(CRASHING)
    assert status == 1 and last_line(output) == "1 passed, 1 failed, 0 skipped", output
    assert "1 of 3 tests reported" in output and "last words" in output, output


@test
def a_program_with_a_bad_status_and_no_failing_test_fails():
    status, output = run_programs(LYING)
    assert status == 1 and last_line(output) == "1 passed, 1 failed, 0 skipped", output


@test
def make_test_runs_only_what_it_is_asked_for():
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # not below `make test`
    for asked, handed in (("ONLY=tidy", " --only tidy\n"), ("ONLY=tidy docs", " --only tidy --only docs\n"), ("ONLY=", " \n")):
        told = subprocess.run(["make", "-n", "test", asked, "BUILD=/nowhere"], cwd=SOURCE, env=alone, text=True, capture_output=True)
        assert told.stdout.endswith(f"tests/run --build /nowhere{handed}"), told


@test
def a_program_without_output_and_an_empty_build_fail():
    status, output = run_programs("true")
    assert status == 1 and last_line(output) == "0 passed, 1 failed, 0 skipped", output
    status, output = run_programs()
    assert status == 1 and last_line(output) == "0 passed, 0 failed, 0 skipped", output


run()
