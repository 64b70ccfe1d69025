# SPDX-License-Identifier: Apache-2.0
"""Lets groups of this backend stand in for those of another one, for programs that ask for gloo and
accept no other name on the CPU (Accelerate, transformers' Trainer).

Lockstep makes such a group, and the group keeps the name that the program asked for.
"""

import functools
import os

VARIABLE = "LOCKSTEP_TORCH_AS"  # tells the processes that the program starts


def _translated(asked, name):
    """The backend or the list of them, such as "cpu:gloo,cuda:nccl", with this name replaced."""
    parts = [part.rpartition(":") for part in str(asked).split(",")]
    return ",".join(device + colon + ("lockstep" if backend.lower() == name else backend)
                    for device, colon, backend in parts)


def groups_of(c10d):
    """Every group's (backend, store)."""
    return c10d._world.pg_map if hasattr(c10d, "_world") else c10d._pg_map


def stand_in_for(name):
    """From now on groups of the backend `name` are Lockstep's."""
    import torch.distributed as dist
    from ._group import ProcessGroup
    c10d, name = dist.distributed_c10d, name.lower()
    os.environ[VARIABLE] = name
    theirs = c10d._new_process_group_helper

    @functools.wraps(theirs)
    def helper(size, rank, ranks, backend, *arguments, **named):
        made = theirs(size, rank, ranks, _translated(backend, name), *arguments, **named)
        group = made[0] if isinstance(made, tuple) else made
        pairs = groups_of(c10d)
        if isinstance(group, ProcessGroup) and group in pairs:
            pairs[group] = (backend, pairs[group][1])
        return made
    c10d._new_process_group_helper = helper
    defaults = getattr(dist.Backend, "default_device_backend_map", {})
    for device, backend in defaults.items():  # of init_process_group() without a backend
        if backend == name and device == "cpu":
            defaults[device] = "lockstep"
