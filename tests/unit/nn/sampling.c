/* SPDX-License-Identifier: Apache-2.0 */
/* What programs/generate draws from: the distribution against a plain twin that ranks tokens by
 * counting, and the pieces of text it writes. */
#include "says.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "sampling.h"
#include "utf8_stream.h"

enum { MOST = 60 };

/* ---- the distribution --------------------------------------------------------------------- */

/* How many tokens come before token i: larger, or equal and lower. */
static int rank_of(const float *logits, int vocab, int i)
{
    int rank = 0;
    for (int j = 0; j < vocab; j++) {
        rank += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
    }
    return rank;
}

/* p[vocab] by the definition, without sorting. */
static void twin(const sampling *s, const float *logits, int vocab, double *p)
{
    double share[MOST], sum = 0.0, kept = 0.0;
    for (int i = 0; i < vocab; i++) {
        int rank = rank_of(logits, vocab, i);
        bool in = s->temperature == 0.0 ? rank == 0 : s->top_k == 0 || rank < s->top_k;
        double t = s->temperature == 0.0 ? 1.0 : s->temperature;
        share[i] = in ? exp((double)logits[i] / t) : 0.0;
        sum += share[i];
    }
    for (int i = 0; i < vocab; i++) {
        double before = 0.0; /* what is more probable holds this much */
        for (int j = 0; j < vocab; j++) {
            before += rank_of(logits, vocab, j) < rank_of(logits, vocab, i) ? share[j] / sum : 0.0;
        }
        bool in = s->top_p >= 1.0 || before < s->top_p || rank_of(logits, vocab, i) == 0;
        p[i] = in ? share[i] : 0.0;
        kept += p[i];
    }
    for (int i = 0; i < vocab; i++) {
        p[i] /= kept;
    }
}

