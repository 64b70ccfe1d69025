# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md: every row of its table can be reproduced, and Lockstep prints what the page quotes.

What varies (process numbers, host, seconds, lines, folders) stands in angle brackets. After a change of texts:
UPDATE_GOLDEN=1 tests/run --only troubleshooting. The peers' columns are not run here: they need their packages.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, Skip, none_of, run, test

PAGE = SOURCE / "docs/troubleshooting.md"
SCRIPTS = SOURCE / "docs/troubleshooting"
DRIVER = SCRIPTS / "reproduce"
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"
PLAIN = {name: value for name, value in os.environ.items()
         if not name.startswith(("LOCKSTEP_", "OMPI_", "PMI_", "SLURM_", "TORCH_"))
         and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
VARIES = [
    (re.compile(r"(?:\.\.)?[\w/.-]*/docs/troubleshooting/lockstep\.c:\d+"), "lockstep.c:<line>"),
    (re.compile(r"(kill -CONT|\bpid) \d+"), r"\1 <pid>"),
    (re.compile(r"\bprocess \d+ \(.*\)"), "process <pid> (<its command>)"),
    (re.compile(r"\bhost " + re.escape(socket.gethostname()) + r"\b"), "host <host>"),
    (re.compile(r"\b\d+\.\d+ s\b"), "<seconds> s"),
    (re.compile(r"\b127\.0\.0\.1( port |:)\d+"), r"127.0.0.1\1<port>"),
]


def rows_of_the_table():
    return re.findall(r"^\| (\w+) \|", PAGE.read_text().split("| row |")[1], re.MULTILINE)


def quoted():
    """row -> what the page says Lockstep prints."""
    return dict(re.findall(r"^### (\w+)\n\n```\n(.*?)```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))


MEANWHILE = re.compile(r"--- left in /dev/shm:( (vader_segment|mpich_|torch_)\S*)+")  # by another test that runs now


def printed(row):
    """The launcher's own lines, or where it has nothing to say the ranks', and how the job ended."""
    environment = dict(PLAIN, LOCKSTEP=str(BUILD / "lockstep"), PYTHON=sys.executable,
                       PKG_CONFIG_PATH=str(BUILD / "meson-uninstalled"), LIMIT="20")
    if row == "stop":
        environment["LOCKSTEP_TIMEOUT"] = "4"
    done = subprocess.run([str(DRIVER), row, "lockstep"], env=environment, text=True, timeout=120,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = [line[4:] for line in done.stdout.splitlines() if line.startswith("    ")]
    told = [line for line in lines if line.startswith("lockstep: ")] or sorted(lines)
    if row == "launcher":
        told = []  # a rank may say a last word before it is ended, or not
    ends = [line for line in done.stdout.splitlines() if line.startswith("--- ") and not MEANWHILE.fullmatch(line)]
    assert ends, done.stdout
    text = "".join(line + "\n" for line in told + [end.split(";")[0][4:] for end in ends])
    for pattern, put in VARIES:
        text = pattern.sub(put, text)
    if row == "nosync":  # both ranks find it
        text = re.sub(r"\brank [01]\b", "rank <rank>", text)
    return text


@test
def every_row_has_its_mode_in_the_driver_and_the_sources():
    rows = rows_of_the_table()
    assert len(rows) > 15 and len(rows) == len(set(rows)), rows
    driver = subprocess.run([str(DRIVER), "list"], text=True, capture_output=True).stdout.split()
    none_of(set(driver) ^ set(rows), "rows of the table and of the driver differ")
    ours = (SCRIPTS / "lockstep.c").read_text() + (SCRIPTS / "mistake.h").read_text()
    none_of((row for row in rows if f'"{row}"' not in ours and row != "port"), "not in lockstep.c")
    gloo = (SCRIPTS / "gloo.py").read_text()
    none_of((row for row in rows if f'"{row}"' not in gloo and row != "port"), "not in gloo.py")
    mpi = (SCRIPTS / "mpi.c").read_text() + (SCRIPTS / "mistake.h").read_text()
    without = ("model", "unused", "uneven", "nosync", "port")
    none_of((row for row in rows if f'"{row}"' not in mpi and row not in without), "not in mpi.c")


@test
def lockstep_prints_what_the_page_quotes():
    if shutil.which("pkg-config") is None:
        raise Skip("no pkg-config")
    rows = rows_of_the_table()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        now = dict(zip(rows, pool.map(printed, rows)))
    if UPDATE:
        text = PAGE.read_text()
        for row in rows:
            text = re.sub(rf"^(### {row}\n\n```\n).*?(```)$", lambda m: m.group(1) + now[row] + m.group(2),
                          text, flags=re.MULTILINE | re.DOTALL)
        PAGE.write_text(text)
        return
    page = quoted()
    none_of((f"{row}:\n{now[row]}    quoted:\n{page.get(row)}" for row in rows if page.get(row) != now[row]),
            "Lockstep prints other words than the page (UPDATE_GOLDEN=1 writes them)")


@test
def nothing_silent_comes_from_lockstep():
    none_of((row for row, text in quoted().items() if "SILENT" in text or "wrong results" in text),
            "a wrong result without an error")


run()
