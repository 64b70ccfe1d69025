/* SPDX-License-Identifier: Apache-2.0 */
/* Structs whose size the caller states: a size that no struct can have is refused in words, a
 * shorter struct of an older header and a longer one of a newer header work, defaults agree
 * however they are asked for, unknown words are refused, and what the library fills ends where the
 * caller's struct does. calls.py writes the calls from the public headers, so this covers every
 * function and struct in them. */
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/lstm.h>
#include <lockstep/models/mixtral.h>
#include <lockstep/models/rotary_attention.h>
#include <lockstep/models/vit.h>

#include "reduce/internal.h"
#include "scratch.h"
#include "test.h"

#define BYTES_MAX 1024
#define LEAST (2 * sizeof(size_t)) /* a size and one field */

/* ---- plain arguments ------------------------------------------------------------------------- */

static ls_reducer *reducer;
static ls_module *wrapper;
static ls_loader *loader;
static ls_reducer_param any_param;
/* Where a function writes its results, and zeros for the inputs that have no type of their own. */
static union {
    void *made;
    _Alignas(16) char bytes[4096];
} memory;

static void begin(void)
{
    scratch_begin();
    CHECK_OK(ls_init(NULL));
    any_param = (ls_reducer_param){.name = "w", .count = 4, .dtype = LS_FLOAT32};
    ls_reducer_param param = any_param;
    CHECK_OK(ls_reducer_new(ls_world(), &param, 1, NULL, &reducer));
    CHECK((wrapper = ls_ddp_new(ls_linear_new(2, 2, NULL), ls_world(), NULL)) != NULL);
}

static void end(void)
{
    ls_loader_free(loader);
    loader = NULL;
    ls_module_free(wrapper);
    CHECK_OK(ls_reducer_free(reducer));
    CHECK_OK(ls_finalize());
    scratch_end();
}

static void *place(void)
{
    memset(&memory, 0, sizeof memory);
    return &memory;
}

static ls_module *any_module(void)
{
    return ls_linear_new(4, 4, NULL);
}

static ls_optim *any_optim(void)
{
    return ls_sgd_new(any_module(), NULL);
}

static ls_tensor *any_tensor(void)
{
    return ls_ones(LS_SHAPE(2, 2, 4, 4), LS_FLOAT32);
}

static ls_tensor **any_tensors(void)
{
    static ls_tensor *tensors[1];
    tensors[0] = any_tensor();
    return tensors;
}

static ls_tensor *square(ls_tensor **inputs, void *arg)
{
    (void)arg;
    return ls_mul(inputs[0], inputs[0]);
}

static ls_dataset *any_dataset(void)
{
    return ls_tensor_dataset_new(any_tensor(), ls_zeros(LS_SHAPE(2), LS_INT32));
}

static ls_sampler *any_sampler(void)
{
    return ls_sampler_new(2, NULL);
}

/* A loader ends with its first error, so each call gets a new one. */
static ls_loader *any_loader(void)
{
    ls_loader_free(loader);
    loader = ls_loader_new(any_dataset(), any_sampler(), NULL);
    return loader;
}

static const char *any_path(void)
{
    static const uint16_t tokens[2048] = {1, 2, 3};
    return scratch_write("tokens.bin", tokens, sizeof tokens);
}

static ls_comm_hook *any_hook(void)
{
    static ls_comm_hook hook = {.size = sizeof hook};
    return &hook;
}

static ls_status begin_and_wait(const ls_reducer_begin_options *options)
{
    LS_TRY(ls_reducer_begin(reducer, options));
    CHECK_OK(ls_reducer_ready(reducer, 0, NULL));
    return ls_reducer_wait(reducer);
}

/* Hooks are shown buckets; one rank calls none. */
static ls_status param_of_bucket(ls_bucket_param *out)
{
    CHECK_OK(begin_and_wait(NULL));
    return ls_bucket_get_param((ls_bucket *)(void *)&reducer->plan.buckets[0], 0, out);
}

/* ls_init with these options, and back to the job that the other calls use. */
static ls_status init_again(const ls_init_options *options)
{
    end();
    const ls_status status = ls_init(options);
    char text[2048];
    (void)snprintf(text, sizeof text, "%s", ls_error_message());
    if (status == LS_OK) {
        CHECK_OK(ls_finalize());
    }
    begin();
    return status == LS_OK ? LS_OK : ls_fail(status, "%s", text);
}

