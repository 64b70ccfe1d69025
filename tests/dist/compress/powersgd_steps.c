/* SPDX-License-Identifier: Apache-2.0 */
/* 20 steps of PowerSGD in float64 on given gradients, for tests/python/test_powersgd.py, which
 * compares the averages with PyTorch's.
 *
 *     powersgd_steps RANK START FOLDER
 *
 * Of each step rank 0 writes the averages to FOLDER/averages, and every rank r its gradients to
 * FOLDER/gradients-r, float64, parameter after parameter; FOLDER/q has the first Q of each matrix,
 * [rank][columns]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/compression.h>
#include <lockstep/lockstep.h>

enum { PARAMS = 4, STEPS = 20 };
static const struct {
    const char *name, *shape;
    int64_t count;
} SHAPES[PARAMS] = {{"a", "[24,16]", 24 * 16},
                    {"bias", "[7]", 7},
                    {"b", "[10,30]", 10 * 30},
                    {"c", "[12,2,3,3]", 12 * 2 * 3 * 3}};

static FILE *open_file(const char *folder, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    return file;
}

static void put(FILE *file, const void *data, int64_t count)
{
    if (fwrite(data, sizeof(double), (size_t)count, file) != (size_t)count) {
        exit(1);
    }
}

static ls_status write_q(void *file, const char *name, const ls_state_tensor *t)
{
    if (strncmp(name, "q.", 2) == 0) {
        put(file, t->data, t->local[0] * t->local[1]);
    }
    return LS_OK;
}

/* Of low rank mostly, and another in each step, so that warm start and residuals matter. */
static double gradient(int step, int p, int64_t i)
{
    const uint64_t stream = (uint64_t)((step * 8 + ls_rank()) * PARAMS + p);
    const double slow = (double)ls_random_normal(3, (uint64_t)p, (uint64_t)i);
    return slow + 0.3 * (double)ls_random_normal(4, stream, (uint64_t)i);
}

int main(int argc, char **argv)
{
    char name[64];
    ls_comm_hook hook = {.size = sizeof hook};
    ls_reducer *reducer = NULL;
    ls_reducer_param params[PARAMS] = {{0}};
    if (argc != 4) {
        return 2;
    }
    LS_CHECK(ls_init(NULL));
    for (int p = 0; p < PARAMS; p++) {
        params[p] = (ls_reducer_param){.name = SHAPES[p].name,
                                       .shape = SHAPES[p].shape,
                                       .count = SHAPES[p].count,
                                       .dtype = LS_FLOAT64};
    }
    LS_CHECK(ls_reducer_new(ls_world(), params, PARAMS, NULL, &reducer));
    LS_CHECK(ls_powersgd_new(LS_OPTIONS(ls_powersgd_options, .rank = atoi(argv[1]),
                                        .start_step = atoi(argv[2]), .min_compression = 1.0),
                             &hook));
    LS_CHECK(ls_reducer_set_hook(reducer, &hook));
    FILE *q = open_file(argv[3], ls_rank() == 0 ? "q" : "q-of-another");
    const ls_state_visitor visitor = {.size = sizeof visitor, .self = q, .tensor = write_q};
    LS_CHECK(hook.visit(hook.state, "", &visitor));
    (void)fclose(q);
    (void)snprintf(name, sizeof name, "gradients-%d", ls_rank());
    FILE *given = open_file(argv[3], name);
    FILE *averages = open_file(argv[3], ls_rank() == 0 ? "averages" : "averages-of-another");
    for (int step = 0; step < STEPS; step++) {
        LS_CHECK(ls_reducer_zero(reducer));
        LS_CHECK(ls_reducer_begin(reducer, NULL));
        for (int p = PARAMS - 1; p >= 0; p--) {
            for (int64_t i = 0; i < SHAPES[p].count; i++) {
                ((double *)params[p].grad)[i] = gradient(step, p, i);
            }
        }
        for (int p = 0; p < PARAMS; p++) {
            put(given, params[p].grad, SHAPES[p].count);
        }
        for (int p = PARAMS - 1; p >= 0; p--) {
            LS_CHECK(ls_reducer_ready(reducer, p, NULL));
        }
        LS_CHECK(ls_reducer_wait(reducer));
        for (int p = 0; p < PARAMS; p++) {
            put(averages, params[p].grad, SHAPES[p].count);
        }
    }
    (void)fclose(given);
    (void)fclose(averages);
    LS_CHECK(ls_reducer_free(reducer));
    LS_CHECK(ls_finalize());
    return 0;
}
