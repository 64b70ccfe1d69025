/* Interpolated trigram, bigram and unigram counts with Witten-Bell smoothing (1991):
 *
 *     p_k(b | context) = (count(context b) + T(context) * p_(k-1)(b | shorter)) / (N(context) + T)
 *
 * N is how often the context was followed by anything, T by how many different bytes; p_0 is 1/256.
 * A context that was never seen leaves the estimate to the shorter one.
 */
#include "trigram.h"

#include <math.h>
#include <stdlib.h>

#define BYTES 256
#define ORDERS 3

typedef struct counts {
    uint32_t *follow[ORDERS]; /* [256^order][256] */
    uint32_t *total[ORDERS];  /* [256^order] */
    uint32_t *kinds[ORDERS];  /* [256^order] */
} counts;

static void counts_free(counts *c)
{
    for (int order = 0; order < ORDERS; order++) {
        free(c->follow[order]);
        free(c->total[order]);
        free(c->kinds[order]);
    }
}

/* 64 MiB of zeros for the trigrams, of which only the pages of contexts that occur are touched. */
static ls_status counts_make(counts *c)
{
    size_t contexts = 1;
    for (int order = 0; order < ORDERS; order++, contexts *= BYTES) {
        c->follow[order] = calloc(contexts * BYTES, sizeof(uint32_t));
        c->total[order] = calloc(contexts, sizeof(uint32_t));
        c->kinds[order] = calloc(contexts, sizeof(uint32_t));
        if (!c->follow[order] || !c->total[order] || !c->kinds[order]) {
            return LS_ERR_MEMORY;
        }
    }
    return LS_OK;
}

/* The `order` bytes before position i as a number. */
static size_t context_at(const uint8_t *text, int64_t i, int order)
{
    size_t context = 0;
    for (int k = order; k > 0; k--) {
        context = context * BYTES + text[i - k];
    }
    return context;
}

static void count_file(counts *c, const uint8_t *text, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++) {
        for (int order = 0; order < ORDERS && order <= i; order++) {
            size_t context = context_at(text, i, order);
            uint32_t *count = &c->follow[order][context * BYTES + text[i]];
            c->kinds[order][context] += *count == 0;
            c->total[order][context]++;
            ++*count;
        }
    }
}

static double probability(const counts *c, const uint8_t *text, int64_t i)
{
    double p = 1.0 / BYTES;
    for (int order = 0; order < ORDERS && order <= i; order++) {
        size_t context = context_at(text, i, order);
        double total = c->total[order][context], kinds = c->kinds[order][context];
        if (total == 0.0) {
            break;
        }
        p = (c->follow[order][context * BYTES + text[i]] + kinds * p) / (total + kinds);
    }
    return p;
}

ls_status trigram_loss(const ls_dataset *train, const ls_dataset *held_out, double *loss)
{
    counts c = {{NULL}, {NULL}, {NULL}};
    double sum = 0.0;
    int64_t scored = 0, bytes;
    ls_status status = counts_make(&c);
    for (int f = 0; status == LS_OK && f < ls_text_files(train); f++) {
        const uint8_t *text = ls_text_file(train, f, &bytes);
        count_file(&c, text, bytes);
    }
    for (int f = 0; status == LS_OK && f < ls_text_files(held_out); f++) {
        const uint8_t *text = ls_text_file(held_out, f, &bytes);
        for (int64_t i = 1; i < bytes; i++, scored++) {
            sum -= log(probability(&c, text, i));
        }
    }
    counts_free(&c);
    *loss = scored ? sum / (double)scored : 0.0;
    return status;
}
