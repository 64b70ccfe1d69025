/* SPDX-License-Identifier: Apache-2.0 */
/* Networks whose configurations Narayanan et al. (SOSP 2019, table 1) publish for 16 workers, from
 * the sizes of their layers: a layer takes 3 x its multiply-adds, forward and backward, at any
 * speed that a V100 may reach in float32 (its peak is 15.7 TFLOP/s), and workers have 10 Gbit/s. */
#include <string.h>

#include "base/env_posix.h"
#include "plan/predict.h"
#include "test.h"

#define LAYERS_MAX 32
#define RATE 1.25e9 /* 10 Gbit/s */

typedef struct net {
    int count, batch;
    double flops[LAYERS_MAX], compute[LAYERS_MAX], output[LAYERS_MAX], weights[LAYERS_MAX],
        kept[LAYERS_MAX];
} net;

static void add(net *n, double flops_per_sample, double outputs, double parameters)
{
    n->flops[n->count] = 3.0 * flops_per_sample * n->batch;
    n->output[n->count] = 4.0 * outputs * n->batch;
    n->weights[n->count] = 4.0 * parameters;
    n->count++;
}

/* A 3 x 3 convolution to an image of `size`, and a pooling of 2 x 2 behind it, if any. */
static void conv(net *n, double in, double out, double size, bool pool)
{
    const double parameters = in * out * 9;
    add(n, 2 * parameters * size * size, out * size * size / (pool ? 4 : 1), parameters + out);
}

static void linear(net *n, double in, double out)
{
    add(n, 2 * in * out, out, in * out + out);
}

/* 138 million parameters, of which 124 million are in the three last layers. */
static net vgg16(int batch)
{
    static const int widths[] = {64, 128, 256, 512, 512}, depths[] = {2, 2, 3, 3, 3};
    net n = {.batch = batch};
    double in = 3, size = 224;
    for (int group = 0; group < 5; group++, size /= 2) {
        for (int i = 0; i < depths[group]; i++) {
            conv(&n, in, widths[group], size, i == depths[group] - 1);
            in = widths[group];
        }
    }
    linear(&n, 512 * 49, 4096);
    linear(&n, 4096, 4096);
    linear(&n, 4096, 1000);
    return n;
}

/* 25.5 million parameters; a bottleneck block, whose skip connection stays within it, is a part. */
static net resnet50(int batch)
{
    static const int depths[] = {3, 4, 6, 3};
    net n = {.batch = batch};
    double in = 64, width = 64, size = 56;
    add(&n, 2.0 * 3 * 64 * 49 * 112 * 112, 64 * 56 * 56, 3 * 64 * 49);
    for (int group = 0; group<4; group++, width *= 2, size /= group> 0 ? 2 : 1) {
        const double side = group > 0 ? 56.0 / (1 << group) : 56.0, out = 4 * width;
        for (int i = 0; i < depths[group]; i++) {
            const double parameters =
                in * width + width * width * 9 + width * out + (i == 0 ? in * out : 0);
            add(&n, 2 * parameters * side * side, out * side * side, parameters);
            in = out;
        }
    }
    linear(&n, 2048, 1000);
    return n;
}

static const char *plan_of(net *n, double speed, int *cut)
{
    static char text[LS__REPLICAS_TEXT_BYTES];
    static ls__partition found;
    for (int i = 0; i < n->count; i++) {
        n->compute[i] = n->flops[i] / speed;
    }
    const ls__chain chain = {n->count,   n->compute, n->output, n->output,
                             n->weights, n->kept,    NULL,      0};
    const ls__partition_spec spec = {.levels = {{16, RATE}}, .level_count = 1};
    CHECK_OK(ls__partition_find(ls__env_posix(), &chain, &spec, &found));
    *cut = found.stages > 1 ? found.stage[1].first : 0;
    return ls__plan_replicas_text(&found, '-', text, sizeof text);
}

static double sum(const double *of, int count)
{
    double all = 0;
    for (int i = 0; i < count; i++) {
        all += of[i];
    }
    return all;
}

TEST(the_layers_are_those_of_the_papers)
{
    const net vgg = vgg16(1), resnet = resnet50(1);
    CHECK(vgg.count == 16 && sum(vgg.weights, 16) == 4.0 * 138357544);
    CHECK(resnet.count == 18);
    const double millions = sum(resnet.weights, resnet.count) / 4e6;
    CHECK(millions > 25.4 && millions < 25.6); /* without the norms' */
}

TEST(vgg_16_becomes_15_1_and_one_worker_has_all_linear_layers)
{
    for (double speed = 4e12; speed <= 12e12; speed += 1e12) {
        net n = vgg16(64);
        int cut = 0;
        CHECK_STR(plan_of(&n, speed, &cut), "15-1");
        CHECK(cut == 12 || cut == 13); /* 13 is the first linear layer */
    }
}

TEST(resnet_50_becomes_data_parallel)
{
    for (double speed = 4e12; speed <= 12e12; speed += 1e12) {
        net n = resnet50(128);
        int cut = 0;
        CHECK_STR(plan_of(&n, speed, &cut), "16");
    }
}

TEST_MAIN
