/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a vocabulary, of a list of merges and of a list of special tokens: each is checked
 * and entered into the tables. The reader of a file calls these functions and passes the beginning
 * of their messages, `where`: the file and the place in it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

#define QUOTED_MAX 60 /* bytes of a token in a message */

static ls_status no_memory(const char *where)
{
    return ls__fail(LS_ERR_MEMORY, "tokenizer: %s: no memory to read it", where);
}

/* The upper bound limits the table, which is indexed by id; the file may be hostile. */
static ls_status check_id(const ls_tokenizer *t, const char *where, const char *token, int64_t id)
{
    const int64_t most = LS__TOKEN_IDS_FREE + LS__TOKEN_IDS_EACH * t->listed;
    const int64_t ids = most < LS__TOKEN_IDS_MAX ? most : LS__TOKEN_IDS_MAX;
    if (id < 0 || id >= ids) {
        return ls__fail(id < 0 ? LS_ERR_FORMAT : LS_ERR_LIMIT,
                        "tokenizer: %s: token \"%.*s\" has id %lld; in a file of %lld tokens ids "
                        "must be in 0…%lld",
                        where, QUOTED_MAX, token, (long long)id, (long long)t->listed,
                        (long long)ids - 1);
    }
    if (*token == '\0') {
        return ls__fail(LS_ERR_FORMAT, "tokenizer: %s: token %lld is empty", where, (long long)id);
    }
    return LS_OK;
}

/* The bytes that a token of the file stands for, into `out` of at least strlen(token) bytes.
 * Returns false if no text has it. */
static bool read_token(const ls_tokenizer *t, const char *token, char *out, size_t *bytes)
{
    if (!t->pieces) {
        return ls__alphabet_read(token, out, bytes);
    }
    *bytes = ls__piece_read(token, out);
    return strchr(token, ' ') == NULL; /* a space of a text is looked up as "▁" */
}

/* The bytes of a token of the file into *raw, which the caller frees. Text outside the alphabet
 * is taken literally, as special tokens are. Returns false without memory. */
static bool raw_of(const ls_tokenizer *t, const char *token, char **raw, size_t *bytes,
                   bool *of_alphabet)
{
    size_t length = strlen(token);
    *raw = malloc(length + 1);
    *of_alphabet = *raw != NULL && read_token(t, token, *raw, bytes);
    if (*raw != NULL && !*of_alphabet) {
        memcpy(*raw, token, length);
        *bytes = length;
    }
    return *raw != NULL;
}

/* "<0x0A>": found by its byte, since a token of the same text may have another id. */
static bool add_byte(ls_tokenizer *t, int byte, int64_t id)
{
    const char raw = (char)byte;
    t->byte_id[byte] = (int32_t)id;
    return ls__vocab_add(&t->vocab, (int32_t)id, &raw, 1, false);
}

/* Tokens outside the alphabet get an id for decoding but are not findable: no text can produce
 * them by merges. */
ls_status ls__tokenizer_add_token(ls_tokenizer *t, const char *where, const char *token, int64_t id)
{
    char *raw = NULL;
    size_t bytes = 0;
    bool of_alphabet = false;
    LS_TRY(check_id(t, where, token, id));
    if (ls__vocab_get(&t->vocab, id) != NULL) {
        return ls__fail(LS_ERR_FORMAT,
                        "tokenizer: %s: token \"%.*s\" has id %lld, which another token has; is "
                        "the file damaged?",
                        where, QUOTED_MAX, token, (long long)id);
    }
    const int byte = t->fallback ? ls__piece_byte(token) : -1;
    if (byte >= 0) {
        return add_byte(t, byte, id) ? LS_OK : no_memory(where);
    }
    bool done = raw_of(t, token, &raw, &bytes, &of_alphabet) &&
                ls__vocab_add(&t->vocab, (int32_t)id, raw, bytes, of_alphabet);
    t->joins_words |= done && t->pieces && ls__piece_joins_words(raw, bytes);
    free(raw);
    return done ? LS_OK : no_memory(where);
}

/* ---- merges ------------------------------------------------------------------------------- */

static ls_status unknown_token(const char *where, const char *token)
{
    return ls__fail(LS_ERR_FORMAT,
                    "tokenizer: %s: \"%.*s\" is not a token of the vocabulary; do vocabulary and "
                    "merges belong together?",
                    where, QUOTED_MAX, token);
}

/* `both` has room for left and right one after the other, so that the merged token is looked up
 * without another copy. All three tokens must be in the vocabulary. */
