/* Data: datasets, image transforms, a distributed sampler, and a loader that prefetches on a thread
 * of its own and feeds the ranks in one of three ways.
 *
 * A dataset is a table of samples x and targets y of fixed shape. The sampler decides which global
 * sample a rank reads at which position, from (seed, epoch) by a counter-based permutation: any
 * rank can compute any other's order, nothing is stored, and the order does not depend on the rank
 * count.
 *
 * Constructors return NULL on failure, with ls_error_status and ls_error_message.
 */
#ifndef LOCKSTEP_DATA_H
#define LOCKSTEP_DATA_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- datasets ----------------------------------------------------------------------------- */

/* A data set of your own is a struct whose first member is an ls_dataset, filled by
 *     d->base = (ls_dataset)LS_DATASET(.count = …, .x_shape = …, .get = my_get, .free = my_free);
 */
typedef struct ls_dataset ls_dataset;
struct ls_dataset {
    size_t size;               /* LS_DATASET sets it; fields that it does not reach are not read */
    int64_t count;             /* samples */
    ls_shape x_shape, y_shape; /* of one sample */
    ls_dtype x_dtype, y_dtype;
    /* Writes sample `index`; called from the loader's thread; must not touch other state. */
    ls_status (*get)(ls_dataset *self, int64_t index, void *x, void *y);
    void (*free)(ls_dataset *self);
    /* NULL, or the sample as this epoch sees it; the loader calls it instead of `get`. Equal
     * arguments give equal samples, so that any rank, and a run that was resumed, sees the same. */
    ls_status (*get_in_epoch)(ls_dataset *self, int64_t epoch, int64_t index, void *x, void *y);
};
#define LS_DATASET(...)                                                                            \
    {                                                                                              \
        .size = sizeof(ls_dataset), __VA_ARGS__                                                    \
    }
LS_API void ls_dataset_free(ls_dataset *dataset); /* NULL is allowed */

/* Files as byte tokens. A sample is a window of context+1 bytes that never crosses a file: x
 * [context] uint8→int32 tokens, y the same shifted by one. `path` is a file or a folder (recursive,
 * sorted by name, symbolic links skipped). The last `held_out` share of each file is the other
 * part. */
typedef enum ls_text_part { LS_TEXT_TRAIN = 0, LS_TEXT_HELD_OUT = 1 } ls_text_part;
typedef struct ls_text_options {
    size_t size;
    int64_t context; /* tokens of a sample; default 128 */
    int64_t stride;  /* distance between the starts of samples; 0: context */
    double held_out; /* default 0.1 */
    ls_text_part part;
} ls_text_options;
#define LS_DEFAULTS_ls_text_options .context = 128, .held_out = 0.1,
LS_DEFAULTS_FUNCTION(text)
/* Errors name the file: LS_ERR_NOT_FOUND, LS_ERR_SYSTEM (unreadable), LS_ERR_INVALID (empty, or
 * every file shorter than a window). */
LS_API ls_dataset *ls_text_dataset_new(const char *path, const ls_text_options *options);
LS_API int ls_text_files(const ls_dataset *text);
LS_API int64_t ls_text_bytes(const ls_dataset *text); /* of this part */
/* The bytes of file i of this part; borrowed. */
LS_API const uint8_t *ls_text_file(const ls_dataset *text, int i, int64_t *bytes);

/* MNIST's IDX files: images [N,..] uint8 -> x float32 in [0,1] flattened to [D], labels [N] uint8
 * -> y int32 scalar. Sizes are checked against the files before memory is taken. */
LS_API ls_dataset *ls_idx_dataset_new(const char *images, const char *labels);
/* The same with the images' shape kept: [N,H,W] -> x [1,H,W], [N,C,H,W] -> x [C,H,W]. */
LS_API ls_dataset *ls_idx_images_dataset_new(const char *images, const char *labels);

/* CIFAR-10's binary version: a folder with data_batch_1.bin to data_batch_5.bin (train) and
 * test_batch.bin (else), or one such file, whatever `train` says. x float32 [3,32,32] in [0,1],
 * red, green, blue; y int32 scalar, 0 … 9. Labels are validated. */
