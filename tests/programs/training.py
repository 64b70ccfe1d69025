"""What the tests of the training programs share: starting one, and reading what it prints."""

import re

from tap import BUILD, command

SMALL = ("--layers", 1, "--dim", 32, "--heads", 2, "--context", 32)


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
