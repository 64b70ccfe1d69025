/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of other programs: files made here byte by byte, as the format's README says. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/checkpoint.h>

#include "base/runtime.h"
#include "scratch.h"

/* ---- a state of four tensors and a scalar --------------------------------------------------- */

typedef struct state {
    float a[2][3];
    float b[4];
    int64_t n[2];
    float scalar; /* without dims */
    int64_t count;
} state;

static ls_status show(void *object, const char *prefix, const ls_state_visitor *v)
{
    state *s = object;
    const ls_state_tensor a = {
        .dtype = LS_FLOAT32, .ndim = 2, .global = {2, 3}, .local = {2, 3}, .data = s->a};
    const ls_state_tensor b = {
        .dtype = LS_FLOAT32, .ndim = 1, .global = {4}, .local = {4}, .data = s->b};
    const ls_state_tensor n = {
        .dtype = LS_INT64, .ndim = 1, .global = {2}, .local = {2}, .data = s->n};
    const ls_state_tensor scalar = {.dtype = LS_FLOAT32, .data = &s->scalar};
    (void)prefix;
    LS_TRY(v->tensor(v->self, "net.a", &a));
    LS_TRY(v->int64(v->self, "count", &s->count));
    LS_TRY(v->tensor(v->self, "net.b", &b));
    LS_TRY(v->tensor(v->self, "n", &n));
    return v->tensor(v->self, "scalar", &scalar);
}

#define ITEM(s)                                                                                    \
    (&(const ls_checkpoint_item){                                                                  \
        .size = sizeof(ls_checkpoint_item), .prefix = "", .object = (s), .state = show}),          \
        1

static const state filled = {.a = {{1, 2, 3}, {4, 5, 6}},
                             .b = {-1, 0.5f, 1e30f, -0.0f},
                             .n = {7, -8},
                             .scalar = 2.25f,
                             .count = 99};

/* ---- files ---------------------------------------------------------------------------------- */

static void begin(ls_runtime *runtime)
{
    scratch_begin();
    ls__runtime_init(runtime, ls__env_posix());
    CHECK_OK(ls_runtime_attach(runtime));
}

static void end(void)
{
    scratch_end();
    CHECK_OK(ls_runtime_attach(NULL));
}

#define WEIGHTS_TEST(name)                                                                         \
    static void name##_body(void);                                                                 \
    TEST(name)                                                                                     \
    {                                                                                              \
        ls_runtime runtime;                                                                        \
        begin(&runtime);                                                                           \
        name##_body();                                                                             \
        end();                                                                                     \
    }                                                                                              \
    static void name##_body(void)

/* `json` has an odd length on purpose: the data then lies unaligned, which the format allows. */
static const char *write_tensors(const char *name, const char *json, const void *data, size_t bytes)
{
    static uint8_t file[4096];
    const uint64_t length = strlen(json) + (strlen(json) % 2 == 0);
    CHECK(8 + length + bytes <= sizeof file);
    memset(file, ' ', sizeof file);
    memcpy(file, &length, 8);
    memcpy(file + 8, json, strlen(json));
    memcpy(file + 8 + length, data, bytes);
    return scratch_write(name, file, (size_t)(8 + length + bytes));
}

#define ENTRY(name, dtype, shape, from, to)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to   \
    "]}"

static const char *whole_file(void)
{
    uint8_t data[60];
    memcpy(data, filled.n, 16);
    memcpy(data + 16, filled.a, 24);
    memcpy(data + 40, filled.b, 16);
    memcpy(data + 56, &filled.scalar, 4);
    return write_tensors(
        "whole.safetensors",
        "{" ENTRY("n", "I64", "[2]", 0, 16) "," ENTRY("net.a", "F32", "[2,3]", 16, 40) "," ENTRY(
            "net.b", "F32", "[4]", 40, 56) "," ENTRY("scalar", "F32", "[]", 56, 60) "}",
        data, sizeof data);
}

