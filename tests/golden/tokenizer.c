/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with tokenizers. None needs an expression, so that builds without PCRE2 say the same. */
#include <sys/stat.h>

#include "golden.h"

#define WHOLE "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false}"
#define AB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define GOOD AB ",\"merges\":[\"a b\"]"
#define LONG_NAME 4090

static ls_tokenizer *made;

/* A tokenizer.json of this model and what stands beside it. */
static const char *json(const char *model, const char *beside)
{
    char text[2000];
    int bytes = snprintf(text, sizeof text, "{\"model\":{%s},%s}", model, beside);
    return golden_file("tokenizer.json", text, (size_t)bytes);
}

static void show(const char *model, const char *beside)
{
    char what[2000];
    (void)snprintf(what, sizeof what, "%s | %s", model, beside);
    golden_show(what, LS_STATUS_OF(made = ls_tokenizer_new(json(model, beside))));
}

static void show_pair(const char *vocab, const char *merges, size_t bytes)
{
    (void)golden_new_folder();
    (void)golden_file("vocab.json", vocab, strlen(vocab));
    (void)golden_file("merges.txt", merges, bytes);
    golden_show(vocab, LS_STATUS_OF(made = ls_tokenizer_new(golden_folder())));
}

GOLDEN(paths)
{
    char path[LONG_NAME + 1];
    SHOW(made = ls_tokenizer_new(NULL));
    SHOW(made = ls_tokenizer_new("/does/not/exist"));
    SHOW(made = ls_tokenizer_new("/dev/null"));
    golden_show("an empty folder", LS_STATUS_OF(made = ls_tokenizer_new(golden_new_folder())));
    (void)golden_file("vocab.json", "{}", 2);
    golden_show("half of it", LS_STATUS_OF(made = ls_tokenizer_new(golden_folder())));
    golden_show("an empty file",
                LS_STATUS_OF(made = ls_tokenizer_new(golden_file("empty", "", 0))));
    golden_show("a text",
                LS_STATUS_OF(made = ls_tokenizer_new(golden_file("text", "Hello,\nyou\n", 11))));
    golden_show("a vocabulary",
                LS_STATUS_OF(made = ls_tokenizer_new(golden_file("v.json", "{\"a\":0}", 7))));
    memset(path, '/', LONG_NAME); /* the root, written at length */
    path[LONG_NAME] = '\0';
    golden_show("a long name", LS_STATUS_OF(made = ls_tokenizer_new(path)));
}

GOLDEN(a_file_that_is_too_large)
{
    const char *path = golden_file("large.json", "{", 1);
    if (truncate(path, ((off_t)1 << 28) + 1) != 0) {
        exit(3);
    }
    golden_show("large.json", LS_STATUS_OF(made = ls_tokenizer_new(path)));
}

GOLDEN(vocabularies)
{
    show("\"merges\":[]", WHOLE);
    show("\"vocab\":{\"a\":\"b\"},\"merges\":[]", WHOLE);
    show("\"vocab\":{\"a\":-1},\"merges\":[]", WHOLE);
    show("\"vocab\":{\"a\":4194304},\"merges\":[]", WHOLE);
    show("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]", WHOLE);
    show("\"vocab\":{\"\":0},\"merges\":[]", WHOLE);
}

GOLDEN(merges)
{
    show(AB, WHOLE);
    show(AB ",\"merges\":[\"a b\",\"a\"]", WHOLE);
    show(AB ",\"merges\":[\"a c\"]", WHOLE);
    show(AB ",\"merges\":[\"b a\"]", WHOLE);
    show_pair("{\"a\":0,\"b\":1,\"ab\":2}", "#version: 0.2\na b\na\n", 20);
    show_pair("{\"a\":0,\"b\":1,\"ab\":2}", "a b\nb\0b\n", 8);
}

GOLDEN(models_that_are_not_read)
{
    show("\"type\":\"WordPiece\"", WHOLE);
    show("\"byte_fallback\":true", WHOLE);
    show("\"unk_token\":\"?\"," GOOD, WHOLE);
    show(GOOD, "\"normalizer\":{\"type\":\"NFKC\"}");
    show(GOOD, "\"pre_tokenizer\":{\"type\":\"Whitespace\"}");
}

GOLDEN(added_tokens)
{
    show(GOOD, WHOLE ",\"added_tokens\":7");
    show(GOOD, WHOLE ",\"added_tokens\":[{\"content\":\"c\"}]");
    show(GOOD, WHOLE ",\"added_tokens\":[{\"id\":1,\"content\":\"c\"}]");
    show(GOOD, WHOLE ",\"added_tokens\":[{\"id\":7,\"content\":\"a\"}]");
    show(GOOD, WHOLE ",\"added_tokens\":[{\"id\":7,\"content\":\"c\",\"single_word\":true}]");
}

GOLDEN(texts_and_ids)
{
    int32_t *ids = NULL;
    int64_t count = 0;
    char *text = NULL;
    size_t bytes = 0;
    ls_tokenizer *t = NULL;
    MUST(t = ls_tokenizer_new(json(GOOD, WHOLE)));
    SHOW(ls_tokenizer_encode(t, "abac", 4, &ids, &count));
    SHOW(ls_tokenizer_encode(NULL, "a", 1, &ids, &count));
    SHOW(ls_tokenizer_encode(t, NULL, 1, &ids, &count));
    SHOW(ls_tokenizer_decode(t, (int32_t[]){0, 7}, 2, &text, &bytes));
    ls_tokenizer_free(t);
}

GOLDEN_BARE(before_init)
{
    SHOW(made = ls_tokenizer_new("bytes"));
}

/* ---- memory ---------------------------------------------------------------------------------- */

static const char *used; /* the path that is opened while memory or files fail */

static ls_status use(void)
{
    int32_t *ids = NULL;
    int64_t count = 0;
    char *text = NULL;
    size_t bytes = 0;
    ls_tokenizer *t = NULL;
    ls_status status = LS_STATUS_OF(t = ls_tokenizer_new(used));
    if (status == LS_OK) {
        status = ls_tokenizer_encode(t, "abab", 4, &ids, &count);
    }
    if (status == LS_OK) {
        status = ls_tokenizer_decode(t, ids, count, &text, &bytes);
    }
    free(ids);
    free(text);
    ls_tokenizer_free(t);
    return status == LS_ERR_UNSUPPORTED ? LS_OK
                                        : status; /* no PCRE2: what comes before it is shown */
}

GOLDEN_BARE(memory)
{
    used = "bytes"; /* not a file's: jansson takes memory that is not there for a mistake in the
                       text */
    golden_fail_each(GOLDEN_MALLOC, use);
    used = json(GOOD, WHOLE ",\"added_tokens\":[{\"id\":7,\"content\":\"c\"}]");
    golden_fail_each(GOLDEN_MEMORY, use);
    golden_fail_each(GOLDEN_FILES, use);
}
