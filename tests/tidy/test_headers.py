# SPDX-License-Identifier: Apache-2.0
"""Every public header compiles alone, as C11 and C++17, and all together as C17, without a warning."""

import functools
import pathlib
import re
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, Skip, none_of, run, test

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
HEADERS = sorted((SOURCE / "include").rglob("*.h"))
OF_MPI = ("-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX")  # the C++ bindings that MPI-3 removed
LANGUAGES = {"c11": "c", "c17": "c", "c++17": "c++"}


def compile_alone(compiler, standard, text, flags=()):
    tool = shutil.which(compiler)
    if tool is None:
        raise Skip(f"no {compiler} (apt-get install {compiler})")
    return subprocess.run([tool, f"-std={standard}", "-x", LANGUAGES[standard], *WARNINGS,
                           "-fsyntax-only", "-I", SOURCE / "include", *flags, "-"],
                          input=text, text=True, capture_output=True)


@functools.cache
def flags_of_mpi():
    """Where each installed MPI has its mpi.h, as system headers."""
    found = []
    for package in ("ompi-c", "mpich"):
        try:
            done = subprocess.run(["pkg-config", "--cflags-only-I", package], text=True, capture_output=True)
        except FileNotFoundError:
            break
        if done.returncode == 0:
            found.append((*OF_MPI, *(word for flag in done.stdout.split() for word in ("-isystem", flag[2:]))))
    return found


def problems(compiler, standard):
    """C17 differs from C11 in no rule, so that a header need not be alone there."""
    names = [str(header.relative_to(SOURCE / "include")) for header in HEADERS]
    of_mpi = [name for name in names if name.endswith("/mpi.h")]
    others = [name for name in names if name not in of_mpi]
    for group in [others] if standard == "c17" else [[name] for name in others]:
        yield from problems_of(compiler, standard, group, ())
    for flags in flags_of_mpi():
        yield from problems_of(compiler, standard, of_mpi, flags)


def problems_of(compiler, standard, names, flags):
    done = compile_alone(compiler, standard, "".join(f"#include <{name}>\n" for name in names), flags)
    if done.returncode != 0:
        yield f"{' '.join(names)}: {done.stderr}"


NESTED = """#include <lockstep/lockstep.h>
void nested(ls_module *net);
void nested(ls_module *net)
{
    LS_SCOPE;
    LS_NO_GRAD;
    LS_AUTOCAST(true);
    LS_SKIP_INIT(true);
    LS_NO_SYNC(net);
    {
        LS_SCOPE;
        LS_NO_GRAD;
        LS_AUTOCAST(false);
        LS_SKIP_INIT(false);
        LS_NO_SYNC(net);
    }
}
"""
# Forms in which a `break` or the end of a statement would not do what it seems to.
REFUSED = {
    "a block of its own": "LS_SCOPE { net = NULL; }",
    "the body of an if": "if (net) LS_SCOPE;",
    "the body of a loop": "while (net) LS_NO_GRAD;",
}


def in_function(statement):
    return ("#include <lockstep/lockstep.h>\nvoid f(ls_module *net);\n"
            f"void f(ls_module *net)\n{{\n    (void)net;\n    {statement}\n}}\n")


def compilers():
    return [found for found in ("gcc", "clang") if shutil.which(found)]


@test
def blocks_within_blocks_shadow_nothing():
    for compiler in compilers():
        for standard in ("c17", "c++17"):
            cxx = {"gcc": "g++", "clang": "clang++"}[compiler]
            tool = cxx if standard == "c++17" else compiler
            done = compile_alone(tool, standard, NESTED)
            assert done.returncode == 0, f"{tool}: {done.stderr}"


@test
def a_scope_is_a_declaration_and_nothing_else():
    for compiler in compilers():
        assert compile_alone(compiler, "c17", in_function("LS_SCOPE;")).returncode == 0
        for name, statement in REFUSED.items():
            done = compile_alone(compiler, "c17", in_function(statement))
            assert done.returncode != 0, f"{compiler} accepts LS_SCOPE as {name}"


@test
def headers_are_self_sufficient_as_c11():
    none_of(problems("gcc", "c11"), "gcc -std=c11")


@test
def headers_are_self_sufficient_as_c17():
    none_of(problems("gcc", "c17"), "gcc -std=c17")


@test
def headers_are_self_sufficient_as_cpp17():
    none_of(problems("g++", "c++17"), "g++ -std=c++17")


@test
def the_header_for_cpp_is_self_sufficient():
    for standard in ("c++17", "c++20"):
        LANGUAGES[standard] = "c++"
        done = compile_alone("g++", standard, "#include <lockstep/lockstep.hpp>\n")
        assert done.returncode == 0, done.stderr
    lines = (SOURCE / "include/lockstep/lockstep.hpp").read_text().splitlines()
    assert len([line for line in lines if "SPDX-" not in line]) <= 200
    LANGUAGES.pop("c++20")


@test
def headers_are_self_sufficient_for_clang():
    clang = "clang" if shutil.which("clang") else "clang-14"
    for standard in LANGUAGES:
        none_of(problems(clang, standard), f"{clang} -std={standard}")


@test
def an_incomplete_header_would_be_seen():
    for standard in LANGUAGES:
        compiler = "g++" if standard == "c++17" else "gcc"
        assert compile_alone(compiler, standard, "ls_status f(void);\n").returncode != 0


@test
def no_function_has_a_second_one_that_takes_options():
    """docs/api.md: one function with a pointer to options, which may be NULL."""
    declared = re.findall(r"\bls_\w+_with(?:_options)?\b", "".join(h.read_text() for h in HEADERS))
    none_of(sorted(set(declared)), "functions that repeat another one with options")


SIZED = re.compile(r"typedef struct (ls_\w+) \{[^\n]*\n\s*size_t size;")
OPTIONS = re.compile(r"typedef (?:struct )?(?:ls_\w+_options )?ls_(\w+)_options(?: \{|;)")


def option_structs():
    """{name: whether it is a model's} of every ls_<name>_options."""
    return {name: h.parent.name == "models" for h in HEADERS for name in OPTIONS.findall(h.read_text())}


@test
def every_option_struct_has_its_size_and_its_defaults():
    """tests/unit/api/calls.py writes its test."""
    text = "".join(h.read_text() for h in HEADERS)
    by_name = (SOURCE / "src/umbrella/defaults.c").read_text()
    problems = []
    for name, of_model in option_structs().items():
        struct = re.search(rf"typedef struct ls_{name}_options \{{(.*?)\n", text + "\n")
        if struct and f"ls_{name}_options" not in SIZED.findall(text):
            problems.append(f"ls_{name}_options: its first member is not `size_t size`")
        for form in (f"#define LS_DEFAULTS_ls_{name}_options", f"LS_DEFAULTS_FUNCTION({name})"):
            if form not in text:
                problems.append(f"ls_{name}_options: no {form}")
        if not of_model and f"X({name})" not in by_name:
            problems.append(f"ls_{name}_options: not in src/umbrella/defaults.c")
    assert len(option_structs()) > 20
    none_of(problems, "option structs")


@test
def every_header_is_in_the_build():
    listed = (SOURCE / "include/meson.build").read_text()
    names = [str(h.relative_to(SOURCE / "include")) for h in HEADERS]
    none_of((name for name in names if f"'{name}'" not in listed), "not installed")


run()
