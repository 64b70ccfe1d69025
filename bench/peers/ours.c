/* SPDX-License-Identifier: Apache-2.0 */
/* Lockstep as a contender, in memory that peers read in place or in the rank's own. */
#include <lockstep/comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contender.h"

static void must(ls_status status)
{
    if (status < 0) {
        fprintf(stderr, "contender: %s\n", ls_error_message());
        exit(1);
    }
}

static void *allocate(size_t bytes, bool registered)
{
    void *memory = NULL;
    if (!registered) {
        return aligned_alloc(64, (bytes + 63) / 64 * 64);
    }
    must(ls_group_alloc(ls_world(), bytes, &memory));
    return memory;
}

static void release(void *memory, bool registered)
{
    if (registered) {
        must(ls_group_dealloc(ls_world(), memory));
    } else {
        free(memory);
    }
}

static void barrier(void)
{
    must(ls_barrier(ls_world(), NULL, NULL));
}

static void maximum(double *x, int count)
{
    must(ls_all_reduce(ls_world(), x, x, count, LS_FLOAT64, LS_MAX, NULL, NULL));
}

static void operate(contender_op op, const float *in, float *out, int64_t count)
{
    ls_group *world = ls_world();
    switch (op) {
    case CONTENDER_ALL_REDUCE:
        must(ls_all_reduce(world, out, out, count, LS_FLOAT32, LS_SUM, NULL, NULL));
        break;
    case CONTENDER_ALL_GATHER:
        must(ls_all_gather(world, in, out, count, LS_FLOAT32, NULL, NULL));
        break;
    case CONTENDER_BROADCAST:
        must(ls_broadcast(world, out, count, LS_FLOAT32, 0, NULL, NULL));
        break;
    case CONTENDER_REDUCE_SCATTER:
        must(ls_reduce_scatter(world, in, out, count, LS_FLOAT32, LS_SUM, NULL, NULL));
        break;
    case CONTENDER_ALL_TO_ALL:
        must(ls_all_to_all(world, in, out, count, LS_FLOAT32, NULL, NULL));
        break;
    }
}

/* argv[1]: the folder of the pipes, or --once. */
int main(int argc, char **argv)
{
    must(ls_init(NULL));
    const contender self = {.rank = ls_rank(),
                            .ranks = ls_world_size(),
                            .allocate = allocate,
                            .release = release,
                            .barrier = barrier,
                            .maximum = maximum,
                            .operate = operate};
    int status = 2;
    if (argc == 2 && strcmp(argv[1], "--once") == 0) {
        status = contender_once(&self);
    } else if (argc == 2) {
        status = contender_serve(&self, argv[1]);
    }
    must(ls_finalize());
    return status;
}
