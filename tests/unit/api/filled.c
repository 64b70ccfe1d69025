/* Structs that the library fills, each of them: as far as the size that the caller states reaches.
 * A new one belongs into the table; tests/tidy looks for it. */
#include <string.h>

#include <lockstep/lockstep.h>

#include "test.h"

#define BYTES_MAX 512
#define LEAST (2 * sizeof(size_t))

static ls_reducer *reducer;
static ls_module *wrapper;

static ls_status fill_counters(void *out)
{
    return ls_group_get_counters(ls_world(), out);
}

static ls_status fill_reducer_stats(void *out)
{
    return ls_reducer_get_stats(reducer, out);
}

static ls_status fill_reducer_event(void *out)
{
    return ls_reducer_get_event(reducer, 0, out);
}

static ls_status fill_reducer_bucket(void *out)
{
    return ls_reducer_get_bucket(reducer, 0, out);
}

static ls_status fill_ddp_stats(void *out)
{
    return ls_ddp_get_stats(wrapper, out);
}

static ls_status fill_memory_stats(void *out)
{
    return ls_memory_get_stats(out);
}

#define FILLED(X)                                                                                  \
    X(counters)                                                                                    \
    X(reducer_bucket)                                                                              \
    X(reducer_event)                                                                               \
    X(reducer_stats)                                                                               \
    X(ddp_stats)                                                                                   \
    X(memory_stats)

static void check_filled(const char *name, size_t bytes, ls_status (*fill)(void *out))
{
    const size_t good[] = {LEAST, bytes, bytes + 64};
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
        CHECK_CONTAINS(ls_error_message(), name);
    }
    CHECK_STATUS(fill(NULL), LS_ERR_INVALID);
}

TEST(structs_that_the_library_fills_are_filled_as_far_as_they_reach)
{
    CHECK_OK(ls_init(NULL));
    ls_reducer_param param = {.name = "w", .count = 4, .dtype = LS_FLOAT32};
    CHECK_OK(ls_reducer_new(ls_world(), &param, 1, NULL, &reducer));
    wrapper = ls_ddp_new(ls_linear_new(2, 2, NULL), ls_world(), NULL);
    CHECK(wrapper != NULL);
#define CHECK_FILLED(name) check_filled("ls_" #name, sizeof(ls_##name), fill_##name);
    FILLED(CHECK_FILLED)
    ls_module_free(wrapper);
    CHECK_OK(ls_reducer_free(reducer));
    CHECK_OK(ls_finalize());
}

TEST_MAIN
