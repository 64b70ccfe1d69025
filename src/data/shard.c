/* SPDX-License-Identifier: Apache-2.0 */
/* Files of tokens: tells the formats of shard.h apart, and compares everything that a header claims
 * with the file's size. */
#include "data/shard.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/foreign.h"
#include "data/bytes.h"

/* A format that llm.c writes. */
typedef struct form {
    uint32_t magic, version;
    int token_bytes;
} form;

static const form forms[] = {{20240520, 1, 2}, {20240801, 7, 4}};

/* Returned by value, so that it can be used inside the arguments of a message. */
ls__shard_magic ls__shard_begins(const uint8_t *data, size_t bytes)
{
    ls__shard_magic m = {""};
    for (size_t i = 0; i < 4 && i < bytes; i++) {
        (void)snprintf(m.text + strlen(m.text), sizeof m.text - strlen(m.text), "%s%02x",
                       i > 0 ? " " : "", data[i]);
    }
    return m;
}

/* A file that is refused, with the end of the message. */
typedef struct other {
    const char *magic;
    size_t bytes;
    const char *words;
} other;

/* The numbers 20240326, -27, -28 and 20240522, little-endian, are llm.c's for other files. */
static const other others[] = {
    {"\x93NUMPY", 6, "it is an array of NumPy; write it as raw uint16 with array.tofile(path)"},
    {"\xc6\xd7\x34\x01", 4, "it is the weights of a model of llm.c; give a shard of tokens"},
    {"\xc7\xd7\x34\x01", 4,
     "it is reference numbers for the tests of llm.c; give a shard of tokens"},
    {"\xc8\xd7\x34\x01", 4, "it is a tokenizer of llm.c; give a shard of tokens"},
    {"\x8a\xd8\x34\x01", 4, "it is an evaluation set of llm.c; give a shard of tokens"},
};

/* Formats with a known magic are refused by name: as raw tokens they would be accepted, and the
 * model would learn nonsense. */
static ls_status check_other(const uint8_t *data, size_t bytes, const char *path)
{
    const char *words = NULL;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const other *o = &others[i];
        if (bytes >= o->bytes && memcmp(data, o->magic, o->bytes) == 0) {
            words = o->words;
        }
    }
    words = words != NULL ? words : ls__foreign_words(ls__foreign_kind_of(data, bytes), NULL);
    return words == NULL ? LS_OK
                         : ls__fail(LS_ERR_FORMAT, "tokens: \"%s\" begins with %s: %s", path,
                                    ls__shard_begins(data, bytes).text, words);
}

/* A raw file has no header to check; only its even size can be verified here. raw_tokens.c looks at
 * what lies beside it and at its first tokens, tokens.c at each token. */
static ls_status parse_raw(const uint8_t *data, size_t bytes, const char *path, ls__shard *out)
{
    if (bytes % 2 != 0) {
        return ls__fail(LS_ERR_FORMAT,
                        "tokens: \"%s\" begins with %s, which is not a magic number of llm.c, so "
                        "its tokens have 2 bytes each, but the last, at offset %zu, has one; it is "
                        "truncated or has another format",
                        path, ls__shard_begins(data, bytes).text, bytes - 1);
    }
    *out = (ls__shard){.token_bytes = 2, .begin = 0, .count = (int64_t)(bytes / 2)};
    return LS_OK;
}

/* The count must fill the file exactly. It is 32 bits wide, so the product cannot overflow 64. */
static ls_status parse_form(const form *f, const uint8_t *data, size_t bytes, const char *path,
                            ls__shard *out)
{
    if (bytes < LS__SHARD_HEADER) {
        return ls__fail(LS_ERR_FORMAT,
                        "tokens: \"%s\" ends at offset %zu, within its header of %d bytes; it is "
                        "truncated",
                        path, bytes, LS__SHARD_HEADER);
    }
    const uint32_t version = ls__little_32(data + 4), count = ls__little_32(data + 8);
    if (version != f->version) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "tokens: \"%s\" has version %u at offset 4; of files with magic %u only "
                        "version %u is supported",
                        path, version, f->magic, f->version);
    }
    const uint64_t claimed = (uint64_t)count * (uint64_t)f->token_bytes;
    if (claimed != bytes - LS__SHARD_HEADER) {
        return ls__fail(LS_ERR_FORMAT,
                        "tokens: \"%s\" claims %u tokens at offset 8, %llu bytes, but %zu follow "
                        "from offset %d; it is truncated or damaged",
                        path, count, (unsigned long long)claimed, bytes - LS__SHARD_HEADER,
                        LS__SHARD_HEADER);
    }
    if (count == 0) {
        return ls__fail(LS_ERR_INVALID, "tokens: \"%s\" holds no tokens; give another file", path);
    }
    *out = (ls__shard){.token_bytes = f->token_bytes, .begin = LS__SHARD_HEADER, .count = count};
    return LS_OK;
}

/* `data` is the whole mapped file and may be hostile. Other known formats come first, then
 * llm.c's magics; everything else is nanoGPT's. */
ls_status ls__shard_parse(const uint8_t *data, size_t bytes, const char *path, ls__shard *out)
{
    if (bytes == 0) {
        return ls__fail(LS_ERR_INVALID, "tokens: \"%s\" is empty; give a file of tokens", path);
    }
    LS_TRY(check_other(data, bytes, path));
    for (size_t i = 0; bytes >= 4 && i < sizeof forms / sizeof forms[0]; i++) {
        if (ls__little_32(data) == forms[i].magic) {
            return parse_form(&forms[i], data, bytes, path, out);
        }
    }
    return parse_raw(data, bytes, path, out);
}
