/* SPDX-License-Identifier: Apache-2.0 */
/* The code between the kernels and oneDNN: the table of plans is bounded and loses
 * nothing however many shapes come; the library serves the shapes it is used for, and a refusal is
 * said once; the paths that are reported are those taken. */
#include <lockstep/runtime.h>

#include "base/env.h"
#include "kernel/cpu/plans.h"
#include "kernel_test.h"
#include "says.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* ---- many shapes -------------------------------------------------------------------------- */

#define SHAPES 600 /* more than LS__PLANS_MAX */

typedef struct counting { /* an environment that counts what is allocated through it */
    ls__env env;
    int live, most;
} counting;

static void *counted_allocate(const ls__env *env, size_t bytes)
{
    counting *c = (counting *)(uintptr_t)env;
    c->live++;
    c->most = c->live > c->most ? c->live : c->most;
    return ls__env_posix()->allocate(ls__env_posix(), bytes);
}

static void counted_release(const ls__env *env, void *at, size_t bytes)
{
    ((counting *)(uintptr_t)env)->live--;
    ls__env_posix()->release(ls__env_posix(), at, bytes);
}

/* Both kinds of plans, of a shape that no other `i` has: a sequence of its own length. */
static void use_shape(ls__plans *plans, int64_t i)
{
    const ls__conv2d c = {.batch = 1,
                          .in = 4,
                          .height = 1,
                          .width = 2 + i,
                          .groups = 1,
                          .out = 4,
                          .out_height = 1,
                          .out_width = 1 + i,
                          .kernel = {1, 2},
                          .stride = {1, 1},
                          .dilation = {1, 1}};
    const ls__conv2d_data d = {.plans = plans};
    const ls__gemm_bf16 g = {
        .m = 32 + i, .n = 32, .k = 32, .lda = 32, .ldb = 32, .ldc = 32, .batch = 1, .plans = plans};
    (void)ls__kernels_cpu()->conv2d_workspace(&c, LS__CONV2D_FORWARD, &d);
    if (i % 2 == 0) {
        (void)ls__kernels_cpu()->gemm_bf16_workspace(&g);
    }
}

/* Bytes that the process holds; 0 where the C library does not tell. */
static int64_t bytes_held(void)
{
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const struct mallinfo2 info = mallinfo2();
    return (int64_t)(info.uordblks + info.hblkhd);
#else
    return 0;
#endif
}

TEST(more_shapes_than_plans_are_kept_neither_pile_up_nor_leak)
{
    counting c = {.env = *ls__env_posix()};
    c.env.allocate = counted_allocate;
    c.env.release = counted_release;
    ls__plans *plans = ls__plans_new(&c.env);
    int64_t held[3];
    for (int round = 0; round < 3; round++) {
        for (int64_t i = 0; i < SHAPES; i++) {
            use_shape(plans, i);
            CHECK(c.live <= 1 + LS__PLANS_MAX);
        }
        held[round] = bytes_held();
    }
    CHECK(!ls__onednn_present() || c.most == 1 + LS__PLANS_MAX);
    /* The library keeps primitives of its own, fewer than these rounds made: a plan that kept a
     * hundred bytes would show. */
    if (llabs(held[2] - held[1]) > SHAPES * 100) {
        test_fail(__FILE__, __LINE__, "%d shapes again: %lld bytes more", SHAPES,
                  (long long)(held[2] - held[1]));
    }
    ls__plans_free(plans);
    CHECK_INT(c.live, 0);
}

/* ---- what the library serves -------------------------------------------------------------- */

/* Layers of ResNet-18 and AlexNet, with their strides. */
static const int64_t layers[][6] = {/* in, size, out, kernel, stride, padding */
                                    {3, 32, 64, 3, 1, 1},   {64, 32, 64, 3, 1, 1},
                                    {64, 32, 128, 3, 2, 1}, {64, 32, 128, 1, 2, 0},
                                    {256, 8, 512, 3, 2, 1}, {3, 64, 64, 7, 2, 3},
                                    {64, 27, 192, 5, 1, 2}};

