# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend with every PyTorch that is found: collectives, training, ways to
start, and what happens when a rank dies."""

import pathlib
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
import cases
from jobs import (LONG, SOURCE, Job, by_environment, by_fork, by_lockstep, by_torchrun, environment, pythons_with,
                  skipped, tests_of)
from tap import BUILD, Skip, run, test

PYTHONS = pythons_with("torch", "numpy")
QUIET = {"PYTHONWARNINGS": "ignore"}
FAKES = BUILD / "tests/fake_cuda"
OVER_NCCL = {"LATE_CUDA": str(FAKES / "libcuda.so.1"), "LOCKSTEP_CUDA": str(FAKES / "libcuda.so.1"),
             "LOCKSTEP_NCCL": str(FAKES / "libnccl.so.2"), "FAKE_CUDA_ALL": "1", "FAKE_CUDA_DELAY_US": "2000"}


def major(version):
    return int(version.split(".")[0])


def has_devices_in_python(version):
    return tuple(int(part) for part in version.split(".")[:2]) >= (2, 9)


def scripted(text, ranks, python, start=by_lockstep, **variables):
    """(status, output) of a program of this text."""
    with tempfile.TemporaryDirectory(prefix="lockstep-torch-") as folder:
        path = pathlib.Path(folder) / "program.py"
        path.write_text(text)
        return start(ranks, [python, path], **QUIET, **variables)


def tests_with(python, version):
    """What one PyTorch has to show."""
    label = f"torch {version}"
    tests_of(Job("torch_ranks.py", python, 2, **QUIET), f" ({label}, 2 ranks)")
    start = by_lockstep if LONG else by_fork  # each start imports PyTorch: seconds of processor time a rank
    tests_of(Job("torch_contract.py", python, 2, start, **QUIET), f" ({label}, 2 ranks)")
    tests_of(Job("torch_contract.py", python, 3, start, LOCKSTEP_HOSTS="64", **QUIET),
             f" ({label}, 3 ranks over tcp)")
    for script in ("torch_train.py", "torch_options.py", "torch_futures.py", "torch_programs.py"):
        tests_of(Job(script, python, 2, start, **QUIET), f" ({label}, 2 ranks)")
    if has_devices_in_python(version):
        tests_of(Job("torch_staged.py", python, 2, start, **QUIET), f" ({label}, 2 ranks)")
        if (FAKES / "libnccl.so.2").exists():
            tests_of(Job("torch_staged.py", python, 2, start, **OVER_NCCL, **QUIET), f" ({label}, 2 ranks over nccl)")
        if LONG:
            tests_of(Job("torch_contract.py", python, 2, start, TEST_DEVICE="late", **QUIET),
                     f" ({label}, 2 ranks, another device)")
    if LONG:
        tests_of(Job("torch_programs.py", python, 4, LOCKSTEP_HOSTS="2", **QUIET),
                 f" ({label}, 4 ranks of two hosts)")
        tests_of(Job("torch_options.py", python, 4, **QUIET), f" ({label}, 4 ranks)")
        tests_of(Job("torch_futures.py", python, 4, **QUIET), f" ({label}, 4 ranks)")
        tests_of(Job("torch_futures.py", python, 3, by_environment, LOCKSTEP_HOSTS="64", **QUIET),
                 f" ({label}, 3 ranks, env://, over tcp)")
        tests_of(Job("torch_contract.py", python, 1, **QUIET), f" ({label}, 1 rank)")
        tests_of(Job("torch_contract.py", python, 4, by_environment, **QUIET),
                 f" ({label}, 4 ranks, env://)")
        tests_of(Job("torch_contract.py", python, 4, LOCKSTEP_HOSTS="2", **QUIET),
                 f" ({label}, 4 ranks of two hosts)")
        tests_of(Job("torch_ranks.py", python, 3, by_environment, **QUIET),
                 f" ({label}, 3 ranks, env://)")
        tests_of(Job("torch_ranks.py", python, 1, **QUIET), f" ({label}, 1 rank)")
        tests_of(Job("torch_ranks.py", python, 4, **QUIET), f" ({label}, 4 ranks)")
        tests_of(Job("torch_ranks.py", python, 4, LOCKSTEP_HOSTS="2", **QUIET),
                 f" ({label}, 4 ranks of two hosts)")
        tests_of(Job("torch_train.py", python, 4, **QUIET), f" ({label}, 4 ranks)")
        tests_of(Job("torch_train.py", python, 3, by_environment, LOCKSTEP_HOSTS="64", **QUIET),
                 f" ({label}, 3 ranks, env://, over tcp)")
        if major(version) >= 2:  # Debian's 1.13 crashes in its torchrun
            for script in ("torch_ranks.py", "torch_contract.py", "torch_train.py",
                           "torch_options.py", "torch_futures.py"):
                tests_of(Job(script, python, 2, by_torchrun, **QUIET),
                         f" ({script}, {label}, 2 ranks, torchrun)")


STORE = """
import os, sys, datetime, torch, torch.distributed as dist, lockstep.torch
rank, size = int(os.environ.pop("RANK")), int(os.environ.pop("WORLD_SIZE"))
store = dist.TCPStore("127.0.0.1", int(os.environ.pop("MASTER_PORT")), size, rank == 0)
for attempt in range(3):  # worlds one after the other, with other ranks
    at = (rank + attempt) % size
    dist.init_process_group("lockstep", store=dist.PrefixStore(str(attempt), store), rank=at,
                            world_size=size)
    assert dist.get_rank() == at
    tensor = torch.tensor([float(at)])
    dist.all_reduce(tensor)
    assert tensor.item() == sum(range(size))
    dist.destroy_process_group()
