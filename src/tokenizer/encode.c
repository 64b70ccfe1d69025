/* SPDX-License-Identifier: Apache-2.0 */
/* From a text to its tokens, from the outside in:
 *
 *     Hi<|endoftext|>there, you\xff!
 *     Hi │ <|endoftext|> │ there, you\xff!        special tokens
 *                          there, you │ \xff │ !  stretches of UTF-8, and of other bytes
 *                          there │ , │  you       words, where the expression cuts
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/size.h"
#include "base/text.h"
#include "tokenizer/normal.h"
#include "tokenizer/tokenizer.h"

#define IDS_MIN ((int64_t)256)
#define WORDS_A_LOOK 64 /* at the clock */
#define SECOND_NS ((uint64_t)1000000000)
#define GRACE_NS (20 * SECOND_NS) /* and 10 us a byte, where true expressions take some 50 ns */
#define BYTE_NS ((uint64_t)10000)

/* ---- the encoder -------------------------------------------------------------------------- */

/* The size of the text, not of the failed request, since that is what the caller can change. */
static ls_status no_memory(size_t bytes)
{
    return ls__fail(LS_ERR_MEMORY, "tokenizer: no memory for the tokens of %zu bytes", bytes);
}

/* One encoder serves one thread. It may be reused for many texts, which keeps its buffers. Call
 * ls__encoder_fini even after a failure. */
ls_status ls__encoder_init(ls__encoder *e, const ls_tokenizer *t)
{
    *e = (ls__encoder){.t = t};
    for (int i = 0; i < t->split_count; i++) {
        e->matches[i] = ls__split_match_new(t->splits[i]);
        if (e->matches[i] == NULL) {
            return no_memory(0);
        }
    }
    return LS_OK;
}

/* Also correct after a failed init. */
void ls__encoder_fini(ls__encoder *e)
{
    for (int i = 0; i < LS__SPLITS_MAX; i++) {
        ls__split_match_free(e->matches[i]);
    }
    free(e->symbols);
    free(e->heap);
    free(e->padded);
    free(e->ids);
    *e = (ls__encoder){0};
}

/* Capacity doubles, so a text of n tokens costs O(n). Earlier pointers into `ids` become
 * invalid. */
ls_status ls__encoder_put(ls__encoder *e, int32_t id)
{
    if (e->count == e->capacity) {
        int64_t capacity = e->capacity > 0 ? 2 * e->capacity : IDS_MIN;
        int32_t *grown = realloc(e->ids, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            return no_memory((size_t)e->count);
        }
        e->ids = grown;
        e->capacity = capacity;
    }
    e->ids[e->count++] = id;
    return LS_OK;
}

/* ---- UTF-8 -------------------------------------------------------------------------------- */

/* The end of the longest run that begins at `from` and is entirely UTF-8 or entirely not; *valid
 * says which. Advances by at least one byte. */
static size_t stretch(const char *text, size_t from, size_t bytes, bool *valid)
{
    LS_ASSERT(from < bytes);
    size_t length = ls__utf8_bytes(text + from, bytes - from);
    *valid = length > 0;
    while (from < bytes && (length > 0) == *valid) {
        from += *valid ? length : 1;
        length = from < bytes ? ls__utf8_bytes(text + from, bytes - from) : 0;
    }
    return from;
}

/* ---- words -------------------------------------------------------------------------------- */

static ls_status encode_piece(ls__encoder *e, int level, const char *text, size_t bytes,
                              size_t skew);

/* `text` is valid UTF-8, which PCRE2 relies on. `skew` is the place of `text` in the whole text,
 * used only in messages. Text between matches becomes pieces of its own. Searches that find a piece
 * at once do not look at the clock, which costs as much as a short word. */
static ls_status cut_piece(ls__encoder *e, int level, const char *text, size_t bytes, size_t skew)
{
    const ls__split *split = e->t->splits[level];
    ls__split_match *match = e->matches[level];
    size_t from = 0;
    for (unsigned word = 0; from < bytes; word++) {
        size_t begin, end;
        if (word % WORDS_A_LOOK == 0) {
            LS_TRY(ls__split_check_time(match, skew + e->offset + from));
        }
        LS_TRY(ls__split_find(split, match, text, bytes, from, skew + e->offset, &begin, &end));
        if (begin > from) {
            LS_TRY(encode_piece(e, level + 1, text + from, begin - from, skew + from));
        }
        if (end > begin) {
            LS_TRY(encode_piece(e, level + 1, text + begin, end - begin, skew + begin));
        }
        from = end;
    }
    return LS_OK;
}