#include "calls.h" /* call_FUNCTION(struct) for each, and the lists below */

/* Arguments that a function did not take are not freed. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

/* ---- options --------------------------------------------------------------------------------- */

typedef struct row {
    const char *function;
    const char *type;
    size_t bytes;       /* of the struct in these headers */
    const void *values; /* its defaults */
    ls_status (*call)(void *options);
} row;

/* Status and text of a call with the first `known` bytes of the row's values, in a struct that
 * states `size`; every byte behind them is garbage. */
static const char *outcome(const row *r, size_t known, size_t size)
{
    static char texts[2][2048];
    static int next;
    LS_SCOPE;
    _Alignas(16) char options[BYTES_MAX];
    CHECK(r->bytes + 64 <= sizeof options);
    memset(options, 0xa5, sizeof options);
    memcpy(options, r->values, known);
    memcpy(options, &size, sizeof size);
    const ls_status status = r->call(options);
    char *text = texts[next++ % 2];
    (void)snprintf(text, sizeof texts[0], "%s: %s", ls_status_name(status),
                   status < 0 ? ls_error_message() : "");
    return text;
}

static void check_refused(const row *r)
{
    char fill[128], from[128];
    (void)snprintf(fill, sizeof fill, "LS_OPTIONS(%s, …)", r->type);
    (void)snprintf(from, sizeof from, "%.*s_defaults()",
                   (int)(strlen(r->type) - strlen("_options")), r->type);
    const size_t sizes[] = {0, 1, 4, sizeof(size_t), r->bytes + 4, 4104, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *text = outcome(r, r->bytes, sizes[i]);
        CHECK_CONTAINS(text, "LS_ERR_INVALID");
        CHECK_CONTAINS(text, sizes[i] == 0 ? "options->size is 0; fill" : "_options has ");
        CHECK_CONTAINS(text, fill);
        CHECK_CONTAINS(text, from);
    }
}

/* Fields that a shorter struct lacks have their defaults; what a longer one adds is not read. */
static void check_works(const row *r)
{
    char whole[2048];
    (void)snprintf(whole, sizeof whole, "%s", outcome(r, r->bytes, r->bytes));
    CHECK(strstr(whole, "options->size") == NULL);
    for (size_t size = LEAST; size <= r->bytes + 64; size += sizeof(size_t)) {
        const char *text = outcome(r, size < r->bytes ? size : r->bytes, size);
        if (strcmp(text, whole) != 0) {
            test_fail(__FILE__, __LINE__,
                      "%s with %zu of %zu bytes: \"%s\", with all of them: \"%s\"", r->function,
                      size, r->bytes, text, whole);
        }
    }
}

#define NOTHING(...)
#define ROW(function, type)                                                                        \
    {#function, #type, sizeof(type), LS_OPTIONS(type, .size = sizeof(type)), call_##function},

TEST(a_size_that_no_struct_can_have_is_refused_in_words)
{
    begin();
    const row rows[] = {CALLS(ROW, ROW, NOTHING)};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_refused(&rows[i]);
    }
    end();
}

TEST(shorter_structs_of_older_headers_and_longer_ones_of_newer_work)
{
    begin();
    const row rows[] = {CALLS(ROW, NOTHING, NOTHING)};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_works(&rows[i]);
    }
    end();
}

/* A word that no field can know is quoted in the error, or is a name that may be anything. */
static void check_word(const row *none, const row *unknown)
{
    const char *plain = outcome(none, none->bytes, none->bytes);
    const char *text = outcome(unknown, unknown->bytes, unknown->bytes);
    if (strcmp(text, plain) != 0 && strstr(text, "no_such_word") == NULL) {
        test_fail(__FILE__, __LINE__, "%s: \"%s\", without the word: \"%s\"", none->function, text,
                  plain);
    }
}

