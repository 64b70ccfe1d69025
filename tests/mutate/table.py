"""Which tests concern a folder of src, and how many changes are planted there by default.

A test program is chosen by the beginning of its name, in this order when nothing else is known;
`over` adds a run over TCP and one over both transports, as in tests/run.
"""

from dataclasses import dataclass

SEED = 12


@dataclass(frozen=True)
class Folder:
    count: int
    tests: tuple
    over: tuple = ()


COMM = ("tests/unit/comm/", "tests/dist/comm/", "tests/dist/net/", "tests/dist/reduce/", "tests/sim/", "tests/unit/launch/")
FOLDERS = {
    "comm": Folder(75, COMM, ("tests/dist/comm/",)),
    "reduce": Folder(25, ("tests/dist/reduce/", "tests/dist/train/", "tests/sim/"), ("tests/dist/reduce/",)),
    "optim": Folder(20, ("tests/unit/nn/optim", "tests/unit/nn/schedule", "tests/unit/nn/", "tests/dist/checkpoint/",
                         "tests/dist/train/", "tests/reference/")),
    "checkpoint": Folder(30, ("tests/unit/checkpoint/", "tests/fuzz/", "tests/dist/checkpoint/", "tests/sim/")),
    "kernel": Folder(30, ("tests/unit/kernel/", "tests/unit/tensor/", "tests/grad/", "tests/unit/nn/",
                          "tests/reference/")),
    "data": Folder(25, ("tests/unit/nn/data", "tests/unit/nn/", "tests/unit/tokenizer/", "tests/fuzz/",
                        "tests/dist/train/")),
}

# Programs that tests start, which must be relinked too: test program's folder -> targets.
STARTED = {
    "tests/dist/failures/": ("tests/dist/failures/victim", "tests/dist/failures/looper",
                             "tests/dist/failures/mixer", "lockstep"),
    "tests/dist/launch/": ("tests/dist/launch/worker", "tests/dist/launch/member", "lockstep"),
    "tests/dist/net/": ("tests/dist/net/stranger", "lockstep"),
    "tests/dist/train/": ("tests/dist/train/victim", "programs", "lockstep"),
    "tests/unit/checkpoint/": ("tests/unit/checkpoint/saver", "lockstep"),
    "tests/unit/comm/": ("lockstep",),
    "tests/unit/launch/": ("lockstep", "programs"),
    "tests/unit/nn/": ("tests/unit/nn/foreign",),
    "tests/sim/": ("tests/sim/simulate",),
}

# Not in the mutation's build, or not run by this processor; their own tests skip as well.
NOT_HERE = ("onednn", "attention_tiles", "tiles_x86", "_absent", "variants_plain")
