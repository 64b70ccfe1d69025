/* SPDX-License-Identifier: Apache-2.0 */
/* Merging the bytes of one word, or its characters.
 *
 *     l o w e r      the pair of the lowest rank, of equal ones the leftmost, becomes one token,
 *     l o w er       until no pair has a rank
 *     lo w er
 *
 * Searching the word for that pair again and again is quadratic, which is cheap for a short word
 * and not for a long one. Long words keep their pairs in a heap. A merge makes two new pairs at
 * most, and a pair that has changed since it was put there is skipped when its turn comes, so a
 * word of n bytes takes n log n. The merged text of a pair lies between fixed ends, so an entry is
 * still valid exactly if both sides still merge into the same token. Both methods give the same
 * tokens.
 */
#include <stdlib.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/text.h"
#include "tokenizer/tokenizer.h"

#define SHORT_WORD 24 /* most words; a scan of so many pairs costs less than a heap */

/* -1 at the end of the word. */
static int32_t next_id(const ls__encoder *e, const ls__symbol *symbol)
{
    return symbol->after >= 0 ? e->symbols[symbol->after].id : -1;
}

/* How this symbol merges with the next one, or NULL if the pair has no rank. */
static const ls__merge *merge_at(const ls__encoder *e, int32_t at)
{
    int32_t right = next_id(e, &e->symbols[at]);
    return right >= 0 ? ls__merges_find(&e->t->merges, ls__pair(e->symbols[at].id, right)) : NULL;
}

/* The symbol takes in the next one, which is marked dead by id -1: heap entries may still refer
 * to it. Both neighbours stay linked. */
static void join(ls__encoder *e, int32_t at, int32_t id)
{
    LS_ASSERT(e->symbols[at].id >= 0 && e->symbols[at].after >= 0);
    ls__symbol *left = &e->symbols[at], *right = &e->symbols[left->after];
    left->id = id;
    left->after = right->after;
    right->id = -1;
    if (left->after >= 0) {
        e->symbols[left->after].before = at;
    }
}

/* ---- long words --------------------------------------------------------------------------- */