TEST(unknown_words_are_quoted)
{
    begin();
#define WORD_IN(function, type, field)                                                             \
    check_word(                                                                                    \
        &(row){#function, #type, sizeof(type), LS_OPTIONS(type, .field = NULL), call_##function},  \
        &(row){#function, #type, sizeof(type), LS_OPTIONS(type, .field = "no_such_word"),          \
               call_##function});
    WORDS(WORD_IN)
    end();
}

/* ---- defaults -------------------------------------------------------------------------------- */

static bool are_alike(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

TEST(defaults_by_function_by_macro_and_by_name)
{
#define SIZED(type, name) CHECK_INT(name##_defaults().size, sizeof(type));
    STRUCTS(SIZED, SIZED)
#define COMPARED(same, type, name, field)                                                          \
    {                                                                                              \
        type named = {.size = sizeof named};                                                       \
        CHECK_OK(ls_options_defaults(#type, &named));                                              \
        const type made = name##_defaults(), *given = LS_OPTIONS(type, .size = sizeof named);      \
        CHECK(same(named.field, made.field) && same(given->field, made.field));                    \
    }
#define SAME(type, name, field) COMPARED(SAME_BYTES, type, name, field)
#define SAME_TEXT(type, name, field) COMPARED(are_alike, type, name, field)
#define SAME_BYTES(a, b) (memcmp(&(a), &(b), sizeof(a)) == 0)
    FIELDS(SAME, SAME_TEXT)
    CHECK(ls_sgd_defaults().lr > 0.0 && ls_checkpoint_defaults().keep > 0);
    CHECK_STATUS(ls_options_defaults("ls_soap_options", NULL), LS_ERR_NOT_FOUND);
    CHECK_STATUS(ls_options_defaults("ls_sgd_options", &(ls_sgd_options){0}), LS_ERR_INVALID);
}

/* ---- structs that the library fills ---------------------------------------------------------- */

static void check_filled(const char *type, size_t bytes, ls_status (*fill)(void *out))
{
    const size_t good[] = {LEAST, bytes, bytes + 64};
    CHECK(bytes + 64 <= BYTES_MAX);
    for (size_t i = 0; i < 3; i++) {
        _Alignas(16) unsigned char out[BYTES_MAX];
        memset(out, 0xa5, sizeof out);
        memcpy(out, &good[i], sizeof good[i]);
        CHECK_OK(fill(out));
        CHECK(memcmp(out, &good[i], sizeof good[i]) == 0); /* the size stays the caller's */
        CHECK(out[sizeof(size_t)] != 0xa5);
        for (size_t b = good[i] < bytes ? good[i] : bytes; b < sizeof out; b++) {
            CHECK_INT(out[b], 0xa5); /* nothing is written beyond it */
        }
    }
    const size_t bad[] = {0, 4, sizeof(size_t), bytes + 4, 4104, SIZE_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t out[BYTES_MAX / sizeof(size_t)] = {bad[i]};
        CHECK_STATUS(fill(out), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "before the call");
        CHECK_CONTAINS(ls_error_message(), type);
    }
}

TEST(structs_that_the_library_fills_are_filled_as_far_as_they_reach)
{
    begin();
#define CHECK_FILLED(function, type) check_filled(#type, sizeof(type), call_##function);
    CALLS(NOTHING, NOTHING, CHECK_FILLED)
    CHECK_STATUS(ls_memory_get_stats(NULL), LS_ERR_INVALID);
    end();
}

/* ---- structs in lists ------------------------------------------------------------------------ */

/* Structs in lists, and the table of functions of a visitor. */
TEST(list_items_and_visitors_state_their_size)
{
    begin();
    ls_module *net = ls_linear_new(2, 2, NULL);
    const char *path = scratch_at("item.safetensors");
    ls_checkpoint_item item = LS_ITEM("", net);
    item.size = 0;
    CHECK_STATUS(ls_safetensors_save(path, &item, 1, NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "items[0].size is 0; fill items with LS_ITEM");
    /* of a newer header: longer, and so is the distance to the next */
    struct {
        ls_checkpoint_item item;
        size_t newer;
    } longer[2] = {{LS_ITEM("a", net), 7}, {LS_ITEM("b", net), 7}};
    longer[0].item.size = longer[1].item.size = sizeof longer[0];
    CHECK_OK(ls_safetensors_save(path, &longer[0].item, 2, NULL));
    CHECK_OK(ls_safetensors_load(path, &longer[0].item, 2, NULL));
    CHECK_STATUS(ls_module_state(net, "", &(ls_state_visitor){0}), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "ls_module_state: visitor->size is 0");
    ls_module_free(net);
    end();
}

TEST_MAIN
