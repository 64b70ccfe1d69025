/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of other programs: files that are not what was asked for, and disks that fail. */
#include <sys/stat.h>

#include "golden.h"

static float a[6] = {1, 2, 3, 4, 5, 6}, b[2] = {7, 8};
static const char *first = "net.a", *second = "net.b";
static int64_t local = 6;
static size_t huge; /* 0: the tensors are as large as they are */
static int64_t number = 1;

static ls_status show(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    (void)object;
    (void)prefix;
    if (huge > 0) {
        const ls_state_tensor tensor = {.dtype = LS_UINT8,
                                        .ndim = 1,
                                        .global = {(int64_t)huge},
                                        .local = {(int64_t)huge},
                                        .data = a};
        LS_TRY(visitor->tensor(visitor->self, "x", &tensor));
        LS_TRY(visitor->tensor(visitor->self, "y", &tensor));
        return visitor->tensor(visitor->self, "z", &tensor);
    }
    const ls_state_tensor of_a = {
        .dtype = LS_FLOAT32, .ndim = 1, .global = {6}, .local = {local}, .data = a};
    const ls_state_tensor of_b = {
        .dtype = LS_FLOAT32, .ndim = 1, .global = {2}, .local = {2}, .data = b};
    LS_TRY(visitor->tensor(visitor->self, first, &of_a));
    LS_TRY(visitor->int64(visitor->self, "count", &number));
    return visitor->tensor(visitor->self, second, &of_b);
}

static const ls_checkpoint_item item = {
    .size = sizeof item, .prefix = "", .object = a, .state = show};

static void show_load(const char *what, const char *path)
{
    golden_show(what, ls_safetensors_load(path, &item, 1, NULL));
}

/* A file of float32 tensors in a row: names and counts. */
static const char *tensors(const char *file, const char *const *names, const int *counts, int count)
{
    static char bytes[8192];
    char *json = bytes + 8;
    uint64_t length = 0;
    int at = 0;
    memset(bytes, 0, sizeof bytes);
    for (int i = 0; i < count; i++) {
        length +=
            (uint64_t)snprintf(json + length, sizeof bytes - 8 - length,
                               "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%d],"
                               "\"data_offsets\":[%d,%d]}",
                               i == 0 ? '{' : ',', names[i], counts[i], at, at + 4 * counts[i]);
        at += 4 * counts[i];
    }
    json[length++] = '}';
    memset(json + length, 0, (size_t)at);
    memcpy(bytes, &length, 8);
    return golden_file(file, bytes, 8 + length + (size_t)at);
}

static const char *good(const char *file)
{
    return tensors(file, (const char *const[]){"net.a", "net.b"}, (const int[]){6, 2}, 2);
}

static const char *text(const char *file, const char *what)
{
    return golden_file(file, what, strlen(what));
}

GOLDEN(paths_to_weights)
{
    SHOW(ls_safetensors_load("", &item, 1, NULL));
    SHOW(ls_safetensors_load("/does/not/exist.safetensors", &item, 1, NULL));
    show_load("a folder without weights", golden_folder());
    show_load("an empty file", text("empty.safetensors", ""));
    (void)text("pytorch_model.bin", "PK\3\4");
    show_load("a folder with a pickle", golden_folder());
    show_load("another format", text("model.bin", "PK\3\4 a zip file, as torch.save makes"));
    show_load("a pointer", text("model.safetensors", "version https://git-lfs.github.com/spec/v1"));
    show_load("a GGUF", text("model.gguf", "GGUF\3 for llama.cpp"));
    show_load("gzip", text("model.safetensors.gz", "\x1f\x8b\x08 and so on"));
    show_load("a page", text("model.safetensors", "<!DOCTYPE html>"));
    show_load("an index as a pointer",
              text("model.safetensors.index.json", "version https://git-lfs.github.com/spec/v1"));
    SHOW(ls_safetensors_save("", &item, 1, NULL));
    SHOW(ls_safetensors_save("/does/not/exist/model.safetensors", &item, 1, NULL));
}

