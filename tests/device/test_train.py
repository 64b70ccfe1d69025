# SPDX-License-Identifier: Apache-2.0
"""lockstep train --device: on the loop device (loop.h) it writes the losses of the processor, to the bit, on one rank and on
two; and on the CUDA device over the fake driver of tests/fake_cuda, to the digits of other sums."""

import math
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from sentences import says
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


def hash_of(shown):
    return re.search(r"\(hash (\w+)\)", shown).group(1)


ROUNDS = ("--lr-schedule-steps", 6, "--steps", 6, "--local-steps", 2)


@test
def local_steps_on_the_loop_device_have_the_losses_and_the_weights_of_the_processor():
    path = str(BUILD / "tests/device")
    for ranks, more in ((2, ("--outer", "diloco")), (3, ("--local-after", 2)), (2, ("--clients", 5, "--per-round", 3))):
        cpu, shown = losses("cpu", ranks, *ROUNDS, *more)
        loop, also = losses("loop", ranks, *ROUNDS, *more, LOCKSTEP_BACKEND_PATH=path)
        assert cpu == loop and len(cpu.split()) >= 2, (cpu, loop)
        assert hash_of(shown) == hash_of(also), (shown, also)


def check_resumed_in_a_round(device, **environment):
    """A run that goes on from step 3 of 6, in the middle of a round, ends as the one that was not interrupted."""
    saved = FOLDER / f"{device}-rounds"
    flags = ("--outer", "diloco", "--save", saved, "--every", 3)
    whole, shown = losses(device, 2, *ROUNDS, *flags, **environment)
    shutil.rmtree(saved / "step-00000006")
    rest, also = losses(device, 2, *ROUNDS, *flags, "--resume", saved, **environment)
    assert "going on at step 3\n" in also and hash_of(shown) == hash_of(also), (shown, also)
    assert whole.splitlines()[-3:] == rest.splitlines()[-3:], (whole, rest)
    return shown


@test
def rounds_on_a_device_go_on_from_a_checkpoint():
    cpu = check_resumed_in_a_round("cpu")
    loop = check_resumed_in_a_round("loop", LOCKSTEP_BACKEND_PATH=str(BUILD / "tests/device"))
    assert hash_of(cpu) == hash_of(loop), (cpu, loop)


@test
def exported_weights_of_a_device_are_those_of_the_processor_also_of_parts_of_layers():
    path, file = str(BUILD / "tests/device"), FOLDER / "exported.safetensors"
    for ranks in (1, 2):
        exported = []
        for device in ("cpu", "loop"):
            losses(device, ranks, "--mesh", f"tp={ranks}", "--export", file, LOCKSTEP_BACKEND_PATH=path)
            exported.append(file.read_bytes())
        assert exported[0] == exported[1] and len(exported[0]) > 4096, [len(e) for e in exported]


# The fake driver, cuBLASLt and NCCL are found by their names, as the real ones.
FAKES = {"LD_LIBRARY_PATH": str(BUILD / "tests/fake_cuda")}
BY_NCCL = "gradients are averaged by nccl"


def needs_kernels():
    if not (BUILD / "tests/fake_cuda/kernels.fatbin").exists():
        raise Skip("this build has no emulated kernels")


def cuda_losses(ranks, *more, **environment):
    needs_kernels()
    return losses("cuda", ranks, *more, **FAKES, **environment)


def check_close(cpu, cuda, least=3):
    pairs = list(zip(numbers(cpu), numbers(cuda), strict=True))
    assert len(pairs) >= least, (cpu, cuda)
    assert all(abs(a - b) <= 2e-5 * abs(a) for a, b in pairs), pairs


@test
def cuda_over_the_fake_driver_has_its_losses_but_for_the_order_of_sums():
    for ranks in (1, 4):
        cuda, shown = cuda_losses(ranks)
        check_close(losses("cpu", ranks)[0], cuda)
        assert BY_NCCL in shown, shown


def image_losses(device, *more, **environment):
    """Of a few random images, which are judged, too."""
    log, images = FOLDER / "image-losses", FOLDER / "images"
    images.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    for name, shape in (("images-idx3", (8, 6, 6)), ("labels-idx1", (8,))):
        data = bytes(i * 37 % (251 if len(shape) > 1 else 10) for i in range(math.prod(shape)))
        (images / f"train-{name}-ubyte").write_bytes(struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + data)
    shown = command(BUILD / "lockstep", "train", "image", "--model", "cnn", "--data", images, "--batch", 4, "--steps", 3, "--device", device,
                    "--log-losses", log, *more, env=dict(os.environ, **environment))
    return log.read_text(), shown


