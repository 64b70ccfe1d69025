/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions that cut a text into words: PCRE2, the only file that calls it.
 *
 * Vocabularies come with expressions for Oniguruma (`tokenizers`) or Python's regex. Where PCRE2
 * would read the same text differently it is rewritten: \s is the property White_Space there, and
 * one character more (U+180E) here. Sets within sets cannot be rewritten and are refused.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tokenizer/split.h"

#define SPACE "\\p{Z}\\t-\\r\\x{85}"
#define REASON_BYTES 160

/* The expression comes from a file that anybody may have written, the text perhaps too. For one
 * word a true expression backtracks less often than the word has characters. PCRE2 counts anew for
 * each place at which a match might begin, so a search tries few places at a time, with the low
 * limit, and where that does not do one place alone: no two looks at the clock are further apart
 * than this takes. */
#define MATCH_LIMIT 10000000    /* backtrackings at one place: some tenths of a second */
#define MATCH_LIMIT_LOW 10000   /* at each of several */
#define PLACES 64               /* bytes of the text in which they lie */
#define DEPTH_LIMIT 1000000     /* of those that are kept at one time */
#define HEAP_LIMIT (256u << 10) /* KiB for them, where PCRE2 by itself allows 20 GB */

struct ls__split {
    pcre2_code *code;
};

struct ls__split_match {
    pcre2_match_data *data;
    pcre2_match_context *limits;
    const ls__env *env;
    uint64_t deadline_ns;
};

/* ---- rewriting ---------------------------------------------------------------------------- */

typedef struct rewriting {
    const char *at; /* what is left to read */
    char *to;       /* where the next piece goes; there is room for any */
    bool in_set;    /* between [ and ] */
} rewriting;

/* The output buffer is sized for the worst case by ls__split_new, hence there is no check. */
static void put(rewriting *w, const char *piece, size_t bytes)
{
    memcpy(w->to, piece, bytes);
    w->to += bytes;
}

#define PUT(w, literal) put(w, literal, sizeof(literal) - 1)

/* Replaces \s, and \S outside a set, by explicit sets; every other escape is copied whole, so
 * that its second character is not taken for syntax. */
static void put_escape(rewriting *w)
{
    if (w->at[1] == 's' && w->in_set) {
        PUT(w, SPACE);
    } else if (w->at[1] == 's') {
        PUT(w, "[" SPACE "]");
    } else if (w->at[1] == 'S' && !w->in_set) {
        PUT(w, "[^" SPACE "]");
    } else {
        put(w, w->at, w->at[1] != '\0' ? 2 : 1);
    }
    w->at += w->at[1] != '\0' ? 2 : 1;
}

/* Copies "[" or "[^" and a "]" right after it, which is a member of the set and does not end it. */
static void begin_set(rewriting *w)
{
    size_t bytes = w->at[1] == '^' ? 2 : 1;
    bytes += w->at[bytes] == ']';
    put(w, w->at, bytes);
    w->at += bytes;
    w->in_set = true;
}

/* Returns false for a set within a set or an intersection: PCRE2 would read them as something
 * else. */
static bool rewrite(rewriting *w)
{
    while (*w->at != '\0') {
        if (*w->at == '\\') {
            put_escape(w);
        } else if (w->in_set && (*w->at == '[' || (w->at[0] == '&' && w->at[1] == '&'))) {
            return false;
        } else if (!w->in_set && *w->at == '[') {
            begin_set(w);
        } else {
            w->in_set = w->in_set && *w->at != ']';
            put(w, w->at++, 1);
        }
    }
    *w->to = '\0';
    return true;
}

/* ---- compiling ---------------------------------------------------------------------------- */

/* UCP gives \d, \w and \s their Unicode meaning. \C is forbidden, as it could split a character. */
static ls_status compile(const char *expression, const char *path, pcre2_code **code)
{
    int error = 0;
    PCRE2_SIZE at = 0;
    PCRE2_UCHAR reason[REASON_BYTES] = "";
    *code = pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT,
                          &error, &at, NULL);
    if (!*code && error == PCRE2_ERROR_HEAP_FAILED) {
        return ls__fail(LS_ERR_MEMORY, "tokenizer: \"%s\": no memory to read it", path);
    }
    if (!*code) {
        (void)pcre2_get_error_message(error, reason, sizeof reason);
        return ls__fail(
            LS_ERR_FORMAT,
            "tokenizer: \"%s\": its splitting expression is not valid: %s, at byte %zu of "
            "%.300s",
            path, (const char *)reason, (size_t)at, expression);
    }
    (void)pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* without, it is slower and the same */
    return LS_OK;
}

/* Two input characters (an escape) become at most `longest` output bytes, which gives the size
 * of the buffer. On success *out belongs to the caller. */
