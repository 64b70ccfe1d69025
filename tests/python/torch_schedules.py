# SPDX-License-Identifier: Apache-2.0
"""Prints tables of PyTorch's pipeline schedules as JSON: what ranks compute, and with sends and receives."""

import json

from torch.distributed.pipelining import schedules as theirs


class Stage:
    """What a schedule asks of its stages before it runs."""

    def __init__(self, ranks, stages):
        self.group_rank, self.group_size, self.num_stages, self.has_backward = 0, ranks, stages, True
        self.stage_index, self.device = 0, "cpu"
        self.stage_index_to_group_rank = {stage: stage % ranks for stage in range(stages)}

    def __getattr__(self, name):
        return None


def tables(kind, ranks, chunks, micro_batches):
    stages = ranks * chunks
    schedule = getattr(theirs, kind)([Stage(ranks, stages) for _ in range(chunks)], micro_batches)
    order = {rank: [action for action in actions if action is not None]
             for rank, actions in schedule.pipeline_order.items()}
    computed = [[str(action) for action in order[rank]] for rank in range(ranks)]
    lowered = theirs._add_send_recv(order, lambda stage: stage % ranks, stages)
    whole = [[str(action) for action in lowered[rank]] for rank in range(ranks)]
    return {"kind": kind, "ranks": ranks, "chunks": chunks, "micro_batches": micro_batches,
            "computed": computed, "whole": whole}


print(json.dumps([tables(kind, ranks, chunks, ranks * times)
                  for kind in ("ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble")
                  for ranks in range(2, 6) for chunks in (1, 2, 3) for times in (1, 2, 4)]))
