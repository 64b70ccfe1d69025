/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens the BERT example masks: how many, where, what becomes of them, and that it depends
 * on seed, epoch and index alone. Chances are held against their expectation, at 5 standard
 * deviations of draws that are the same in every run. */
#include "says.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "masked_tokens.h"

enum { LENGTH = 40, WINDOWS = 3000, VOCAB = 50, MASK = 50, FIRST = 51, LAST = 52, T = LENGTH + 2 };
enum { ASKED = 6 }; /* 15 % of 40 */

/* Window i: tokens (i + k) % VOCAB, the end of a text (LAST) among them now and then. */
typedef struct source {
    ls_dataset base;
    bool ends; /* holds LAST, too */
    int freed;
} source;

static int32_t token_at(const source *s, int64_t index, int64_t place)
{
    return s->ends && (index + place) % 9 == 0 ? LAST : (int32_t)((index + place) % VOCAB);
}

static ls_status source_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    int32_t *tokens = x, *next = y;
    for (int64_t i = 0; i < LENGTH; i++) {
        tokens[i] = token_at((source *)self, index, i);
        next[i] = token_at((source *)self, index, i + 1);
    }
    return LS_OK;
}

static void source_free(ls_dataset *self)
{
    ((source *)self)->freed++;
}

static void source_init(source *s, bool ends)
{
    *s = (source){.base = {.size = sizeof(ls_dataset),
                           .count = WINDOWS,
                           .x_shape = LS_SHAPE(LENGTH),
                           .y_shape = LS_SHAPE(LENGTH),
                           .x_dtype = LS_INT32,
                           .y_dtype = LS_INT32,
                           .get = source_get,
                           .free = source_free},
                  .ends = ends};
}

static ls_dataset *masked(source *s, uint64_t seed)
{
    ls_dataset *out = NULL;
    const masking m = {
        .share = 0.15, .mask = MASK, .first = FIRST, .last = LAST, .vocab = VOCAB, .seed = seed};
    CHECK_OK(masked_tokens_new(&s->base, &m, &out));
    CHECK(out->x_shape.dim[0] == T && out->y_shape.dim[0] == T);
    return out;
}

typedef struct counts {
    int asked, masked, kept, changed;
    int place[LENGTH], random[VOCAB];
} counts;

/* One sample against its window; *c is what was found. */
static void count_sample(const source *s, int64_t index, const int32_t x[T], const int32_t y[T],
                         counts *c)
{
    int asked = 0;
    CHECK(x[0] == FIRST && y[0] == MASKED_NOTHING && x[T - 1] == LAST);
    CHECK_INT(y[T - 1], MASKED_NOTHING);
    for (int i = 0; i < LENGTH; i++) {
        int32_t was = token_at(s, index, i), is = x[i + 1];
        if (y[i + 1] == MASKED_NOTHING) {
            CHECK_INT(is, was);
            continue;
        }
        CHECK_INT(y[i + 1], was);
        CHECK(was != LAST);
        asked++;
        c->place[i]++;
        c->masked += is == MASK;
        c->kept += is == was;
        c->changed += is != MASK && is != was;
        if (is != MASK && is != was) {
            CHECK(is >= 0 && is < VOCAB);
            c->random[is]++;
        }
    }
    CHECK_INT(asked, ASKED);
    c->asked += asked;
}

static void check_share(int found, double expected, int of)
{
    CHECK_NEAR(found, expected * of, 5.0 * sqrt(expected * (1.0 - expected) * of));
}

