/* SPDX-License-Identifier: Apache-2.0 */
/* The two tables of a byte-pair encoding, both open addressing with linear probing, at most half
 * full: texts to ids, and pairs of ids to what they merge into. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "tokenizer/tokenizer.h"

#define ARENA_CHUNK ((size_t)64 << 10)
#define SLOTS_MIN ((size_t)1024)

/* ---- texts -------------------------------------------------------------------------------- */

/* Without random numbers the key is known, and all works as well. */
void ls__vocab_init(ls__vocab *vocab, const ls__env *env)
{
    *vocab = (ls__vocab){0};
    ls__arena_init(&vocab->arena, env, ARENA_CHUNK);
    (void)env->random_bytes(env, &vocab->key, sizeof vocab->key);
}

/* The object is not reset; it must not be used again. */
void ls__vocab_fini(ls__vocab *vocab)
{
    ls__arena_fini(&vocab->arena);
    free(vocab->tokens);
    free(vocab->slots);
}

/* The slot that holds the text, or the free one where it belongs. Ends because at least half of
 * the slots are free. */
static size_t slot_of(const ls__vocab *vocab, const char *text, size_t bytes)
{
    size_t at = (size_t)ls__siphash(&vocab->key, text, bytes) & (vocab->slot_count - 1);
    while (vocab->slots[at] != 0) {
        const ls__token *there = &vocab->tokens[vocab->slots[at] - 1];
        if (there->bytes == bytes && memcmp(there->text, text, bytes) == 0) {
            break;
        }
        at = (at + 1) & (vocab->slot_count - 1);
    }
    return at;
}

/* Doubles at half load. Builds the new table aside, so a failure leaves the vocabulary as it
 * was. */
static bool grow_slots(ls__vocab *vocab)
{
    ls__vocab grown = *vocab;
    if (vocab->slot_count > 0 && vocab->used < vocab->slot_count / 2) {
        return true;
    }
    grown.slot_count = vocab->slot_count > 0 ? 2 * vocab->slot_count : SLOTS_MIN;
    grown.slots = calloc(grown.slot_count, sizeof *grown.slots);
    if (!grown.slots) {
        return false;
    }
    for (size_t i = 0; i < vocab->slot_count; i++) {
        if (vocab->slots[i] != 0) {
            const ls__token *token = &vocab->tokens[vocab->slots[i] - 1];
            grown.slots[slot_of(&grown, token->text, token->bytes)] = vocab->slots[i];
        }
    }
    free(vocab->slots);
    *vocab = grown;
    return true;
}

/* Makes room for `id`, which is below LS__TOKEN_IDS_MAX. Ids may come in any order and leave
 * gaps, which stay NULL. */
static bool grow_tokens(ls__vocab *vocab, int32_t id)
{
    if (id >= vocab->capacity) {
        int64_t capacity = vocab->capacity > 0 ? 2 * vocab->capacity : 256;
        capacity = capacity > id ? capacity : (int64_t)id + 1;
        ls__token *grown = realloc(vocab->tokens, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        memset(grown + vocab->capacity, 0, (size_t)(capacity - vocab->capacity) * sizeof *grown);
        vocab->tokens = grown;
        vocab->capacity = capacity;
    }
    vocab->count = id < vocab->count ? vocab->count : (int64_t)id + 1;
    return true;
}

/* Copies the text. After a failure the table may have grown, but it holds no new token. */
bool ls__vocab_add(ls__vocab *vocab, int32_t id, const char *text, size_t bytes, bool listed)
{
    LS_ASSERT(id >= 0 && id < LS__TOKEN_IDS_MAX);
    char *copy = ls__arena_alloc(&vocab->arena, bytes + 1);
    if (copy == NULL || !grow_tokens(vocab, id) || !grow_slots(vocab)) {
        return false;
    }
    memcpy(copy, text, bytes);
    vocab->tokens[id] = (ls__token){copy, (uint32_t)bytes, 0};
    if (listed) {
        vocab->slots[slot_of(vocab, text, bytes)] = id + 1;
        vocab->used++;
    }
    return true;
}

const ls__token *ls__vocab_get(const ls__vocab *vocab, int64_t id)
{
    bool there = id >= 0 && id < vocab->count && vocab->tokens[id].text != NULL;
    return there ? &vocab->tokens[id] : NULL;
}

int32_t ls__vocab_find(const ls__vocab *vocab, const char *text, size_t bytes)
{
    return vocab->slot_count > 0 ? vocab->slots[slot_of(vocab, text, bytes)] - 1 : -1;
}

/* ---- pairs -------------------------------------------------------------------------------- */

void ls__merges_fini(ls__merges *merges)
{
    free(merges->slots);
}

void ls__merges_init(ls__merges *merges, const ls__env *env)
{
    *merges = (ls__merges){0};
    (void)env->random_bytes(env, &merges->key, sizeof merges->key);
    merges->key |= 1;
}

/* Same probing as slot_of; takes the array as an argument because grow_merges fills a new one. Ids
 * have at most 22 bits, so the product's bits from 32 on depend on all of the pair. */
static size_t pair_slot(uint64_t key, const ls__merge *slots, size_t slot_count, uint64_t pair)
{
    size_t at = (size_t)(pair * key >> 32) & (slot_count - 1);
    while (slots[at].pair != pair && slots[at].pair != LS__NO_PAIR) {
        at = (at + 1) & (slot_count - 1);
    }
    return at;
}

/* Free slots are marked by LS__NO_PAIR rather than 0: the pair (0, 0) is a valid one. */
static bool grow_merges(ls__merges *merges)
{
    size_t count = merges->slot_count > 0 ? 2 * merges->slot_count : SLOTS_MIN;
    if (merges->slot_count > 0 && merges->used < merges->slot_count / 2) {
        return true;
    }
    ls__merge *grown = malloc(count * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        grown[i].pair = LS__NO_PAIR;
    }
    for (size_t i = 0; i < merges->slot_count; i++) {
        if (merges->slots[i].pair != LS__NO_PAIR) {
            grown[pair_slot(merges->key, grown, count, merges->slots[i].pair)] = merges->slots[i];
        }
    }
    free(merges->slots);
    merges->slots = grown;
    merges->slot_count = count;
    return true;
}

/* A pair that is listed twice keeps the later rank and takes no second slot. */
bool ls__merges_set(ls__merges *merges, uint64_t pair, uint32_t rank, int32_t id)
{
    if (!grow_merges(merges)) {
        return false;
    }
    ls__merge *slot =
        &merges->slots[pair_slot(merges->key, merges->slots, merges->slot_count, pair)];
    merges->used += slot->pair == LS__NO_PAIR;
    *slot = (ls__merge){pair, rank, id};
    return true;
}

const ls__merge *ls__merges_find(const ls__merges *merges, uint64_t pair)
{
    if (merges->slot_count == 0) {
        return NULL;
    }
    const ls__merge *slot =
        &merges->slots[pair_slot(merges->key, merges->slots, merges->slot_count, pair)];
    return slot->pair == pair ? slot : NULL;
}