LS_API ls_dataset *ls_cifar10_dataset_new(const char *folder_or_file, bool train);

/* Arrays of numpy.save, x [N,..] and y [N,..], of float16, float32, float64, bool, or int or
 * uint of 8 to 64 bits, which they keep: little-endian and in C order, of versions 1.0 to 3.0. Others are
 * refused by name (LS_ERR_UNSUPPORTED). Files are mapped, so they may be larger than memory, and
 * must not be cut meanwhile. */
LS_API ls_dataset *ls_npy_dataset_new(const char *x, const char *y);

/* Files of tokens ("shards"): nanoGPT's .bin (uint16, no header) and llm.c's (magic 20240520:
 * uint16, 20240801: uint32), told apart by their first bytes. A sample is a window of context + 1
 * tokens that never crosses a shard: x int32 [context], y int32 [context], the same shifted by one.
 * `path` is a shard or a folder, of which all *.bin are taken (recursive, sorted by name, symbolic
 * links skipped). Shards are mapped. */
typedef struct ls_tokens_options {
    size_t size;
    int64_t context;  /* tokens of a sample; default 128 */
    int64_t stride;   /* distance between the starts of samples; 0: context, as llm.c */
    const char *part; /* of a folder: only shards whose names hold this ("train", "val"); NULL: all,
                         unless there are some of each of these two */
    int64_t vocab; /* a token that is not below it is LS_ERR_FORMAT when read; 0: any below 2^31 */
} ls_tokens_options;
#define LS_DEFAULTS_ls_tokens_options .context = 128,
LS_DEFAULTS_FUNCTION(tokens)
LS_API ls_dataset *ls_tokens_dataset_new(const char *path, const ls_tokens_options *options);

/* Tensors in memory: x [N,..] float32 or int32, y [N,..]; both kept. */
LS_API ls_dataset *ls_tensor_dataset_new(ls_tensor *x, ls_tensor *y);

/* Images [C,H,W] of float32, changed in this order (torchvision's RandomCrop, RandomHorizontalFlip,
 * Normalize): shifted by at most crop_padding pixels each way, with zeros where nothing is;
 * mirrored every other time; (x - mean) / std of each channel. The random choices depend on (seed,
 * epoch, index) alone (He et al. 2016, section 4.2). Targets stay as they are. Takes `images`, also
 * when it fails. */
typedef struct ls_transform_options {
    size_t size;
    int64_t crop_padding;     /* default 0: no shift */
    bool flip;                /* default false */
    const double *mean, *std; /* [channels], copied; NULL: 0 and 1 */
    int channels;             /* of mean and std: the images' */
    uint64_t seed;            /* default 0 */
} ls_transform_options;
#define LS_DEFAULTS_ls_transform_options
LS_DEFAULTS_FUNCTION(transform)
LS_API ls_dataset *ls_transform_dataset_new(ls_dataset *images,
                                            const ls_transform_options *options);

/* For data that only rank 0 can read (LS_FEED_SCATTER). Collective over the world: rank 0 gives its
 * data set and gets the same one back; elsewhere `dataset` is ignored, and the result is new, of
 * the same count, shapes and dtypes, without samples: its `get` is LS_ERR_STATE. With NULL on rank
 * 0 LS_ERR_INVALID on all ranks. */
LS_API ls_dataset *ls_dataset_share(ls_dataset *dataset);

/* ---- sampler ------------------------------------------------------------------------------ */

