# SPDX-License-Identifier: Apache-2.0
"""lockstep.numpy on 1, 2 and 4 ranks, and what the package says when something is missing."""

import pathlib
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from jobs import LONG, SOURCE, Job, by_lockstep, environment, pythons_with, skipped, tests_of
from tap import BUILD, Skip, none_of, run, test

PYTHONS = pythons_with("numpy")


def ask(code, **variables):
    """The output of a bare Python (errors, too) that imports lockstep."""
    env = dict(environment(), **variables)
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd="/", text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    return done.stdout


@test
def the_package_has_the_version_of_the_headers():
    import re
    header = (SOURCE / "include/lockstep/version.h").read_text()
    version = re.search(r'#define LS_VERSION "(.*)"', header).group(1)
    assert f'"{version}"' in (SOURCE / "python/lockstep/_version.py").read_text()
    assert ask("import lockstep; print(lockstep.version())").strip() == version


@test
def a_library_that_is_not_there_is_named_with_what_was_tried():
    text = ask("import lockstep; lockstep.init()", LOCKSTEP_LIBRARY="/no/such")
    assert "ImportError" in text and "/no/such (LOCKSTEP_LIBRARY): not there" in text, text
    assert "make install" in text, text


@test
def a_python_without_numpy_or_torch_is_told_what_to_install():
    for module, said in (("numpy", "lockstep.numpy needs NumPy: pip install numpy"),
                         ("torch", "lockstep.torch needs PyTorch: pip install torch")):
        text = ask(f"import sys; sys.modules['{module}'] = None; import lockstep.{module}")
        assert f"ModuleNotFoundError: {said}\n" in text, text


@test
def a_library_of_another_version_is_refused():
    code = ("import lockstep._library as l; l.__version__ = '7.3.0'\n"
            "import lockstep; lockstep.init()")
    text = ask(code)
    assert "ImportError" in text and "has version 0.2" in text and "7.3.0" in text, text


@test
def the_constants_are_those_of_the_headers():
    import re
    text = (SOURCE / "include/lockstep/types.h").read_text()
    numbers = {name.lower(): int(value)
               for name, value in re.findall(r"LS_([A-Z0-9]+|PREMUL_SUM) = (\d+),", text)}
    got = ask("from lockstep import _core as c; print(dict(c.DTYPES, **c.OPERATORS))")
    assert eval(got) == numbers, (got, numbers)


@test
def a_world_of_one_needs_no_launcher():
    text = ask("import lockstep; lockstep.init(); print(lockstep.world(), lockstep.rank()); "
               "lockstep.world().barrier(); lockstep.finalize()")
    assert "rank 0 of 1> 0" in text, text


@test
def calls_before_init_say_so():
    text = ask("import lockstep; lockstep.world()")
    assert "call lockstep.init() first" in text, text


@test
def the_package_installs_into_a_virtual_environment():
    import tempfile
    with tempfile.TemporaryDirectory(prefix="lockstep-venv-") as folder:
        made = subprocess.run([sys.executable, "-m", "venv", folder], text=True,
                              capture_output=True)
        python = pathlib.Path(folder) / "bin/python"
        if made.returncode != 0:
            raise Skip("this Python has no venv module")
        done = subprocess.run([python, "-m", "pip", "install", "-q", "--no-index",
                               "--disable-pip-version-check", str(SOURCE / "python")],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        env = {k: v for k, v in environment().items() if k != "PYTHONPATH"}
        code = ("import lockstep, pathlib; lockstep.init(); print(lockstep.__file__, "
                "lockstep.version())")
        out = subprocess.run([python, "-c", code], env=env, cwd="/", text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        assert folder in out and "0.2" in out, out
        if not shutil.which("pkg-config"):
            return
        path = pathlib.Path(folder) / "lockstep.pc"  # as `make install` leaves it
        path.write_text(f"libdir={BUILD / 'src'}\nName: lockstep\nDescription: -\nVersion: 0.2\n")
        env.pop("LOCKSTEP_LIBRARY")
        out = subprocess.run([python, "-c", code], env=dict(env, PKG_CONFIG_PATH=folder), cwd="/",
                             text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        assert folder in out and "0.2" in out, out


def blocks(heading):
    """The Python programs under a heading of docs/python.md."""
    import re
    text = (SOURCE / "docs/python.md").read_text()
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.M | re.S).group(1)
    return re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)


@test
def the_documentation_names_every_function():
    text = (SOURCE / "docs/python.md").read_text()
    for module in ("numpy", "objects"):
        names = ask(f"import lockstep.{module} as m; print(*m.__all__)").split() if module == "objects" or PYTHONS else []
        none_of([name for name in names if f"`{name}" not in text and f".{name}(" not in text],
                f"functions of lockstep.{module} that docs/python.md does not name")


@test
def the_program_of_the_documentation_runs():
    import tempfile
    if not PYTHONS:
        raise Skip("no Python with numpy was found")
    program, = blocks("NumPy")
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program + "assert a[0] == 1 and rows.shape == (2, 1000), (a, rows)\nprint('right')\n")
        file.flush()
        status, output = by_lockstep(2, [PYTHONS[0][0], file.name])
    assert status == 0 and output.count("right") == 2, output


if not PYTHONS:
    skipped("collectives_on_arrays", "no Python with numpy was found; TEST_PYTHON names one")
for python, version in PYTHONS[:None if LONG else 1]:
    for ranks in (1, 2, 4):
        tests_of(Job("numpy_ranks.py", python, ranks), f" ({ranks} ranks, numpy {version})")
    tests_of(Job("numpy_ranks.py", python, 3, LOCKSTEP_HOSTS="64"), " (3 ranks over tcp)")
run()