store.set(f"bye {rank}", "1")
if rank == 0:
    store.wait([f"bye {r}" for r in range(size)])
"""

DEATH = """
import os, time, torch, torch.distributed as dist, lockstep.torch
dist.init_process_group("lockstep")
dist.all_reduce(torch.ones(3))
if dist.get_rank() == 1:
    os.kill(os.getpid(), 9)
begin = time.monotonic()
try:
    dist.all_reduce(torch.ones(3))
except RuntimeError as error:
    print(f"rank {dist.get_rank()} heard after {time.monotonic() - begin:.0f} s: {error}", flush=True)
    dist.destroy_process_group()
    print("left", flush=True)
else:
    print("nothing was raised")
"""

ORDER = """
import os, torch.distributed as dist, lockstep.torch
rank = 1 - int(os.environ["RANK"])
try:
    dist.init_process_group("lockstep", rank=rank, world_size=2)
except ValueError as error:
    print("refused:", error)
"""

BESIDE = """
import torch, torch.distributed as dist, lockstep.torch
dist.init_process_group("gloo")
rank = dist.get_rank()
one = dist.new_group([1, 2], backend="lockstep") if FIRST == "some" else dist.new_group(backend="lockstep")
if rank in (1, 2) or FIRST == "all":
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=one)
    assert tensor.item() == 3, tensor
    dist.broadcast(tensor, 2, group=one)
if FIRST == "some" and rank in (1, 2):
    try:
        dist.new_group([0, 1, 2], backend="lockstep", use_local_synchronization=True)
    except ValueError as error:
        print("refused:", error, flush=True)
dist.barrier()
dist.destroy_process_group()
print("done", flush=True)
"""

RAISES = """
import time, torch, torch.distributed as dist, lockstep.torch
dist.init_process_group("lockstep")
if dist.get_rank() == 1:
    import atexit
    atexit.register(time.sleep, 3)  # the process ends later
    time.sleep(0.5)  # the other rank has left init_process_group
    raise KeyError("no such key in the data")
begin = time.monotonic()
try:
    dist.all_reduce(torch.ones(3))
except RuntimeError as error:
    print(f"heard in time: {time.monotonic() - begin < 2.5}: {error}", flush=True)
"""

INTERRUPT = """
import os, signal, sys, time, torch, torch.distributed as dist, lockstep.torch
dist.init_process_group("lockstep")
dist.barrier()
if dist.get_rank() == 0:
    import threading
    if os.fork() == 0:
        time.sleep(1)
        os.kill(os.getppid(), signal.SIGINT)
        os._exit(0)
    try:
        dist.all_reduce(torch.ones(3))  # rank 1 does not come
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        os._exit(0)
else:
    time.sleep(20)
"""

LOSSES = """
import sys, torch, torch.distributed as dist, lockstep.torch
from torch.nn.parallel import DistributedDataParallel as DDP
backend = sys.argv[1] if len(sys.argv) > 1 else "BACKEND"
dist.init_process_group(backend)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
ddp, data = DDP(net, bucket_cap_mb=0.002), torch.Generator().manual_seed(dist.get_rank())
optimizer = torch.optim.Adam(ddp.parameters(), 0.01)
for step in range(10):
    x = torch.randn(16, 20, generator=data)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(ddp(x), x[:, :3].argmax(1))
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach_())
    if dist.get_rank() == 0:
        print("loss", loss.item(), flush=True)