static void check_filled(const state *s, int64_t count)
{
    state want = filled;
    want.count = count; /* scalars are not the file's */
    CHECK(memcmp(s->a, want.a, sizeof s->a) == 0);
    CHECK(memcmp(s->b, want.b, sizeof s->b) == 0);
    CHECK(memcmp(s->n, want.n, sizeof s->n) == 0);
    CHECK(s->scalar == want.scalar && s->count == want.count);
}

/* ---- loading -------------------------------------------------------------------------------- */

WEIGHTS_TEST(tensors_are_loaded_by_name)
{
    state s = {.count = 5};
    CHECK_OK(ls_safetensors_load(whole_file(), ITEM(&s), NULL));
    check_filled(&s, 5);
}

/* Bits from the definitions of the formats: IEEE 754 binary16, and binary32 cut to its upper half.
 */
WEIGHTS_TEST(narrow_and_wide_floats_become_float32)
{
    static const uint16_t half[6] = {0x3C00, 0xC000, 0x3555, 0x0001, 0x7BFF, 0x8000};
    static const float half_is[6] = {1.0f, -2.0f, 0x1.554p-2f, 0x1p-24f, 65504.0f, -0.0f};
    static const uint16_t brain[4] = {0x3F80, 0x4049, 0xFF7F, 0x0080};
    static const float brain_is[4] = {1.0f, 3.140625f, -0x1.FEp127f, 0x1p-126f};
    static const double wide = 0.1;
    uint8_t data[12 + 8 + 16 + 8];
    state s = {.count = 0};
    memcpy(data, &wide, 8);
    memcpy(data + 8, filled.n, 16);
    memcpy(data + 24, half, 12);
    memcpy(data + 36, brain, 8);
    const char *path = write_tensors(
        "narrow.safetensors",
        "{" ENTRY("scalar", "F64", "[]", 0, 8) "," ENTRY("n", "I64", "[2]", 8, 24) "," ENTRY(
            "net.a", "F16", "[2,3]", 24, 36) "," ENTRY("net.b", "BF16", "[4]", 36, 44) "}",
        data, sizeof data);
    CHECK_OK(ls_safetensors_load(path, ITEM(&s), NULL));
    CHECK(memcmp(s.a, half_is, sizeof s.a) == 0);
    CHECK(memcmp(s.b, brain_is, sizeof s.b) == 0);
    CHECK(s.scalar == 0.1f);
}

static void write_two_files(void)
{
    uint8_t first[40], second[20];
    memcpy(first, filled.n, 16);
    memcpy(first + 16, filled.a, 24);
    memcpy(second, filled.b, 16);
    memcpy(second + 16, &filled.scalar, 4);
    (void)write_tensors(
        "model-00001-of-00002.safetensors",
        "{" ENTRY("n", "I64", "[2]", 0, 16) "," ENTRY("net.a", "F32", "[2,3]", 16, 40) "}", first,
        sizeof first);
    (void)write_tensors(
        "model-00002-of-00002.safetensors",
        "{" ENTRY("net.b", "F32", "[4]", 0, 16) "," ENTRY("scalar", "F32", "[]", 16, 20) "}",
        second, sizeof second);
}

WEIGHTS_TEST(an_index_leads_to_several_files)
{
    static const char index[] =
        "{\"metadata\":{\"total_size\":60},\"weight_map\":{"
        "\"n\":\"model-00001-of-00002.safetensors\",\"net.a\":\"model-00001-of-00002.safetensors\","
        "\"net.b\":\"model-00002-of-00002.safetensors\","
        "\"scalar\":\"model-00002-of-00002.safetensors\"}}";
    write_two_files();
    const char *path = scratch_write("model.safetensors.index.json", index, sizeof index - 1);
    state s = {.count = 1}, t = {.count = 2};
    CHECK_OK(ls_safetensors_load(path, ITEM(&s), NULL));
    check_filled(&s, 1);
    CHECK_OK(
        ls_safetensors_load(scratch_folder(), ITEM(&t), NULL)); /* a folder leads to its index */
    check_filled(&t, 2);
}

WEIGHTS_TEST(a_folder_leads_to_its_only_file)
{
    state s = {.count = 3};
    CHECK(rename(whole_file(), scratch_at("model.safetensors")) == 0);
    CHECK_OK(ls_safetensors_load(scratch_folder(), ITEM(&s), NULL));
    check_filled(&s, 3);
}