/* Lower ranks come first; among equal ranks the leftmost pair does, as in the reference. */
static bool is_before(const ls__candidate *a, const ls__candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

/* Adds the pair that begins at `at` to the heap, if it has a rank. The heap has room: a word of
 * n bytes has n - 1 pairs at first, and each of at most n - 1 merges adds two and takes one out. */
static void push_pair(ls__encoder *e, int32_t at)
{
    const ls__merge *merge = merge_at(e, at);
    if (merge == NULL) {
        return;
    }
    ls__candidate new = {merge->rank, at, merge->id};
    LS_ASSERT(e->heap_count < 2 * e->room);
    size_t i = e->heap_count++;
    for (; i > 0 && is_before(&new, &e->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        e->heap[i] = e->heap[(i - 1) / 2];
    }
    e->heap[i] = new;
}

/* Removes and returns the first candidate. The heap must not be empty. */
static ls__candidate take_first(ls__encoder *e)
{
    LS_ASSERT(e->heap_count > 0);
    const ls__candidate first = e->heap[0], last = e->heap[--e->heap_count];
    size_t i = 0;
    for (size_t child = 1; child < e->heap_count; child = 2 * i + 1) {
        child += child + 1 < e->heap_count && is_before(&e->heap[child + 1], &e->heap[child]);
        if (!is_before(&e->heap[child], &last)) {
            break;
        }
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = last;
    return first;
}

/* Candidates are not removed when they become stale; they are recognised when their turn comes,
 * because their pair no longer merges into the same token. */
static void merge_long(ls__encoder *e, int32_t count)
{
    e->heap_count = 0;
    for (int32_t at = 0; at + 1 < count; at++) {
        push_pair(e, at);
    }
    while (e->heap_count > 0) {
        ls__candidate best = take_first(e);
        const ls__merge *merge = e->symbols[best.at].id >= 0 ? merge_at(e, best.at) : NULL;
        if (merge == NULL || merge->id != best.id) {
            continue;
        }
        join(e, best.at, best.id);
        if (e->symbols[best.at].before >= 0) {
            push_pair(e, e->symbols[best.at].before);
        }
        push_pair(e, best.at);
    }
}

/* ---- short words -------------------------------------------------------------------------- */

/* Quadratic, but without a heap; see SHORT_WORD. Symbol 0 is never merged into another, so the
 * walk can begin there. */
static void merge_short(ls__encoder *e)
{
    for (;;) {
        const ls__merge *best = NULL;
        int32_t place = -1;
        for (int32_t at = 0; at >= 0; at = e->symbols[at].after) {
            const ls__merge *merge = merge_at(e, at);
            if (merge != NULL && (best == NULL || merge->rank < best->rank)) {
                best = merge;
                place = at;
            }
        }
        if (best == NULL) {
            return;
        }
        join(e, place, best->id);
    }
}

/* ---- words -------------------------------------------------------------------------------- */

/* Grows both buffers together and keeps no contents: it runs before a word is laid out. After a
 * failure room is 0, and the next word tries again. */
static ls_status reserve(ls__encoder *e, size_t bytes, size_t offset)
{
    if (bytes <= e->room) {
        return LS_OK;
    }
    if (bytes > LS__WORD_BYTES_MAX) {
        return ls__fail(LS_ERR_LIMIT,
                        "tokenizer: a word of %zu bytes at byte %zu; at most %zu are possible",
                        bytes, e->offset + offset, LS__WORD_BYTES_MAX);
    }
    size_t room = bytes < 256 ? 256 : bytes + bytes / 4;
    free(e->symbols);
    free(e->heap);
    e->symbols = malloc(room * sizeof *e->symbols);
    e->heap = malloc(2 * room * sizeof *e->heap);
    e->room = e->symbols && e->heap ? room : 0;
    return e->room > 0
               ? LS_OK
               : ls__fail(LS_ERR_MEMORY, "tokenizer: no memory for the tokens of %zu bytes", bytes);
}

static ls_status no_token(const ls__encoder *e, const char *at, size_t offset)
{
    return ls__fail(LS_ERR_INVALID,
                    "tokenizer: byte 0x%02x at offset %zu of the text has no token in the "
                    "vocabulary; use one with all 256 bytes",
                    (unsigned char)*at, e->offset + offset);
}

/* One symbol a byte. */
static ls_status lay_bytes(ls__encoder *e, const char *word, size_t bytes, size_t offset,
                           int32_t *count)
{
    for (size_t i = 0; i < bytes; i++) {
        const int32_t id = e->t->byte_id[(unsigned char)word[i]];
        if (id < 0) {
            return no_token(e, word + i, offset + i);
        }
        e->symbols[i].id = id;
    }
    *count = (int32_t)bytes;
    return LS_OK;
}

/* The symbols of one character, from `at` on: its token, those of its bytes, or the unknown token.
 * Returns their number; -1: it has none. */
static int32_t lay_character(const ls__encoder *e, const char *at, size_t length,
                             ls__symbol *symbols)
{
    const ls_tokenizer *t = e->t;
    symbols[0].id = ls__vocab_find(&t->vocab, at, length);
    if (symbols[0].id >= 0) {
        return 1;
    }
    bool all = true;
    for (size_t i = 0; i < length; i++) {
        symbols[i].id = t->byte_id[(unsigned char)at[i]];
        all = all && symbols[i].id >= 0;
    }
    symbols[0].id = all ? symbols[0].id : t->unknown_id;
    return all ? (int32_t)length : t->unknown_id >= 0 ? 1 : -1;
}

/* One symbol a character that is a token. */
static ls_status lay_characters(ls__encoder *e, const char *word, size_t bytes, size_t offset,
                                int32_t *count)
{
    bool unknown = false; /* the character before */
    *count = 0;
    for (size_t at = 0, length; at < bytes; at += length) {
        length = ls__utf8_bytes(word + at, bytes - at);
        length = length > 0 ? length : 1;
        const int32_t made = lay_character(e, word + at, length, e->symbols + *count);
        if (made < 0) {
            return no_token(e, word + at, offset + at);
        }
        const bool fused = unknown && e->t->fuse_unknown;
        unknown = e->symbols[*count].id == e->t->unknown_id;
        *count += unknown && fused ? 0 : made;
    }
    return LS_OK;
}

/* With `ignore_merges`, a word that is a token as a whole is not merged. Otherwise its symbols are
 * linked as a list. */
ls_status ls__encoder_word(ls__encoder *e, const char *word, size_t bytes, size_t offset)
{
    int32_t whole = e->t->whole_words ? ls__vocab_find(&e->t->vocab, word, bytes) : -1;
    if (whole >= 0) {
        return ls__encoder_put(e, whole);
    }
    LS_TRY(reserve(e, bytes, offset));
    int32_t count = 0;
    LS_TRY(e->t->pieces ? lay_characters(e, word, bytes, offset, &count)
                        : lay_bytes(e, word, bytes, offset, &count));
    for (int32_t i = 0; i < count; i++) {
        e->symbols[i].before = i - 1;
        e->symbols[i].after = i + 1 < count ? i + 1 : -1;
    }
    if (count > SHORT_WORD) {
        merge_long(e, count);
    } else {
        merge_short(e);
    }
    for (int32_t at = 0; at >= 0; at = e->symbols[at].after) {
        LS_TRY(ls__encoder_put(e, e->symbols[at].id));
    }
    return LS_OK;
}
