/* SPDX-License-Identifier: Apache-2.0 */
/* Arena, list and checked sizes. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/list.h"
#include "base/size.h"
#include "test.h"

/* An env that counts and can refuse. */
typedef struct counting_env {
    ls__env env;
    int allocated, released;
    size_t bytes_held;
    bool refuse;
} counting_env;

static void *count_allocate(const ls__env *env, size_t bytes)
{
    counting_env *self = (counting_env *)(uintptr_t)env;
    if (self->refuse) {
        return NULL;
    }
    self->allocated += 1;
    self->bytes_held += bytes;
    void *memory = ls__env_posix()->allocate(env, bytes);
    return memset(memory, 0xa5, bytes); /* so that zeroing is seen */
}

static void count_release(const ls__env *env, void *memory, size_t bytes)
{
    counting_env *self = (counting_env *)(uintptr_t)env;
    self->released += 1;
    self->bytes_held -= bytes;
    free(memory);
}

static counting_env counting(void)
{
    counting_env self = {.env = *ls__env_posix()};
    self.env.allocate = count_allocate;
    self.env.release = count_release;
    return self;
}

TEST(arena_memory_is_aligned_zeroed_and_does_not_overlap)
{
    static const size_t sizes[] = {0, 1, 3, 15, 16, 17, 1023, 1024, 5000, 1, 64};
    counting_env env = counting();
    ls__arena arena;
    ls__arena_init(&arena, &env.env, 1024);
    char *pieces[11];
    for (int i = 0; i < 11; i++) {
        pieces[i] = ls__arena_alloc(&arena, sizes[i]);
        CHECK(pieces[i] != NULL && (uintptr_t)pieces[i] % 16 == 0);
        for (size_t at = 0; at < sizes[i]; at++) {
            CHECK_INT(pieces[i][at], 0);
        }
        memset(pieces[i], i + 1, sizes[i]);
    }
    for (int i = 0; i < 11; i++) {
        for (size_t at = 0; at < sizes[i]; at++) {
            CHECK_INT(pieces[i][at], i + 1);
        }
    }
    ls__arena_fini(&arena);
    CHECK_INT(env.bytes_held, 0);
    CHECK_INT(env.released, env.allocated);
}

static void one_round(ls__arena *arena)
{
    static const size_t sizes[] = {100, 2000, 10, 900, 900, 5000, 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *memory = ls__arena_alloc(arena, sizes[i]);
        CHECK(memory != NULL && memory[0] == 0 && memory[sizes[i] - 1] == 0);
        memset(memory, 1, sizes[i]);
    }
}

TEST(arena_rounds_after_the_first_allocate_nothing)
{
    counting_env env = counting();
    ls__arena arena;
    ls__arena_init(&arena, &env.env, 1024);
    ls__arena_mark start = ls__arena_mark_get(&arena);
    one_round(&arena);
    int after_first = env.allocated;
    for (int i = 0; i < 5; i++) {
        ls__arena_rewind(&arena, start);
        one_round(&arena);
        CHECK_INT(env.allocated, after_first);
    }
    ls__arena_fini(&arena);
    CHECK_INT(env.bytes_held, 0);
}

TEST(arena_rewind_keeps_what_came_before_the_mark)
{
    counting_env env = counting();
    ls__arena arena;
    ls__arena_init(&arena, &env.env, 256);
    char *kept = ls__arena_alloc(&arena, 200);
    memset(kept, 7, 200);
    ls__arena_mark mark = ls__arena_mark_get(&arena);
    for (int round = 0; round < 3; round++) {
        one_round(&arena);
        ls__arena_rewind(&arena, mark);
    }
    for (int i = 0; i < 200; i++) {
        CHECK_INT(kept[i], 7);
    }
    ls__arena_fini(&arena);
}