/* a is as it should be, b has another shape, n another dtype, scalar is missing, c is too many. */
static const char *other_file(void)
{
    uint8_t data[48] = {0};
    memcpy(data, filled.a, 24);
    return write_tensors(
        "other.safetensors",
        "{" ENTRY("net.a", "F32", "[2,3]", 0, 24) "," ENTRY(
            "net.b", "F32", "[2,2]", 24, 40) "," ENTRY("n", "I32", "[2]", 40,
                                                       48) "," ENTRY("c", "F32", "[0]", 48, 48) "}",
        data, sizeof data);
}

WEIGHTS_TEST(what_does_not_fit_is_listed_and_nothing_changes)
{
    state s = {.count = 4};
    CHECK_STATUS(ls_safetensors_load(other_file(), ITEM(&s), NULL), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "1 not in the file: scalar");
    CHECK_CONTAINS(ls_error_message(), "1 only in the file: c");
    CHECK_CONTAINS(ls_error_message(), "net.b is float32 [2,2] in the file and float32 [4] here");
    CHECK_CONTAINS(ls_error_message(), "n is int32 [2] in the file and int64 [2] here");
    /* Shapes must fit, strict or not. */
    CHECK_STATUS(ls_safetensors_load(other_file(), ITEM(&s),
                                     LS_OPTIONS(ls_safetensors_options, .strict = false)),
                 LS_ERR_MISMATCH);
    CHECK(!test_contains(ls_error_message(), "only in the file"));
    CHECK(memcmp(&s, &(const state){.count = 4}, sizeof s) == 0);
}

static const char *part_file(void)
{
    uint8_t data[28] = {0};
    memcpy(data, filled.a, 24);
    return write_tensors(
        "part.safetensors",
        "{" ENTRY("net.a", "F32", "[2,3]", 0, 24) "," ENTRY("more", "F32", "[1]", 24, 28) "}", data,
        sizeof data);
}

typedef struct seen {
    char missing[64], unexpected[64];
} seen;

static bool allow_all(void *arg, const char *name, bool in_file)
{
    seen *list = arg;
    char *to = in_file ? list->unexpected : list->missing;
    (void)snprintf(to + strlen(to), 64 - strlen(to), "%s ", name);
    return true;
}

WEIGHTS_TEST(what_only_one_side_has_may_be_allowed)
{
    state s = {.b = {9, 9, 9, 9}}, t = {.scalar = 8};
    seen list = {"", ""};
    CHECK_OK(ls_safetensors_load(part_file(), ITEM(&s),
                                 LS_OPTIONS(ls_safetensors_options, .strict = false)));
    CHECK(memcmp(s.a, filled.a, sizeof s.a) == 0 && s.b[3] == 9);
    CHECK_OK(
        ls_safetensors_load(part_file(), ITEM(&t),
                            LS_OPTIONS(ls_safetensors_options, .allow = allow_all, .arg = &list)));
    CHECK(memcmp(t.a, filled.a, sizeof t.a) == 0 && t.scalar == 8);
    CHECK_STR(list.missing, "net.b n scalar ");
    CHECK_STR(list.unexpected, "more ");
}

WEIGHTS_TEST(a_file_of_another_model_is_refused_even_then)
{
    static const float one = 1.0f;
    state s = {.count = 0};
    const char *path =
        write_tensors("foreign.safetensors", "{" ENTRY("w", "F32", "[]", 0, 4) "}", &one, 4);
    CHECK_STATUS(
        ls_safetensors_load(path, ITEM(&s), LS_OPTIONS(ls_safetensors_options, .strict = false)),
        LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "\"w\"");
    CHECK_CONTAINS(ls_error_message(), "\"net.a\"");
}

/* Saved by torch.compile and DDP: one comparison finds the prefix of all names. A name that only
 * one side has is then still an error. */