dist.destroy_process_group()
"""


def losses(output):
    return [float(line.split()[-1]) for line in output.splitlines() if "loss " in line]


@test
def the_cases_that_the_table_of_the_documentation_names_are_there():
    import re
    text = (SOURCE / "docs/python.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 5]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[4])}
    here = pathlib.Path(__file__).resolve().parent
    known = {name for script in here.glob("torch_*.py") for name in cases.names(script)}
    known |= set(re.findall(r"^ *def (\w+)\(", pathlib.Path(__file__).read_text(), re.M))
    assert len(named) > 40 and named <= known, sorted(named - known)


if not PYTHONS:
    skipped("collectives_on_tensors", "no Python with torch was found; TEST_PYTHON names one, and "
                                      "`make compare-torch-backend` installs one below the build")
for python, version in PYTHONS if LONG else PYTHONS[:1]:
    tests_with(python, version)

if PYTHONS:
    PYTHON, VERSION = PYTHONS[0]

    @test
    def worlds_follow_each_other_over_a_store_of_the_programs():
        status, output = scripted(STORE, 2, PYTHON, by_fork)
        assert status == 0, output

    @test
    def a_dead_rank_is_an_error_on_the_others():
        _, output = scripted(DEATH, 2, PYTHON)
        heard = [line for line in output.splitlines() if "heard after" in line]
        assert any(": rank 1 (host" in line and "signal 9" in line for line in heard), output


    @test
    def a_group_of_this_backend_beside_a_default_group_of_gloo():
        if major(VERSION) < 2:
            raise Skip(f"PyTorch {VERSION} has no use_local_synchronization; 2.0 or later is needed")
        for first in ("all", "some"):
            status, output = scripted(f"FIRST = {first!r}\n" + BESIDE, 3, PYTHON, by_fork)
            assert status == 0 and output.count("done") == 3, output
            assert output.count("refused: new_group: ranks 0 are not in") == (first == "some") * 2

    @test
    def an_exception_that_nobody_catches_reaches_the_others_with_its_text():
        _, output = scripted(RAISES, 2, PYTHON)
        heard = [line for line in output.splitlines() if "heard in time: True" in line]
        assert heard and "no such key in the data" in heard[0], output

    @test
    def ctrl_c_ends_a_wait():
        _, output = scripted(INTERRUPT, 2, PYTHON)
        assert "interrupted" in output, output

    @test
    def lockstep_stands_in_for_gloo_in_a_program_that_names_it():
        text = LOSSES.replace("BACKEND", "gloo") + "print('asked for', name)\n"
        text = text.replace("dist.destroy_process_group()", "name = dist.get_backend(), "
                            "type(dist.distributed_c10d._get_default_group()).__module__\n"
                            "dist.destroy_process_group()")
        with tempfile.TemporaryDirectory(prefix="lockstep-torch-") as folder:
            path = pathlib.Path(folder) / "program.py"
            path.write_text(text)
            status, output = by_lockstep(2, [PYTHON, "-m", "lockstep.torch", "--as", "gloo", path],
                                         **QUIET)
        assert status == 0 and "asked for ('gloo', 'lockstep.torch._group')" in output, output

    @test
    def a_library_that_is_not_lockstep_is_refused_in_words():
        import subprocess
        done = subprocess.run([PYTHON, "-c", "import lockstep; lockstep.init()"], text=True,
                              capture_output=True, env=environment(LOCKSTEP_LIBRARY="/lib/x86_64-linux-gnu/libm.so.6"))
        assert "is not Lockstep's library" in done.stderr, done.stderr

    @test
    def the_example_runs_and_knows_nothing_of_lockstep():
        text = (SOURCE / "python/examples/ddp.py").read_text()
        assert "import lockstep" not in text
        status, output = by_lockstep(2, [PYTHON, "-m", "lockstep.torch",
                                         SOURCE / "python/examples/ddp.py", "--steps", "20"], **QUIET)
        assert status == 0 and "loss" in output, output

if PYTHONS and LONG:
    @test
    def a_dead_rank_is_an_error_on_the_others_without_a_launcher():
        _, output = scripted(DEATH, 3, PYTHON, by_environment)
        heard = [line for line in output.splitlines() if "heard after" in line]
        assert "nothing was raised" not in output and len(heard) == 2, output
        assert all(": rank 1 (host" in line for line in heard), output
        assert output.count("left") == 2, output

    @test
    def another_order_of_ranks_than_the_launchers_is_refused():
        _, output = scripted(ORDER, 2, PYTHON, TORCHELASTIC_USE_AGENT_STORE="0")
        assert output.count("refused: init_process_group: rank") >= 1, output

    @test
    def ddp_learns_with_the_losses_of_gloo():
        for ranks in (2, 4):
            ours, theirs = (losses(scripted(LOSSES.replace("BACKEND", backend), ranks, PYTHON)[1])
                            for backend in ("lockstep", "gloo"))
            assert len(ours) == len(theirs) == 10 and ours[-1] < ours[0], (ours, theirs)
            assert all(abs(a - b) < 1e-4 * abs(b) for a, b in zip(ours, theirs)), (ours, theirs)

run()
