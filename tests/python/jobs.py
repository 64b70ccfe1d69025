"""Starts ranks in Python and turns what they note into tests; finds interpreters that have a module.

TEST_PYTHON names interpreters to look at first, separated by colons.
"""

import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
import tap
from tap import BUILD, SOURCE, Skip

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
import cases

HERE = pathlib.Path(__file__).resolve().parent
LONG = os.environ.get("TEST_LONG") == "1"
DEADLINE = 300  # seconds a job may take


def interpreters():
    """Every Python to look at, each once."""
    given = os.environ.get("TEST_PYTHON", "").split(":")
    known = [*given, str(BUILD / "torch-venv/bin/python"), sys.executable, "/usr/bin/python3"]
    return list(dict.fromkeys(p for p in known if p and pathlib.Path(p).exists()))


@functools.lru_cache(None)
def has(python, module):
    """The module's version, or None; without importing it, which is slow."""
    code = f"import importlib.metadata as m; print(m.version('{module}'))"
    done = subprocess.run([python, "-c", code], text=True, capture_output=True, cwd="/")
    return done.stdout.strip() if done.returncode == 0 else None


def pythons_with(*modules):
    """[(interpreter, version of the first module)], one for each version."""
    found = {}
    for python in interpreters():
        if all(has(python, module) for module in modules):
            found.setdefault(has(python, modules[0]), python)
    return [(python, version) for version, python in found.items()]


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_") or k in (
        "LOCKSTEP_HOSTS", "LOCKSTEP_DEBUG")}
    return dict(dict(kept, PYTHONPATH=str(SOURCE / "python"), LOCKSTEP_LIBRARY=str(BUILD / "src"),
                     OMP_NUM_THREADS="1"), **more)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def by_lockstep(ranks, command, **variables):
    """`lockstep run`: the exit status and the output."""
    return _ended(subprocess.run([BUILD / "lockstep", "run", "-n", str(ranks), *map(str, command)],
                                 env=environment(**variables), text=True, timeout=DEADLINE,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT))


def by_environment(ranks, command, **variables):
    """Each rank started for itself with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT."""
    port, started = free_port(), []
    for rank in range(ranks):
        env = environment(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(port), **variables)
        started.append(subprocess.Popen(list(map(str, command)), env=env, text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT))
    texts = []
    try:
        texts = [process.communicate(timeout=DEADLINE)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return max(abs(process.returncode) for process in started), "".join(texts)


def by_torchrun(ranks, command, **variables):
    """torchrun of the interpreter that the command begins with."""
    python, *rest = map(str, command)
    return _ended(subprocess.run([python, "-m", "torch.distributed.run", "--standalone",
                                  f"--nproc-per-node={ranks}", *rest],
                                 env=environment(**variables), text=True, timeout=DEADLINE,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT))


def _ended(done):
    return done.returncode, done.stdout


class Job:
    """One job that runs the cases of a script; started when the first of its tests is."""

    def __init__(self, script, python, ranks, start=by_lockstep, **variables):
        self.script, self.python, self.ranks = HERE / script, python, ranks
        self.start, self.variables, self.notes = start, variables, None

    def run(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-python-") as folder:
            self.status, self.output = self.start(
                self.ranks, [self.python, self.script, folder], **self.variables)
            self.notes = []
            for rank in range(self.ranks):
                path = pathlib.Path(folder) / f"rank-{rank}.json"
                self.notes.append(json.loads(path.read_text()) if path.exists() else {})

    def judge(self, name):
        if self.notes is None:
            self.run()
        for rank, notes in enumerate(self.notes):
            if notes.get(name) != "ok":
                why = notes.get(name, "did not come so far")
                others = [text for n in self.notes for text in n.values() if text != "ok"]
                raise AssertionError(f"rank {rank}: {why}\n" + "\n".join(others[:1]) +
                                     f"\nstatus {self.status}; the output ends:\n{self.output[-3000:]}")


def tests_of(job, suffix):
    """Adds a test for each case of the job's script, and one for its end."""
    sizes = _sizes(job.script)
    for name in [n for n in cases.names(job.script) if job.ranks in sizes.get(n, (job.ranks,))]:
        _add(lambda name=name: job.judge(name), f"{name}{suffix}")
    _add(lambda: job.judge("(end)"), f"the_world_is_left_in_order{suffix}")


def _sizes(script):
    """{case: numbers of ranks} of those that @only() limits."""
    found, lines = {}, script.read_text().splitlines()
    for before, line in zip(lines, lines[1:]):
        if before.startswith("@only") and line.startswith("def "):
            found[line[4:line.index("(")]] = eval(before[5:], {"SEVERAL": range(2, 100)})
    return found


def _add(function, name):
    function.__name__ = name
    tap.test(function)


def skipped(name, reason):
    def function():
        raise Skip(reason)
    _add(function, name)
