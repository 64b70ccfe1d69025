/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of pipelines as they run, beside what the verifier says of their tables: what stages keep
 * for their backwards is counted byte for byte, and the tensors' allocator agrees. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/env_posix.h"
#include "schedule/schedule.h"

enum { STAGES_MAX = 16, MICRO_MAX = 16 };

/* By the verifier, of this rank; sizes[stages] NULL: everything has size 1. */
static ls__schedule_peak peak_of(const char *schedule, const ls__schedule_spec *given,
                                 const ls__stage_sizes *sizes)
{
    ls__schedule_peak peaks[LS__SCHEDULE_RANKS_MAX];
    ls__schedule *s = NULL;
    ls__schedule_spec spec = *given;
    spec.ranks = ls_world_size();
    CHECK_OK(ls__schedule_new(ls__env_posix(), schedule, &spec, &s));
    CHECK_OK(ls__schedule_peaks(s, sizes, peaks));
    ls__schedule_free(s);
    return peaks[ls_rank()];
}

static ls_tensor *sum_of(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg, (void)target;
    return ls_sum(output);
}

static ls_pipeline *make_pipe(ls_module *net, const char *schedule, const ls__schedule_spec *spec)
{
    ls_pipeline *pipe = NULL;
    CHECK_OK(ls_pipeline_new(
        net, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .schedule = schedule, .micro_batches = spec->micro_batches,
                   .chunks = spec->chunks, .recompute = spec->recompute, .loss = sum_of),
        &pipe));
    return pipe;
}

/* ---- counted ------------------------------------------------------------------------------ */

static int64_t kept, kept_peak; /* bytes of this rank's stages */

typedef struct block {
    int64_t bytes;
} block;

static void release(void *data)
{
    kept -= ((block *)data)->bytes;
    free(data);
}

static ls_status keep(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out, int m,
                      void *bytes)
{
    (void)n, (void)m;
    block *b = malloc(sizeof *b);
    b->bytes = *(const int64_t *)bytes;
    kept += b->bytes;
    kept_peak = kept > kept_peak ? kept : kept_peak;
    out[0] = ls_scale(in[0], 1.0);
    return ls_function_save_pointer(call, b, release);
}

static ls_status keep_back(ls_function_call *call, ls_tensor *const *dout, int m, ls_tensor **din,
                           int n)
{
    (void)call, (void)m, (void)n;
    din[0] = ls_scale(dout[0], 1.0);
    return LS_OK;
}

static const ls_function keep_function =
    LS_FUNCTION(.name = "keep", .forward = keep, .backward = keep_back);

/* Keeps `bytes` until its weight's gradient has been computed. */
typedef struct keeper {
    ls_module base;
    ls_tensor *weight;
    int64_t bytes;
} keeper;

static ls_tensor *keeper_forward(ls_module *m, ls_tensor *x)
{
    keeper *self = (keeper *)m;
    return ls_add(x, ls_function_apply(&keep_function, self->weight, &self->bytes));
}

static const ls_module_class keeper_class =
    LS_MODULE_CLASS(.name = "keeper", .forward = keeper_forward);

/* Of stage s, in no simple proportion to others. */
static int64_t bytes_of(int s)
{
    return 1000 + 37 * s * s;
}

static void count_bytes(const char *schedule, const ls__schedule_spec *spec)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    ls__stage_sizes sizes[STAGES_MAX];
    const int stages = ls_world_size() * (spec->chunks > 0 ? spec->chunks : 1);
    for (int s = 0; s < stages; s++) {
        const char name[] = {(char)('a' + s), '\0'};
        keeper *k = ls_module_new(sizeof *k, &keeper_class);
        k->weight = ls_module_add_param(&k->base, "weight", ls_zeros(LS_SHAPE(1), LS_FLOAT32));
        k->bytes = bytes_of(s);
        sizes[s] = (ls__stage_sizes){.activations = k->bytes};
        (void)ls_module_add(net, name, &k->base);
    }
    ls_pipeline *pipe = make_pipe(net, schedule, spec);
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.0));
    CHECK_OK(strncmp(schedule, "pipedream", 9) == 0 ? ls_pipeline_set_optim(pipe, optim) : LS_OK);
    for (int step = 0; step < 2; step++) {
        LS_SCOPE;
        ls_micro_batch micro[MICRO_MAX];
        for (int m = 0; m < spec->micro_batches; m++) {
            micro[m] = (ls_micro_batch){.size = sizeof *micro,
                                        .inputs = {ls_ones(LS_SHAPE(1), LS_FLOAT32)}};
        }
        kept_peak = 0;
        CHECK_OK(ls_pipeline_backward(pipe, net, micro, NULL));
        CHECK_INT(kept, 0);
        CHECK_INT(kept_peak, peak_of(schedule, spec, sizes).activations);
    }
    ls_optim_free(optim);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
}