TEST(arena_without_memory_answers_null_and_goes_on_when_there_is_some)
{
    counting_env env = counting();
    ls__arena arena;
    ls__arena_init(&arena, &env.env, 64);
    CHECK(ls__arena_alloc(&arena, SIZE_MAX) == NULL);
    CHECK(ls__arena_alloc(&arena, SIZE_MAX - 20) == NULL);
    env.refuse = true;
    CHECK(ls__arena_alloc(&arena, 10) == NULL);
    env.refuse = false;
    CHECK(ls__arena_alloc(&arena, 10) != NULL);
    env.refuse = true;
    CHECK(ls__arena_alloc(&arena, 10) != NULL); /* from the chunk there is */
    CHECK(ls__arena_alloc(&arena, 100) == NULL);
    ls__arena_fini(&arena);
}

typedef struct job {
    int id;
    ls__list link;
} job;

static void check_order(ls__list *list, const int *ids, int count)
{
    int at = 0;
    LS__LIST_EACH (link, list) {
        CHECK(at < count);
        CHECK_INT(LS__LIST_ITEM(link, job, link)->id, ids[at]);
        CHECK(link->next->prev == link && link->prev->next == link);
        at++;
    }
    CHECK_INT(at, count);
}

TEST(list_keeps_order_at_both_ends)
{
    ls__list list;
    job jobs[4] = {{.id = 0}, {.id = 1}, {.id = 2}, {.id = 3}};
    ls__list_init(&list);
    CHECK(ls__list_empty(&list) && ls__list_pop_front(&list) == NULL);
    ls__list_push_back(&list, &jobs[1].link);
    ls__list_push_back(&list, &jobs[2].link);
    ls__list_push_front(&list, &jobs[0].link);
    ls__list_push_back(&list, &jobs[3].link);
    check_order(&list, (int[]){0, 1, 2, 3}, 4);
    CHECK(ls__list_pop_front(&list) == &jobs[0].link);
    check_order(&list, (int[]){1, 2, 3}, 3);
}

TEST(list_items_may_be_removed_twice_and_during_a_walk)
{
    ls__list list;
    job jobs[5] = {{.id = 0}, {.id = 1}, {.id = 2}, {.id = 3}, {.id = 4}};
    ls__list_init(&list);
    for (int i = 0; i < 5; i++) {
        ls__list_push_back(&list, &jobs[i].link);
    }
    LS__LIST_EACH (link, &list) {
        if (LS__LIST_ITEM(link, job, link)->id % 2 == 0) {
            ls__list_remove(link);
            ls__list_remove(link);
        }
    }
    check_order(&list, (int[]){1, 3}, 2);
}

TEST(sizes_that_overflow_are_refused_and_leave_the_result_alone)
{
    size_t size = 42;
    int64_t number = 42;
    CHECK(!ls__mul_size(SIZE_MAX / 2 + 1, 2, &size) && size == 42);
    CHECK(!ls__add_size(SIZE_MAX, 1, &size) && size == 42);
    CHECK(!ls__mul_int64(INT64_MAX / 2 + 1, 2, &number) && number == 42);
    CHECK(!ls__mul_int64(-1, 2, &number) && number == 42);
    CHECK(!ls__mul_int64(2, -1, &number) && number == 42);
    CHECK(!ls__bytes_of(-1, 4, &size) && size == 42);
    CHECK(!ls__bytes_of(INT64_MAX, 4, &size) && size == 42);
    CHECK(!ls__bytes_of(INT64_MAX / 4 + 1, 4, &size) && size == 42); /* fits a size_t, no object */
    CHECK(ls__mul_size(SIZE_MAX / 2, 2, &size) && size == SIZE_MAX - 1);
    CHECK(ls__add_size(SIZE_MAX - 1, 1, &size) && size == SIZE_MAX);
    CHECK(ls__mul_int64(INT64_MAX, 1, &number) && number == INT64_MAX);
    CHECK(ls__mul_int64(0, INT64_MAX, &number) && number == 0);
    CHECK(ls__bytes_of(0, 8, &size) && size == 0);
    CHECK(ls__bytes_of(1023, 8, &size) && size == 8184);
}

TEST(rounding_up_gives_the_next_multiple)
{
    for (size_t n = 0; n < 300; n++) {
        size_t want = n;
        while (want % 64 != 0) {
            want++;
        }
        CHECK_INT(ls__round_up(n, 64), want);
    }
}

TEST_MAIN