/* The next expression sees only this piece, as if it were a text of its own; what no expression
 * cuts any more is a word. As deep as the tokenizer has expressions. */
static ls_status encode_piece(ls__encoder *e, int level, const char *text, size_t bytes,
                              size_t skew)
{
    return level < e->t->split_count ? cut_piece(e, level, text, bytes, skew)
                                     : ls__encoder_word(e, text, bytes, skew);
}

/* Bytes that are not UTF-8 never reach the expression; each run of them is one word and falls
 * apart into byte tokens. */
static ls_status encode_stretches(ls__encoder *e, const char *text, size_t bytes, size_t skew)
{
    if (e->t->split_count == 0) {
        return bytes > 0 ? ls__encoder_word(e, text, bytes, skew) : LS_OK;
    }
    for (size_t from = 0, end; from < bytes; from = end) {
        bool valid;
        end = stretch(text, from, bytes, &valid);
        LS_TRY(valid ? encode_piece(e, 0, text + from, end - from, skew + from)
                     : ls__encoder_word(e, text + from, end - from, skew + from));
    }
    return LS_OK;
}

/* A piece after a special token gets its space, too, as in `tokenizers`; a piece that begins at
 * a cut does not, since in the whole text something stood before it. */
static bool gets_space(const ls__encoder *e, const char *text, size_t bytes, size_t skew)
{
    const ls__prefix prefix = e->t->prefix;
    const bool first = skew == 0 && e->begins, cut = skew == 0 && !e->begins;
    if (bytes == 0 || cut || prefix == LS__PREFIX_NONE || (prefix == LS__PREFIX_FIRST && !first)) {
        return false;
    }
    return prefix == LS__PREFIX_EACH || text[0] != ' ';
}

/* A copy that begins with a space into e->padded, of bytes + 1. */
static ls_status pad(ls__encoder *e, const char *text, size_t bytes)
{
    if (bytes + 1 > e->padded_room) {
        char *grown = realloc(e->padded, bytes + 1);
        if (grown == NULL) {
            return no_memory(bytes);
        }
        e->padded = grown;
        e->padded_room = bytes + 1;
    }
    e->padded[0] = ' ';
    memcpy(e->padded + 1, text, bytes);
    return LS_OK;
}

/* The skew of a padded text shrinks by one, so that places in messages refer to the caller's. */
static ls_status encode_spaced(ls__encoder *e, const char *text, size_t bytes, size_t skew)
{
    if (e->t->prefix == LS__PREFIX_EACH || !gets_space(e, text, bytes, skew)) {
        return encode_stretches(e, text, bytes, skew);
    }
    LS_TRY(pad(e, text, bytes));
    return encode_stretches(e, e->padded, bytes + 1, skew - 1);
}

/* Metaspace writes spaces only here, after all added tokens have been found. */
static ls_status encode_plain(ls__encoder *e, const char *text, size_t bytes, size_t skew)
{
    char *spaced = NULL;
    size_t spaced_bytes = 0;
    if (e->t->pieces && !e->t->replaces) {
        LS_TRY(ls__piece_spaces(text, bytes, &spaced, &spaced_bytes));
    }
    const ls_status status = spaced != NULL ? encode_spaced(e, spaced, spaced_bytes, skew)
                                            : encode_spaced(e, text, bytes, skew);
    free(spaced);
    return status;
}

/* ---- special tokens ----------------------------------------------------------------------- */

/* The longest added token of this sort that begins at `at`, or NULL. The table is sorted longest
 * first, so the first match is the longest. */
static const ls__added *added_at(const ls_tokenizer *t, bool second, const char *at, size_t room)
{
    unsigned char first = (unsigned char)*at;
    for (int i = t->added_from[first]; i < t->added_from[first + 1]; i++) {
        const ls__added *a = &t->added[i];
        if (a->second == second && a->bytes <= room && memcmp(a->text, at, a->bytes) == 0) {
            return a;
        }
    }
    return NULL;
}

/* The leftmost added token at or after `from`, with *begin set to its place; NULL and *begin =
 * bytes if there is no further one. */