static void count_all(void)
{
    const int p = ls_world_size();
    count_bytes("naive", &(ls__schedule_spec){.micro_batches = 5});
    count_bytes("gpipe", &(ls__schedule_spec){.micro_batches = 7});
    count_bytes("gpipe", &(ls__schedule_spec){.micro_batches = 7, .recompute = true});
    count_bytes("1f1b", &(ls__schedule_spec){.micro_batches = 11});
    count_bytes("1f1b", &(ls__schedule_spec){.micro_batches = 2});
    count_bytes("interleaved", &(ls__schedule_spec){.micro_batches = 2 * p, .chunks = 2});
    count_bytes("interleaved", &(ls__schedule_spec){.micro_batches = 2 * p, .chunks = 4});
    count_bytes("zb-h1", &(ls__schedule_spec){.micro_batches = 11});
    count_bytes("pipedream", &(ls__schedule_spec){.micro_batches = 11});
    count_bytes("pipedream-2bw", &(ls__schedule_spec){.micro_batches = 3 * p});
}

DIST_TEST(stages_keep_the_bytes_that_the_verifier_computes_on_1, 1)
{
    count_all();
}

DIST_TEST(stages_keep_the_bytes_that_the_verifier_computes_on_2, 2)
{
    count_all();
}

DIST_TEST(stages_keep_the_bytes_that_the_verifier_computes_on_4, 4)
{
    count_all();
}

/* ---- allocated ---------------------------------------------------------------------------- */

/* Powers of two, which the allocator does not round up. Rows cost more than weights. */
enum { WIDE = 32, ROWS = 1024, LAYERS = 16, VALUE_BYTES = ROWS * WIDE * 4 };

/* Bytes of tensors at the highest point of a step, more than before it. */
static int64_t allocated_by(const char *schedule, int micro_batches, bool recompute)
{
    ls_memory_stats before = {.size = sizeof before}, after = before;
    ls_module *net = ls_sequential_new(NULL, 0);
    for (int i = 0; i < LAYERS * ls_world_size(); i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        (void)ls_module_add(
            net, name, ls_linear_new(WIDE, WIDE, LS_OPTIONS(ls_linear_options, .bias = false)));
    }
    ls_pipeline *pipe =
        make_pipe(net, schedule,
                  &(ls__schedule_spec){.micro_batches = micro_batches, .recompute = recompute});
    {
        LS_SCOPE;
        ls_micro_batch micro[MICRO_MAX];
        ls_tensor *x = ls_ones(LS_SHAPE(ROWS, WIDE), LS_FLOAT32);
        for (int m = 0; m < micro_batches; m++) {
            micro[m] = (ls_micro_batch){.size = sizeof *micro, .inputs = {x}};
        }
        CHECK_OK(ls_memory_get_stats(&before));
        CHECK_OK(ls_memory_reset_peaks());
        CHECK_OK(ls_pipeline_backward(pipe, net, micro, NULL));
        CHECK_OK(ls_memory_get_stats(&after));
    }
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
    return (int64_t)(after.allocated_peak - before.allocated);
}

/* A layer keeps its input, the last one its output too, until it was read. */
static void check_allocated(void)
{
    enum { FEW = 4, MANY = 12 };
    const int64_t few = allocated_by("gpipe", FEW, false),
                  many = allocated_by("gpipe", MANY, false);
    const int64_t each = (many - few) / (MANY - FEW); /* of a micro-batch */
    const int64_t rest = few - FEW * each;            /* gradients, and values on their way */
    printf("# rank %d: %.2f values a micro-batch, %.2f besides\n", ls_rank(),
           (double)each / VALUE_BYTES, (double)rest / VALUE_BYTES);
    CHECK(each >= (LAYERS - 1) * VALUE_BYTES && each <= (LAYERS + 2) * VALUE_BYTES);
    static const char *const all[] = {"1f1b", "naive", "zb-h1"};
    for (int i = 0; i < 3; i++) {
        const ls__schedule_spec spec = {.micro_batches = MANY};
        const int64_t count = peak_of(all[i], &spec, NULL).activations;
        const int64_t found = allocated_by(all[i], MANY, false) - rest;
        const int waiting =
            i < 2 ? 0 : ls_rank() + 1; /* for their weight parts, with a gradient for each value */
        printf("# rank %d: %s: %.2f of %lld micro-batches\n", ls_rank(), all[i],
               (double)found / (double)each, (long long)count);
        CHECK(found > count * each - each / 4 && found < (count + waiting) * each + each / 4);
    }
    const int64_t again = allocated_by("gpipe", MANY, true);
    printf("# rank %d: recomputed: %.2f values\n", ls_rank(), (double)again / VALUE_BYTES);
    CHECK(again - rest < (LAYERS + 2 + 2 * MANY) * VALUE_BYTES);
}

DIST_TEST(tensors_take_the_memory_of_as_many_micro_batches_on_2, 2)
{
    check_allocated();
}

DIST_TEST(tensors_take_the_memory_of_as_many_micro_batches_on_4, 4)
{
    check_allocated();
}

TEST_MAIN
