/* tokenizer.json, as Hugging Face's `tokenizers` writes it: model, added tokens and pre-tokenizer.
 *
 *     {"added_tokens": [{"id": 0, "content": "<|endoftext|>", "normalized": false, ...}],
 *      "normalizer": null,
 *      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
 *      "model": {"type": "BPE", "vocab": {"Ġ": 220, ...}, "merges": ["Ġ t", ["h", "e"], ...]}}
 *
 * An option that would change ids and is not implemented is refused, not ignored.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tokenizer/read.h"

typedef struct reader {
    ls_tokenizer *t;
    const char *path;
    char *expression;
} reader;

/* ---- access ------------------------------------------------------------------------------- */

/* `part` names the field as it stands in the file. */
static ls_status malformed(const reader *r, const char *part)
{
    return ls__fail(LS_ERR_FORMAT, "tokenizer: \"%s\": %s is missing or malformed", r->path, part);
}

/* A missing member and one of another type read as "". */
static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

static bool is_true(const json_t *object, const char *name)
{
    return json_is_true(json_object_get(object, name));
}

/* ---- model -------------------------------------------------------------------------------- */

/* Refuses options of the model that would change ids and are not implemented here. An ignored
 * option would give wrong ids without any error. */
static ls_status check_model(const reader *r, const json_t *model)
{
    const char *type = text_of(model, "type");
    const char *set = NULL;
    if (*type != '\0' && strcmp(type, "BPE") != 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "tokenizer: \"%s\": the model is %.60s; only byte-level BPE is supported",
                        r->path, type);
    }
    set = json_number_value(json_object_get(model, "dropout")) > 0 ? "dropout" : set;
    set = *text_of(model, "continuing_subword_prefix") ? "continuing_subword_prefix" : set;
    set = *text_of(model, "end_of_word_suffix") ? "end_of_word_suffix" : set;
    set = is_true(model, "byte_fallback") ? "byte_fallback" : set;
    set = is_true(model, "fuse_unk") ? "fuse_unk" : set;
    return set != NULL ? ls__fail(LS_ERR_UNSUPPORTED,
                                  "tokenizer: \"%s\": the model has %s, which is not supported",
                                  r->path, set)
                       : LS_OK;
}

/* Accepts both spellings: "a b" and, in newer files, ["a", "b"]. Any other number of parts is
 * refused. */
static ls_status read_merge(const reader *r, const json_t *merge, size_t rank)
{
    char where[LS__WHERE_MAX];
    (void)snprintf(where, sizeof where, "\"%.*s\", merge %zu", LS__PATH_QUOTED, r->path, rank);
    const char *whole = json_string_value(merge);
    const char *left = json_string_value(json_array_get(merge, 0));
    const char *right =
        json_array_size(merge) > 2 ? NULL : json_string_value(json_array_get(merge, 1));
    const char *space = whole != NULL ? strchr(whole, ' ') : NULL;
    char *copy = NULL;
    if (space != NULL) {
        copy = strdup(whole);
        if (copy == NULL) {
            return ls__fail(LS_ERR_MEMORY, "tokenizer: %s: no memory to read it", where);
        }
        copy[space - whole] = '\0';
        left = copy;
        right = copy + (space - whole) + 1;
    }
    ls_status status =
        left != NULL && right != NULL && *left && *right && !strchr(right, ' ')
            ? ls__tokenizer_add_merge(r->t, where, left, right, (int64_t)rank)
            : ls__fail(LS_ERR_FORMAT, "tokenizer: %s: a merge must have two tokens", where);
    free(copy);
    return status;
}

/* The vocabulary is read before the merges, which refer to it. The rank of a merge is its place
 * in the list. */
static ls_status read_model(const reader *r, const json_t *model)
{
    size_t rank;
    json_t *merge;
    const json_t *merges = json_object_get(model, "merges");
    if (!json_is_object(model)) {
        return ls__fail(LS_ERR_FORMAT,
                        "tokenizer: \"%s\" has no \"model\", so it is not a tokenizer.json; give a "
                        "tokenizer.json, or the folder of vocab.json and merges.txt",
                        r->path);
    }
    LS_TRY(check_model(r, model));
    LS_TRY(ls__read_vocab(r->t, r->path, json_object_get(model, "vocab")));
    if (!json_is_array(merges)) {
        return malformed(r, "\"merges\" of the model");
    }
    json_array_foreach(merges, rank, merge)
    {
        LS_TRY(read_merge(r, merge, rank));
    }
    r->t->whole_words = is_true(model, "ignore_merges");
    return LS_OK;
}

/* Runs after the added tokens, because unk_token may be one of them. Without it, a byte that has
 * no token is an error when encoding. */
static ls_status read_unknown(const reader *r, const json_t *model)
{
    const char *text = text_of(model, "unk_token");
    r->t->unknown_id = *text ? ls_tokenizer_id(r->t, text) : -1;
    return *text && r->t->unknown_id < 0 ? malformed(r, "the token of \"unk_token\"") : LS_OK;
}

/* ---- added tokens ------------------------------------------------------------------------- */

/* Options that change which text a token takes (lstrip, rstrip, single_word) are refused;
 * "normalized" only decides in which round the token is looked for. */