static const ls__added *next_added(const ls_tokenizer *t, bool second, const char *text,
                                   size_t bytes, size_t from, size_t *begin)
{
    for (*begin = from; t->added_count > 0 && *begin < bytes; ++*begin) {
        const ls__added *found = added_at(t, second, text + *begin, bytes - *begin);
        if (found != NULL) {
            return found;
        }
    }
    *begin = bytes;
    return NULL;
}

/* The property White_Space of Unicode, as \s of `tokenizers`. */
static bool is_space(const char *at, size_t length)
{
    static const char *const others[] = {"\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80",
                                         "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
                                         "\xe2\x81\x9f", "\xe3\x80\x80"};
    if (length == 1) {
        return *at == ' ' || (*at >= '\t' && *at <= '\r');
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strlen(others[i]) == length && memcmp(at, others[i], length) == 0) {
            return true;
        }
    }
    return length == 3 && memcmp(at, "\xe2\x80", 2) == 0 && (unsigned char)at[2] >= 0x80 &&
           (unsigned char)at[2] <= 0x8a;
}

/* Where the white space begins that ends at `at`; not before `from`. */
static size_t space_before(const char *text, size_t from, size_t at)
{
    for (size_t begin = at; begin > from; at = begin) {
        do {
            begin--;
        } while (begin > from && (text[begin] & 0xc0) == 0x80);
        if (!is_space(text + begin, at - begin)) {
            break;
        }
    }
    return at;
}

static size_t space_behind(const char *text, size_t bytes, size_t at)
{
    for (size_t length; at < bytes; at += length) {
        length = ls__utf8_bytes(text + at, bytes - at);
        if (length == 0 || !is_space(text + at, length)) {
            break;
        }
    }
    return at;
}

typedef ls_status encode_between(ls__encoder *e, const char *text, size_t bytes, size_t skew);

/* Puts the tokens of one sort, and what is between them by `between`. The search goes on behind the
 * token itself, not behind the space that it took, as in `tokenizers`. */
static ls_status encode_added(ls__encoder *e, bool second, const char *text, size_t bytes,
                              size_t skew, encode_between *between)
{
    size_t from = 0, begin;
    const ls__added *added = next_added(e->t, second, text, bytes, 0, &begin);
    for (; added != NULL;) {
        const size_t end = begin + added->bytes;
        begin = added->lstrip && begin > from ? space_before(text, from, begin) : begin;
        if (begin > from) {
            LS_TRY(between(e, text + from, begin - from, skew + from));
        }
        LS_TRY(ls__encoder_put(e, added->id));
        from = added->rstrip ? space_behind(text, bytes, end) : end;
        added = next_added(e->t, second, text, bytes, end, &begin);
    }
    return from < bytes ? between(e, text + from, bytes - from, skew + from) : LS_OK;
}

static ls_status encode_normal(ls__encoder *e, const char *text, size_t bytes, size_t skew)
{
    if (e->t->prefix != LS__PREFIX_EACH || !gets_space(e, text, bytes, skew)) {
        return encode_added(e, true, text, bytes, skew, encode_plain);
    }
    LS_TRY(pad(e, text, bytes));
    return encode_added(e, true, e->padded, bytes + 1, skew - 1, encode_plain);
}

/* Text between tokens of the first sort, after the normalizer; tokens of the second sort are in
 * it. */
static ls_status encode_second(ls__encoder *e, const char *text, size_t bytes, size_t skew)
{
    char *normal = NULL;
    size_t normal_bytes = 0;
    if (e->t->nfc) {
        LS_TRY(ls__normal_make(text, bytes, &normal, &normal_bytes));
    } else if (e->t->replaces) {
        LS_TRY(ls__piece_spaces(text, bytes, &normal, &normal_bytes));
    }
    const ls_status status = normal != NULL ? encode_normal(e, normal, normal_bytes, skew)
                                            : encode_normal(e, text, bytes, skew);
    free(normal);
    return status;
}

/* The tokenizer "bytes": a byte is its own id. */
static ls_status encode_bytes(ls__encoder *e, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        LS_TRY(ls__encoder_put(e, (unsigned char)text[i]));
    }
    return LS_OK;
}