GOLDEN(indexes)
{
    (void)good("model-1.safetensors");
    (void)good("model-2.safetensors");
    show_load("empty", text("model.safetensors.index.json", ""));
    show_load("no JSON", text("model.safetensors.index.json", "{"));
    show_load("no map", text("model.safetensors.index.json", "{\"weight_map\":[]}"));
    show_load("a path", text("model.safetensors.index.json",
                             "{\"weight_map\":{\"net.a\":\"../model-1.safetensors\"}}"));
    show_load("no such file", text("model.safetensors.index.json",
                                   "{\"weight_map\":{\"net.a\":\"model-3.safetensors\"}}"));
    show_load("not in its file", text("model.safetensors.index.json",
                                      "{\"weight_map\":{\"net.c\":\"model-1.safetensors\"}}"));
    show_load("twice", text("model.safetensors.index.json",
                            "{\"weight_map\":{\"net.a\":\"model-1.safetensors\","
                            "\"net.b\":\"model-2.safetensors\"}}"));
}

GOLDEN(weights_of_another_model)
{
    show_load("others", tensors("m.safetensors", (const char *const[]){"net.a", "net.c"},
                                (const int[]){5, 2}, 2));
    show_load("one missing",
              tensors("m.safetensors", (const char *const[]){"net.a"}, (const int[]){6}, 1));
    const char *many[40];
    char names[40][64];
    int counts[40];
    for (int i = 0; i < 40; i++) {
        (void)snprintf(names[i], sizeof names[i], "transformer.h.%d.attn.c_attn.bias", i);
        many[i] = names[i];
        counts[i] = 1;
    }
    many[0] = "net.a", many[1] = "net.b";
    counts[0] = 6, counts[1] = 2;
    show_load("many", tensors("m.safetensors", many, counts, 40));
    golden_show("nothing of it",
                ls_safetensors_load(
                    tensors("m.safetensors", (const char *const[]){"w"}, (const int[]){6}, 1),
                    &item, 1, LS_OPTIONS(ls_safetensors_options, .strict = false)));
}

static int walks;

static ls_status show_another(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    first = ++walks % 2 == 1 ? "net.a" : "net.c";
    ls_status status = show(object, prefix, visitor);
    first = "net.a";
    return status;
}

GOLDEN(state_that_weights_cannot_meet)
{
    char name[5000];
    const ls_checkpoint_item changing = {
        .size = sizeof changing, .prefix = "", .object = a, .state = show_another};
    const char *path = good("m.safetensors");
    golden_show("a walk that changes, loading", ls_safetensors_load(path, &changing, 1, NULL));
    walks = 0;
    golden_show("a walk that changes, saving", ls_safetensors_save(path, &changing, 1, NULL));
    local = 3;
    golden_show("a slice, loading", ls_safetensors_load(path, &item, 1, NULL));
    golden_show("a slice, saving", ls_safetensors_save(path, &item, 1, NULL));
    local = 6;
    memset(name, 'p', sizeof name);
    name[sizeof name - 1] = '\0';
    golden_show(
        "a long prefix",
        ls_safetensors_save(path, &item, 1, LS_OPTIONS(ls_safetensors_options, .prefix = name)));
    golden_show(
        "a prefix that is no text",
        ls_safetensors_save(path, &item, 1, LS_OPTIONS(ls_safetensors_options, .prefix = "\xff")));
    huge = PTRDIFF_MAX;
    golden_show("tensors beyond all memory", ls_safetensors_save(path, &item, 1, NULL));
}

/* ---- what fails ----------------------------------------------------------------------------- */

static const char *path_of_good;

static ls_status use_weights(void)
{
    ls_status status = ls_safetensors_load(path_of_good, &item, 1, NULL);
    return status == LS_OK ? ls_safetensors_save(path_of_good, &item, 1, NULL) : status;
}

GOLDEN_BARE(no_memory_for_weights)
{
    path_of_good = good("m.safetensors");
    golden_fail_each(GOLDEN_MEMORY, use_weights);
    golden_fail_each(GOLDEN_MALLOC, use_weights);
}

GOLDEN_BARE(disks_that_fail_with_weights)
{
    path_of_good = good("m.safetensors");
    golden_fail_each(GOLDEN_FILES, use_weights);
}