WEIGHTS_TEST(a_prefix_that_all_names_in_the_file_have_is_left_out)
{
    uint8_t data[64] = {0};
    state s = {.count = 6}, t = {.count = 6};
    memcpy(data, filled.n, 16);
    memcpy(data + 16, filled.a, 24);
    memcpy(data + 40, filled.b, 16);
    memcpy(data + 56, &filled.scalar, 4);
#define WRAPPED(more)                                                                              \
    "{" ENTRY("_orig_mod.module.n", "I64", "[2]", 0, 16) "," ENTRY(                                \
        "_orig_mod.module.net.a", "F32", "[2,3]", 16,                                              \
        40) "," ENTRY("_orig_mod.module.net.b", "F32", "[4]", 40,                                  \
                      56) "," ENTRY("_orig_mod.module.scalar", "F32", "[]", 56, 60) more "}"
    CHECK_OK(ls_safetensors_load(write_tensors("wrapped.safetensors", WRAPPED(""), data, 60),
                                 ITEM(&s), NULL));
    check_filled(&s, 6);
    const char *more =
        write_tensors("more.safetensors",
                      WRAPPED("," ENTRY("_orig_mod.module.head", "F32", "[1]", 60, 64)), data, 64);
    CHECK_STATUS(ls_safetensors_load(more, ITEM(&t), NULL), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "1 only in the file: _orig_mod.module.head;");
    CHECK(memcmp(&t, &(const state){.count = 6}, sizeof t) == 0);
}

/* ---- files of other kinds ------------------------------------------------------------------- */

static const char *with_scale(const char *dtype, const char *name)
{
    static char json[512];
    uint8_t data[64] = {0};
    memcpy(data, filled.n, 16);
    memcpy(data + 16, filled.a, 24);
    memcpy(data + 40, filled.b, 16);
    memcpy(data + 56, &filled.scalar, 4);
    (void)snprintf(
        json, sizeof json,
        "{" ENTRY("n", "I64", "[2]", 0, 16) "," ENTRY("net.a", "F32", "[2,3]", 16, 40) "," ENTRY(
            "net.b", "F32", "[4]", 40,
            56) ",\"%s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":"
                "[56,60]},\"%s\":{\"dtype\":\"%s\",\"shape\":[3],"
                "\"data_offsets\":[60,63]}}",
        strcmp(name, "scalar") == 0 ? "other" : "scalar", name, dtype);
    return write_tensors("scale.safetensors", json, data, 63);
}

WEIGHTS_TEST(a_tensor_that_nobody_asks_for_may_have_any_dtype)
{
    static const char *const dtypes[] = {"F8_E4M3", "F8_E5M2", "F8_E8M0", "C64", "F4", "later"};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        state s = {.count = 3}, t = {.count = 3};
        char want[64];
        CHECK_OK(ls_safetensors_load(with_scale(dtypes[i], "scale"), ITEM(&s),
                                     LS_OPTIONS(ls_safetensors_options, .strict = false)));
        check_filled(&s, 3);
        CHECK_STATUS(ls_safetensors_load(with_scale(dtypes[i], "scalar"), ITEM(&t),
                                         LS_OPTIONS(ls_safetensors_options, .strict = false)),
                     LS_ERR_MISMATCH);
        (void)snprintf(want, sizeof want, "scalar is %s [3] in the file and float32 [] here",
                       dtypes[i]);
        CHECK_CONTAINS(ls_error_message(), want);
    }
}

WEIGHTS_TEST(files_of_other_kinds_are_recognised_by_their_first_bytes)
{
    static const struct {
        const char *bytes, *says;
    } files[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef\nsize 5\n",
         "git lfs pull"},
        {"<!DOCTYPE html><html><head><title>Sign in</title></head></html>", "an HTML page"},
        {"PK\3\4 a zip archive, as torch.save writes it", "s.save_file("},
        {"\x80\2}q pickle, as torch.save wrote it until 1.5", "s.save_file("},
        {"GGUF and so on, for llama.cpp", "(GGUF)"},
        {"0123456789 something else", "truncated or not a safetensors file"},
    };
    state s = {.count = 0};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const char *path =
            scratch_write("model.safetensors", files[i].bytes, strlen(files[i].bytes));
        CHECK_STATUS(ls_safetensors_load(path, ITEM(&s), NULL), LS_ERR_FORMAT);
        CHECK_CONTAINS(ls_error_message(), files[i].says);
    }
    CHECK_STATUS(ls_safetensors_load(scratch_write("i.json", files[0].bytes, 70), ITEM(&s), NULL),
                 LS_ERR_FORMAT);
    CHECK_CONTAINS(ls_error_message(), "not an index: it is a git-lfs pointer");
}

