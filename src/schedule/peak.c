/* SPDX-License-Identifier: Apache-2.0 */
/* Peaks of memory per rank, from a walk over its list. */
#include "base/error.h"
#include "schedule/schedule.h"

typedef struct level {
    int64_t now, peak;
} level;

static void change(level *l, int64_t by)
{
    l->now += by;
    l->peak = l->now > l->peak ? l->now : l->peak;
}

typedef struct walk {
    const ls__schedule *s;
    const ls__stage_sizes *sizes; /* [stages] */
    int *bound;                   /* [stages] version */
    int *last_read;               /* [stages, steps + 1] index of the last action that reads it */
    bool *stashed;                /* the same shape */
    level activations, inputs, received, stashes;
} walk;

static size_t version_of(const walk *k, int stage, int version)
{
    return (size_t)stage * (size_t)(ls__schedule_steps(k->s) + 1) + (size_t)version;
}

/* Calls see(k, action, version that is bound, index) for each action of a list. */
static void each(walk *k, int rank, void (*see)(walk *, const ls__action *, int version, int index))
{
    for (int i = 0; i < k->s->rank[rank].count; i++) {
        const ls__action *a = &k->s->rank[rank].list[i];
        if (a->kind == LS__LOAD || a->kind == LS__STEP) {
            k->bound[a->stage] = a->version;
        }
        see(k, a, k->bound[a->stage], i);
    }
    for (int stage = 0; stage < k->s->stages; stage++) {
        k->bound[stage] = 0;
    }
}

static void note_read(walk *k, const ls__action *a, int version, int index)
{
    if (ls__action_form_of(a->kind)->reads) {
        k->last_read[version_of(k, a->stage, version)] = index;
    }
}

static void drop_stash(walk *k, const ls__action *a, int version, int index)
{
    const size_t at = version_of(k, a->stage, version);
    if (k->stashed[at] && k->last_read[at] == index) {
        change(&k->stashes, -k->sizes[a->stage].weights);
        k->stashed[at] = false; /* for the next replica */
    }
}

static void see(walk *k, const ls__action *a, int version, int index)
{
    const ls__stage_sizes *size = &k->sizes[a->stage];
    const bool recompute = k->s->recompute;
    switch (a->kind) {
    case LS__RECV_ACTIVATION:
        change(&k->received, size->input);
        break;
    case LS__FORWARD:
        if (a->stage > 0 && ls__schedule_rank(k->s, a->stage - 1, a->micro_batch) !=
                                ls__schedule_rank(k->s, a->stage, a->micro_batch)) {
            change(&k->received, -size->input);
        }
        change(recompute ? &k->inputs : &k->activations,
               recompute ? size->input : size->activations);
        break;
    case LS__RECOMPUTE:
        change(&k->activations, size->activations);
        break;
    case LS__BACKWARD:
    case LS__WEIGHT_PART:
        change(&k->activations, -size->activations);
        change(&k->inputs, recompute ? -size->input : 0);
        break;
    case LS__STASH: {
        const size_t at = version_of(k, a->stage, a->version);
        k->stashed[at] = k->last_read[at] > index; /* else it is dropped at once */
        change(&k->stashes, size->weights);
        change(&k->stashes, k->stashed[at] ? 0 : -size->weights);
        break;
    }
    default:
        break;
    }
    if (ls__action_form_of(a->kind)->reads) {
        drop_stash(k, a, version, index);
    }
}

static void measure(walk *k, ls__schedule_peak *peaks)
{
    for (int r = 0; r < k->s->ranks; r++) {
        k->activations = k->inputs = k->received = k->stashes = (level){0};
        each(k, r, note_read);
        each(k, r, see);
        peaks[r] = (ls__schedule_peak){k->activations.peak, k->inputs.peak, k->received.peak,
                                       k->stashes.peak};
    }
}

ls_status ls__schedule_peaks(const ls__schedule *s, const ls__stage_sizes *sizes,
                             ls__schedule_peak *peaks)
{
    const size_t stages = (size_t)s->stages, cells = stages * (size_t)(ls__schedule_steps(s) + 1);
    ls__arena arena;
    ls__arena_init(&arena, s->arena.env, 4096);
    ls__stage_sizes *ones = ls__arena_alloc(&arena, stages * sizeof *ones);
    walk k = {.s = s,
              .sizes = sizes != NULL ? sizes : ones,
              .bound = ls__arena_alloc(&arena, stages * sizeof *k.bound),
              .last_read = ls__arena_alloc(&arena, cells * sizeof *k.last_read),
              .stashed = ls__arena_alloc(&arena, cells * sizeof *k.stashed)};
    const bool enough = ones != NULL && k.bound != NULL && k.last_read != NULL && k.stashed != NULL;
    for (size_t i = 0; enough && i < stages; i++) {
        ones[i] = (ls__stage_sizes){1, 1, 1};
    }
    if (enough) {
        measure(&k, peaks);
    }
    ls__arena_fini(&arena);
    return enough ? LS_OK
                  : ls__fail(LS_ERR_MEMORY, "schedule %s: no memory to measure it", s->name);
}