static ls__conv2d conv_of(const int64_t of[6])
{
    const int64_t side = (of[1] + 2 * of[5] - of[3]) / of[4] + 1;
    return (ls__conv2d){.batch = 2,
                        .in = of[0],
                        .height = of[1],
                        .width = of[1],
                        .groups = 1,
                        .out = of[2],
                        .out_height = side,
                        .out_width = side,
                        .kernel = {of[3], of[3]},
                        .stride = {of[4], of[4]},
                        .padding = {of[5], of[5]},
                        .dilation = {1, 1}};
}

static bool is_served(const ls__conv2d *c, ls__conv2d_pass pass, bool half)
{
    const int64_t x = c->batch * c->in * c->height * c->width, w = ls__conv2d_weights(c);
    const int64_t y = c->batch * c->out * c->out_height * c->out_width;
    const int64_t out[] = {y, x, w};
    ls__conv2d_data d = {.half = half, .plans = ls__plans_new(ls__env_posix())};
    float *operands = random_floats(x + w + y, 1);
    d.x = operands, d.w = operands + x, d.dy = operands + x + w;
    d.out = allocate((size_t)out[pass] * 4);
    d.workspace = allocate(ls__onednn_conv2d_workspace(c, pass, &d));
    const bool served = ls__onednn_conv2d(c, pass, &d, NULL);
    ls__plans_free(d.plans);
    free(operands), free(d.out), free(d.workspace);
    return served;
}

/* A version whose interface or kernels have changed would else go back to the built-in loops
 * without a word. */
TEST(the_library_serves_convolutions_of_known_networks)
{
    if (!ls__onednn_present() || ls__cpu_best() < LS__ISA_V3) {
        SKIP("no oneDNN here, or no AVX2");
    }
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const ls__conv2d c = conv_of(layers[i]);
        for (int pass = LS__CONV2D_FORWARD; pass <= LS__CONV2D_BACKWARD_W; pass++) {
            for (int half = 0; half <= ls__onednn_has_bf16(); half++) {
                if (!is_served(&c, (ls__conv2d_pass)pass, half == 1)) {
                    test_fail(__FILE__, __LINE__, "layer %d, pass %d, half %d is refused", (int)i,
                              pass, half);
                }
            }
        }
    }
}

TEST(the_library_serves_products_of_bfloat16_where_the_processor_has_instructions)
{
    if (!ls__onednn_has_bf16()) {
        SKIP("no AVX-512 BF16 here, or no oneDNN");
    }
    for (int flags = 0; flags < 16; flags++) { /* transpositions, type of C, beta */
        const bool trans_a = flags & 1, trans_b = flags & 2;
        float *memory = random_floats(3 * 384 * 384, 1);
        ls__gemm_bf16 g = {.trans_a = trans_a,
                           .trans_b = trans_b,
                           .m = 384,
                           .n = 320,
                           .k = 256,
                           .lda = trans_a ? 384 : 256,
                           .ldb = trans_b ? 256 : 320,
                           .ldc = 320,
                           .half = (flags & 4) != 0,
                           .beta = (flags & 8) != 0 ? 1.0f : 0.0f,
                           .batch = 1};
        memset(memory, 0, 3 * 384 * 384 * sizeof *memory);
        g.a = (const ls__bfloat16 *)(const void *)memory;
        g.b = (const ls__bfloat16 *)(const void *)(memory + 384 * 384);
        g.c = memory + 2 * 384 * 384;
        g.workspace = allocate(ls__onednn_gemm_bf16_workspace(&g));
        if (!ls__onednn_gemm_bf16(&g)) {
            test_fail(__FILE__, __LINE__, "flags %d: refused", flags);
        }
        free(memory), free(g.workspace);
    }
}

static int lines;

