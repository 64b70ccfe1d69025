# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of its backends, from its wheel, over gloo or over Lockstep in gloo's place.

    torch_own.py gloo|lockstep NOTES [TEST ...]

Each test runs as 3 ranks, forked from this process. NOTES becomes {test: [outcome, text]}; an outcome
is "ok", "skipped" or "failed".
"""

import json
import os
import pathlib
import sys
import tempfile
import unittest

RANKS = "3"
SECONDS = "60"  # a test's own deadline

BACKEND, NOTES, NAMES = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
os.environ.update(BACKEND="gloo", WORLD_SIZE=RANKS, DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=SECONDS,
                  TEMP_DIR=os.environ.get("TEMP_DIR") or tempfile.mkdtemp(prefix="torch-own-"))
sys.argv[1:] = []

import torch.multiprocessing

if BACKEND == "lockstep":
    import lockstep.torch._alias
    from torch.autograd.profiler_util import FunctionEvent
    lockstep.torch._alias.stand_in_for("gloo")
    # Only code in C++ can mark a span as one that another thread may end; the tests ask for the mark.
    FunctionEvent.is_async = property(lambda event: event.name.startswith("gloo:"), lambda *_: None)

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class OwnTest(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class Notes(unittest.TestResult):
    """Writes every outcome at once, so that those before a crash are kept."""

    def __init__(self):
        super().__init__()
        self.all = {}

    def note(self, test, outcome, text=""):
        self.all[test._testMethodName] = [outcome, text]
        NOTES.write_text(json.dumps(self.all, indent=1))
        print(outcome, test._testMethodName, flush=True)

    def addSuccess(self, test):
        self.note(test, "ok")

    def addSkip(self, test, reason):
        self.note(test, "skipped", reason)

    def addError(self, test, error):
        self.note(test, "failed", self._exc_info_to_string(error, test)[-4000:])

    addFailure = addError


names = NAMES or unittest.TestLoader().getTestCaseNames(OwnTest)
unittest.TestSuite(map(OwnTest, names)).run(Notes())
