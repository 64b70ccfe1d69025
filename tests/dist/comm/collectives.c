#include "test.h"
#include <lockstep/comm.h>
#include <stdio.h>
static void body(void)
{
    ls_group *w = ls_world();
    int n = ls_group_size(w), r = ls_group_rank(w);
    static float big[1 << 20];
    for (int reps = 0; reps < 3; reps++)
        for (int64_t count = 0; count < (1 << 20); count = count * 5 + 1) {
            for (int64_t i = 0; i < count; i++)
                big[i] = (float)(r + 1 + i % 7);
            CHECK_OK(ls_all_reduce(w, big, count, LS_FLOAT32, LS_SUM, NULL, NULL));
            for (int64_t i = 0; i < count; i++)
                if (big[i] != (float)(n * (n + 1) / 2 + n * (i % 7)))
                    test_fail(__FILE__, __LINE__, "count %lld i %lld: %g", (long long)count,
                              (long long)i, big[i]);
        }
    void *reg;
    CHECK_OK(ls_group_alloc(w, 40000000, &reg));
    float *f = reg;
    for (int64_t count = 1; count <= 10000000; count *= 10) {
        for (int64_t i = 0; i < count; i++)
            f[i] = (float)(r + 1 + i % 7);
        CHECK_OK(ls_all_reduce(w, f, count, LS_FLOAT32, LS_SUM, NULL, NULL));
        for (int64_t i = 0; i < count; i++)
            if (f[i] != (float)(n * (n + 1) / 2 + n * (i % 7)))
                test_fail(__FILE__, __LINE__, "reg count %lld i %lld: %g", (long long)count,
                          (long long)i, f[i]);
    }
    CHECK_OK(ls_barrier(w, NULL, NULL));
    double t = ls_time();
    for (int i = 0; i < 20000; i++)
        CHECK_OK(ls_all_reduce(w, big, 1, LS_FLOAT32, LS_SUM, NULL, NULL));
    t = ls_time() - t;
    if (r == 0)
        fprintf(stderr, "n %d 4 B: %.2f us\n", n, t / 20000 * 1e6);
    for (int64_t count = 250000; count <= 10000000; count *= 10) {
        int reps = count > 1000000 ? 5 : 50;
        CHECK_OK(ls_barrier(w, NULL, NULL));
        t = ls_time();
        for (int i = 0; i < reps; i++)
            CHECK_OK(ls_all_reduce(w, f, count, LS_FLOAT32, LS_SUM, NULL, NULL));
        t = ls_time() - t;
        if (r == 0)
            fprintf(stderr, "n %d reg %lld B: %.3f ms\n", n, (long long)count * 4, t / reps * 1e3);
    }
    CHECK_OK(ls_group_dealloc(w, reg));
}
DIST_TEST(one, 1)
{
    body();
}
DIST_TEST(two, 2)
{
    body();
}
DIST_TEST(three, 3)
{
    body();
}
DIST_TEST(four, 4)
{
    body();
}
DIST_TEST(eight, 8)
{
    body();
}
TEST_MAIN
