# SPDX-License-Identifier: Apache-2.0
"""Collectives of the Lockstep library.

    import lockstep
    lockstep.init()                       # under `lockstep run -n 4 python train.py`, torchrun, ...
    import lockstep.numpy
    lockstep.numpy.all_reduce(array)      # the sum over all ranks, in place
    lockstep.finalize()

`lockstep.numpy` works on arrays, `lockstep.objects` on bytes and whatever pickle knows,
`lockstep.torch` is a backend of torch.distributed. Errors are
exceptions of class `lockstep.Error` that carry the library's own text.
"""

from ._core import (ANY_SOURCE, AbortedError, Error, Group, InvalidError, MismatchError, PeerError,
                    RoundRobin, StillRunning, TimeoutError, Work, finalize, init, is_initialized,
                    local_rank, local_world_size, rank, stop_requested, version, world, world_size)
from ._version import __version__

__all__ = ["ANY_SOURCE", "AbortedError", "Error", "Group", "InvalidError", "MismatchError",
           "PeerError", "RoundRobin", "StillRunning", "TimeoutError", "Work", "__version__",
           "finalize", "init", "is_initialized", "local_rank", "local_world_size", "rank",
           "stop_requested", "version", "world", "world_size"]
