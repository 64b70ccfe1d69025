# SPDX-License-Identifier: Apache-2.0
"""Starts ranks in Python and turns what they note into tests; finds interpreters that have a module.

TEST_PYTHON names interpreters to look at first, separated by colons.
"""

import functools
import json
import os
import pathlib
import select
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


class Warm:
    """A Python that has imported modules once, which takes PyTorch some seconds and transformers many: what it runs
    are forks of it. Without torchvision, whose compiled part may be for another PyTorch; no program here needs it."""

    SERVER = """
import importlib, json, os, runpy, sys, traceback
sys.modules["torchvision"] = None
for path in sys.argv[1:]:
    value = importlib.import_module(path.partition(":")[0])
    if ":" in path:
        getattr(value, path.partition(":")[2])  # imported when it is named
import torch
torch.set_num_threads(1)

def run(words, environment, output):
    to = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(to, 1), os.dup2(to, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words if words[0] != "-c" else ["-c", *words[2:]]
    try:
        if words[0] == "-c":
            exec(words[1], {"__name__": "__main__"})
        else:
            sys.path[0] = os.path.dirname(words[0])
            runpy.run_path(words[0], run_name="__main__")
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else end.code is not None
    except BaseException:
        traceback.print_exc()
        return 1

for line in sys.stdin:
    children = []
    for ask in json.loads(line):
        child = os.fork()
        if child == 0:
            status = run(*ask)
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
        children.append(child)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
"""

    @functools.cache
    @staticmethod
    def of(python, *modules):
        """`module:Name` imports what a module imports when the name is used."""
        return Warm(python, modules)

    def __init__(self, python, modules):
        self.process = subprocess.Popen([python, "-W", "ignore", "-c", self.SERVER, *modules], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())

    def run(self, *asks):
        """(status, output) of each (words, environment); words are a path or "-c" and a program, and its arguments."""
        with tempfile.TemporaryDirectory(prefix="lockstep-warm-") as folder:
            paths = [f"{folder}/{k}" for k in range(len(asks))]
            asks = [([str(word) for word in words], given, path) for (words, given), path in zip(asks, paths)]
            self.process.stdin.write(json.dumps(asks) + "\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], DEADLINE)[0]:
                self.process.kill()
            statuses = json.loads(self.process.stdout.readline() or "[]") or [-9] * len(asks)
            return [(status, pathlib.Path(path).read_text(errors="replace")) for status, path in zip(statuses, paths)]


def with_transformers(python, program, *arguments):
    """What a program prints that uses transformers, with these as sys.argv[1:]."""
    warm = Warm.of(python, "torch", *(f"transformers:{name}" for name in (
        "GPT2LMHeadModel", "BertForMaskedLM", "AutoModelForCausalLM")))
    [(status, printed)] = warm.run((["-c", program, *arguments], environment()))
    assert status == 0, (status, printed)
    return printed


def by_fork(ranks, command, **variables):
    """As by_environment, of a Python that has imported PyTorch."""
    python, port = str(command[0]), free_port()
    ended = Warm.of(python, "torch", "torch.distributed", "torch._dynamo", "numpy").run(*[
        (command[1:], environment(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                                  **variables)) for rank in range(ranks)])
    return max(abs(status) for status, _ in ended), "".join(text for _, text in ended)


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
    for name in [n for n in cases.names(job.script, "TEST_DEVICE" in job.variables) if job.ranks in sizes.get(n, (job.ranks,))]:
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
