/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens as SentencePiece writes them (Kudo and Richardson, "SentencePiece", EMNLP 2018, section
 * 3): text as it is, but "▁" for a space; and "<0x0A>" for a byte, of which a character without a
 * token of its own is made (byte_fallback). Llama 2, Mistral and Mixtral have this form. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

#define MARK_BYTES (sizeof LS__SPACE_MARK - 1)

static bool is_mark(const char *text, size_t bytes)
{
    return bytes >= MARK_BYTES && memcmp(text, LS__SPACE_MARK, MARK_BYTES) == 0;
}

/* `out` may be `text`. */
static size_t copy_spaces(const char *text, size_t bytes, char *out)
{
    size_t made = 0;
    for (size_t at = 0; at < bytes;) {
        const bool space = is_mark(text + at, bytes - at);
        out[made++] = space ? ' ' : text[at];
        at += space ? MARK_BYTES : 1;
    }
    return made;
}

size_t ls__piece_read(const char *text, char *out)
{
    return copy_spaces(text, strlen(text), out);
}

int ls__piece_byte(const char *text)
{
    unsigned byte = 0;
    char again[8];
    if (sscanf(text, "<0x%2X>", &byte) != 1) {
        return -1;
    }
    (void)snprintf(again, sizeof again, "<0x%02X>", byte);
    return strcmp(again, text) == 0 ? (int)byte : -1;
}

bool ls__piece_joins_words(const char *raw, size_t bytes)
{
    for (size_t i = 1; i < bytes; i++) {
        if ((raw[i] == ' ' || raw[i] == '\n') && raw[i - 1] != ' ' && raw[i - 1] != '\n') {
            return true;
        }
    }
    return false;
}

/* Most texts have none, and are not copied. */
ls_status ls__piece_spaces(const char *text, size_t bytes, char **out, size_t *out_bytes)
{
    const char *mark = bytes > 0 ? memmem(text, bytes, LS__SPACE_MARK, MARK_BYTES) : NULL;
    *out = NULL;
    if (mark == NULL) {
        return LS_OK;
    }
    *out = malloc(bytes);
    if (*out == NULL) {
        return ls__fail(LS_ERR_MEMORY, "tokenizer: no memory for the tokens of %zu bytes", bytes);
    }
    *out_bytes = copy_spaces(text, bytes, *out);
    return LS_OK;
}
