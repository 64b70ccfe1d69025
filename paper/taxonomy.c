/* SPDX-License-Identifier: Apache-2.0 */
/* Systems of the paper's section on related work and of the lectures, and their parts here. */
#include "paper.h"

static const paper_column columns[] = {
    {"system", "", NULL}, {"its idea", "", NULL}, {"in Lockstep", "", NULL}};

static const struct {
    const char *system, *idea, *here;
} rows[] = {
    {"PyTorch DDP", "synchronous data parallel: buckets, overlap",
     "ls_ddp_new (src/reduce, src/ddp)"},
    {"Horovod", "ring all-reduce, fused tensors", "all_reduce \"ring\", flat and bucketed modes"},
    {"PyTorch RPC", "remote calls, distributed autograd", "no: ranks run one program"},
    {"TF MultiWorkerMirrored", "synchronous data parallel", "ls_ddp_new"},
    {"TF ParameterServer", "asynchronous updates by servers", "ls_server_new"},
    {"GPipe", "micro-batches through a pipeline", "ls_pipeline_new (src/parallel/pipeline)"},
    {"PipeDream", "1F1B, weight stashing, a partitioner",
     "ls_pipeline_new, \"pipedream\"; lockstep plan pipeline (src/plan)"},
    {"Mesh TensorFlow, Megatron", "tensor parallel layers",
     "ls_redistribute, ls_tensor_parallel (src/placement)"},
    {"ZeRO", "sharded states, gradients, parameters", "ls_ddp_new with zero = 1 to 3 (src/ddp)"},
    {"Alpa", "inter- and intra-operator parallelism, searched", "lockstep plan auto (src/plan)"},
    {"ByteScheduler, TicTac, PACE", "communication in the order of need",
     "buckets in the order of readiness (D9)"},
    {"GradientFlow", "fused, lazy all-reduce; 16 bits", "automatic buckets; bfloat16 on the wire"},
    {"SlowMo, local SGD, DiLoCo", "steps without communication",
     "ls_ddp_set_local, ls_ddp_average (src/ddp)"},
    {"Spark", "tree reduce by shuffles", "all_reduce \"tree_stages\""},
};

bool paper_taxonomy(paper *p)
{
    json_t *table =
        paper_table(p, "Systems and modules", columns, (int)(sizeof columns / sizeof *columns));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        paper_row(table, "[s, s, s]", rows[i].system, rows[i].idea, rows[i].here);
    }
    return true;
}