ls_status ls__split_new(const char *expression, const char *path, ls__split **out)
{
    *out = NULL;
    size_t longest = sizeof "[^" SPACE "]";
    char *rewritten = malloc(strlen(expression) * longest / 2 + longest);
    ls__split *split = calloc(1, sizeof *split);
    rewriting w = {.at = expression, .to = rewritten};
    ls_status status = LS_OK;
    if (rewritten == NULL || split == NULL) {
        status = ls__fail(LS_ERR_MEMORY, "tokenizer: \"%s\": no memory to read it", path);
    } else if (!rewrite(&w)) {
        status = ls__fail(LS_ERR_UNSUPPORTED,
                          "tokenizer: \"%s\": its splitting expression has a set within a set, "
                          "which is not supported: %.300s",
                          path, expression);
    } else {
        status = compile(rewritten, path, &split->code);
    }
    free(rewritten);
    if (status < 0) {
        free(split);
        return status;
    }
    *out = split;
    return LS_OK;
}

void ls__split_free(ls__split *split)
{
    if (split != NULL) {
        pcre2_code_free(split->code);
        free(split);
    }
}

/* ---- matching ----------------------------------------------------------------------------- */

/* PCRE2's match data is written by every match, so threads must not share it. */
ls__split_match *ls__split_match_new(const ls__split *split)
{
    ls__split_match *match = calloc(1, sizeof *match);
    if (match == NULL) {
        return NULL;
    }
    match->data = pcre2_match_data_create_from_pattern(split->code, NULL);
    match->limits = pcre2_match_context_create(NULL);
    if (match->data == NULL || match->limits == NULL) {
        ls__split_match_free(match);
        return NULL;
    }
    (void)pcre2_set_depth_limit(match->limits, DEPTH_LIMIT);
    (void)pcre2_set_heap_limit(match->limits, HEAP_LIMIT);
    return match;
}

void ls__split_match_free(ls__split_match *match)
{
    if (match != NULL) {
        pcre2_match_data_free(match->data);
        pcre2_match_context_free(match->limits);
        free(match);
    }
}

void ls__split_limit_time(ls__split_match *match, const ls__env *env, uint64_t deadline_ns)
{
    match->env = env;
    match->deadline_ns = deadline_ns;
}

ls_status ls__split_check_time(const ls__split_match *match, size_t at)
{
    return match->env->now_ns(match->env) < match->deadline_ns
               ? LS_OK
               : ls__fail(
                     LS_ERR_LIMIT,
                     "tokenizer: the splitting expression is too slow for this text: it has come "
                     "to byte %zu; is the tokenizer's file from a source that you trust?",
                     at);
}

/* The first character at or after `at`. */
static size_t character_at(const char *text, size_t bytes, size_t at)
{
    while (at < bytes && (text[at] & 0xc0) == 0x80) {
        at++;
    }
    return at < bytes ? at : bytes;
}

/* A match that begins in [from, to); PCRE2's result. The JIT's stack is small and fixed; a match
 * too deep for it is repeated by the interpreter. */
static int find(const ls__split *split, ls__split_match *match, const char *text, size_t bytes,
                size_t from, size_t to, uint32_t limit)
{
    (void)pcre2_set_match_limit(match->limits, limit);
    (void)pcre2_set_offset_limit(match->limits, to - 1);
    int found = pcre2_match(split->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK,
                            match->data, match->limits);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) { /* the interpreter has the heap */
        found = pcre2_match(split->code, (PCRE2_SPTR)text, bytes, from,
                            PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match->data, match->limits);
    }
    return found;
}

/* `text` must be valid UTF-8: the check is switched off. An empty match cuts nothing, so the
 * search goes on at the next character. */
ls_status ls__split_find(const ls__split *split, ls__split_match *match, const char *text,
                         size_t bytes, size_t from, size_t skew, size_t *begin, size_t *end)
{
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(match->data);
    *begin = *end = bytes;
    while (from < bytes) {
        size_t to = character_at(text, bytes, from + PLACES);
        int found = find(split, match, text, bytes, from, to, MATCH_LIMIT_LOW);
        if (found == PCRE2_ERROR_MATCHLIMIT) {
            LS_TRY(ls__split_check_time(match, from + skew));
            to = character_at(text, bytes, from + 1);
            found = find(split, match, text, bytes, from, to, MATCH_LIMIT);
        }
        if (found == PCRE2_ERROR_NOMATCH) {
            LS_TRY(ls__split_check_time(match, from + skew));
            from = to;
            continue;
        }
        if (found < 0) {
            PCRE2_UCHAR reason[REASON_BYTES] = "";
            (void)pcre2_get_error_message(found, reason, sizeof reason);
            return ls__fail(LS_ERR_LIMIT,
                            "tokenizer: the splitting expression fails at byte %zu of the text: %s",
                            from + skew, (const char *)reason);
        }
        if (place[1] > place[0]) {
            *begin = place[0];
            *end = place[1];
            return LS_OK;
        }
        from = character_at(text, bytes, place[0] + 1);
    }
    return LS_OK;
}
