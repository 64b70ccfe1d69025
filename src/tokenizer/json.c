/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json, as Hugging Face's `tokenizers` writes it: model, added tokens and pre-tokenizer.
 *
 *     {"added_tokens": [{"id": 0, "content": "<|endoftext|>", "normalized": false, ...}],
 *      "normalizer": null,
 *      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
 *      "model": {"type": "BPE", "vocab": {"Ġ": 220, ...}, "merges": ["Ġ t", ["h", "e"], ...]}}
 *
 * Llama 3 and Qwen have a Split before ByteLevel, DeepSeek several, StarCoder Digits; Qwen,
 * GPT-NeoX and ModernBERT the normalizer NFC. Llama 2, Mistral and Mixtral have SentencePiece's
 * form (pieces.c), where the normalizers Prepend and Replace, or the pre-tokenizer Metaspace, write
 * spaces as "▁". An option that would change ids and is not implemented is refused, not ignored.
 * What is done to whole texts is the caller's: truncation, padding, post_processor, of which the
 * token before a text is read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tokenizer/normal.h"
#include "tokenizer/read.h"

typedef struct reader {
    ls_tokenizer *t;
    const char *path;
    ls__expressions *expressions;
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
                        "tokenizer: \"%s\": the model is %.60s; only BPE is supported", r->path,
                        type);
    }
    set = json_number_value(json_object_get(model, "dropout")) > 0 ? "dropout" : set;
    set = *text_of(model, "continuing_subword_prefix") ? "continuing_subword_prefix" : set;
    set = *text_of(model, "end_of_word_suffix") ? "end_of_word_suffix" : set;
    set = is_true(model, "byte_fallback") && !r->t->pieces ? "byte_fallback" : set;
    set = is_true(model, "fuse_unk") && !r->t->pieces ? "fuse_unk" : set;
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
    r->t->fallback = is_true(model, "byte_fallback");
    r->t->fuse_unknown = is_true(model, "fuse_unk");
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

/* "normalized" decides in which round the token is looked for. */
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
    if (is_true(added, "single_word")) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "tokenizer: %s: \"%.60s\" has single_word, which is not supported", where,
                        content);
    }
    LS_TRY(ls__tokenizer_add_special(r->t, where, content, json_integer_value(id),
                                     is_true(added, "normalized")));
    ls__added *made = &r->t->added[r->t->added_count - 1];
    made->lstrip = is_true(added, "lstrip");
    made->rstrip = is_true(added, "rstrip");
    return LS_OK;
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

/* ---- SentencePiece's form ------------------------------------------------------------------ */

static bool writes_spaces(const json_t *replace)
{
    return strcmp(text_of(replace, "type"), "Replace") == 0 &&
           strcmp(text_of(json_object_get(replace, "pattern"), "String"), " ") == 0 &&
           strcmp(text_of(replace, "content"), LS__SPACE_MARK) == 0;
}

/* Known before the vocabulary is read, whose tokens it writes. */
static void read_form(const json_t *root, ls_tokenizer *t)
{
    const json_t *normalizer = json_object_get(root, "normalizer");
    const json_t *list = json_object_get(normalizer, "normalizers");
    size_t i;
    json_t *one;
    t->replaces = writes_spaces(normalizer);
    json_array_foreach(list, i, one)
    {
        t->replaces = t->replaces || writes_spaces(one);
    }
    t->pieces = t->replaces ||
                strcmp(text_of(json_object_get(root, "pre_tokenizer"), "type"), "Metaspace") == 0;
}

/* The package normalizes the texts of some added tokens, too: they are found after a space only. */
static ls_status read_prepend(const reader *r, const json_t *prepend)
{
    if (!r->t->pieces || strcmp(text_of(prepend, "prepend"), LS__SPACE_MARK) != 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "tokenizer: \"%s\": the normalizer prepends \"%.60s\"; only \"▁\" is "
                        "supported",
                        r->path, text_of(prepend, "prepend"));
    }
    for (int i = 0; i < r->t->added_count && r->t->prefix != LS__PREFIX_EACH; i++) {
        LS_TRY(r->t->added[i].second ? ls__tokenizer_prefix_special(r->t, r->path, &r->t->added[i])
                                     : LS_OK);
    }
    r->t->prefix = LS__PREFIX_EACH;
    return LS_OK;
}

