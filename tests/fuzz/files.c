/* SPDX-License-Identifier: Apache-2.0 */
/* Readers that open files themselves: tokenizers and IDX pairs. The input is written into a folder
 * of this process; what is opened is used. */
#include <lockstep/data.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/runtime.h"
#include "targets.h"
#include "tokenizer/tokenizer.h"

static const char *const names[] = {"tokenizer.json", "vocab.json", "merges.txt", "images",
                                    "labels"};
static char folder[64];

static const char *path_of(const char *name)
{
    static char paths[2][128];
    static unsigned next;
    char *path = paths[next++ % 2];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void remove_folder(void)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)unlink(path_of(names[i]));
    }
    (void)rmdir(folder);
}

/* A fresh folder for a child made by fork, too: it must not remove its parent's. */
static void make_folder(void)
{
    static pid_t owner;
    if (owner != getpid()) {
        owner = getpid();
        (void)snprintf(folder, sizeof folder, "/tmp/lockstep-fuzz-XXXXXX");
        LS_ASSERT(mkdtemp(folder) != NULL);
        (void)atexit(remove_folder);
    }
}

static void write_file(const char *name, const uint8_t *data, size_t bytes)
{
    FILE *file = fopen(path_of(name), "wb");
    LS_ASSERT(file != NULL && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
}

/* ---- tokenizers --------------------------------------------------------------------------- */

/* There and back: what is decoded is not the text where the vocabulary lacks bytes. */
static void use_tokenizer(const ls_tokenizer *t)
{
    static const char text[] =
        "The year 1984, it's <|endoftext|>\n\t caf\xc3\xa9 \xff\xfe abab  \0x";
    int32_t *ids = NULL;
    int64_t count = 0;
    if (ls_tokenizer_encode(t, text, sizeof text - 1, &ids, &count) == LS_OK) {
        char *back = NULL;
        size_t bytes = 0;
        LS_ASSERT(ls_tokenizer_decode(t, ids, count, &back, &bytes) == LS_OK);
        free(back);
    }
    free(ids);
}

static bool open_tokenizer(const char *path)
{
    ls_tokenizer *t = NULL;
    const bool accepted = ls__tokenizer_open(ls__env_posix(), path, &t) == LS_OK;
    LS_ASSERT(accepted == (t != NULL));
    if (accepted) {
        use_tokenizer(t);
    }
    ls_tokenizer_free(t);
    return accepted;
}

bool fuzz_tokenizer(const uint8_t *data, size_t bytes)
{
    make_folder();
    write_file("tokenizer.json", data, bytes);
    const bool accepted = open_tokenizer(path_of("tokenizer.json"));
    (void)unlink(path_of("tokenizer.json"));
    return accepted;
}

bool fuzz_merges(const uint8_t *data, size_t bytes)
{
    const uint8_t *cut = memchr(data, '\f', bytes);
    const size_t first = cut != NULL ? (size_t)(cut - data) : bytes;
    const size_t second = cut != NULL ? first + 1 : bytes;
    make_folder();
    write_file("vocab.json", data, first);
    write_file("merges.txt", data + second, bytes - second);
    return open_tokenizer(folder);
}

/* ---- IDX ---------------------------------------------------------------------------------- */

enum { LABELS_MAX = 1 << 16, LABELS_HEADER = 8 };

/* As many labels as the images claim to be, in an intact file: what is refused are the images. */
static void write_labels(const uint8_t *images, size_t bytes)
{
    static uint8_t file[LABELS_HEADER + LABELS_MAX] = {0, 0, 8, 1};
    size_t count = 0;
    for (size_t i = 4; i < 8 && i < bytes; i++) {
        file[i] = images[i];
        count = count << 8 | images[i];
    }
    write_file("labels", file, LABELS_HEADER + (count < LABELS_MAX ? count : LABELS_MAX));
}

static void use_images(ls_dataset *d)
{
    int64_t pixels = 1;
    for (int i = 0; i < d->x_shape.ndim; i++) {
        pixels *= d->x_shape.dim[i];
    }
    LS_ASSERT(d->count > 0 && pixels > 0);
    float *x = malloc((size_t)pixels * sizeof *x);
    int32_t y = 0;
    LS_ASSERT(x != NULL);
    LS_ASSERT(d->get(d, 0, x, &y) == LS_OK && d->get(d, d->count - 1, x, &y) == LS_OK);
    LS_ASSERT(x[pixels - 1] >= 0.0f && x[pixels - 1] <= 1.0f && y == 0);
    LS_ASSERT(d->get(d, d->count, x, &y) != LS_OK);
    free(x);
}

bool fuzz_idx(const uint8_t *data, size_t bytes)
{
    ls_runtime runtime;
    ls_dataset *d = NULL;
    make_folder();
    write_file("images", data, bytes);
    write_labels(data, bytes);
    ls__runtime_init(&runtime, ls__env_posix());
    LS_ASSERT(ls_runtime_attach(&runtime) == LS_OK);
    const bool accepted =
        LS_STATUS_OF(d = ls_idx_images_dataset_new(path_of("images"), path_of("labels"))) == LS_OK;
    LS_ASSERT(accepted == (d != NULL));
    if (accepted) {
        use_images(d);
        ls_dataset_free(d);
    }
    LS_ASSERT(ls_runtime_attach(NULL) == LS_OK);
    return accepted;
}
