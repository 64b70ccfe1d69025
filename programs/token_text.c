/* See token_text.h. */
#include "token_text.h"

#include <stdlib.h>
#include <string.h>

typedef struct text_file {
    int32_t *ids;
    int64_t first; /* number of its first sample */
} text_file;

typedef struct token_text {
    ls_dataset base;
    int64_t context, stride;
    int files;
    text_file file[];
} token_text;

static void token_text_free(ls_dataset *self)
{
    token_text *t = (token_text *)self;
    for (int i = 0; i < t->files; i++) {
        ls_bytes_free(t->file[i].ids);
    }
    free(t);
}

/* The last file whose first sample is not after `index`. */
static const text_file *file_of(const token_text *t, int64_t index)
{
    int low = 0, high = t->files - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        low = t->file[middle].first <= index ? middle : low;
        high = t->file[middle].first <= index ? high : middle - 1;
    }
    return &t->file[low];
}

static ls_status token_text_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    const token_text *t = (const token_text *)self;
    const text_file *f = file_of(t, index);
    const int32_t *window = f->ids + (index - f->first) * t->stride;
    memcpy(x, window, (size_t)t->context * sizeof *window);
    memcpy(y, window + 1, (size_t)t->context * sizeof *window);
    return LS_OK;
}

static ls_status encode(token_text *t, const ls_dataset *text, const ls_tokenizer *tokenizer)
{
    int64_t longest = 0;
    for (; t->files < ls_text_files(text); t->files++) {
        int64_t bytes, count;
        text_file *f = &t->file[t->files];
        const uint8_t *from = ls_text_file(text, t->files, &bytes);
        f->first = t->base.count;
        LS_TRY(ls_tokenizer_encode(tokenizer, (const char *)from, (size_t)bytes, &f->ids, &count));
        t->base.count += count > t->context ? (count - t->context - 1) / t->stride + 1 : 0;
        longest = count > longest ? count : longest;
    }
    return t->base.count > 0
               ? LS_OK
               : ls_fail(LS_ERR_INVALID,
                         "text: every file is shorter than a window: the longest has "
                         "%lld tokens, a window of context %lld needs %lld; give "
                         "more text or a smaller context",
                         (long long)longest, (long long)t->context, (long long)t->context + 1);
}

ls_status token_text_new(const ls_dataset *text, const ls_tokenizer *tokenizer, int64_t context,
                         int64_t stride, ls_dataset **out)
{
    const size_t files = (size_t)ls_text_files(text);
    token_text *t = calloc(1, sizeof *t + files * sizeof t->file[0]);
    *out = NULL;
    if (t == NULL) {
        return ls_fail(LS_ERR_MEMORY, "no memory");
    }
    t->context = context;
    t->stride = stride;
    t->base = (ls_dataset){.size = sizeof(ls_dataset),
                           .x_shape = LS_SHAPE(context),
                           .y_shape = LS_SHAPE(context),
                           .x_dtype = LS_INT32,
                           .y_dtype = LS_INT32,
                           .get = token_text_get,
                           .free = token_text_free};
    ls_status status = encode(t, text, tokenizer);
    if (status < 0) {
        token_text_free(&t->base);
        return status;
    }
    *out = &t->base;
    return LS_OK;
}

ls_status text_windows_new(const char *path, const ls_tokenizer *tokenizer, int64_t context,
                           ls_text_part part, ls_dataset **out)
{
    ls_text_options o = *LS_OPTIONS(ls_text_options, .context = context, .part = part);
    o.stride = part == LS_TEXT_HELD_OUT ? context : 1;
    if (tokenizer == NULL) {
        return LS_STATUS_OF(*out = ls_text_dataset_new(path, &o));
    }
    ls_dataset *text = NULL;
    const int64_t stride = o.stride;
    o.context = o.stride = 1; /* only the files are used, so even short ones must be accepted */
    *out = NULL;
    ls_status status = LS_STATUS_OF(text = ls_text_dataset_new(path, &o));
    if (status >= 0) {
        status = token_text_new(text, tokenizer, context, stride, out);
        ls_dataset_free(text);
    }
    return status;
}
