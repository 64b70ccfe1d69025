# SPDX-License-Identifier: Apache-2.0
"""Every source file names its licence in its first line, or in the second below `#!`: the words of LICENSE, for programs."""

import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, none_of, run, test
from trees import source_files

LINE = "SPDX-License-Identifier: Apache-2.0"
SLASH = (".c", ".h", ".hpp", ".cpp", ".cu", ".cuh", ".css", ".h.in")
HASH = (".py", ".build", ".sh", ".yaml", ".yml", ".toml", ".ini", ".cmake", ".cmake.in")
HASH_NAMES = ("meson_options.txt", "Makefile", "Dockerfile", "CMakeLists.txt")


def wanted(name, text):
    """The line that a file must have; None where it is data or a page."""
    if "/corpus/" in name or "/fixture/" in name:
        return None
    if name.endswith(SLASH):
        return f"/* {LINE} */"
    script = name.endswith(HASH) or text.startswith("#!") or name.rpartition("/")[2] in HASH_NAMES
    return f"# {LINE}" if script else None


def has(line, text):
    lines = text.split("\n", 2)
    return lines[lines[0].startswith("#!")] == line


def texts():
    for name in source_files():
        try:
            yield name, (SOURCE / name).read_text()
        except UnicodeDecodeError:
            continue  # data


@test
def every_source_file_names_its_licence():
    problems, count = [], 0
    for name, text in texts():
        line = wanted(name, text)
        count += line is not None
        if line is not None and not has(line, text):
            problems.append(f"{name}: {line}")
    assert count > 1500, count
    none_of(problems, "its first line, or the second below #!, is missing")


@test
def the_check_sees_what_is_missing():
    assert wanted("src/a.c", "int a;\n") == f"/* {LINE} */" and wanted("tests/run", "#!/bin/sh\n") == f"# {LINE}"
    assert wanted("docs/ddp.md", "# DDP\n") is None and wanted("tests/fuzz/corpus/a/b.py", "") is None
    assert has("# x", "#!/bin/sh\n# x\n") and has("# x", "# x\n") and not has("# x", "#!/bin/sh\n\n# x") and not has("# x", "")


@test
def the_licence_is_that_of_the_project():
    assert "Apache License\n                           Version 2.0" in (SOURCE / "LICENSE").read_text()
    for name, words in (("meson.build", "license: 'Apache-2.0'"), ("python/make_wheel.py", "License: Apache-2.0"),
                        ("debian/copyright", "License: Apache-2.0")):
        assert words in (SOURCE / name).read_text(), name


run()
