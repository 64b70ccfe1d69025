# SPDX-License-Identifier: Apache-2.0
"""Which tests run a line of the library, and how long each takes: a file for each test program, kept below the build.

The library of a build with -Dmutate=true notes the blocks that run (recorder.c). A block begins at a
line; a line belongs to the block that begins at it or before it in its function. Since the compiler
moves and merges blocks, the tests that run another part of the function follow those. The kernels that
are built once for each instruction set note nothing: that would keep their loops from being fast.
"""

import bisect
import concurrent.futures
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import dataclass

from folders import FOLDERS

CALL = re.compile(r"^\s*([0-9a-f]+):.*\bcall.*__sanitizer_cov_trace_pc")
NEXT = re.compile(r"^\s*([0-9a-f]+):")
RESULT = re.compile(r"^(ok|not ok) \d+ - (\w+)(.*)$")
PROGRAM_SECONDS = 600
AT_ONCE = 2  # programs, and tests


@dataclass(frozen=True)
class Test:
    program: object
    name: str
    seconds: float
    exact: bool  # it runs the very block; where nothing is recorded, it is of the folder named first

    @property
    def title(self):
        return f"{self.program.name}: {self.name}"


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def blocks_of(library):
    """{place in a recorded file: (path, line)} of all blocks, by the calls that stand at their beginnings."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(library)], text=True, capture_output=True,
                          check=True).stdout
    places, called = [], False
    for line in text.splitlines():
        match = NEXT.match(line)
        if match and called:
            places.append(int(match[1], 16))
        called = bool(CALL.match(line)) if match else False
    asked = "\n".join(f"{place - 1:x}" for place in places)
    lines = subprocess.run(["addr2line", "-e", str(library)], input=asked, text=True, capture_output=True,
                           check=True).stdout.splitlines()
    found = {}
    for place, line in zip(places, lines):
        path, number = line.split(" ")[0].rsplit(":", 1)
        if "/src/" in path and number.isdigit():
            found[place // 4] = "src/" + path.split("/src/")[-1], int(number)
    return found


def function_of(text, line):
    """The first and last line of the function around a line, by the braces at the margin."""
    lines = text.split("\n")
    first = max((n for n, words in enumerate(lines[:line], 1) if words == "{"), default=1)
    last = next((n for n, words in enumerate(lines[line:], line + 1) if words == "}"), len(lines))
    return first, last


class Coverage:
    def __init__(self, worker, home):
        self.worker, self.home = worker, home / "map"
        self.home.mkdir(exist_ok=True)
        self.programs, self.blocks = {}, {}

    def path_of(self, program):
        return self.home / (re.sub(r"\W+", "_", program.name) + ".json")

    def learn(self, folder, say):
        """Maps the programs of a folder, those that have changed since they were mapped anew."""
        programs = self.worker.programs_of(folder)
        self.worker.build_programs(programs)
        self.blocks = self.blocks_of_library()  # now, while no change is in it
        changed = [program for program in programs if not self.is_mapped(program)]
        for first in range(0, len(changed), AT_ONCE):
            some = changed[first:first + AT_ONCE]
            with self.worker.turn(), concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                for program, kept in zip(some, pool.map(self.map, some)):
                    self.path_of(program).write_text(json.dumps(kept))
                    say(f"mapped {program.name}: {len(kept['tests'])} tests, {sum(kept['tests'].values()):.1f} s"
                        + "".join(f"; {name} fails without a change and is left out" for name in kept["failed"]))
        self.programs |= {program: json.loads(self.path_of(program).read_text()) for program in programs}

    def digest_of(self, program):
        return digest(self.worker.build / program.path)

    def is_mapped(self, program):
        path = self.path_of(program)
        return path.exists() and json.loads(path.read_text())["program"] == self.digest_of(program)

    def blocks_of_library(self):
        """Found once for a library, and kept."""
        library = self.worker.build / "src" / self.worker.library
        path = self.home / f"blocks-{digest(library)}"
        if not path.exists():
            with self.worker.turn():
                path.write_text(json.dumps([[place, *line] for place, line in blocks_of(library).items()]))
        return {place: (file, line) for place, file, line in json.loads(path.read_text())}

    def map(self, program):
        """Runs a program with the recorder: {"program": digest, "tests": {name: seconds},
        "failed": […], "files": {path: …}}."""
        scratch = self.path_of(program).with_suffix(".scratch")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        text, _ = self.worker.run(program, [], PROGRAM_SECONDS, TEST_VERBOSE="1", MUTATE_RECORD=str(scratch / "at"))
        tests, failed, current = {}, [], None
        for line in text.splitlines():
            result = RESULT.match(line)
            took = re.match(rf"# {current}: .*\((\d+\.\d+) s\)$", line)
            if result and result[1] == "ok" and "# SKIP" not in result[3]:
                current = result[2]
            elif result:
                failed += [result[2]] if result[1] == "not ok" else []
                current = None
            elif current and took:
                tests[current] = float(took[1])
        return {"program": self.digest_of(program), "tests": tests, "failed": failed,
                "files": self.files_of(scratch, tests)}

    def files_of(self, scratch, tests):
        """{path: {"digest": of its text, "lines": {line: [numbers of tests]}}}"""
        files = {}
        for number, name in enumerate(tests):
            recorded = scratch / f"at.{name}"
            data = recorded.read_bytes() if recorded.exists() else b""
            for place in (match.start() for match in re.finditer(rb"\x01", data)):
                if place in self.blocks:
                    path, line = self.blocks[place]
                    file = files.setdefault(path, {"digest": "", "lines": {}})
                    file["lines"].setdefault(line, set()).add(number)
        shutil.rmtree(scratch)
        for path, file in files.items():
            file["digest"] = digest(self.worker.tree / path)
            file["lines"] = {line: sorted(numbers) for line, numbers in file["lines"].items()}
        return files

    def tests_of(self, folder, site):
        """Those of the folder's tests that run the function of the site; all of them where nothing is recorded."""
        starts = sorted({line for path, line in self.blocks.values() if path == site.path})
        text = (self.worker.tree / site.path).read_text()
        first, last = function_of(text, site.line)
        if not any(first <= start <= last for start in starts):
            first, last = 1, len(text)  # the function has become a part of others
        before = starts[bisect.bisect_right(starts, site.line) - 1] if starts and starts[0] <= site.line else 0
        begin, end = (before, site.line) if before >= first else (first, last)
        now, nearest, found = digest(self.worker.tree / site.path), FOLDERS[folder].tests[0], []
        for program in self.worker.programs_of(folder):
            kept = self.programs[program]
            file = kept["files"].get(site.path)
            for number, (name, seconds) in enumerate(kept["tests"].items()):
                lines = [int(line) for line, numbers in file["lines"].items() if number in numbers] if file else []
                exact = any(begin <= line <= end for line in lines) if starts else program.path.startswith(nearest)
                if not starts or exact or lines and (file["digest"] != now or any(first <= line <= last for line in lines)):
                    found.append(Test(program, name, seconds, exact))
        return found
