/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2's own two files: vocab.json, an object of tokens and their ids, and merges.txt.
 *
 *     #version: 0.2        such lines are skipped
 *     Ġ t                  a line a merge, the first of the lowest rank; one space between the two
 *     Ġ a
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tokenizer/read.h"

#define END_OF_TEXT "<|endoftext|>"

/* ---- vocab.json --------------------------------------------------------------------------- */

/* Also used for the "vocab" of a tokenizer.json; `path` begins the messages. */
ls_status ls__read_vocab(ls_tokenizer *t, const char *path, const json_t *vocab)
{
    const char *token;
    json_t *id;
    char where[LS__WHERE_MAX];
    (void)snprintf(where, sizeof where, "\"%.*s\"", LS__PATH_QUOTED, path);
    if (!json_is_object(vocab) || json_object_size(vocab) == 0) {
        return ls__fail(LS_ERR_FORMAT,
                        "tokenizer: %s: the vocabulary is not an object of tokens and their ids",
                        where);
    }
    t->listed += (int64_t)json_object_size(vocab);
    json_object_foreach((json_t *)vocab, token, id)
    {
        if (!json_is_integer(id)) {
            return ls__fail(LS_ERR_FORMAT,
                            "tokenizer: %s: the id of token \"%.60s\" is not a whole number", where,
                            token);
        }
        LS_TRY(ls__tokenizer_add_token(t, where, token, json_integer_value(id)));
    }
    return LS_OK;
}

static ls_status read_vocab_file(ls_tokenizer *t, const char *path)
{
    json_t *root = NULL;
    LS_TRY(ls__read_json(t->env, path, &root));
    ls_status status = ls__read_vocab(t, path, root);
    json_decref(root);
    return status;
}

/* ---- merges.txt --------------------------------------------------------------------------- */

/* Cuts the line at its only space and returns the right side. Returns NULL if there is no space,
 * more than one, or an empty side. */
static char *cut_line(char *line)
{
    char *space = strchr(line, ' ');
    if (space == NULL || space == line || space[1] == '\0' || strchr(space + 1, ' ') != NULL) {
        return NULL;
    }
    *space = '\0';
    return space + 1;
}

/* Changes the line in place. `*rank` counts merges only, so a version line does not shift the
 * ranks. */
static ls_status read_line(ls_tokenizer *t, const char *path, char *line, long number,
                           size_t offset, int64_t *rank)
{
    char where[LS__WHERE_MAX];
    size_t length = strlen(line);
    if (length > 0 && line[length - 1] == '\r') {
        line[length - 1] = '\0';
    }
    if (strncmp(line, "#version", 8) == 0) {
        return LS_OK;
    }
    (void)snprintf(where, sizeof where, "\"%.*s\", line %ld (byte %zu)", LS__PATH_QUOTED, path,
                   number, offset);
    char *right = cut_line(line);
    if (right == NULL) {
        return ls__fail(LS_ERR_FORMAT,
                        "tokenizer: %s: \"%.60s\" is not two tokens with a space between", where,
                        line);
    }
    return ls__tokenizer_add_merge(t, where, line, right, (*rank)++);
}

/* `text` is followed by a 0, not counted in `bytes`, so the last line ends like the others even
 * without a newline. */
static ls_status read_merges(ls_tokenizer *t, const char *path, char *text, size_t bytes)
{
    int64_t rank = 0;
    long number = 0;
    for (size_t at = 0; at < bytes;) {
        char *end = memchr(text + at, '\n', bytes - at);
        size_t next = end != NULL ? (size_t)(end - text) + 1 : bytes;
        if (end != NULL) {
            *end = '\0';
        }
        number++;
        LS_TRY(read_line(t, path, text + at, number, at, &rank));
        at = next;
    }
    return LS_OK;
}

/* A zero byte would end a line early and hide the rest of it, so it is refused up front. */
static ls_status read_merges_file(ls_tokenizer *t, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    LS_TRY(ls__read_text(t->env, path, &text, &bytes));
    const char *zero = memchr(text, '\0', bytes);
    ls_status status =
        zero != NULL
            ? ls__fail(LS_ERR_FORMAT, "tokenizer: \"%s\": byte %zu is zero; is it a text file?",
                       path, (size_t)(zero - text))
            : read_merges(t, path, text, bytes);
    free(text);
    return status;
}

/* The pair has no list of special tokens; GPT-2's end of text is one whenever the vocabulary has
 * it. */
ls_status ls__tokenizer_read_pair(ls_tokenizer *t, const char *vocab_path, const char *merges_path)
{
    LS_TRY(read_vocab_file(t, vocab_path));
    LS_TRY(read_merges_file(t, merges_path));
    int32_t end = ls__vocab_find(&t->vocab, END_OF_TEXT, sizeof END_OF_TEXT - 1);
    return end < 0 ? LS_OK : ls__tokenizer_add_special(t, "merges.txt", END_OF_TEXT, end, false);
}