typedef struct ls_sampler ls_sampler;
typedef struct ls_sampler_options {
    size_t size;
    int64_t batch;  /* samples a *rank* gets per step; default 1 */
    bool shuffle;   /* default true */
    bool drop_last; /* default false: the last step may hold fewer samples, unevenly over ranks */
    uint64_t seed;  /* default 0 */
    int rank, world_size; /* default -1: the runtime's */
} ls_sampler_options;
#define LS_DEFAULTS_ls_sampler_options .batch = 1, .shuffle = true, .rank = -1, .world_size = -1,
LS_DEFAULTS_FUNCTION(sampler)
/* LS_ERR_INVALID when there are fewer samples than ranks: says both numbers. */
LS_API ls_sampler *ls_sampler_new(int64_t count, const ls_sampler_options *options);
LS_API void ls_sampler_free(ls_sampler *sampler);
LS_API int64_t ls_sampler_steps(const ls_sampler *sampler); /* per epoch; equal on all ranks */
/* Global indices of this rank's samples at (epoch, step): writes up to batch, returns how many (0
 * is possible on the last step). Step s takes the global positions [s*batch*size,
 * (s+1)*batch*size), a contiguous block per rank. */
LS_API int64_t ls_sampler_get(const ls_sampler *sampler, int64_t epoch, int64_t step,
                              int64_t *indices);

/* ---- loader ------------------------------------------------------------------------------- */

typedef struct ls_loader ls_loader;

/* How the ranks get their samples. Steps, batch sizes and positions are the same for all three.
 *   SPLIT    each reads its part of the order that the sampler gives to all; an epoch is every
 *            sample once.
 *   SHARED   each has the whole data set and reads it in a shuffle of its own: no sample twice on a
 *            rank in an epoch, but the same ones on several. The sampler must shuffle.
 *   SCATTER  rank 0 reads, in the order of SPLIT, and sends each rank its part (ls_scatter_v):
 *            the same batches to the bit, from data that only rank 0 has. ls_loader_new, _next,
 *            _seek and _free are then collective over the world; an error of rank 0's reading
 *            reaches all, and ends the loader.
 * (One batch for all ranks, as tensor parallelism wants it: SPLIT, and a sampler with .rank = 0,
 * .world_size = 1.) */
typedef enum ls_feed { LS_FEED_SPLIT = 0, LS_FEED_SHARED = 1, LS_FEED_SCATTER = 2 } ls_feed;

typedef struct ls_loader_options {
    size_t size;
    int prefetch; /* batches read ahead; default 2, 0: read when asked */
    ls_feed feed; /* default LS_FEED_SPLIT */
} ls_loader_options;
#define LS_DEFAULTS_ls_loader_options .prefetch = 2,
LS_DEFAULTS_FUNCTION(loader)

typedef struct ls_batch {
    size_t size;          /* set to sizeof before the call */
    ls_tensor *x, *y;     /* [n,..]; belong to the loader, which overwrites them in its next call:
                             run ls_backward before it, or keep an ls_clone */
    int64_t count;        /* samples; may be 0 on a rank that ran out */
    int64_t global_count; /* samples of all ranks in this step */
    int64_t epoch, step;
    bool last; /* of its epoch */
} ls_batch;

/* Borrows dataset and sampler. */
LS_API ls_loader *ls_loader_new(ls_dataset *dataset, ls_sampler *sampler,
                                const ls_loader_options *options);
LS_API void ls_loader_free(ls_loader *loader);
/* The next batch; false at the end of an epoch (the next call starts the next epoch) or on an error
 * (ls_loader_status). LS_ERR_INVALID when batch->size is impossible. */
LS_API bool ls_loader_next(ls_loader *loader, ls_batch *batch);
LS_API ls_status ls_loader_status(const ls_loader *loader);
LS_API ls_status ls_loader_seek(ls_loader *loader, int64_t epoch, int64_t step);
/* Epoch, samples of it that all ranks have had, seed, the data set's size, which must be the same
 * when loading, and the batches so far: the step's number for ls_step_begin, so no random number is
 * drawn twice. At another rank count the rest of the epoch is cut anew from that sample on,
 * so none is lost or repeated; a batch's `step` is then the sample's number / global batch. */
LS_API ls_status ls_loader_state(ls_loader *loader, const char *prefix,
                                 const ls_state_visitor *visitor);

#if !defined(LS_NO_SITES)
#define ls_sampler_new(...) LS_AT(ls_sampler_new(__VA_ARGS__))
#define ls_loader_new(...) LS_AT(ls_loader_new(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
