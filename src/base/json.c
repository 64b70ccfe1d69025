/* SPDX-License-Identifier: Apache-2.0 */
/* The scanner agrees with jansson on everything up to jansson's first error: a string ends at the
 * first quote that no backslash escapes, and a value begins the text, a container, or what follows
 * a comma. So no text, malformed or not, makes jansson create more values than are counted here. */
#include "base/json.h"

#include <stdbool.h>

#include "base/assert.h"
#include "base/error.h"

typedef struct json_count {
    size_t commas, containers, depth;
    size_t empty;   /* containers without values */
    size_t deepest; /* the largest depth so far */
    bool opened;    /* only spaces follow the last "[" or "{" */
} json_count;

/* The index of the quote that ends the string at text[at], or `bytes` if the text ends before. */
static size_t string_end(const char *text, size_t bytes, size_t at)
{
    for (at++; at < bytes && text[at] != '"'; at++) {
        at += text[at] == '\\';
    }
    return at;
}

static void count_open(json_count *c)
{
    c->containers++;
    c->depth++;
    c->deepest = c->depth > c->deepest ? c->depth : c->deepest;
    c->opened = true;
}

/* A malformed text may close more than it opened. */
static void count_close(json_count *c)
{
    c->empty += c->opened;
    c->depth -= c->depth > 0;
    c->opened = false;
}

static json_count count(const char *text, size_t bytes)
{
    json_count c = {0};
    for (size_t i = 0; i < bytes; i++) {
        const char at = text[i];
        if (at == '{' || at == '[') {
            count_open(&c);
        } else if (at == '}' || at == ']') {
            count_close(&c);
        } else if (at != ' ' && at != '\t' && at != '\n' && at != '\r') {
            c.opened = false;
            c.commas += at == ',';
            i = at == '"' ? string_end(text, bytes, i) : i;
        }
    }
    LS_ASSERT(c.empty <= c.containers && c.depth <= c.deepest);
    return c;
}

static ls_status check_one(const char *what, size_t found, size_t allowed, const char *of)
{
    return found <= allowed
               ? LS_OK
               : ls__fail(LS_ERR_LIMIT, "%s: its JSON has %zu %s, but at most %zu are allowed",
                          what, found, of, allowed);
}

ls_status ls__json_check(const char *what, const char *text, size_t bytes,
                         const ls__json_limit *limit)
{
    LS_ASSERT(limit->containers <= limit->values && limit->depth <= limit->containers);
    LS_TRY(check_one(what, bytes, limit->bytes, "bytes"));
    const json_count c = count(text, bytes);
    LS_TRY(check_one(what, c.deepest, limit->depth, "levels of objects and arrays"));
    LS_TRY(check_one(what, c.containers, limit->containers, "objects and arrays"));
    /* The first value of the text and of each container follows no comma. */
    return check_one(what, 1 + c.commas + c.containers - c.empty, limit->values, "values");
}

ls_status ls__json_read(const char *what, const char *text, size_t bytes, size_t begin,
                        const ls__json_limit *limit, json_t **root)
{
    json_error_t error;
    *root = NULL;
    if (bytes == 0) {
        return ls__fail(LS_ERR_FORMAT, "%s: it is empty, so it is not JSON", what);
    }
    LS_TRY(ls__json_check(what, text, bytes, limit));
    *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (*root == NULL && error.line < 0) { /* jansson has not begun */
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to read it", what);
    }
    return *root != NULL
               ? LS_OK
               : ls__fail(LS_ERR_FORMAT, "%s: its JSON is malformed at offset %zu (line %d): %s",
                          what, begin + (size_t)error.position, error.line, error.text);
}