@test
def images_on_cuda_have_them_with_cudnn_and_without_which_is_said():
    needs_kernels()
    cpu, _ = image_losses("cpu")
    cuda, shown = image_losses("cuda", **FAKES)
    check_close(cpu, cuda)
    assert "warning" not in shown, shown
    cuda, shown = image_losses("cuda", **FAKES, LOCKSTEP_CUDNN="/nowhere/libcudnn.so.9")
    check_close(cpu, cuda)
    says(shown, "device \"%s\": %s")
    says(shown, "convolutions are computed without cuDNN, more slowly: %s; install cuDNN 9 (the wheel nvidia-cudnn-cu13), give the path "
                "of libcudnn.so.9 in LOCKSTEP_CUDNN, or 0 there to do without")
    assert shown.count("without cuDNN") == 1, shown


@test
def replicas_on_cuda_go_on_from_a_checkpoint_with_the_optimizer_divided_or_whole():
    saved, six = FOLDER / "cuda", ("--lr-schedule-steps", 6)
    cpu, _ = losses("cpu", 2, *six, "--steps", 6, "--accum", 2)
    first, _ = cuda_losses(2, *six, "--save", saved, "--accum", 2)
    for zero in (0, 1, 3):
        rest, shown = cuda_losses(2, *six, "--steps", 6, "--accum", 2, "--resume", saved, "--zero", zero)
        check_close(cpu, first + rest, 6)
        assert BY_NCCL in shown, shown


@test
def local_steps_on_cuda_have_the_losses_of_the_processor_and_go_on_from_a_checkpoint():
    needs_kernels()
    cpu, _ = losses("cpu", 3, *ROUNDS, "--outer", "slowmo")
    cuda, shown = cuda_losses(3, *ROUNDS, "--outer", "slowmo")
    check_close(cpu, cuda)
    assert BY_NCCL in shown, shown
    check_resumed_in_a_round("cuda", **FAKES)


@test
def parts_of_layers_sequences_and_experts_and_stages_on_cuda_have_the_losses_of_the_processor():
    for ranks, mesh, more in ((2, "tp=2", ()), (4, "dp=2,pp=2", ()), (2, "cp=2", ()),
                              (2, "ep=2", ("--model", "moe", "--experts", 4))):
        cuda, shown = cuda_losses(ranks, "--mesh", mesh, *more)
        check_close(losses("cpu", ranks, "--mesh", mesh, *more)[0], cuda)
        assert BY_NCCL in shown, shown


@test
def a_world_of_nccl_is_refused_by_trainers():
    needs_kernels()
    said, _ = job(LOCKSTEP_BACKEND="nccl").communicate(timeout=60)
    says(said, "LOCKSTEP_BACKEND=nccl: ranks of a trainer also exchange memory of the host, and nccl moves that of GPUs only; "
               "unset it, and give --device cuda --backend nccl")


@test
def without_nccl_gradients_pass_through_the_host_unless_it_is_asked_for():
    nowhere = {"LOCKSTEP_NCCL": "/nowhere/libnccl.so.2"}
    by_nccl, _ = cuda_losses(2)
    through_host, shown = cuda_losses(2, **nowhere)
    says(shown, "group \"%s\": data of the device passes through memory of the host: %s")
    assert "install NCCL 2.19 or later" in shown and BY_NCCL not in shown, shown
    assert through_host == by_nccl, "sums of two have one order"
    assert cuda_losses(2, "--backend", "native", **nowhere)[1].count("warning") == 0
    assert cuda_losses(2, "--comm", "bf16")[1].count(BY_NCCL) == 0
    ended = job("--backend", "nccl", **nowhere)
    said, _ = ended.communicate(timeout=60)
    assert ended.returncode != 0 and "install NCCL 2.19 or later" in said, said


@test
def what_is_missing_of_cuda_is_named():
    """A driver and a cuBLASLt that are absent, or only a part: another library by that name."""
    needs_kernels()
    folder, fakes = FOLDER / "half", BUILD / "tests/fake_cuda"
    folder.mkdir()

    def said_with(**libraries):
        for old in folder.iterdir():
            old.unlink()
        for name, file in libraries.items():
            (folder / {"driver": "libcuda.so.1", "blas": "libcublasLt.so.13", "kernels": "kernels.fatbin"}[name]).symlink_to(fakes / file)
        said, _ = job(LD_LIBRARY_PATH=str(folder)).communicate(timeout=60)
        return said

    said = said_with()
    says(said, "NVIDIA's driver: %.350s; install a driver for CUDA 12.0 or newer")
    says(said, "%s is not there (%.200s)")
    says(said_with(driver=BUILD / "tests/plugins/ls_backend_empty.so"), "%s has no %s; install a newer one")
    driver = {"driver": "libcuda.so.1", "kernels": "kernels.fatbin"}
    for said in (said_with(**driver), said_with(**driver, blas="libcuda.so.1")):
        says(said, "cuBLASLt, which computes products: %s; install it (it comes with CUDA and with PyTorch), or name its folder in "
                   "LD_LIBRARY_PATH")


