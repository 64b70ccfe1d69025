# SPDX-License-Identifier: Apache-2.0
"""Changes are planted in each folder of src. What survivors.txt says of them is of changes that can still be planted: an edited line
has other keys."""

import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, none_of, run, test

sys.path[:0] = [str(SOURCE / "tests/mutate")]
sys.dont_write_bytecode = True
import folders
import sites
import table


@test
def changes_are_planted_in_every_folder():
    here = {path.name for path in (SOURCE / "src").iterdir() if path.is_dir()}
    none_of(sorted(here - set(folders.FOLDERS) - set(folders.LEFT_OUT)), "in no folder of tests/mutate/folders.py")


@test
def every_answer_is_of_a_change_that_can_be_planted():
    possible = {site.key for path in sorted((SOURCE / "src").rglob("*.c"))
                for site in sites.sites_of(str(path.relative_to(SOURCE)), path.read_text())}
    none_of((key for key in table.answers() if key not in possible),
            "the lines of these survivors were changed: remove them from tests/mutate/survivors.txt")


@test
def a_change_is_answered_once():
    keys = [line.split()[0] for line in table.SURVIVORS.read_text().splitlines()
            if line.strip() and not line.startswith("#")]
    none_of(sorted({key for key in keys if keys.count(key) > 1}), "answered twice in tests/mutate/survivors.txt")


run()