TEST(fifteen_percent_are_asked_for_and_become_mask_random_and_themselves)
{
    source s;
    source_init(&s, false);
    ls_dataset *data = masked(&s, 1);
    counts c = {0};
    for (int64_t i = 0; i < WINDOWS; i++) {
        int32_t x[T], y[T];
        CHECK_OK(data->get_in_epoch(data, 3, i, x, y));
        count_sample(&s, i, x, y, &c);
    }
    CHECK_INT(c.asked, ASKED * WINDOWS);
    /* A random token is now and then what was there. */
    check_share(c.masked, 0.8, c.asked);
    check_share(c.kept, 0.1 + 0.1 / VOCAB, c.asked);
    check_share(c.changed, 0.1 - 0.1 / VOCAB, c.asked);
    for (int i = 0; i < LENGTH; i++) {
        check_share(c.place[i], (double)ASKED / LENGTH, WINDOWS);
    }
    for (int i = 0; i < VOCAB; i++) {
        check_share(c.random[i], 1.0 / VOCAB, c.changed);
    }
    ls_dataset_free(data);
    CHECK_INT(s.freed, 1);
}

TEST(special_tokens_in_the_text_are_not_asked_for)
{
    source s;
    source_init(&s, true);
    ls_dataset *data = masked(&s, 1);
    counts c = {0};
    for (int64_t i = 0; i < 200; i++) {
        int32_t x[T], y[T];
        CHECK_OK(data->get(data, i, x, y));
        count_sample(&s, i, x, y, &c);
    }
    ls_dataset_free(data);
}

TEST(masks_follow_from_seed_epoch_and_index_alone)
{
    source s, again;
    source_init(&s, false);
    source_init(&again, false);
    ls_dataset *a = masked(&s, 7), *b = masked(&again, 7), *other = masked(&s, 8);
    int epochs = 0, seeds = 0, judged = 0, neighbours = 0;
    for (int64_t i = WINDOWS - 50; i < WINDOWS; i++) {
        int32_t x[T], y[T], u[T], v[T];
        CHECK_OK(a->get_in_epoch(a, 5, i, x, y));
        CHECK_OK(b->get_in_epoch(b, 5, i, u, v));
        CHECK(memcmp(x, u, sizeof x) == 0 && memcmp(y, v, sizeof y) == 0);
        CHECK_OK(a->get_in_epoch(a, 6, i, u, v));
        epochs += memcmp(x, u, sizeof x) == 0;
        CHECK_OK(other->get_in_epoch(other, 5, i, u, v));
        seeds += memcmp(x, u, sizeof x) == 0;
        CHECK_OK(a->get(a, i, u, v));
        judged += memcmp(x, u, sizeof x) == 0;
        CHECK_OK(a->get_in_epoch(a, 5, i - 1, u, v));
        bool same = true;
        for (int k = 0; k < T; k++) {
            same = same && (y[k] == MASKED_NOTHING) == (v[k] == MASKED_NOTHING);
        }
        neighbours += same;
    }
    CHECK(epochs == 0 && seeds == 0 && judged == 0 && neighbours == 0);
    ls_dataset_free(a);
    ls_dataset_free(b);
    ls_dataset_free(other);
}

TEST(a_window_without_specials_around_it_keeps_its_length)
{
    source s;
    source_init(&s, true);
    ls_dataset *data = NULL;
    const masking m = {.share = 1.0, .mask = MASK, .first = -1, .last = -1, .vocab = VOCAB};
    CHECK_OK(masked_tokens_new(&s.base, &m, &data));
    CHECK_INT(data->x_shape.dim[0], LENGTH);
    int32_t x[LENGTH], y[LENGTH];
    CHECK_OK(data->get(data, 4, x, y)); /* all are asked for */
    for (int i = 0; i < LENGTH; i++) {
        CHECK_INT(y[i], token_at(&s, 4, i));
    }
    ls_dataset_free(data);
    CHECK_INT(masked_tokens_asked(&(masking){.share = 0.0}, 10), 1);
    CHECK_INT(masked_tokens_asked(&(masking){.share = 0.15}, 126), 19);
    s.base.x_dtype = LS_FLOAT32;
    s.freed = 0;
    CHECK_STATUS(masked_tokens_new(&s.base, &m, &data), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "masked tokens: samples have %d dimensions; give windows of tokens, int32 [T]");
    CHECK(!data && s.freed == 1);
}

TEST_MAIN
