/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the CS336 notebook: naive and flat give the overlapped row and the best bucket.
 *
 * The notebook's rows do not say what they are of. Taken is what its course asks for: 2 devices,
 * the model XL (48 layers, dim 1600, 6400 within, vocabulary 10,000, float32), whose memory has
 * 2,039 GB/s (an A100); the last case has 3,350 GB/s (an H100). */
#include <math.h>

#include "cost/overlap.h"
#include "test.h"

enum { LAYERS = 48, DIM = 1600, WITHIN = 6400, VOCABULARY = 10000 };

/* Of a layer four matrices of attention, three of the MLP and two norms. */
#define GRADIENTS (9 * LAYERS + 3)
#define PARAMETERS                                                                                 \
    (LAYERS * (4.0 * DIM * DIM + 3.0 * DIM * WITHIN + 2.0 * DIM) + 2.0 * VOCABULARY * DIM + DIM)
#define EMBEDDING (4.0 * VOCABULARY * DIM) /* bytes of the last gradient */

static ls__overlap notebook(double memory)
{
    ls__overlap o =
        ls__overlap_of((ls__overlap_row){0.4167, 0.4167 * 0.217},
                       (ls__overlap_row){0.4115, 0.4115 * 0.206}, GRADIENTS, 4.0 * PARAMETERS);
    o.traffic = ls__overlap_traffic(2, memory);
    return o;
}

static double with_buckets(const ls__overlap *o, double bytes)
{
    return ls__overlap_step(o, o->bytes / bytes, bytes);
}

TEST(the_overlapped_row_follows_from_naive_and_flat)
{
    const ls__overlap a100 = notebook(2039e9), h100 = notebook(3350e9);
    CHECK_NEAR(ls__overlap_step(&a100, GRADIENTS, EMBEDDING) / 0.3554, 1.0, 0.005);
    CHECK_NEAR(ls__overlap_step(&h100, GRADIENTS, EMBEDDING) / 0.3554, 1.0, 0.03);
}

/* Of the smaller sizes a bucket is a gradient, most of which are larger. */
TEST(the_rows_of_buckets_follow_and_100_mb_are_best)
{
    const ls__overlap o = notebook(2039e9);
    const double one = ls__overlap_step(&o, GRADIENTS, EMBEDDING),
                 hundred = with_buckets(&o, 100e6), thousand = with_buckets(&o, 1000e6);
    CHECK_NEAR(one / 0.3574, 1.0, 0.03);
    CHECK_NEAR(one / 0.3586, 1.0, 0.03);
    CHECK_NEAR(hundred / 0.3521, 1.0, 0.03);
    CHECK_NEAR(thousand / 0.3582, 1.0, 0.03);
    CHECK(hundred < one && hundred < thousand);
    CHECK_NEAR(ls__overlap_bucket(o.latency, o.byte, o.bytes) / 100e6, 1.0, 0.05);
}

TEST(free_bytes_need_no_buckets)
{
    CHECK(isinf(ls__overlap_bucket(1e-6, 0.0, 1e6)));
    CHECK_NEAR(ls__overlap_bucket(4.0, 1.0, 16.0), 8.0, 0.0);
    const ls__overlap o =
        ls__overlap_of((ls__overlap_row){3.0, 1.0}, (ls__overlap_row){2.5, 0.5}, 6, 10.0);
    CHECK_NEAR(o.compute, 2.0, 0.0);
    CHECK_NEAR(o.latency, 0.1, 1e-15);
    CHECK_NEAR(o.byte, 0.04, 1e-15);
}

TEST_MAIN
