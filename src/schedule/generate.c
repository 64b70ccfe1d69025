/* From a name to a verified table: the generator adds the computations, two passes the rest. */
#include <string.h>

#include "base/error.h"
#include "schedule/generator/generator.h"

#define CHUNKS_DEFAULT 2

typedef enum spec_field { CHUNKS = 1, PER_STEP = 2, VERTICAL_SYNC = 4 } spec_field;

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
    unsigned uses; /* of the fields that not every schedule has */
} generators[GENERATORS] = {
    {ls__generate_naive, 0},
    {ls__generate_gpipe, 0},
    {ls__generate_1f1b, 0},
    {ls__generate_interleaved, CHUNKS},
    {ls__generate_zb_h1, 0},
    {ls__generate_pipedream, VERTICAL_SYNC},
    {ls__generate_pipedream_2bw, PER_STEP},
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
                           (spec->vertical_sync ? VERTICAL_SYNC : 0u);
    const unsigned surplus = given & ~generators[index].uses;
    if (surplus != 0) {
        return ls__fail(LS_ERR_INVALID, "schedule %s: it has no %s; only %s has", names[index],
                        surplus & CHUNKS     ? "chunks"
                        : surplus & PER_STEP ? "number of micro-batches per step"
                                             : "vertical sync",
                        surplus & CHUNKS     ? "interleaved"
                        : surplus & PER_STEP ? "pipedream-2bw"
                                             : "pipedream");
    }
    return LS_OK;
}

static ls_status fill(ls__schedule *s, int index, const ls__schedule_spec *spec)
{
    LS_TRY(generators[index].generate(s, spec));
    LS_TRY(ls__lower_versions(s));
    LS_TRY(ls__lower_messages(s));
    return ls__schedule_verify(s);
}

ls_status ls__schedule_new(const ls__env *env, const char *name, const ls__schedule_spec *spec,
                           ls__schedule **out)
{
    const int index = index_of(name);
    *out = NULL;
    if (index < 0) {
        return unknown(name);
    }
    LS_TRY(check_uses(index, spec));
    const int chunks = spec->chunks > 0                  ? spec->chunks
                       : generators[index].uses & CHUNKS ? CHUNKS_DEFAULT
                                                         : 1;
    ls__schedule *s = NULL;
    LS_TRY(ls__schedule_empty(env, name, name, spec->ranks, (int64_t)spec->ranks * chunks,
                              spec->micro_batches, &s));
    s->recompute = spec->recompute;
    const ls_status status = fill(s, index, spec);
    if (status < 0) {
        ls__schedule_free(s);
        return status;
    }
    *out = s;
    return LS_OK;
}