static ls_status read_added(const reader *r, const json_t *added, size_t number)
{
    char where[LS__WHERE_MAX];
    const json_t *id = json_object_get(added, "id");
    const char *content = text_of(added, "content");
    (void)snprintf(where, sizeof where, "\"%.*s\", added token %zu", LS__PATH_QUOTED, r->path,
                   number);
    if (!json_is_integer(id)) {
        return ls__fail(LS_ERR_FORMAT, "tokenizer: %s: it has no id", where);
    }
    const char *set = is_true(added, "lstrip")        ? "lstrip"
                      : is_true(added, "rstrip")      ? "rstrip"
                      : is_true(added, "single_word") ? "single_word"
                                                      : NULL;
    if (set != NULL) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "tokenizer: %s: \"%.60s\" has %s, which is not supported", where, content,
                        set);
    }
    return ls__tokenizer_add_special(r->t, where, content, json_integer_value(id),
                                     is_true(added, "normalized"));
}

/* A missing list is an empty one. */
static ls_status read_all_added(const reader *r, const json_t *list)
{
    size_t number;
    json_t *added;
    if (list != NULL && !json_is_null(list) && !json_is_array(list)) {
        return malformed(r, "\"added_tokens\"");
    }
    r->t->listed += (int64_t)json_array_size(list);
    json_array_foreach(list, number, added)
    {
        LS_TRY(read_added(r, added, number));
    }
    return LS_OK;
}

/* ---- pre-tokenizer ------------------------------------------------------------------------ */

static ls_status other_splitter(const reader *r)
{
    return ls__fail(LS_ERR_UNSUPPORTED,
                    "tokenizer: \"%s\": the pre_tokenizer is not supported; the supported ones are "
                    "ByteLevel, and a Split (a Regex, Isolated) followed by ByteLevel without an "
                    "expression of its own",
                    r->path);
}

/* `r` owns the copy until ls__tokenizer_read_json hands it out or frees it. */
static ls_status keep_expression(reader *r, const char *expression)
{
    r->expression = strdup(expression);
    return r->expression
               ? LS_OK
               : ls__fail(LS_ERR_MEMORY, "tokenizer: \"%s\": no memory to read it", r->path);
}

/* After a Split, ByteLevel must only map bytes: an expression of its own would cut the words a
 * second time. */
static ls_status read_byte_level(reader *r, const json_t *level)
{
    const json_t *use = json_object_get(level, "use_regex");
    bool prefix = is_true(level, "add_prefix_space"), splits = use == NULL || json_is_true(use);
    if (strcmp(text_of(level, "type"), "ByteLevel") != 0 || (r->expression && (prefix || splits))) {
        return other_splitter(r);
    }
    r->t->prefix_space = prefix;
    return splits ? keep_expression(r, LS__GPT2_EXPRESSION) : LS_OK;
}

/* Supports the two forms in use: ByteLevel alone (GPT-2), and Split followed by ByteLevel (Llama
 * 3, Qwen). Any normalizer is refused, since it changes the text before tokens are looked for. */
static ls_status read_splitter(reader *r, const json_t *root)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    const json_t *list = json_object_get(pre, "pretokenizers");
    const json_t *normalizer = json_object_get(root, "normalizer");
    if (normalizer != NULL && !json_is_null(normalizer)) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "tokenizer: \"%s\": the normalizer %.60s is not supported", r->path,
                        text_of(normalizer, "type"));
    }
    if (strcmp(text_of(pre, "type"), "Sequence") != 0) {
        return read_byte_level(r, pre);
    }
    if (json_array_size(list) == 2) {
        const json_t *split = json_array_get(list, 0);
        const char *regex = text_of(json_object_get(split, "pattern"), "Regex");
        if (strcmp(text_of(split, "type"), "Split") != 0 || *regex == '\0' ||
            strcmp(text_of(split, "behavior"), "Isolated") != 0 || is_true(split, "invert")) {
            return other_splitter(r);
        }
        LS_TRY(keep_expression(r, regex));
        return read_byte_level(r, json_array_get(list, 1));
    }
    return json_array_size(list) == 1 ? read_byte_level(r, json_array_get(list, 0))
                                      : other_splitter(r);
}

/* ---- all ---------------------------------------------------------------------------------- */

/* The order matters: merges and unk_token refer to tokens that earlier steps read. */
static ls_status read_root(reader *r, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    LS_TRY(read_model(r, model));
    LS_TRY(read_all_added(r, json_object_get(root, "added_tokens")));
    LS_TRY(read_unknown(r, model));
    return read_splitter(r, root);
}

/* On success *expression belongs to the caller and may be NULL. On failure *t is filled partly;
 * the caller frees it. */
ls_status ls__tokenizer_read_json(ls_tokenizer *t, const char *path, char **expression)
{
    json_t *root = NULL;
    reader r = {.t = t, .path = path};
    LS_TRY(ls__read_json(t->env, path, &root));
    ls_status status = read_root(&r, root);
    json_decref(root);
    if (status < 0) {
        free(r.expression);
        return status;
    }
    *expression = r.expression;
    return LS_OK;
}
