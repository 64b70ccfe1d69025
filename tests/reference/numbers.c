/* SPDX-License-Identifier: Apache-2.0 */
/* The stored numbers of a net: a safetensors file, read whole. */
#include "reference.h"

#include <stdarg.h>
#include <stdio.h>

#include "checkpoint/safetensors.h"

struct numbers {
    uint8_t *file;
    ls__arena arena;
    ls__safetensors tensors;
};

static uint8_t *read_whole(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        test_fail(__FILE__, __LINE__, "%s cannot be opened; make.py beside it writes it", path);
    }
    CHECK(fseek(f, 0, SEEK_END) == 0);
    long end = ftell(f);
    CHECK(end > 0 && fseek(f, 0, SEEK_SET) == 0);
    uint8_t *file = malloc((size_t)end);
    CHECK(file != NULL && fread(file, 1, (size_t)end, f) == (size_t)end);
    (void)fclose(f);
    *bytes = (size_t)end;
    return file;
}

numbers *numbers_open(const char *net)
{
    char path[128];
    size_t bytes = 0;
    (void)snprintf(path, sizeof path, "tests/reference/%s.safetensors", net);
    numbers *n = calloc(1, sizeof *n);
    CHECK(n != NULL);
    n->file = read_whole(test_source_path(path), &bytes);
    ls__arena_init(&n->arena, ls__env_posix(), (size_t)1 << 14);
    CHECK_OK(ls__safetensors_parse(n->file, bytes, path, &n->arena, &n->tensors));
    return n;
}

double *numbers_get(const numbers *n, int64_t count, const char *format, ...)
{
    char name[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(name, sizeof name, format, args);
    va_end(args);
    const ls__safetensor *t = ls__safetensors_find(&n->tensors, name);
    if (t == NULL) {
        test_fail(__FILE__, __LINE__, "no numbers for %s", name);
    }
    size_t each = ls_dtype_size(t->dtype);
    CHECK(t->dtype == LS_FLOAT32 || t->dtype == LS_FLOAT64);
    CHECK_INT((t->end - t->begin) / each, count);
    double *out = calloc((size_t)count + 1, sizeof *out);
    CHECK(out != NULL);
    for (int64_t i = 0; i < count; i++) { /* the file need not be aligned */
        const uint8_t *at = n->file + t->begin + (size_t)i * each;
        float narrow = 0.0f;
        if (t->dtype == LS_FLOAT64) {
            memcpy(&out[i], at, sizeof out[i]);
        } else {
            memcpy(&narrow, at, sizeof narrow);
            out[i] = (double)narrow;
        }
    }
    return out;
}

int numbers_count(const numbers *n, const char *prefix)
{
    int count = 0;
    for (int i = 0; i < n->tensors.count; i++) {
        count += strncmp(n->tensors.list[i].name, prefix, strlen(prefix)) == 0;
    }
    return count;
}

void numbers_close(numbers *n)
{
    ls__arena_fini(&n->arena);
    free(n->file);
    free(n);
}