@test
def captured_steps_have_the_losses_and_the_checkpoints_of_others():
    saved, six = FOLDER / "captured", ("--lr-schedule-steps", 8)
    plain, shown = cuda_losses(1, *six, "--steps", 8, "--save", FOLDER / "plain")
    captured, also = cuda_losses(1, *six, "--steps", 8, "--save", saved, "--eval-every", 3, "--graph")
    assert plain == captured and len(plain.split()) >= 8, (plain, captured)
    assert evaluated(shown) == [evaluated(also)[0], evaluated(also)[-1]], (shown, also)
    says(also, "%lld of the steps were replays of a captured one")
    assert "6 of the steps" in also, also
    says(losses("cpu", 1, "--graph")[1], "no step was captured: %s")


@test
def captured_steps_of_replicas_have_the_losses_of_others():
    for ranks in (2, 3):
        plain, shown = cuda_losses(ranks, "--steps", 8)
        captured, also = cuda_losses(ranks, "--steps", 8, "--graph")
        assert plain == captured and len(plain.split()) >= 8, (plain, captured)
        assert "6 of the steps were replays" in also and BY_NCCL in also, also
        assert evaluated(shown) == evaluated(also), (shown, also)
    says(losses("cpu", 2, "--graph")[1], "no step was captured: %s")


@test
def captured_steps_that_accumulate_have_the_losses_of_others():
    for ranks in (1, 2):
        plain, shown = cuda_losses(ranks, "--steps", 8, "--accum", 3)
        captured, also = cuda_losses(ranks, "--steps", 8, "--accum", 3, "--graph")
        assert plain == captured and len(plain.split()) >= 8, (plain, captured)
        assert "6 of the steps were replays" in also and (ranks == 1 or BY_NCCL in also), also
        assert hash_of(shown) == hash_of(also), (shown, also)


@test
def captured_steps_with_batch_norm_have_the_losses_of_others():
    needs_kernels()
    plain, shown = image_losses("cuda", "--steps", 6, "--accum", 2, **FAKES)
    captured, also = image_losses("cuda", "--steps", 6, "--accum", 2, "--graph", **FAKES)
    assert plain == captured and len(plain.split()) >= 6, (plain, captured)
    assert "4 of the steps were replays" in also, also
    assert hash_of(shown) == hash_of(also), (shown, also)  # of running statistics, too


@test
def what_a_captured_step_cannot_do_is_refused():
    needs_kernels()
    said, _ = job("--graph", "--zero", 1).communicate(timeout=60)
    says(said, "--graph with %s: a captured step is that of whole replicas, which average their gradients as they are; "
               "leave one of them out")
    said, _ = job("--graph", "--accum", 129).communicate(timeout=60)
    says(said, "--graph with --accum %lld: a captured step has at most %d micro-batches; give fewer, of a larger --batch")


# ---- failures --------------------------------------------------------------------------------------------------------------


def job(*more, **environment):
    """A run of two ranks that does not end by itself."""
    text = FOLDER / "text"
    text.write_text("a rank sends a bucket and waits for it. " * 30)
    words = [BUILD / "lockstep", "train", "gpt", "-n", 2, "--data", text, "--layers", 1, "--dim", 16, "--heads", 2, "--context", 16,
             "--batch", 2, "--steps", 1000000, "--eval-windows", 1, "--device", "cuda", *more]
    return subprocess.Popen([str(w) for w in words], text=True, env={**os.environ, **FAKES, **environment}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


def process_of(rank, pid):
    for _ in range(300):
        shown = subprocess.run([BUILD / "lockstep", "top", "--once", str(pid)], text=True, capture_output=True, timeout=60).stdout
        row = re.search(rf"^ +{rank} +(\d+) +\S+ +([1-9]\d*) ", shown, re.M)
        if row:
            return int(row.group(1))
        time.sleep(0.1)
    raise AssertionError(shown)


@test
def a_rank_on_cuda_that_is_killed_is_named():
    needs_kernels()
    for more in ((), ("--local-steps", 2)):
        running = job(*more)
        os.kill(process_of(1, running.pid), signal.SIGKILL)
        begun = time.monotonic()
        said, _ = running.communicate(timeout=60)
        assert running.returncode != 0 and re.search(r"rank 1\b.*(SIGKILL|signal 9|killed)", said), said
        assert time.monotonic() - begun < 15, said


@test
def a_kernel_of_nccl_that_hangs_ends_the_run_at_the_deadline():
    needs_kernels()
    for mesh, said in (("dp=2", r"all_reduce #\d+ \(bucket .*\) on group \"ddp\".*its kernel runs, and waits for another rank's"),
                       ("pp=2", r"(?:send|recv) #\d+ \(\w+\) on group \"(?:link|pipeline)\" did not finish within 2\.\d s")):
        begun = time.monotonic()
        text, _ = job("--mesh", mesh, LOCKSTEP_TIMEOUT="2", FAKE_NCCL_FAULT="hang:1:3").communicate(timeout=60)
        assert re.search(said, text), text
        assert "aborted together" not in text, text  # other groups of the process, which end with this one's cause
        assert "the same tag" not in text, text  # ranks of a device run ahead of their messages
        assert time.monotonic() - begun < 2 + 15, text


def numbers(text):
    return [float(word) for word in text.split()]


run()
