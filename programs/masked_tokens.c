/* SPDX-License-Identifier: Apache-2.0 */
/* See masked_tokens.h. One pass over the window: `wanted` of the `left` remaining tokens must still
 * be chosen, so each is chosen with probability wanted / left (Knuth, The Art of Computer
 * Programming, section 3.4.2, algorithm S). Exactly the wanted number is chosen, each set of
 * positions has the same probability, and nothing is stored.
 *
 * Philox gives four words for each position: whether it is chosen, what replaces it, and the random
 * token (2).
 */
#include "masked_tokens.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEED_OF_MASKS UINT64_C(0x6d61736b6564) /* separates the masks from the loader's draws */
#define JUDGED INT64_C(0xffffffff) /* the epoch of evaluation, which training does not reach */

typedef struct masked {
    ls_dataset base;
    ls_dataset *windows;
    masking set;
    int64_t length; /* of a window */
    int64_t asked;
} masked;

typedef struct draw {
    uint32_t word[4];
} draw;

static draw draw_for(const masked *m, int64_t epoch, int64_t index, int64_t place)
{
    const uint64_t seed = m->set.seed ^ SEED_OF_MASKS;
    const uint32_t counter[4] = {(uint32_t)place, (uint32_t)index, (uint32_t)(index >> 32),
                                 (uint32_t)epoch};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    draw d;
    ls_philox4x32(counter, key, d.word);
    return d;
}

static double share_of(uint32_t word)
{
    return (double)word / 4294967296.0;
}

static bool is_special(const masking *s, int32_t token)
{
    return token == s->mask || token == s->first || token == s->last;
}

/* The replacement of a chosen token: the mask, a random token, or itself. */
static int32_t replaced(const masked *m, const draw *d, int32_t token)
{
    const double kind = share_of(d->word[1]);
    if (kind < 0.8) {
        return (int32_t)m->set.mask;
    }
    const uint64_t any = (uint64_t)d->word[2] << 32 | d->word[3];
    return kind < 0.9 ? (int32_t)(any % (uint64_t)m->set.vocab) : token;
}

static void mask_window(const masked *m, int64_t epoch, int64_t index, int32_t *x, int32_t *y)
{
    int64_t left = 0, wanted = m->asked;
    for (int64_t i = 0; i < m->length; i++) {
        left += !is_special(&m->set, x[i]);
    }
    const bool all = left < wanted; /* too few ordinary tokens: special ones are chosen, too */
    left = all ? m->length : left;
    for (int64_t i = 0; i < m->length; i++) {
        y[i] = MASKED_NOTHING;
        if (!all && is_special(&m->set, x[i])) {
            continue;
        }
        const draw d = draw_for(m, epoch, index, i);
        if (share_of(d.word[0]) * (double)left-- < (double)wanted) {
            wanted--;
            y[i] = x[i];
            x[i] = replaced(m, &d, x[i]);
        }
    }
}

static ls_status masked_get_in_epoch(ls_dataset *self, int64_t epoch, int64_t index, void *x,
                                     void *y)
{
    const masked *m = (const masked *)self;
    ls_dataset *w = m->windows;
    const int64_t before = m->set.first >= 0;
    int32_t *tokens = x, *labels = y;
    /* y first receives the window's targets, which the labels replace. */
    LS_TRY(w->get_in_epoch ? w->get_in_epoch(w, epoch, index, tokens + before, labels)
                           : w->get(w, index, tokens + before, labels));
    mask_window(m, epoch, index, tokens + before, labels + before);
    if (before) {
        tokens[0] = (int32_t)m->set.first;
        labels[0] = MASKED_NOTHING;
    }
    if (m->set.last >= 0) {
        tokens[before + m->length] = (int32_t)m->set.last;
        labels[before + m->length] = MASKED_NOTHING;
    }
    return LS_OK;
}

static ls_status masked_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    return masked_get_in_epoch(self, JUDGED, index, x, y);
}

static void masked_free(ls_dataset *self)
{
    masked *m = (masked *)self;
    ls_dataset_free(m->windows);
    free(m);
}

int64_t masked_tokens_asked(const masking *s, int64_t n)
{
    int64_t asked = llround(s->share * (double)n);
    return asked < 1 ? 1 : asked > n ? n : asked;
}

ls_status masked_tokens_new(ls_dataset *windows, const masking *set, ls_dataset **out)
{
    const ls_shape *shape = &windows->x_shape;
    *out = NULL;
    if (shape->ndim != 1 || windows->x_dtype != LS_INT32 || windows->y_dtype != LS_INT32) {
        int ndim = shape->ndim;
        ls_dataset_free(windows);
        return ls_fail(LS_ERR_INVALID,
                       "masked tokens: samples have %d dimensions; give windows of tokens, int32 "
                       "[T]",
                       ndim);
    }
    masked *m = calloc(1, sizeof *m);
    if (m == NULL) {
        ls_dataset_free(windows);
        return ls_fail(LS_ERR_MEMORY, "no memory");
    }
    m->windows = windows;
    m->set = *set;
    m->length = shape->dim[0];
    m->asked = masked_tokens_asked(set, m->length);
    m->base = *windows;
    m->base.x_shape = LS_SHAPE(m->length + (set->first >= 0) + (set->last >= 0));
    m->base.y_shape = m->base.x_shape;
    m->base.get = masked_get;
    m->base.get_in_epoch = masked_get_in_epoch;
    m->base.free = masked_free;
    *out = &m->base;
    return LS_OK;
}
