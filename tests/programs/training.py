# SPDX-License-Identifier: Apache-2.0
"""What the tests of the training programs share: starting one, and reading what it prints."""

import re
import struct

from tap import BUILD, command

WORDS = ["the ", "a ", "rank ", "bucket ", "sends ", "waits ", "for ", "every ", "gradient.\n", "sum, "]
TCP = {"LOCKSTEP_HOSTS": "64"}  # each rank on a host of its own
SMALL = ("--layers", 1, "--dim", 32, "--heads", 2, "--context", 32)


def numbers(count, state):
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        yield state


def text(folder, words=6000, state=7):
    """A file of sentences from a small grammar, the same every time."""
    path = folder / "text"
    if not path.exists():
        path.write_text("".join(WORDS[(state >> 16) % 10] for state in numbers(words, state)))
    return path


def images(folder, *channels):
    """A folder of noise in four classes, in MNIST's format; `channels`: none or one number."""
    folder = folder / "images"
    if not folder.exists():
        folder.mkdir()
        for name, count in (("train", 200), ("test", 24)):
            dims = (count, *channels, 8, 8)
            head = struct.pack(f">HBB{len(dims)}I", 0, 8, len(dims), *dims)
            pixels = bytes(state >> 24 for state in numbers(count * 64 * (*channels, 1)[0], count))
            (folder / f"{name}-images.idx").write_bytes(head + pixels)
            labels = bytes(i % 4 for i in range(count))
            (folder / f"{name}-labels.idx").write_bytes(struct.pack(">HBBI", 0, 8, 1, count) + labels)
    return folder


def train(program, ranks, *flags, cwd):
    """What the program prints; ranks 0: without the launcher."""
    launcher = [BUILD / "lockstep", "run", "-n", ranks] if ranks else []
    return command(*launcher, BUILD / "programs" / program, *flags, cwd=cwd)


def judged(printed):
    """The losses of the evaluations, in order."""
    return [float(x) for x in re.findall(r"(?:held-out|test) loss (\d+\.\d+)", printed)]


def hash_of(printed):
    """Of the replicas in the end, which are equal."""
    return re.search(r"replicas identical: (\d+) of \1 \(hash (\w+)\)", printed).group(2)