/* After this normalizer the package takes a space for no white space. */
static ls_status read_replace(const reader *r)
{
    for (int i = 0; i < r->t->added_count; i++) {
        const ls__added *a = &r->t->added[i];
        if (a->second && (a->lstrip || a->rstrip)) {
            return ls__fail(LS_ERR_UNSUPPORTED,
                            "tokenizer: \"%s\": the added token \"%.60s\" is normalized and takes "
                            "white space, which is not supported beside the normalizer Replace",
                            r->path, a->text);
        }
    }
    return LS_OK;
}

/* Files of older versions have add_prefix_space in place of prepend_scheme. */
static ls_status read_metaspace(reader *r, const json_t *meta)
{
    const json_t *old = json_object_get(meta, "add_prefix_space");
    const json_t *split = json_object_get(meta, "split");
    const char *scheme = text_of(meta, "prepend_scheme");
    if (strcmp(text_of(meta, "replacement"), LS__SPACE_MARK) != 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "tokenizer: \"%s\": Metaspace writes a space as \"%.60s\"; only \"▁\" "
                        "is supported",
                        r->path, text_of(meta, "replacement"));
    }
    if (r->t->prefix == LS__PREFIX_NONE) { /* else the normalizer has put one there already */
        r->t->prefix = strcmp(scheme, "never") == 0 || json_is_false(old) ? LS__PREFIX_NONE
                       : strcmp(scheme, "first") == 0                     ? LS__PREFIX_FIRST
                                                                          : LS__PREFIX_MISSING;
    }
    return split == NULL || json_is_true(split)
               ? ls__expressions_add(r->expressions, r->path, "[^ ]+| [^ ]*")
               : LS_OK;
}

/* ---- normalizer --------------------------------------------------------------------------- */

static ls_status check_added(const reader *r)
{
    for (int i = 0; i < r->t->added_count; i++) {
        const ls__added *a = &r->t->added[i];
        bool normal = true;
        LS_TRY(a->second ? ls__normal_check(a->text, a->bytes, &normal) : LS_OK);
        if (!normal) {
            return ls__fail(
                LS_ERR_UNSUPPORTED,
                "tokenizer: \"%s\": the added token \"%.60s\" is not in the form NFC of the "
                "normalizer, which is not supported",
                r->path, a->text);
        }
    }
    return LS_OK;
}

static ls_status read_normalizer(const reader *r, const json_t *normalizer)
{
    const char *type = text_of(normalizer, "type");
    if (normalizer == NULL || json_is_null(normalizer)) {
        return LS_OK;
    }
    if (writes_spaces(normalizer)) {
        return read_replace(r);
    }
    if (strcmp(type, "Prepend") == 0) {
        return read_prepend(r, normalizer);
    }
    if (strcmp(type, "NFC") != 0 || r->t->pieces) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "tokenizer: \"%s\": the normalizer %.60s is not supported; NFC is, and "
                        "Prepend and Replace as Llama 2 has them",
                        r->path, type);
    }
    LS_TRY(ls__normal_available(r->path));
    r->t->nfc = true;
    return check_added(r);
}

/* A sequence may be empty. */
static ls_status read_normalizers(const reader *r, const json_t *normalizer)
{
    const json_t *list = json_object_get(normalizer, "normalizers");
    size_t i;
    json_t *one;
    if (strcmp(text_of(normalizer, "type"), "Sequence") != 0) {
        return read_normalizer(r, normalizer);
    }
    json_array_foreach(list, i, one)
    {
        LS_TRY(read_normalizer(r, one));
    }
    return json_is_array(list) ? LS_OK : malformed(r, "\"normalizers\"");
}

/* ---- pre-tokenizer ------------------------------------------------------------------------ */

static ls_status other_splitter(const reader *r)
{
    return ls__fail(LS_ERR_UNSUPPORTED,
                    "tokenizer: \"%s\": the pre_tokenizer is not supported; the supported ones are "
                    "Metaspace, ByteLevel, and Splits (Isolated) and Digits followed by ByteLevel "
                    "without a space before each text",
                    r->path);
}

static ls_status no_memory(const reader *r)
{
    return ls__fail(LS_ERR_MEMORY, "tokenizer: \"%s\": no memory to read it", r->path);
}

/* Text as an expression that matches it. */
static ls_status add_literal(reader *r, const char *text)
{
    char *escaped = malloc(2 * strlen(text) + 1), *to = escaped;
    if (escaped == NULL) {
        return no_memory(r);
    }
    for (; *text != '\0'; text++) {
        if (strchr("\\^$.[]|()?*+{}#&-", *text) != NULL) {
            *to++ = '\\';
        }
        *to++ = *text;
    }
    *to = '\0';
    const ls_status status = ls__expressions_add(r->expressions, r->path, escaped);
    free(escaped);
    return status;
}

