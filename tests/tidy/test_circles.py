# SPDX-License-Identifier: Apache-2.0
"""Files of the library that call each other in a circle: at most four, so that a reader who opens one
need not open many. Drawn from the symbols of the objects (circles.py)."""

import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
import circles
from tap import BUILD, command, none_of, run, test

FILES_MAX = 4

# A file of a larger circle -> why it stays. Agreed, not found: remove a row when its circle is cut.
AGREED = {
}


def found():
    archive = BUILD / "src/liblockstep.a"
    return circles.components(circles.graph(circles.parse(command("nm", "-A", archive).splitlines())))


@test
def no_circle_has_more_than_four_files():
    none_of((" ".join(circle) for circle in found()
             if len(circle) > FILES_MAX and not any(name in AGREED for name in circle)),
            "python3 tests/tidy/circles.py BUILD/src/liblockstep.a all shows the symbols")


@test
def every_agreed_circle_is_still_there():
    large = {name for circle in found() if len(circle) > FILES_MAX for name in circle}
    none_of((name for name in AGREED if name not in large), "remove its row")


@test
def a_circle_is_found_where_there_is_one():
    lines = ["lib.a:one.c.o: T f", "lib.a:one.c.o: U g", "lib.a:two.c.o: T g", "lib.a:two.c.o: U h",
             "lib.a:three.c.o: T h", "lib.a:three.c.o: U f", "lib.a:four.c.o: U f"]
    assert circles.components(circles.graph(circles.parse(lines))) == [["one", "three", "two"]]


run()
