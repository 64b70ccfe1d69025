/* SPDX-License-Identifier: Apache-2.0 */
/* The text form of a table; parse.c reads it. */
#include "base/error.h"
#include "base/text.h"
#include "schedule/schedule.h"

#define LINE_BYTES 100
#define HEADER_BYTES 512

static void print_header(const ls__schedule *s, ls__text *text)
{
    ls__text_add(text, "schedule %s\nranks %d\nstages %d\nmicro-batches %d\nper-step %d\n", s->name,
                 s->ranks, s->stages, s->micro_batches, s->per_step);
    if (s->delay == LS__DELAY_BY_STAGE) {
        ls__text_add(text, "delay by-stage\n");
    } else {
        ls__text_add(text, "delay %d\n", s->delay);
    }
    ls__text_add(text, "recompute %s\n", s->recompute ? "yes" : "no");
    if (s->warm_up > 1) {
        ls__text_add(text, "warm-up %d\n", s->warm_up);
    }
    for (int i = 0; i < s->stages && ls__schedule_has_replicas(s); i++) {
        ls__text_add(text, "%s%d%s", i == 0 ? "replicas " : ",", s->replicas[i],
                     i == s->stages - 1 ? "\n" : "");
    }
    ls__text_add(text, "placement");
    for (int i = 0; i < s->stages; i++) {
        ls__text_add(text, " %d", s->rank_of[i]);
    }
    ls__text_add(text, "\n");
}

/* As many lines as it takes, each with the rank before it. */
static void print_rank(const ls__schedule *s, int rank, ls__text *text)
{
    char action[LS__ACTION_BYTES];
    const ls__actions *list = &s->rank[rank];
    const char *line = text->at;
    ls__text_add(text, "rank %d:", rank);
    for (int i = 0; i < list->count; i++) {
        if (text->at - line > LINE_BYTES - LS__ACTION_BYTES / 2) {
            ls__text_add(text, "\n");
            line = text->at;
            ls__text_add(text, "rank %d:", rank);
        }
        ls__text_add(text, " %s", ls__action_print(&list->list[i], action));
    }
    ls__text_add(text, "\n");
}

const char *ls__schedule_print(ls__schedule *schedule)
{
    size_t bytes = HEADER_BYTES + 9 * (size_t)schedule->stages;
    for (int r = 0; r < schedule->ranks; r++) {
        bytes += ((size_t)schedule->rank[r].count + 1) * LS__ACTION_BYTES;
    }
    char *out = ls__arena_alloc(&schedule->arena, bytes);
    if (out == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "schedule %s: no memory for its text", schedule->name);
        return NULL;
    }
    ls__text text = {out, bytes};
    print_header(schedule, &text);
    for (int r = 0; r < schedule->ranks; r++) {
        print_rank(schedule, r, &text);
    }
    return out;
}
