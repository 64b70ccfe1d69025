# SPDX-License-Identifier: Apache-2.0
"""lockstep train --device: on the loop device (loop.h) it writes the losses of the processor, to the bit, on one rank and on
two; and on the CUDA device over the fake driver of tests/fake_cuda, to the digits of other sums."""

import os
import pathlib
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, Skip, command, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-device-")
FOLDER = pathlib.Path(SCRATCH.name)


def losses(device, ranks=1, *more, **environment):
    text, log = FOLDER / "text", FOLDER / "losses"
    text.write_text("a rank sends a bucket and waits for it. " * 30)
    log.unlink(missing_ok=True)
    shown = command(BUILD / "lockstep", "train", "gpt", "-n", ranks, "--data", text, "--layers", 1, "--dim", 16, "--heads", 2,
                    "--context", 16, "--batch", 2, "--steps", 3, "--dropout", 0.1, "--eval-windows", 4, "--device", device,
                    "--log-losses", log, *more, env=dict(os.environ, **environment))
    return log.read_text(), shown


@test
def the_loop_device_has_the_losses_of_the_processor():
    path = str(BUILD / "tests/device")
    for ranks in (1, 2):
        cpu, shown = losses("cpu", ranks)
        loop, also = losses("loop", ranks, LOCKSTEP_BACKEND_PATH=path)
        assert cpu == loop and len(cpu.split()) >= 3, (cpu, loop)
        assert evaluated(shown) == evaluated(also) != [], (shown, also)


def evaluated(shown):
    return [line.split("held-out")[1] for line in shown.splitlines() if "held-out" in line and "windows" not in line]


@test
def checkpoints_of_a_device_go_on_on_the_processor():
    path, saved = str(BUILD / "tests/device"), FOLDER / "saved"
    whole, _ = losses("cpu", 1, "--lr-schedule-steps", 6, "--steps", 6)
    first, _ = losses("loop", 1, "--lr-schedule-steps", 6, "--save", saved, LOCKSTEP_BACKEND_PATH=path)
    rest, _ = losses("cpu", 1, "--lr-schedule-steps", 6, "--steps", 6, "--resume", saved)
    assert whole.splitlines() == (first + rest).splitlines() or whole.splitlines()[3:] == rest.splitlines()[-3:], (whole, first, rest)


@test
def cuda_over_the_fake_driver_has_its_losses_but_for_the_order_of_sums():
    fake = BUILD / "tests/fake_cuda"
    if not (fake / "kernels.fatbin").exists():
        raise Skip("this build has no emulated kernels")
    cpu, _ = losses("cpu")
    cuda, _ = losses("cuda", LD_LIBRARY_PATH=str(fake))
    pairs = list(zip(numbers(cpu), numbers(cuda)))
    assert len(pairs) >= 3 and cpu != "", cpu
    assert all(abs(a - b) <= 2e-5 * abs(a) for a, b in pairs), pairs


def numbers(text):
    return [float(word) for word in text.split()]


run()
