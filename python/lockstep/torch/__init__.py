# SPDX-License-Identifier: Apache-2.0
"""A backend of torch.distributed: dist.init_process_group("lockstep") runs PyTorch programs as they
are.

From PyTorch 2.5 on `import torch` finds this by itself when the package is installed. With older
ones, or without installing, `import lockstep.torch` makes the name known, as does

    python -m lockstep.torch train.py ...
"""

import functools
import os
from typing import Any

__all__ = ["register"]

_registered = False


def _make(options, _):
    """torch.distributed calls it for each group, on its members."""
    from .. import _core
    from . import _meet
    from ._group import ProcessGroup
    from ._work import seconds_of

    timeout = seconds_of(options.timeout)
    ranks = list(options.global_ranks_in_group)
    if not ranks or not _core.is_initialized():  # the default group, or the first of this backend
        leave = _meet.join(options.store, options.group_rank, options.group_size, timeout, ranks)
        group = _core.world().new(name=str(options.group_id)[:30] if ranks else "default_pg")
        return ProcessGroup(group, options.store, timeout, leave)
    group = _core.world().new_among(_meet.numbers_of(ranks), str(options.group_id)[:30])
    return ProcessGroup(group, options.store, timeout, leave=False)


def _for_groups_of_ours(dist, name, ours):
    """torch.distributed's function of this name, with another one for groups of this backend."""
    theirs = getattr(dist, name)

    @functools.wraps(theirs)
    def function(group=None, *arguments, **named):
        from ._group import ProcessGroup
        given = group if group is not None else dist.distributed_c10d.GroupMember.WORLD
        if isinstance(given, ProcessGroup):
            return ours(theirs, group, given, *arguments, **named)
        return theirs(group, *arguments, **named)
    setattr(dist, name, function)
    setattr(dist.distributed_c10d, name, function)


def _monitored_barrier(_, group, given, timeout=None, wait_all_ranks=False):
    return given.monitored_barrier(timeout, wait_all_ranks)


def _destroy(theirs, group, given):
    """Before PyTorch 2 a group is not told that it is destroyed."""
    from ._group import _living
    groups = [given] if group is not None else sorted(
        _living.values(), key=lambda g: g is given)  # the default group leaves the world: last
    theirs(group)
    for each in groups:
        each.shutdown()


def _let_join_wait():
    """A DDP that joins uneven inputs hands a work to code in C++, which keeps no Python object: it gets
    a work in C++ of the same future."""
    import torch
    from torch.distributed.algorithms.join import Join
    from ._work import Work
    theirs, wrap = Join.notify_join_context, torch._C._distributed_c10d._create_work_from_future

    @functools.wraps(theirs)
    def notify_join_context(joinable):
        work = theirs(joinable)
        return wrap(work.get_future()) if isinstance(work, Work) else work
    Join.notify_join_context = staticmethod(notify_join_context)


def register() -> None:
    """Makes "lockstep" known to torch.distributed; more than once does nothing."""
    global _registered
    try:
        import torch.distributed as dist
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("lockstep.torch needs PyTorch: pip install torch", name="torch") from missing
    if _registered or not dist.is_available():
        return
    _registered = True
    import inspect
    known = inspect.signature(dist.Backend.register_backend).parameters
    more: Any = {"devices": ["cpu"]} if "devices" in known else {}
    dist.Backend.register_backend("lockstep", _make, extended_api=True, **more)
    # PyTorch keeps this one to its own backend, by name.
    _for_groups_of_ours(dist, "monitored_barrier", _monitored_barrier)
    if not hasattr(dist.ProcessGroup, "shutdown"):
        _for_groups_of_ours(dist, "destroy_process_group", _destroy)
    _let_join_wait()
    from . import _alias
    if os.environ.get(_alias.VARIABLE):  # of the process that started this one
        _alias.stand_in_for(os.environ[_alias.VARIABLE])


register()
