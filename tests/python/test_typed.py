# SPDX-License-Identifier: Apache-2.0
"""Types: every public function of the package tells them, mypy accepts the package, and a user's program
is checked by them, as from the file that marks the package as typed (py.typed)."""

import ast
import pathlib
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from jobs import SOURCE, pythons_with
from tap import Skip, none_of, run, test

PACKAGE = SOURCE / "python/lockstep"
CACHE = tempfile.TemporaryDirectory(prefix="lockstep-mypy-")  # what mypy read of the modules that both tests import

USER = '''
import numpy
import lockstep
import lockstep.numpy as ln
import lockstep.objects as lo

lockstep.init(timeout=30.5)
rank: int = lockstep.rank()
a = numpy.full(10, lockstep.rank(), "float32")
ln.all_reduce(a, "max", tag="gradients", timeout=2)
rows: numpy.ndarray = ln.all_gather(a)
work = ln.all_reduce(a, async_op=True)
work.wait(1.5)
part = lockstep.world().split(lockstep.rank() % 2)
if part is not None:
    part.barrier()
names = [name.upper() for name in lockstep.world().tuning()]
parts: list[bytes] = lo.all_gather_bytes(b"x")
try:
    lockstep.finalize()
except lockstep.TimeoutError as error:
    print(error.name, error.status)
'''
WRONG = '''
lockstep.init(timeout="30")  # wrong
name: str = lockstep.rank()  # wrong
ln.all_reduce([1.0, 2.0])  # wrong
ln.all_reduce(a, tagg="gradients")  # wrong
lockstep.world().split(0).barrier()  # wrong: a rank may get None
lo.scatter_bytes("text")  # wrong
lockstep.world().sise  # wrong
'''


def mypy(*arguments):
    """(status, output) of the first Python that has it and NumPy."""
    found = pythons_with("mypy", "numpy")
    if not found:
        raise Skip("no Python with mypy and numpy was found; TEST_PYTHON names one")
    done = subprocess.run([found[0][0], "-m", "mypy", "--ignore-missing-imports", "--cache-dir", CACHE.name, *arguments],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=SOURCE / "python", timeout=300)
    return done.returncode, done.stdout


def strings(tree, name):
    """The strings in the list that the module assigns to `name`; names of lists within stand for theirs."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            for part in node.value.elts:
                found += strings(tree, part.value.id) if isinstance(part, ast.Starred) else [part.value]
    return found


def functions(tree, names):
    """(name, function) of these, and of the public methods of those that are classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            yield node.name, node
        if isinstance(node, ast.ClassDef) and node.name in names:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and (method.name == "__init__" or method.name[0] != "_"):
                    yield f"{node.name}.{method.name}", method


def untyped(function):
    """The arguments without a type, and "return"."""
    given = function.args
    arguments = [*given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return [a.arg for a in arguments if a.annotation is None and a.arg != "self"] + (
        ["return"] if function.returns is None else [])


@test
def every_public_function_tells_its_types():
    problems, seen = [], 0
    for module, names_in in (("_core", "__init__"), ("_errors", "__init__"), ("numpy", "numpy"),
                             ("_operators", "numpy"), ("objects", "objects"), ("torch/__init__", "torch/__init__")):
        names = strings(ast.parse((PACKAGE / f"{names_in}.py").read_text()), "__all__")
        for name, function in functions(ast.parse((PACKAGE / f"{module}.py").read_text()), names):
            seen += 1
            problems += [f"{module}.py: {name}: {missing}" for missing in untyped(function)]
    assert seen > 60, seen
    none_of(problems, "give them types")


@test
def the_package_is_marked_as_typed():
    sys.path[:0] = [str(SOURCE / "python")]
    import make_wheel
    assert "lockstep/py.typed" in make_wheel._sources()


@test
def mypy_accepts_the_package():
    status, output = mypy("lockstep")
    assert status == 0, output


@test
def mypy_checks_a_users_program():
    with tempfile.TemporaryDirectory(prefix="lockstep-typed-") as folder:
        path = pathlib.Path(folder) / "program.py"
        path.write_text(USER + WRONG)
        status, output = mypy(path)
    lines = (USER + WRONG).splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "# wrong" in line}
    found = {int(line.split(":")[1]) for line in output.splitlines() if ": error: " in line}
    assert found == wrong, output


run()
