#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism beside PyTorch's parallelize_module (torch.distributed.tensor.parallel) over gloo: the same GPT, batch,
optimizer and initial parameters, two ranks with one thread each, on the same link. Both jobs are alive and take turns; the
one whose turn it is not is asleep. In a turn each takes steps in which the ranks share every matrix, the embedding's and the
head's included, and steps in which each rank trains the whole network by itself. A step's time is its slowest rank's.

    bench/compare_tensor.py --build build [--python PYTHON] [--row gpt/shm,gpt/tcp,gpt-tiny/shm,gpt-tiny/tcp,gpt/1gbit]

Added time is a step's time minus half of the same framework's step of the whole network in the same turn, and at least
0.5 % of that half: less is noise. The first ratio is PyTorch's added time by Lockstep's, the second one PyTorch's time of a
step by Lockstep's, both made within each turn; above 1 Lockstep is faster. Shared memory is Lockstep's only: gloo uses
loopback there. 1 Gbit/s is a link between two network namespaces, which needs root.
"""

from added import Comparison

COMPARISON = Comparison(
    form="tensor", script="tensor_torch.py", peer="PyTorch parallelize_module over gloo",
    alone="Alone: the whole network on one rank. Added: milliseconds over half of it.", size="batch {}",
    batch={"gpt": 8, "gpt-tiny": 2}, rows=["gpt/shm", "gpt/tcp", "gpt-tiny/shm", "gpt-tiny/tcp", "gpt/1gbit"], share=0.5)

if __name__ == "__main__":
    COMPARISON.run(__doc__)