/* Overwrites the previous result. On failure `ids` holds a prefix, which must not be used. */
ls_status ls__encoder_run(ls__encoder *e, const char *text, size_t bytes, bool begins)
{
    e->count = 0;
    e->begins = begins;
    if (e->t->bytes_only) {
        return encode_bytes(e, text, bytes);
    }
    const ls__env *env = e->t->env;
    for (int i = 0; i < e->t->split_count; i++) {
        ls__split_limit_time(e->matches[i], env, env->now_ns(env) + GRACE_NS + bytes * BYTE_NS);
    }
    return encode_added(e, false, text, bytes, 0, encode_second);
}

/* ---- public ------------------------------------------------------------------------------- */

/* An empty input may be NULL. `name` is that of the input. */
static ls_status check_arguments(const char *what, const void *tokenizer, const char *name,
                                 const void *input, bool empty)
{
    if (tokenizer == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: the tokenizer is NULL; check what ls_tokenizer_new returned", what);
    }
    if (input == NULL && !empty) {
        return ls__fail(LS_ERR_INVALID, "%s: %s is NULL although its length is not 0", what, name);
    }
    return LS_OK;
}

/* The caller frees *ids with free(); it is not NULL on success, even for no tokens. */
ls_status ls_tokenizer_encode(const ls_tokenizer *t, const char *text, size_t bytes, int32_t **ids,
                              int64_t *count)
{
    ls__encoder e;
    *ids = NULL;
    *count = 0;
    LS_TRY(check_arguments("ls_tokenizer_encode", t, "text", text, bytes == 0));
    ls_status status = ls__encoder_init(&e, t);
    if (status == LS_OK) {
        status = ls__encoder_run(&e, text, bytes, true);
    }
    if (status == LS_OK && e.ids == NULL) { /* no tokens: the caller frees a pointer all the same */
        e.ids = malloc(sizeof *e.ids);
        status = e.ids != NULL ? LS_OK : no_memory(bytes);
    }
    if (status == LS_OK) {
        *ids = e.ids;
        *count = e.count;
        e.ids = NULL;
    }
    ls__encoder_fini(&e);
    return status;
}

/* The text of an id and its length, or NULL for an unknown id. An added token's text is literal
 * and replaces the vocabulary's entry. */
static const char *text_of(const ls_tokenizer *t, int32_t id, size_t *bytes)
{
    const ls__token *token = ls__vocab_get(&t->vocab, id);
    const ls__added *added = token != NULL && token->added > 0 ? &t->added[token->added - 1] : NULL;
    *bytes = added != NULL ? added->bytes - added->prefix : token != NULL ? token->bytes : 0;
    return added != NULL ? added->text + added->prefix : token != NULL ? token->text : NULL;
}

/* The first of two passes: it checks every id, so that the copying pass cannot fail. The size
 * includes the terminating 0. */
static ls_status measure(const ls_tokenizer *t, const int32_t *ids, int64_t count, size_t *bytes)
{
    *bytes = 1; /* the terminating 0 */
    for (int64_t i = 0; i < count; i++) {
        size_t length;
        if (text_of(t, ids[i], &length) == NULL) {
            return ls__fail(LS_ERR_INVALID,
                            "ls_tokenizer_decode: token %lld of %lld is %d, which the vocabulary "
                            "of %lld does not have",
                            (long long)i, (long long)count, ids[i], (long long)t->vocab.count);
        }
        if (!ls__add_size(*bytes, length, bytes) || *bytes > PTRDIFF_MAX) {
            return ls__fail(LS_ERR_LIMIT,
                            "ls_tokenizer_decode: the text of %lld tokens is too large",
                            (long long)count);
        }
    }
    return LS_OK;
}

/* The caller frees *text with free(). The text may hold zero bytes, hence *bytes. Tokens are
 * bytes: a cut inside a character gives invalid UTF-8. */
ls_status ls_tokenizer_decode(const ls_tokenizer *t, const int32_t *ids, int64_t count, char **text,
                              size_t *bytes)
{
    size_t room, at = 0;
    *text = NULL;
    *bytes = 0;
    LS_TRY(check_arguments("ls_tokenizer_decode", t, "ids", ids, count <= 0));
    LS_TRY(measure(t, ids, count, &room));
    char *out = malloc(room);
    if (out == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_tokenizer_decode: no memory for %zu bytes of text",
                        room);
    }
    for (int64_t i = 0; i < count; i++) {
        size_t length;
        const char *piece = text_of(t, ids[i], &length);
        memcpy(out + at, piece, length);
        at += length;
    }
    out[at] = '\0';
    *text = out;
    *bytes = at;
    return LS_OK;
}