static void count_line(ls_log_level level, const char *line, void *arg)
{
    (void)arg;
    CHECK(level == LS_LOG_WARN);
    CHECK_SAYS(line,
               "%s has no fast kernel for %s: the built-in loops compute it, perhaps several times "
               "slower (other shapes are not reported)");
    lines++;
}

TEST(a_refusal_is_logged_once_where_the_work_is_worth_it)
{
    if (!ls__onednn_present() || ls__cpu_best() < LS__ISA_V3) {
        SKIP("no oneDNN here, or no AVX2");
    }
    ls_set_log_callback(count_line, NULL);
    ls__onednn_refused("this", 1000.0, false);
    CHECK_INT(lines, 0);
    ls__onednn_refused("this", 1e9, false);
    ls__onednn_refused("this", 1e9, false);
    CHECK_INT(lines, 1);
}

static void keep_line(ls_log_level level, const char *line, void *arg)
{
    (void)level;
    (void)snprintf(arg, 512, "%s", line);
}

TEST(a_limit_that_comes_after_the_first_use_of_onednn_is_told)
{
    char text[64], warned[512] = "";
    if (!ls__onednn_present() || ls__cpu_best() < LS__ISA_V3) {
        SKIP("no oneDNN here, or no AVX2");
    }
    CHECK(ls__onednn_path(false, text, sizeof text));
    ls_set_log_callback(keep_line, warned);
    ls__onednn_limit(LS__CPU_BASE);
    ls_set_log_callback(NULL, NULL);
    CHECK_SAYS(warned, "LOCKSTEP_CPU=%s: the program used oneDNN before this library, and oneDNN "
                       "keeps the instructions chosen then; make a tensor before the program uses "
                       "oneDNN");
}

/* ---- what is reported --------------------------------------------------------------------- */

static ls__kernel_path path_of(const char *family)
{
    ls__kernel_path path[LS__KERNEL_PATHS];
    const int count = ls__kernels_paths(path);
    for (int i = 0; i < count; i++) {
        if (strcmp(path[i].family, family) == 0) {
            return path[i];
        }
    }
    test_fail(__FILE__, __LINE__, "no family \"%s\"", family);
}

TEST(reported_paths_are_those_of_the_build_and_the_processor)
{
    const ls__kernel_path full = path_of("products, float32");
    const ls__kernel_path half = path_of("convolutions, bfloat16");
    CHECK_CONTAINS(full.path, ls__onednn_present() ? "oneDNN" : "built-in");
    CHECK((full.because == NULL) == (ls__onednn_present() && ls__cpu_best() == LS__ISA_V4));
    CHECK_CONTAINS(half.path, ls__onednn_has_bf16() ? "oneDNN" : "built-in");
    CHECK((half.because == NULL) == ls__onednn_has_bf16());
    CHECK((path_of("attention, bfloat16").because == NULL) == ls__tiles_usable());
}

TEST(reported_paths_say_what_a_setting_leaves_out)
{
    CHECK(setenv("LOCKSTEP_CPU", "ref", 1) == 0);
    CHECK_STR(path_of(SAYS("all other operations")).path, "plain loops");
    CHECK_STR(path_of("products, float32").because, "LOCKSTEP_CPU=ref");
    if (ls__cpu_best() < LS__ISA_V4) {
        SKIP("no AVX-512 here to be left out");
    }
    CHECK(setenv("LOCKSTEP_CPU", "avx2", 1) == 0);
    CHECK_STR(path_of("all other operations").path, "built-in, AVX2");
    CHECK_STR(path_of("all other operations").because, SAYS("LOCKSTEP_CPU asks for no more"));
    CHECK_CONTAINS(path_of("products, bfloat16").path, "built-in, AVX2");
}