static void check_distribution(const sampling *s, const float *logits, int vocab)
{
    candidate got[MOST];
    double want[MOST];
    int64_t count = -1, sure = 0;
    twin(s, logits, vocab, want);
    CHECK_OK(sampling_candidates(s, logits, vocab, got, &count));
    for (int64_t i = 0; i < count; i++) {
        CHECK_NEAR(got[i].probability, want[got[i].token], 1e-12);
    }
    for (int i = 0; i < vocab; i++) {
        sure += want[i] > 0.0;
    }
    CHECK_INT(count, sure);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

TEST(temperature_top_k_and_top_p_give_the_distribution_of_their_definition)
{
    static const double temperatures[] = {0.0, 0.1, 0.7, 1.0, 3.0};
    static const int64_t top_ks[] = {0, 1, 2, 7, MOST - 1, MOST, MOST + 1, 1000};
    static const double top_ps[] = {0.0, 1e-9, 0.3, 0.9, 0.999, 1.0};
    uint32_t state = 7;
    for (int vocab = 1; vocab <= MOST; vocab += 13) {
        float logits[MOST];
        for (int i = 0; i < vocab; i++) { /* many are equal */
            logits[i] = (float)(next_random(&state) % 9) * 0.5f - 2.0f;
        }
        for (int t = 0; t < 5; t++) {
            for (int k = 0; k < 8; k++) {
                for (int p = 0; p < 6; p++) {
                    check_distribution(&(sampling){temperatures[t], top_ks[k], top_ps[p]}, logits,
                                       vocab);
                }
            }
        }
    }
}

TEST(equal_tokens_are_taken_in_their_order)
{
    const float logits[6] = {0.0f, 1.0f, 1.0f, 1.0f, 1.0f, 0.5f};
    candidate got[6];
    int64_t count;
    CHECK_OK(sampling_candidates(&(sampling){1.0, 2, 1.0}, logits, 6, got, &count));
    CHECK_INT(count, 2);
    CHECK(got[0].token == 1 && got[1].token == 2);
    CHECK_NEAR(got[0].probability, 0.5, 1e-15);
    CHECK_OK(sampling_candidates(&(sampling){1.0, 4, 0.5}, logits, 6, got, &count));
    CHECK_INT(count, 2); /* half is reached by two of the four */
    CHECK_OK(sampling_candidates(&(sampling){0.0, 0, 1.0}, logits, 6, got, &count));
    CHECK(count == 1 && got[0].token == 1);
}

TEST(extreme_numbers_stay_numbers)
{
    const float far[4] = {3e38f, -3e38f, -INFINITY, 2.9e38f};
    const float bad[3] = {0.0f, NAN, 1.0f}, none[2] = {-INFINITY, -INFINITY};
    candidate got[4];
    int64_t count;
    CHECK_OK(sampling_candidates(&(sampling){1e-300, 0, 1.0}, far, 4, got, &count));
    CHECK(count == 1 && got[0].token == 0 && got[0].probability == 1.0);
    CHECK_OK(sampling_candidates(&(sampling){1e300, 0, 1.0}, far, 4, got, &count));
    CHECK_INT(count, 3);
    CHECK_NEAR(got[1].probability, 1.0 / 3.0, 1e-12);
    CHECK_STATUS(sampling_candidates(&(sampling){1.0, 0, 1.0}, bad, 3, got, &count),
                 LS_ERR_INVALID);
    CHECK_STATUS(sampling_candidates(&(sampling){0.0, 0, 1.0}, none, 2, got, &count),
                 LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "sampling: the logits of %lld tokens contain NaN or infinity; check "
               "that the training did not diverge");
}

TEST(what_is_drawn_follows_the_distribution)
{
    enum { DRAWS = 200000 };
    const candidate c[4] = {{5, 0.4}, {3, 0.3}, {9, 0.2}, {0, 0.1}};
    int counts[10] = {0};
    CHECK_INT(sampling_draw(c, 4, 0.0), 5);
    CHECK_INT(sampling_draw(c, 4, 0.4), 3);
    CHECK_INT(sampling_draw(c, 4, 0x1.fffffffffffffp-1), 0);
    for (int i = 0; i < DRAWS; i++) {
        double uniform = sampling_uniform(42, (uint64_t)i);
        CHECK(uniform >= 0.0 && uniform < 1.0);
        counts[sampling_draw(c, 4, uniform)]++;
    }
    for (int i = 0; i < 4; i++) { /* 5 standard deviations, of numbers that are always the same */
        double p = c[i].probability;
        CHECK_NEAR(counts[c[i].token], p * DRAWS, 5.0 * sqrt(p * (1.0 - p) * DRAWS));
    }
    CHECK(sampling_uniform(42, 7) == sampling_uniform(42, 7));
    CHECK(sampling_uniform(42, 7) != sampling_uniform(43, 7));
    CHECK(sampling_uniform(42, 7) != sampling_uniform(42, (uint64_t)7 << 32));
}

/* ---- characters --------------------------------------------------------------------------- */

/* What comes out when `text` comes in pieces of `piece` bytes. */
static void stream(const char *text, size_t bytes, size_t piece, char out[256])
{
    char *written = NULL;
    size_t size = 0;
    utf8_stream s = {.out = open_memstream(&written, &size)};
    CHECK(s.out != NULL);
    for (size_t at = 0; at < bytes; at += piece) {
        utf8_write(&s, text + at, bytes - at < piece ? bytes - at : piece);
    }
    utf8_end(&s);
    CHECK(fclose(s.out) == 0 && size < 256);
    memcpy(out, written, size + 1);
    free(written);
}

#define NO_CHARACTER "\xEF\xBF\xBD"

TEST(characters_are_written_whole_however_their_bytes_come)
{
    /* The right side is what Python makes of it: text.decode("utf-8", "replace"). */
    static const struct {
        const char *text, *want;
    } cases[] = {{"plain", "plain"},
                 {"\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"},
                 {"a\xC3", "a" NO_CHARACTER},
                 {"\xE2\x82", NO_CHARACTER},
                 {"\xE2\x82z", NO_CHARACTER "z"},
                 {"\xF0\x9F\x98\xC3\xA4", NO_CHARACTER "\xC3\xA4"},
                 {"\x80\xBF", NO_CHARACTER NO_CHARACTER},
                 {"\xC0\x80", NO_CHARACTER NO_CHARACTER},
                 {"\xE0\x80\x80", NO_CHARACTER NO_CHARACTER NO_CHARACTER},
                 {"\xED\xA0\x80", NO_CHARACTER NO_CHARACTER NO_CHARACTER},
                 {"\xF4\x90\x80\x80", NO_CHARACTER NO_CHARACTER NO_CHARACTER NO_CHARACTER},
                 {"\xF5\xFF", NO_CHARACTER NO_CHARACTER},
                 {"\xED\x9F\xBF\xF4\x8F\xBF\xBF", "\xED\x9F\xBF\xF4\x8F\xBF\xBF"},
                 {"", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t piece = 1; piece <= 4; piece++) {
            char got[256];
            stream(cases[i].text, strlen(cases[i].text), piece, got);
            CHECK_STR(got, cases[i].want);
        }
    }
}

TEST_MAIN
