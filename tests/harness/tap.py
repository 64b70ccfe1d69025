# SPDX-License-Identifier: Apache-2.0
"""TAP for the Python tests: decorate functions with @test, call run() at the end.

A test fails by raising (an assertion, a failed command), is skipped by raising Skip(reason). Its
name is a sentence. The program's first argument is the build folder.
"""

import os
import pathlib
import subprocess
import sys
import traceback

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else SOURCE / "build").resolve()
_tests = []


class Skip(Exception):
    pass


class _Patient(subprocess.Popen):
    """A command gets more time on a busy machine before it counts as one that hangs."""

    _waits = False  # in `communicate`, which calls `wait`

    def wait(self, timeout=None):
        return super().wait(timeout if self._waits else _longer(timeout))

    def communicate(self, input=None, timeout=None):
        self._waits = True
        try:
            return super().communicate(input, _longer(timeout))
        finally:
            self._waits = False


def _longer(timeout):
    return timeout and timeout * max(1.0, os.getloadavg()[0] / os.cpu_count())


subprocess.Popen = _Patient


def test(function):
    _tests.append(function)
    return function


def command(*arguments, **options):
    """Runs a command, fails with its output when it fails, returns its output."""
    done = subprocess.run([str(a) for a in arguments], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, **options)
    assert done.returncode == 0, f"{' '.join(map(str, arguments))}: {done.returncode}\n{done.stdout}"
    return done.stdout


def none_of(problems, what):
    """Fails when there are problems, listing them."""
    problems = [str(problem) for problem in problems]
    if len(problems) > 50:
        problems[50:] = [f"and {len(problems) - 50} more"]
    assert not problems, f"{what}:\n" + "\n".join("  " + problem for problem in problems)


def _run_one(number, function):
    name = function.__name__
    try:
        function()
    except Skip as reason:
        print(f"ok {number} - {name} # SKIP {reason}")
        return True
    except AssertionError as error:
        print(f"not ok {number} - {name}")
        print("\n".join("# " + line for line in str(error).splitlines()))
        return False
    except Exception:
        print(f"not ok {number} - {name}")
        print("\n".join("# " + line for line in traceback.format_exc().splitlines()))
        return False
    print(f"ok {number} - {name}")
    return True


def run():
    print(f"1..{len(_tests)}", flush=True)
    results = [_run_one(number, function) for number, function in enumerate(_tests, 1)]
    sys.exit(0 if all(results) else 1)