static ls_status add_merge(ls_tokenizer *t, const char *where, const char *left, const char *right,
                           int64_t rank, char *both)
{
    size_t left_bytes = 0, right_bytes = 0;
    int32_t left_id = -1, right_id = -1, id = -1;
    if (read_token(t, left, both, &left_bytes)) {
        left_id = ls__vocab_find(&t->vocab, both, left_bytes);
    }
    if (left_id >= 0 && read_token(t, right, both + left_bytes, &right_bytes)) {
        right_id = ls__vocab_find(&t->vocab, both + left_bytes, right_bytes);
        id = ls__vocab_find(&t->vocab, both, left_bytes + right_bytes);
    }
    if (left_id < 0 || right_id < 0) {
        return unknown_token(where, left_id < 0 ? left : right);
    }
    if (id < 0) {
        return ls__fail(
            LS_ERR_FORMAT,
            "tokenizer: %s: \"%.*s\" and \"%.*s\" merge into a text that is not a token "
            "of the vocabulary; do vocabulary and merges belong together?",
            where, QUOTED_MAX, left, QUOTED_MAX, right);
    }
    bool done = ls__merges_set(&t->merges, ls__pair(left_id, right_id), (uint32_t)rank, id);
    return done ? LS_OK : no_memory(where);
}

/* Rows must come after all tokens. A pair listed twice keeps the later rank. */
ls_status ls__tokenizer_add_merge(ls_tokenizer *t, const char *where, const char *left,
                                  const char *right, int64_t rank)
{
    if (rank > UINT32_MAX) {
        return ls__fail(LS_ERR_LIMIT, "tokenizer: %s: more than 2^32 merges", where);
    }
    char *both = malloc(strlen(left) + strlen(right) + 1);
    if (both == NULL) {
        return no_memory(where);
    }
    ls_status status = add_merge(t, where, left, right, rank, both);
    free(both);
    return status;
}

/* ---- special tokens ----------------------------------------------------------------------- */

/* A special token may repeat a row of the vocabulary but must not contradict it: neither the id
 * nor the text may belong to another. */
static ls_status check_special(ls_tokenizer *t, const char *where, const char *text, int64_t id)
{
    char *raw = NULL;
    size_t bytes = 0;
    bool of_alphabet = false;
    if (!raw_of(t, text, &raw, &bytes, &of_alphabet)) {
        return no_memory(where);
    }
    const ls__token *there = ls__vocab_get(&t->vocab, id);
    int32_t other = of_alphabet ? ls__vocab_find(&t->vocab, raw, bytes) : -1;
    bool alike = there == NULL || (there->bytes == bytes && memcmp(there->text, raw, bytes) == 0);
    free(raw);
    if (!alike || (other >= 0 && other != id)) {
        return ls__fail(LS_ERR_FORMAT,
                        "tokenizer: %s: \"%.*s\" has id %lld, but in the vocabulary %s; is the "
                        "file damaged?",
                        where, QUOTED_MAX, text, (long long)id,
                        alike ? "it has another" : "another token has it");
    }
    return LS_OK;
}

/* Grows by one: files have tens of special tokens, seldom thousands. `finish` in open.c sorts
 * the table later. */
ls_status ls__tokenizer_add_special(ls_tokenizer *t, const char *where, const char *text,
                                    int64_t id, bool second)
{
    size_t bytes = strlen(text);
    LS_TRY(check_id(t, where, text, id));
    LS_TRY(check_special(t, where, text, id));
    if (!ls__vocab_get(&t->vocab, id) &&
        !ls__vocab_add(&t->vocab, (int32_t)id, text, bytes, false)) {
        return no_memory(where);
    }
    ls__added *grown = realloc(t->added, ((size_t)t->added_count + 1) * sizeof *grown);
    char *copy = ls__arena_alloc(&t->vocab.arena, bytes + 1);
    t->added = grown != NULL ? grown : t->added;
    if (grown == NULL || copy == NULL) {
        return no_memory(where);
    }
    memcpy(copy, text, bytes + 1);
    t->added[t->added_count++] =
        (ls__added){.text = copy, .bytes = bytes, .id = (int32_t)id, .second = second};
    return LS_OK;
}

ls_status ls__tokenizer_prefix_special(ls_tokenizer *t, const char *where, ls__added *added)
{
    char *text = ls__arena_alloc(&t->vocab.arena, added->bytes + 2);
    if (text == NULL) {
        return no_memory(where);
    }
    text[0] = ' ';
    memcpy(text + 1, added->text, added->bytes + 1);
    added->text = text;
    added->bytes++;
    added->prefix = 1;
    return LS_OK;
}
