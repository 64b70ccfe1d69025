#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A layer of experts on two ranks beside one of PyTorch, which exchanges tokens by torch.distributed.all_to_all_single over
gloo: the same tokens, optimizer and initial parameters, one thread a rank, on the same link. Each rank has half of the
experts, and a token visits two. Both jobs are alive and take turns; the one whose turn it is not is asleep. In a turn each
takes steps of the layer, and steps in which each rank by itself has half of the experts for its own tokens alone, which are
as many rows. A step's time is its slowest rank's.

    bench/compare_experts.py --build build [--python PYTHON] [--row experts/shm,experts/tcp,experts-tiny/shm,experts-tiny/tcp,experts/1gbit]

Added time is a step's time minus that of the same framework's step alone in the same turn, and at least 0.5 % of it: less is
noise. The ratio is PyTorch's added time by Lockstep's, made within each turn; above 1 Lockstep adds less. Shared memory is
Lockstep's only: gloo uses loopback there. 1 Gbit/s is a link between two network namespaces, which needs root.
"""

from added import Comparison

COMPARISON = Comparison(
    form="experts", script="experts_torch.py", peer="PyTorch all_to_all_single over gloo",
    alone="Alone: half of the experts on each rank, for its own tokens. Added: milliseconds over that.", size="{} tokens",
    batch={"experts": 1024, "experts-tiny": 64},
    rows=["experts/shm", "experts/tcp", "experts-tiny/shm", "experts-tiny/tcp", "experts/1gbit"], warm_up=2, steps=5)

if __name__ == "__main__":
    COMPARISON.run(__doc__)
