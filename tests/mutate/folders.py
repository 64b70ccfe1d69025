# SPDX-License-Identifier: Apache-2.0
"""Which tests concern a folder, and how many changes are planted there by default.

A test program is chosen by the beginning of its name; `over` adds a run over TCP and one over both
transports, as in tests/run. For comm these would take most of the time: tests/dist/net is over TCP.
"""

from dataclasses import dataclass

SEED = 12


@dataclass(frozen=True)
class Folder:
    count: int
    tests: tuple
    over: tuple = ()
    root: str = "src"  # where the folder is
    targets: tuple = ()  # what a change needs built beside the library


COMM = ("tests/unit/comm/", "tests/unit/job/", "tests/dist/comm/", "tests/dist/net/")
FOLDERS = {
    "optim": Folder(20, ("tests/unit/nn/", "tests/dist/checkpoint/", "tests/dist/train/", "tests/reference/")),
    "data": Folder(25, ("tests/unit/api/", "tests/unit/nn/", "tests/unit/tokenizer/", "tests/fuzz/", "tests/dist/train/")),
    "checkpoint": Folder(30, ("tests/unit/checkpoint/", "tests/unit/nn/", "tests/fuzz/", "tests/dist/checkpoint/")),
    "dist": Folder(15, ("tests/dist/comm/comm_test_mesh",)),
    "reduce": Folder(25, ("tests/dist/reduce/", "tests/dist/train/"), ("tests/dist/reduce/",)),
    "kernel": Folder(30, ("tests/unit/kernel/", "tests/unit/comm/program/reduce", "tests/unit/tensor/", "tests/grad/",
                          "tests/unit/nn/", "tests/reference/")),
    "comm": Folder(75, COMM),
    "schedule": Folder(25, ("tests/unit/schedule/", "tests/fuzz/")),
    "parallel": Folder(25, ("tests/dist/train/test_pip", "tests/dist/train/test_steady")),
    "base": Folder(25, ("tests/unit/base/", "tests/unit/comm/", "tests/unit/job/", "tests/unit/checkpoint/", "tests/unit/launch/")),
    "job": Folder(40, ("tests/unit/job/", "tests/fuzz/", "tests/dist/net/", "tests/dist/comm/", "tests/dist/launch/")),
    "tensor": Folder(40, ("tests/unit/tensor/", "tests/grad/", "tests/unit/nn/", "tests/reference/")),
    "autograd": Folder(25, ("tests/grad/", "tests/unit/tensor/", "tests/unit/nn/", "tests/dist/train/")),
    "nn": Folder(25, ("tests/unit/nn/", "tests/grad/", "tests/reference/", "tests/dist/train/", "tests/dist/experts/")),
    "ddp": Folder(35, ("tests/dist/train/", "tests/dist/reduce/", "tests/dist/averaging/", "tests/dist/zero/")),
    "server": Folder(25, ("tests/dist/server/",)),
    "cost": Folder(20, ("tests/unit/cost/",)),
    "plan": Folder(20, ("tests/unit/plan/", "tests/fuzz/", "tests/dist/train/test_pip")),
    "placement": Folder(20, ("tests/dist/placement/", "tests/dist/experts/")),
    "compress": Folder(15, ("tests/dist/compress/",)),
    "events": Folder(10, ("tests/unit/events/",)),
    "device": Folder(15, ("tests/device/", "tests/unit/tensor/")),
    "umbrella": Folder(10, ("tests/unit/api/", "tests/unit/nn/", "tests/device/")),
    "trace": Folder(15, ("tests/unit/base/trace", "tests/unit/comm/engine/", "tests/dist/train/test_steady",
                         "tests/dist/train/test_pains")),
    "launch": Folder(25, ("tests/unit/launch/", "tests/dist/launch/", "tests/dist/failures/")),
    "tokenizer": Folder(20, ("tests/unit/tokenizer/", "tests/fuzz/")),
    # What only the Python tests of the programs see lives here.
    "programs": Folder(20, ("tests/unit/nn/sampling", "tests/dist/train/test_gpt_text", "tests/dist/train/test_examples",
                            "tests/dist/launch/"), root=".", targets=("programs", "tests/unit/nn/sampling")),
}

# A plug-in: a change is linked into the library only.
LEFT_OUT = ("cuda",)

# Programs that tests start, which must be built too: test program's folder -> targets.
PLUGINS = ("tests/plugins/ls_backend_loop.so", "tests/plugins/ls_backend_empty.so")
STARTED = {
    "tests/dist/comm/comm_test_backend": PLUGINS,
    "tests/dist/net/": ("tests/dist/net/stranger",),
    "tests/dist/train/": ("tests/dist/train/victim", "programs", *PLUGINS),
    "tests/unit/checkpoint/": ("tests/unit/checkpoint/saver",),
    "tests/dist/launch/": ("programs",),
    "tests/unit/launch/": ("programs",),
    "tests/unit/nn/": ("tests/unit/nn/foreign",),
}

# Not in the mutation's build, or not run by this processor; their own tests skip as well.
NOT_HERE = ("onednn", "attention_tiles", "tiles_x86", "_absent", "variants_plain")
