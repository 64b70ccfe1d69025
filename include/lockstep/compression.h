/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient compression: communication hooks that send less than the gradients (comm_hook.h).
 *
 *     ls_comm_hook hook = {.size = sizeof hook};
 *     LS_CHECK(ls_powersgd_new(LS_OPTIONS(ls_powersgd_options, .rank = 4), &hook));
 *     LS_CHECK(ls_ddp_set_hook(net, &hook));                  it owns the hook's state now
 *
 * Bytes that one of n ranks sends for a float32 gradient of d elements (a matrix [a,b]):
 *
 *     plain DDP          8 d (n-1)/n          float32, there and back (reduce-scatter, all-gather)
 *     cast               4 d (n-1)/n          16 bits
 *     powersgd           8 r (a+b) (n-1)/n    two factors of rank r
 *     top_k              8 k (n-1)            k values with their places, of each rank
 *     random_k           8 k (n-1)/n          k values at places that all ranks draw alike
 *     int8               2 d (n-1)/n          8 bits, and a scale for every 1024
 *     one_bit            d/4 (n-1)/n          1 bit, and a scale for every 1024
 *
 * An all-reduce of some KiB takes fewer steps, and sends more. With these hooks averages have the
 * same bits in whichever buckets they travel.
 *
 * What a lossy hook does not send in a step it adds to the gradient of the next one (error
 * feedback: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019). These residuals belong
 * to a parameter, so they survive another division into buckets, steps in which the parameter is
 * unused, and checkpoints; no_sync adds them once for each reduction. Averages are the same bytes
 * on every rank. float32 gradients are compressed, by PowerSGD float64 too; others are averaged as
 * they are. Clipping sees the averages that were sent.
 *
 * Every function below fills in *out, whose size is set before; ls_ddp_set_hook and
 * ls_reducer_set_hook take the state, and the state of a hook that was never set is given back by
 * out->free(out->state). Errors: LS_ERR_INVALID, LS_ERR_MEMORY. */
#ifndef LOCKSTEP_COMPRESSION_H
#define LOCKSTEP_COMPRESSION_H

#include <lockstep/comm_hook.h>

#ifdef __cplusplus
extern "C" {
#endif

/* float32 gradients travel as LS_FLOAT16 or LS_BFLOAT16 (fp16_compress_hook, bf16_compress_hook):
 * rounded once, added in float32, divided, rounded once more. There is no residual. A float16
 * gradient above 65504 becomes infinite. */
LS_API ls_status ls_cast_hook_new(ls_dtype dtype, ls_comm_hook *out);

/* PowerSGD (Vogels et al., NeurIPS 2019, algorithm 1; powerSGD_hook.py): a matrix M [a,b] is sent
 * as P [a,r] and Q [b,r] with M ~ P Q^T: one step of power iteration from the Q of the step before.
 * Tensors of more dimensions are matrices of shape[0] rows; vectors, and what would not become
 * smaller, are sent whole together with P. */
typedef struct ls_powersgd_options {
    size_t size;
    int rank;               /* 1 to 128; default 1 */
    int64_t start_step;     /* plain averages before this step; default 10 (start_powerSGD_iter) */
    double min_compression; /* a matrix is compressed if a*b > min_compression * r*(a+b);
                               default 2 (min_compression_rate) */
    bool error_feedback;    /* default true */
    bool warm_start;        /* default true; false: a new random Q in every step */
    uint64_t seed;          /* of the first Q, the same on all ranks; default 0 */
} ls_powersgd_options;
#define LS_DEFAULTS_ls_powersgd_options                                                            \
    .rank = 1, .start_step = 10, .min_compression = 2.0, .error_feedback = true, .warm_start = true,
LS_DEFAULTS_FUNCTION(powersgd)
LS_API ls_status ls_powersgd_new(const ls_powersgd_options *options, ls_comm_hook *out);

typedef struct ls_sparse_options {
    size_t size;
    double density;      /* of each parameter's elements, in (0,1], at least one; default 0.01 */
    int64_t start_step;  /* plain averages before this step; default 0 */
    bool error_feedback; /* default true */
    uint64_t seed;       /* random_k: of the places, the same on all ranks; default 0 */
} ls_sparse_options;
#define LS_DEFAULTS_ls_sparse_options .density = 0.01, .error_feedback = true,
LS_DEFAULTS_FUNCTION(sparse)
/* The elements of largest magnitude, each rank its own (Aji and Heafield, EMNLP 2017). What a rank
 * receives grows with the number of ranks: from 2/density ranks on it is more than the gradient. */
LS_API ls_status ls_top_k_new(const ls_sparse_options *options, ls_comm_hook *out);
/* Elements at random places, drawn anew in each step, the same on all ranks (Stich et al., NeurIPS
 * 2018): they are averaged by an all-reduce, and no places are sent. */
LS_API ls_status ls_random_k_new(const ls_sparse_options *options, ls_comm_hook *out);

typedef struct ls_quantize_options {
    size_t size;
    int bits;            /* 8: steps of equal size; 1: the sign. Default 8 */
    int64_t start_step;  /* plain averages before this step; default 0 */
    bool error_feedback; /* default true */
} ls_quantize_options;
#define LS_DEFAULTS_ls_quantize_options .bits = 8, .error_feedback = true,
LS_DEFAULTS_FUNCTION(quantize)
/* Each 1024 elements of a parameter have one scale, a power of two: of 8 bits the smallest that
 * fits the largest magnitude into 127 steps, of 1 bit the one next to the mean magnitude. Each rank
 * averages a part of these blocks, and quantises it once more (Tang et al., ICML 2021, section 4),
 * with a residual of its own. */
LS_API ls_status ls_quantize_new(const ls_quantize_options *options, ls_comm_hook *out);

/* A hook from a text, as of `lockstep train --comm`: a name, and settings after a colon:
 *
 *     fp16   bf16   powersgd:rank=4,start=100,min=2   top_k:density=0.01
 *     random_k:density=0.01,seed=1   int8   one_bit:start=100   …:feedback=0   plain
 *
 * "plain" is no hook: out->before is NULL, and ls_ddp_set_hook takes a former one off.
 * LS_ERR_INVALID says which word was not understood, and what may stand there. */
LS_API ls_status ls_comm_hook_parse(const char *text, ls_comm_hook *out);

#ifdef __cplusplus
}
#endif
#endif