TEST(without_onednn_built_in_kernels_compute)
{
    CHECK(setenv("LOCKSTEP_ONEDNN", "0", 1) == 0);
    static const char *const served[] = {"products, float32", "products, bfloat16",
                                         "convolutions, float32", "convolutions, bfloat16"};
    for (size_t i = 0; i < sizeof served / sizeof *served; i++) {
        CHECK_CONTAINS(path_of(served[i]).path, "built-in");
        CHECK(path_of(served[i]).because != NULL);
    }
    if (ls__cpu_best() >= LS__ISA_V3) {
        const char *because = path_of("products, float32").because;
        CHECK(strcmp(because, "LOCKSTEP_ONEDNN=0") == 0 ||
              strcmp(because, "this build has no oneDNN") == 0);
    }
    float a[64 * 64] = {0}, b[64 * 64] = {0}, c[64 * 64], want[64 * 64] = {0};
    for (int i = 0; i < 64 * 64; i++) {
        a[i] = (float)(i % 7 - 3);
        b[i] = (float)(i % 5 - 2);
    }
    ls__gemm g = {false, false, 64, 64, 64, a, 64, b, 64, c, 64, 0.0f, NULL, {0}};
    ls__kernels_cpu()->gemm(&g, NULL);
    for (int i = 0; i < 64; i++) {
        for (int j = 0; j < 64; j++) {
            for (int k = 0; k < 64; k++) {
                want[i * 64 + j] += a[i * 64 + k] * b[k * 64 + j];
            }
            CHECK(c[i * 64 + j] == want[i * 64 + j]); /* of small integers: exact */
        }
    }
    CHECK(unsetenv("LOCKSTEP_ONEDNN") == 0);
    CHECK(ls__kernels_cpu() != NULL); /* which allows oneDNN again */
}

static bool is_one_of(const char *text, const char *const *list)
{
    while (*list != NULL && strcmp(text, *list) != 0) {
        list++;
    }
    return *list != NULL;
}

TEST(reported_paths_and_reasons_are_from_a_closed_list)
{
    static const char *const families[] = {SAYS("products, float32"),
                                           SAYS("products, bfloat16"),
                                           SAYS("convolutions, float32"),
                                           SAYS("convolutions, bfloat16"),
                                           SAYS("attention, float32"),
                                           SAYS("attention, bfloat16"),
                                           SAYS("all other operations"),
                                           SAYS("sums between ranks"),
                                           SAYS("CRC-32C"),
                                           NULL};
    static const char *const paths[] = {
        SAYS("plain loops"),
        SAYS("built-in, AVX2"),
        SAYS("built-in, AVX-512"),
        SAYS("built-in, instructions that every processor of this kind has"),
        SAYS("built-in, matrix tiles (AMX)"),
        SAYS("built-in, carry-less products of AVX-512"),
        SAYS("built-in, CRC instructions of SSE4.2"),
        SAYS("built-in, CRC instructions"),
        "a table",
        NULL};
    static const char *const reasons[] = {
        SAYS("LOCKSTEP_CPU asks for no more"),
        "LOCKSTEP_CPU=ref",
        SAYS("the processor has no AVX-512"),
        SAYS("the processor has no AVX2"),
        SAYS("this build has no oneDNN"),
        "LOCKSTEP_ONEDNN=0",
        SAYS("the processor has no instructions for bfloat16 (AVX-512 BF16)"),
        SAYS("the processor has no matrix tiles (AMX)"),
        SAYS("this build has no oneDNN, which requests the tiles (AMX)"),
        SAYS("this build or this oneDNN does not use the tiles (AMX)"),
        NULL};
    static const char *const settings[] = {"ref", "base", "avx2", "avx512", "amx"};
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s++) {
        ls__kernel_path path[LS__KERNEL_PATHS];
        CHECK(setenv("LOCKSTEP_CPU", settings[s], 1) == 0);
        const int count = ls__kernels_paths(path);
        CHECK_INT(count, LS__KERNEL_PATHS);
        for (int i = 0; i < count; i++) {
            CHECK(is_one_of(path[i].family, families));
            CHECK(is_one_of(path[i].path, paths) || test_contains(path[i].path, "oneDNN"));
            CHECK(path[i].because == NULL || is_one_of(path[i].because, reasons));
        }
    }
}

TEST_MAIN
