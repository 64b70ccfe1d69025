/* SPDX-License-Identifier: Apache-2.0 */
/* See tables.h. */
#include "tables.h"

#include "base/env_posix.h"

const named_spec table_kinds[] = {
    {"naive", {.ranks = 3, .micro_batches = 2}},
    {"gpipe", {.ranks = 3, .micro_batches = 4}},
    {"gpipe", {.ranks = 2, .micro_batches = 3, .recompute = true}},
    {"1f1b", {.ranks = 4, .micro_batches = 6}},
    {"1f1b", {.ranks = 2, .micro_batches = 4, .recompute = true}},
    {"1f1b", {.ranks = 3, .micro_batches = 8, .warm_up = 2}},
    {"1f1b", {.replicas = "2,1", .micro_batches = 5}},
    {"1f1b", {.replicas = "1,3,2", .micro_batches = 7}},
    {"gpipe", {.replicas = "2,1,1", .micro_batches = 4}},
    {"gpipe", {.replicas = "1,2", .micro_batches = 4, .recompute = true}},
    {"interleaved", {.ranks = 2, .micro_batches = 4}},
    {"interleaved", {.ranks = 3, .micro_batches = 3, .chunks = 3}},
    {"interleaved", {.ranks = 1, .micro_batches = 2, .chunks = 2, .recompute = true}},
    {"zb-h1", {.ranks = 3, .micro_batches = 5}},
    {"zb-h1", {.ranks = 2, .micro_batches = 3, .recompute = true}},
    {"pipedream", {.ranks = 3, .micro_batches = 7}},
    {"pipedream", {.ranks = 3, .micro_batches = 7, .vertical_sync = true}},
    {"pipedream", {.ranks = 2, .micro_batches = 4, .recompute = true}},
    {"pipedream-2bw", {.ranks = 2, .micro_batches = 8}},
    {"pipedream-2bw", {.ranks = 3, .micro_batches = 8, .per_step = 4}},
};
const int table_kind_count = (int)(sizeof table_kinds / sizeof *table_kinds);

ls__schedule *table_of(const char *name, const ls__schedule_spec *spec)
{
    ls__schedule *s = NULL;
    CHECK_OK(ls__schedule_new(ls__env_posix(), name, spec, &s));
    return s;
}

ls__schedule *table_parsed(const char *text)
{
    ls__schedule *s = NULL;
    CHECK_OK(ls__schedule_parse(ls__env_posix(), "a test", text, strlen(text), &s));
    return s;
}

ls__schedule *table_copy(const ls__schedule *s)
{
    ls__schedule *copy = NULL;
    CHECK_OK(ls__schedule_empty(ls__env_posix(), "a copy", s->name, s->ranks, s->stages,
                                s->micro_batches, ls__schedule_has_replicas(s) ? s->replicas : NULL,
                                &copy));
    copy->per_step = s->per_step;
    copy->delay = s->delay;
    copy->recompute = s->recompute;
    memcpy(copy->rank_of, s->rank_of, (size_t)s->stages * sizeof *s->rank_of);
    for (int r = 0; r < s->ranks; r++) {
        for (int i = 0; i < s->rank[r].count; i++) {
            ls__schedule_push(copy, r, s->rank[r].list[i]);
        }
    }
    CHECK(!copy->no_memory);
    return copy;
}
