# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a torch.distributed job become a Lockstep world.

Under `lockstep run` the launcher's descriptors say it. Everywhere else (torchrun, RANK and
WORLD_SIZE by hand, a store made by the program) the ranks tell each other through PyTorch's store
on which host they are, and the library is given that in the variables it knows from torchrun, for
the length of its start. The job's name is new each time, so worlds may follow each other in one
process, and several may share hosts and ports.
"""

import contextlib
import json
import os
import secrets
import socket
from typing import List

from .. import _core
from .._core import make_error


def _read(path):
    with contextlib.suppress(OSError), open(path) as file:
        return file.read().strip()
    return ""


def _space(kind):
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/ns/{kind}")
    return ""


def _host():
    """Equal for processes that can meet by a name of the host and see each other's pids."""
    return "/".join([_read("/proc/sys/kernel/random/boot_id") or socket.gethostname(),
                     _space("net"), _space("pid"), str(os.getuid())])


def _free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def _rendezvous():
    """Rank 0's: where hosts meet, unless the user said it."""
    address = os.environ.get("MASTER_ADDR") or socket.gethostname()
    return os.environ.get("LOCKSTEP_RENDEZVOUS") or f"{address}:{_free_port()}"


def _tell_and_ask(store, rank, size):
    """(what rank 0 decided, the hosts of all ranks)"""
    if rank == 0:
        store.set("lockstep/job", json.dumps({"job": secrets.token_hex(12), "at": _rendezvous()}))
    store.set(f"lockstep/host/{rank}", _host())
    job = json.loads(store.get("lockstep/job"))
    return job, [store.get(f"lockstep/host/{r}").decode() for r in range(size)]


def _variables(job, hosts, rank, size):
    here = [r for r in range(size) if hosts[r] == hosts[rank]]
    order = list(dict.fromkeys(hosts))
    return {"LOCKSTEP_LAUNCHER": "torchrun", "LOCKSTEP_RENDEZVOUS": job["at"],
            "TORCHELASTIC_RUN_ID": job["job"], "TORCHELASTIC_RESTART_COUNT": "0",
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(here.index(rank)),
            "LOCAL_WORLD_SIZE": str(len(here)), "GROUP_RANK": str(order.index(hosts[rank]))}


@contextlib.contextmanager
def _environment(variables):
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_members: List[int] = []  # PyTorch's numbers of the ranks in Lockstep's world; empty: all, equally numbered


def numbers_of(ranks):
    """The numbers in Lockstep's world of ranks of PyTorch's."""
    absent = [r for r in ranks if _members and r not in _members]
    if absent:
        raise make_error(-1, f"new_group: ranks {', '.join(map(str, absent))} are not in Lockstep's "
                             f"world, which the first lockstep group made of ranks "
                             f"{', '.join(map(str, _members))}; make the first one of all ranks")
    return [_members.index(r) for r in ranks] if _members else ranks


def by_launcher(size):
    return (os.environ.get("LOCKSTEP_LAUNCHER", "lockstep") == "lockstep"
            and "LOCKSTEP_BOOTSTRAP" in os.environ and os.environ.get("WORLD_SIZE") == str(size))


def join(store, rank, size, timeout, ranks=()):
    """Makes the world, or checks the one that is there: PyTorch's rank must be Lockstep's. Says
    whether it was made here and is to be left again."""
    made = False
    if not _core.is_initialized():
        _members[:] = ranks
        if by_launcher(size):
            _core.init(timeout=timeout)  # its descriptors are good for one world, which is kept
        else:
            job, hosts = _tell_and_ask(store, rank, size)
            with _environment(_variables(job, hosts, rank, size)):
                _core.init(timeout=timeout)
            made = True
    if (_core.rank(), _core.world_size()) != (rank, size):
        raise make_error(-1, f"init_process_group: rank {rank} of {size} for PyTorch, but rank "
                             f"{_core.rank()} of {_core.world_size()} in Lockstep's world; leave "
                             "rank and world_size to the launcher's environment variables")
    return made
