# SPDX-License-Identifier: Apache-2.0
"""SECURITY.md names a test beside every protection, and each of them exists."""

import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, none_of, run, test

PAGE = (SOURCE / "SECURITY.md").read_text()
# `tests/FOLDER/FILE.c`: `name`, `name` …
NAMED = re.compile(r"`(tests/[\w/]+\.(?:c|py))`:((?:\s+`\w+`,?)+)")
DEFINED = r"(?m)^(?:\w*TEST\w*\(|def ){}\b"


def tests_named(text):
    """(file, test) for each test that a text names."""
    for path, names in NAMED.findall(text):
        for name in re.findall(r"`(\w+)`", names):
            yield path, name


@test
def every_protection_names_a_test():
    part = PAGE.partition("## What is protected, and how")[2].partition("\n## ")[0]
    protections = [p for p in part.split("\n\n") if p.startswith("**")]
    assert len(protections) > 10, len(protections)
    none_of([p.splitlines()[0] for p in protections if not any(tests_named(p))], "without a test")


@test
def every_named_test_exists():
    missing = []
    for path, name in tests_named(PAGE):
        file = SOURCE / path
        if not file.is_file() or not re.search(DEFINED.format(name), file.read_text()):
            missing.append(f"{path}: {name}")
    none_of(missing, "named in SECURITY.md, but not there")


@test
def every_file_of_tests_is_named_with_a_test_or_is_a_check_of_this_page():
    whole = set(re.findall(r"`(tests/[\w/]+\.(?:c|py))`", PAGE))
    none_of(whole - {path for path, _ in tests_named(PAGE)} - {"tests/tidy/test_security.py"}, "named without a test")


run()