static bool without_net(void *arg, const char *name, int number, char *out, size_t bytes)
{
    (void)arg;
    (void)snprintf(out, bytes, "%s%s", number == 0 ? "wrong." : "",
                   strncmp(name, "net.", 4) == 0 ? name + 4 : name);
    return number < 2;
}

WEIGHTS_TEST(other_names_and_a_prefix_are_tried)
{
    uint8_t data[64] = {0};
    state s = {.count = 6};
    memcpy(data, filled.n, 16);
    memcpy(data + 16, filled.a, 24);
    memcpy(data + 40, filled.b, 16);
    memcpy(data + 56, &filled.scalar, 4);
    const char *path = write_tensors(
        "named.safetensors",
        "{" ENTRY("model.n", "I64", "[2]", 0, 16) "," ENTRY(
            "model.a", "F32", "[2,3]", 16,
            40) "," ENTRY("model.b", "F32", "[4]", 40,
                          56) "," ENTRY("model.scalar", "F32", "[]", 56,
                                        60) "," ENTRY("head", "F32", "[1]", 60, 64) "}",
        data, sizeof data);
    CHECK_OK(ls_safetensors_load(
        path, ITEM(&s),
        LS_OPTIONS(ls_safetensors_options, .prefix = "model.", .other_name = without_net)));
    check_filled(&s, 6);
}

/* ---- saving --------------------------------------------------------------------------------- */

WEIGHTS_TEST(what_is_saved_is_what_the_format_says)
{
    state s = filled;
    uint8_t file[1024];
    uint64_t length;
    CHECK_OK(ls_safetensors_save(scratch_at("saved.safetensors"), ITEM(&s),
                                 LS_OPTIONS(ls_safetensors_options, .prefix = "x.")));
    FILE *in = fopen(scratch_at("saved.safetensors"), "rb");
    CHECK(in != NULL);
    size_t bytes = fread(file, 1, sizeof file, in);
    (void)fclose(in);
    memcpy(&length, file, 8);
    CHECK_INT(bytes, 8 + length + 60);
    CHECK_INT((8 + length) % 8, 0);
    file[8 + length - 1] = '\0'; /* a space */
    const char *json = (const char *)file + 8;
    CHECK_CONTAINS(json, "\"__metadata__\":{\"format\":\"pt\"}");
    CHECK_CONTAINS(json, ENTRY("x.n", "I64", "[2]", 0, 16)); /* the largest elements first */
    CHECK_CONTAINS(json, ENTRY("x.net.a", "F32", "[2,3]", 16, 40));
    CHECK_CONTAINS(json, ENTRY("x.net.b", "F32", "[4]", 40, 56));
    CHECK_CONTAINS(json, ENTRY("x.scalar", "F32", "[]", 56, 60));
    const uint8_t *data = file + 8 + length;
    CHECK(memcmp(data, filled.n, 16) == 0 && memcmp(data + 16, filled.a, 24) == 0);
    CHECK(memcmp(data + 40, filled.b, 16) == 0 && memcmp(data + 56, &filled.scalar, 4) == 0);
}

WEIGHTS_TEST(a_file_is_replaced_as_a_whole)
{
    state s = filled, t = {.count = 7};
    const char *path = scratch_write("saved.safetensors", "old", 3);
    CHECK_OK(ls_safetensors_save(path, ITEM(&s), NULL));
    CHECK_OK(ls_safetensors_load(path, ITEM(&t), NULL));
    check_filled(&t, 7);
    char command[128];
    (void)snprintf(command, sizeof command, "ls %s", scratch_folder());
    test_output listed = test_run(command, 10);
    CHECK_STR(listed.text, "saved.safetensors\n");
    free(listed.text);
}

TEST_MAIN
