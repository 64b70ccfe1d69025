/* SPDX-License-Identifier: Apache-2.0 */
/* From a name to a verified table: the generator adds the computations, two passes the rest. */
#include <string.h>

#include "base/error.h"
#include "schedule/generator/generator.h"

#define CHUNKS_DEFAULT 2

typedef enum spec_field { CHUNKS = 1, PER_STEP = 2, VERTICAL_SYNC = 4, WARM_UP = 8 } spec_field;

typedef struct replicas {
    int count; /* stages; 0: the spec has none */
    int of[LS__SCHEDULE_RANKS_MAX];
} replicas;

#define GENERATORS 7

static const char *const names[GENERATORS] = {
    "naive", "gpipe", "1f1b", "interleaved", "zb-h1", "pipedream", "pipedream-2bw",
};
static const char *const abouts[GENERATORS] = {
    "one micro-batch at a time",
    "all forwards, then all backwards",
    "one forward, one backward",
    "1f1b with several stages on each rank",
    "1f1b with split backwards, whose weight parts fill the bubble",
    "1f1b without a flush, with stashed weights",
    "the same with two versions of the weights",
};
static const struct {
    ls__generator_fn generate;
    unsigned uses;           /* of the fields that not every schedule has */
    const char *one_replica; /* why it has no more of each stage; NULL: it may */
} generators[GENERATORS] = {
    {ls__generate_naive, 0, "one rank works at a time"},
    {ls__generate_gpipe, 0, NULL},
    {ls__generate_1f1b, WARM_UP, NULL},
    {ls__generate_interleaved, CHUNKS, "each rank has several stages"},
    {ls__generate_zb_h1, 0, "the delay of its weight parts goes by ranks"},
    {ls__generate_pipedream, VERTICAL_SYNC, "its stages would step after different micro-batches"},
    {ls__generate_pipedream_2bw, PER_STEP, "replicas would have to agree within its steps"},
};

int ls__schedule_names(const char *const **out_names, const char *const **out_abouts)
{
    *out_names = names;
    *out_abouts = abouts;
    return GENERATORS;
}

static int index_of(const char *name)
{
    for (int i = 0; i < GENERATORS; i++) {
        if (strcmp(name, names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

static ls_status unknown(const char *name)
{
    return ls__fail(LS_ERR_NOT_FOUND,
                    "there is no schedule \"%s\"; give naive, gpipe, 1f1b, interleaved, zb-h1, "
                    "pipedream or pipedream-2bw",
                    name);
}

/* A field that the schedule would not read is an error. */
static ls_status check_uses(int index, const ls__schedule_spec *spec)
{
    const unsigned given = (spec->chunks > 1 ? CHUNKS : 0u) | (spec->per_step > 0 ? PER_STEP : 0u) |
                           (spec->vertical_sync ? VERTICAL_SYNC : 0u) |
                           (spec->warm_up > 1 ? WARM_UP : 0u);
    const unsigned surplus = given & ~generators[index].uses;
    if (surplus != 0) {
        return ls__fail(LS_ERR_INVALID, "schedule %s: it has no %s; only %s has", names[index],
                        surplus & CHUNKS     ? "chunks"
                        : surplus & PER_STEP ? "number of micro-batches per step"
                        : surplus & WARM_UP  ? "warm-up"
                                             : "vertical sync",
                        surplus & CHUNKS     ? "interleaved"
                        : surplus & PER_STEP ? "pipedream-2bw"
                        : surplus & WARM_UP  ? "1f1b"
                                             : "pipedream");
    }
    return LS_OK;
}

/* Also the number of ranks, if the spec leaves it to the replicas. */
static ls_status read_replicas(int index, ls__schedule_spec *spec, replicas *out)
{
    int sum = 0;
    out->count = 0;
    if (spec->replicas == NULL) {
        return LS_OK;
    }
    out->count =
        ls__schedule_parse_replicas(names[index], spec->replicas, strlen(spec->replicas), out->of);
    LS_TRY(out->count < 0 ? (ls_status)out->count : LS_OK);
    for (int i = 0; i < out->count; i++) {
        sum += out->of[i];
    }
    spec->ranks = spec->ranks > 0 ? spec->ranks : sum;
    if (sum > out->count && generators[index].one_replica != NULL) {
        return ls__fail(
            LS_ERR_INVALID,
            "%s: stages with several replicas were asked for (%.100s), and it has none, "
            "because %s; give gpipe or 1f1b, or one rank for each stage",
            names[index], spec->replicas, generators[index].one_replica);
    }
    out->count = sum > out->count || sum != spec->ranks ? out->count : 0; /* one each is none */
    return LS_OK;
}

static ls_status fill(ls__schedule *s, int index, const ls__schedule_spec *spec)
{
    s->recompute = spec->recompute;
    LS_TRY(generators[index].generate(s, spec));
    LS_TRY(ls__lower_versions(s));
    LS_TRY(ls__lower_messages(s));
    return ls__schedule_verify(s);
}

ls_status ls__schedule_new(const ls__env *env, const char *name, const ls__schedule_spec *given,
                           ls__schedule **out)
{
    *out = NULL;
    if (name == NULL) {
        return ls__fail(LS_ERR_INVALID, "schedule: its name is NULL; give one, such as 1f1b");
    }
    const int index = index_of(name);
    ls__schedule_spec spec = *given;
    replicas of_stages;
    if (index < 0) {
        return unknown(name);
    }
    LS_TRY(check_uses(index, &spec));
    LS_TRY(read_replicas(index, &spec, &of_stages));
    const int chunks = spec.chunks > 0                   ? spec.chunks
                       : generators[index].uses & CHUNKS ? CHUNKS_DEFAULT
                                                         : 1;
    const bool several = of_stages.count > 0;
    ls__schedule *s = NULL;
    LS_TRY(ls__schedule_empty(env, name, name, spec.ranks,
                              several ? of_stages.count : (int64_t)spec.ranks * chunks,
                              spec.micro_batches, several ? of_stages.of : NULL, &s));
    const ls_status status = fill(s, index, &spec);
    if (status < 0) {
        ls__schedule_free(s);
        return status;
    }
    *out = s;
    return LS_OK;
}