static ls_status read_split(reader *r, const json_t *split)
{
    const json_t *pattern = json_object_get(split, "pattern");
    const char *regex = text_of(pattern, "Regex"), *literal = text_of(pattern, "String");
    if (strcmp(text_of(split, "behavior"), "Isolated") != 0 || is_true(split, "invert") ||
        (*regex == '\0' && *literal == '\0')) {
        return other_splitter(r);
    }
    return *regex != '\0' ? ls__expressions_add(r->expressions, r->path, regex)
                          : add_literal(r, literal);
}

/* With steps before it, each of their words would get the space. */
static ls_status read_byte_level(reader *r, const json_t *level)
{
    const json_t *use = json_object_get(level, "use_regex");
    bool prefix = is_true(level, "add_prefix_space"), splits = use == NULL || json_is_true(use);
    if (strcmp(text_of(level, "type"), "ByteLevel") != 0 || (prefix && r->expressions->count > 0)) {
        return other_splitter(r);
    }
    r->t->prefix = prefix ? LS__PREFIX_MISSING : LS__PREFIX_NONE;
    return splits ? ls__expressions_add(r->expressions, r->path, LS__GPT2_EXPRESSION) : LS_OK;
}

/* ByteLevel comes last; the steps before it cut the text further and further. */
static ls_status read_step(reader *r, const json_t *step, bool last)
{
    const char *type = text_of(step, "type");
    if (last) {
        return read_byte_level(r, step);
    }
    if (strcmp(type, "Digits") == 0) {
        return ls__expressions_add(r->expressions, r->path,
                                   is_true(step, "individual_digits") ? "\\p{N}" : "\\p{N}+");
    }
    return strcmp(type, "Split") == 0 ? read_split(r, step) : other_splitter(r);
}

static ls_status read_splitter(reader *r, const json_t *pre)
{
    const json_t *list = json_object_get(pre, "pretokenizers");
    size_t i;
    json_t *step;
    if (strcmp(text_of(pre, "type"), "Metaspace") == 0) {
        return read_metaspace(r, pre);
    }
    if (r->t->pieces) {
        return pre == NULL || json_is_null(pre) ? LS_OK : other_splitter(r);
    }
    if (strcmp(text_of(pre, "type"), "Sequence") != 0) {
        return read_byte_level(r, pre);
    }
    json_array_foreach(list, i, step)
    {
        LS_TRY(read_step(r, step, i + 1 == json_array_size(list)));
    }
    return json_array_size(list) > 0 ? LS_OK : other_splitter(r);
}

/* ---- post-processor ----------------------------------------------------------------------- */

/* "single": [{"SpecialToken": {"id": "<s>", …}}, {"Sequence": …}] */
static ls_status read_start(const reader *r, const json_t *post)
{
    const json_t *first = json_array_get(json_object_get(post, "single"), 0);
    const char *name = text_of(json_object_get(first, "SpecialToken"), "id");
    if (*name == '\0') {
        return LS_OK;
    }
    r->t->start_id = ls_tokenizer_id(r->t, name);
    return r->t->start_id < 0 ? malformed(r, "the token before a text in \"post_processor\"")
                              : LS_OK;
}

/* Llama 3 has a sequence of ByteLevel and the template. */
static ls_status read_post_processor(const reader *r, const json_t *post)
{
    size_t i;
    json_t *one;
    LS_TRY(read_start(r, post));
    json_array_foreach(json_object_get(post, "processors"), i, one)
    {
        LS_TRY(read_start(r, one));
    }
    return LS_OK;
}

/* ---- all ---------------------------------------------------------------------------------- */

/* The order matters: merges and unk_token refer to tokens that earlier steps read. */
static ls_status read_root(reader *r, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    read_form(root, r->t);
    LS_TRY(read_model(r, model));
    LS_TRY(read_all_added(r, json_object_get(root, "added_tokens")));
    LS_TRY(read_unknown(r, model));
    LS_TRY(read_normalizers(r, json_object_get(root, "normalizer")));
    LS_TRY(read_splitter(r, json_object_get(root, "pre_tokenizer")));
    return read_post_processor(r, json_object_get(root, "post_processor"));
}

/* On failure *t is filled partly; the caller frees it. */
ls_status ls__tokenizer_read_json(ls_tokenizer *t, const char *path, ls__expressions *expressions)
{
    json_t *root = NULL;
    reader r = {.t = t, .path = path, .expressions = expressions};
    LS_TRY(ls__read_json(t->env, path, &root));
    const ls_status status = read_root(&r, root);
    json_decref(root);
    return status;
}
