"""Collectives of the Lockstep library.

    import lockstep
    lockstep.init()                       # under `lockstep run -n 4 python train.py`, torchrun, ...
    import lockstep.numpy
    lockstep.numpy.all_reduce(array)      # the sum over all ranks, in place
    lockstep.finalize()

`lockstep.numpy` works on arrays, `lockstep.torch` is a backend of torch.distributed. Errors are
exceptions of class `lockstep.Error` that carry the library's own text.
"""

from ._core import (AbortedError, Error, Group, InvalidError, MismatchError, PeerError, TimeoutError,
                    Work, finalize, init, is_initialized, local_rank, local_world_size, rank,
                    stop_requested, version, world, world_size)
from ._version import __version__

__all__ = ["AbortedError", "Error", "Group", "InvalidError", "MismatchError", "PeerError",
           "TimeoutError", "Work", "__version__", "finalize", "init", "is_initialized",
           "local_rank", "local_world_size", "rank", "stop_requested", "version", "world",
           "world_size"]
