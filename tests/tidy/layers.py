# SPDX-License-Identifier: Apache-2.0
"""The architecture as a table: which layer may include which. Equal to the one in ARCHITECTURE.md.

An arrow also gives what the layers below it may use, so only the nearest ones are listed. What is
not reachable is forbidden, siblings (nn and data; tensor and comm) among it.
"""

# Folder below src/ -> folders (or single files) it is built on.
ARROWS = {
    "base": [],
    "kernel/reduce": ["base"],
    "trace": ["base"],  # the file of LOCKSTEP_TRACE
    "events": ["base"],  # event logs
    "job": ["trace"],  # membership: store, links, nodes, bootstrap, board
    "comm": ["job", "kernel/reduce", "cost"],
    "dist": ["comm"],  # meshes: ranks in a grid with named axes; what ranks must have alike
    "reduce": ["dist"],
    "compress": ["reduce"],  # hooks that send less than the gradients
    "kernel": ["base"],  # ref, cpu, cuda
    "device": ["base", "kernel"],  # memory for elements, and the kernels that compute there
    "tensor": ["device"],
    "autograd": ["tensor"],
    "placement": ["autograd", "dist"],  # conversions: collectives as differentiable functions
    "nn": ["placement"],  # a norm over the ranks of a group; tensor parallelism
    "optim": ["nn"],  # an optimizer is made for a module
    "data": ["autograd", "comm"],  # rank 0 may feed the others
    "tokenizer": ["base"],
    "ddp": ["nn", "optim", "reduce"],
    "server": ["ddp"],  # parameter servers: a wrapper of ddp whose gradients are sent to servers
    "checkpoint": ["comm"],  # it sees state visitors and groups only
    "schedule": ["base"],  # pipeline schedules as tables: no tensors, no network
    "cost": ["schedule"],  # what a job takes by a model, simulated
    "parallel": ["schedule", "ddp"],  # pipelines: an executor of schedules
    "plan": ["parallel", "cost"],  # profiles and plans of pipelines; which matrices ranks share
    "cuda": ["device"],  # the device cuda: a plug-in, outside the library
    "launch": ["job"],  # the agent behind `lockstep run`
    # functions that need several of the layers above: a module's weights as a file, defaults by name
    "umbrella": ["events", "nn", "optim", "data", "tokenizer", "placement", "parallel", "plan", "checkpoint", "compress", "server"],
}

# First part of a library's header -> the files (or folders) that may include it: its wrappers.
LIBRARIES = {
    "pcre2.h": ["tokenizer/split_pcre2.c"],
    "utf8proc.h": ["tokenizer/normal_utf8proc.c"],
    "zlib.h": ["data/unpack_zlib.c"],
    "openssl": ["base/digest.c", "job/link"],  # hashes; TLS
}

# Public header -> the folder it belongs to.
HEADERS = {
    "types.h": "base", "status.h": "base", "runtime.h": "base", "random.h": "base",
    "version.h": "base", "state.h": "base", "event_log.h": "events", "comm.h": "comm", "mesh.h": "dist", "backend.h": "comm", "mpi.h": "comm", "store.h": "job",
    "ops.h": "tensor", "placement.h": "tensor", "sharded.h": "placement", "vision.h": "tensor", "checkpoint.h": "checkpoint", "comm_hook.h": "reduce", "compression.h": "compress", "reducer.h": "reduce", "tensor.h": "tensor", "captured.h": "tensor", "memory.h": "tensor", "autograd.h": "autograd", "function.h": "autograd", "nn.h": "nn", "moe.h": "nn", "parts.h": "nn", "pipeline.h": "parallel", "context.h": "placement", "tensor_parallel.h": "nn", "plan.h": "plan",
    "optim.h": "optim", "data.h": "data", "ddp.h": "ddp", "server.h": "server", "tokenizer.h": "tokenizer",
    "lockstep.h": "umbrella",
}


def within(path, row):
    return path == row or path.startswith(row + "/")


def folder_of(path):
    """The row of ARROWS a path below src/ belongs to: the longest that fits."""
    rows = [row for row in ARROWS if within(path, row)]
    return max(rows, key=len) if rows else None


def _reachable(row):
    seen, todo = {row}, [row]
    while todo:
        for below in ARROWS.get(todo.pop(), []):
            if below not in seen:
                seen.add(below)
                todo.append(below)
    return seen


REACHABLE = {row: _reachable(row) for row in ARROWS}


def allowed(row, path):
    """Whether files of `row` may include `path` (below src/). A row within another, as
    kernel/reduce within kernel, is not given away by the outer one."""
    return any(within(path, below) and folder_of(below) == folder_of(path)
               for below in REACHABLE[folder_of(row)])
