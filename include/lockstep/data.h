/* SPDX-License-Identifier: Apache-2.0 */
/* Data: datasets, image transforms, a distributed sampler, and a loader, which prefetches on its
 * own thread and distributes the samples to the ranks in one of three ways.
 *
 * A dataset is a table of samples x and targets y of fixed shape, or of several arrays of any shape
 * each, which a batch pads. The sampler computes from (seed,
 * epoch), by a counter-based permutation, which global sample a rank reads at which position. Any
 * rank can compute the order of any other, nothing is stored, and the order does not depend on the
 * number of ranks.
 *
 * Constructors return NULL on failure, with ls_error_status and ls_error_message set. Functions are
 * local calls unless a comment says that they are collective.
 */
#ifndef LOCKSTEP_DATA_H
#define LOCKSTEP_DATA_H

#include <lockstep/random.h>
#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- datasets ----------------------------------------------------------------------------- */

/* A data set of your own is a struct whose first member is an ls_dataset, filled by
 *     d->base = (ls_dataset)LS_DATASET(.count = …, .x_shape = …, .get = my_get, .free = my_free);
 */
typedef struct ls_dataset ls_dataset;
typedef struct ls_sample ls_sample; /* below */
struct ls_dataset {
    size_t size;               /* LS_DATASET sets it; fields that it does not reach are not read */
    int64_t count;             /* samples */
    ls_shape x_shape, y_shape; /* of one sample */
    ls_dtype x_dtype, y_dtype;
    /* Writes sample `index` to x and y, of x_shape and y_shape, row-major. It is called on the
     * loader's thread and must not change shared state. */
    ls_status (*get)(ls_dataset *self, int64_t index, void *x, void *y);
    void (*free)(ls_dataset *self);
    /* NULL, or writes the sample as it is in this epoch (augmented, for example); the loader calls
     * it instead of `get`. Equal arguments must give equal samples, so that every rank, and a
     * resumed run, gets the same ones. */
    ls_status (*get_in_epoch)(ls_dataset *self, int64_t epoch, int64_t index, void *x, void *y);
    /* A data set of several arrays, or of samples of different shapes, has this in place of `get`,
     * shapes and dtypes: it adds the arrays of the sample, as it is in this epoch, with
     * ls_sample_add. As for get_in_epoch, equal arguments must give equal samples. */
    ls_status (*get_sample)(ls_dataset *self, int64_t epoch, int64_t index, ls_sample *sample);
    /* Makes a batch of samples[count] on the loader's thread: adds its arrays, [count,..] each,
     * with ls_sample_add (torch's collate_fn). In the last step of an epoch count may be 0;
     * samples[0] then shows the shapes. NULL: ls_sample_pad with `pad`. */
    ls_status (*collate)(ls_dataset *self, const ls_sample *const *samples, int64_t count,
                         ls_sample *batch);
    const double *pad; /* for each array; borrowed; NULL: zeros */
};
#define LS_DATASET(...)                                                                            \
    {                                                                                              \
        .size = sizeof(ls_dataset), __VA_ARGS__                                                    \
    }
LS_API void ls_dataset_free(ls_dataset *dataset); /* NULL is allowed */

/* The arrays of a sample, or of a batch of samples: sentences and their translations, for example,
 *     static ls_status get(ls_dataset *self, int64_t epoch, int64_t i, ls_sample *sample)
 *     {
 *         int32_t *words = ls_sample_add(sample, LS_INT32, LS_SHAPE(length_of(i)));
 *         …
 *     }
 *     static const double pad[] = {PAD, -100};
 *     d->base = (ls_dataset)LS_DATASET(.count = …, .get_sample = get, .pad = pad, .free = …);
 */
#define LS_SAMPLE_ARRAYS_MAX 8
typedef struct ls_array {
    ls_dtype dtype;
    ls_shape shape;
    void *data; /* row-major */
} ls_array;
/* Appends an array and returns its memory, whose contents are undefined; valid until the next
 * sample is read. NULL with the error set: more than LS_SAMPLE_ARRAYS_MAX arrays, an impossible
 * shape, or no memory. */
LS_API void *ls_sample_add(ls_sample *sample, ls_dtype dtype, ls_shape shape);
LS_API int ls_sample_arrays(const ls_sample *sample); /* number of arrays */
/* Borrowed; NULL: there is no such array. */
LS_API const ls_array *ls_sample_array(const ls_sample *sample, int i);
/* Adds to `batch` each array of samples[count] as [count,..] of the largest size of each dimension;
 * beyond a sample's own it holds pad[i] for array i, 0 if `pad` is NULL (torch's pad_sequence). For
 * use within `collate`. Arrays of one number have the same type and number of dimensions in all
 * samples, else LS_ERR_INVALID. */
LS_API ls_status ls_sample_pad(ls_sample *batch, const ls_sample *const *samples, int64_t count,
                               const double *pad);

/* Text files as byte tokens. A sample is a window of context + 1 bytes, which never crosses the end
 * of a file: x int32 [context] has the values of the bytes, y int32 [context] the same shifted by
 * one. `path` is a file or a folder (recursive, sorted by name, without symbolic links). The last
 * `held_out` share of each file is the part LS_TEXT_HELD_OUT. */
typedef enum ls_text_part { LS_TEXT_TRAIN = 0, LS_TEXT_HELD_OUT = 1 } ls_text_part;
typedef struct ls_text_options {
    size_t size;
    int64_t context;   /* tokens of a sample; default 128 */
    int64_t stride;    /* distance between the starts of samples; 0: context */
    double held_out;   /* in [0,1]; default 0.1 */
    ls_text_part part; /* default LS_TEXT_TRAIN */
} ls_text_options;
#define LS_DEFAULTS_ls_text_options .context = 128, .held_out = 0.1,
LS_DEFAULTS_FUNCTION(text)
/* Errors name the file: LS_ERR_NOT_FOUND, LS_ERR_SYSTEM (unreadable), LS_ERR_INVALID (empty, or
 * every file shorter than a window). */
LS_API ls_dataset *ls_text_dataset_new(const char *path, const ls_text_options *options);
LS_API int ls_text_files(const ls_dataset *text);     /* number of files */
LS_API int64_t ls_text_bytes(const ls_dataset *text); /* bytes of all files of this part */
/* The bytes of file i of this part, and their number in *bytes; borrowed while the dataset
 * lives. */
LS_API const uint8_t *ls_text_file(const ls_dataset *text, int i, int64_t *bytes);

/* MNIST's IDX files (LeCun et al. 1998), given by their paths: images [N,..] uint8 -> x float32 [D]
 * in [0,1], labels [N] uint8 -> y, an int32 scalar. LS_ERR_FORMAT when sizes do not fit the files,
 * which is checked before memory is allocated. These files, and those of ls_cifar10_dataset_new and
 * ls_npy_dataset_new, may be compressed by gzip, whatever their names, in a build with zlib
 * (LS_ERR_UNSUPPORTED without); they are then unpacked into memory, at most 16 GiB each. */
LS_API ls_dataset *ls_idx_dataset_new(const char *images, const char *labels);
/* The same, but with the shape of the images: [N,H,W] -> x [1,H,W], [N,C,H,W] -> x [C,H,W]. */
LS_API ls_dataset *ls_idx_images_dataset_new(const char *images, const char *labels);

/* The binary version of CIFAR-10 (Krizhevsky 2009): a folder, of which data_batch_1.bin to
 * data_batch_5.bin are read if `train`, otherwise test_batch.bin; or one such file, for which
 * `train` has no effect. x float32 [3,32,32] in [0,1] (red, green, blue); y, an int32 scalar, 0 …
 * 9. Labels are validated. */
LS_API ls_dataset *ls_cifar10_dataset_new(const char *folder_or_file, bool train);

/* Two files written by numpy.save, x [N,..] and y [N,..], of float16, float32, float64, bool, or
 * int or uint of 8 to 64 bits; the dtypes are kept. Arrays must be little-endian and in C order, of
 * format versions 1.0 to 3.0; others are LS_ERR_UNSUPPORTED. The files are mapped, so they may be
 * larger than memory, and must not be truncated while the dataset lives. */
LS_API ls_dataset *ls_npy_dataset_new(const char *x, const char *y);

/* Files of tokens (shards) of nanoGPT (.bin, uint16, no header) or llm.c (magic 20240520: uint16,
 * 20240801: uint32); the first bytes decide. A sample is a window of context + 1 tokens, which
 * never crosses the end of a shard: x int32 [context], y int32 [context], the same shifted by one.
 * `path` is a shard or a folder, of which all *.bin are read (recursive, sorted by name, without
 * symbolic links). Shards are mapped. A file without a header beside which another tool's index
 * lies (Megatron's or fairseq's .idx), or with a vocabulary above 65536, is LS_ERR_UNSUPPORTED; one
 * whose every second token is 0, as of 4-byte tokens, is warned of. */
typedef struct ls_tokens_options {
    size_t size;
    int64_t context;  /* tokens of a sample; default 128 */
    int64_t stride;   /* distance between the starts of samples; 0: context, as llm.c */
    const char *part; /* in a folder: reads only shards whose names contain this ("train", "val").
                         NULL: reads all; an error if there are shards of both kinds */
    int64_t vocab;    /* a token >= vocab is LS_ERR_FORMAT when it is read; 0: any below 2^31 */
} ls_tokens_options;
#define LS_DEFAULTS_ls_tokens_options .context = 128,
LS_DEFAULTS_FUNCTION(tokens)
LS_API ls_dataset *ls_tokens_dataset_new(const char *path, const ls_tokens_options *options);

/* Tensors in memory: x [N,..] float32 or int32, y [N,..]. The dataset keeps their elements alive,
 * or a copy of those of a device; the caller still owns its tensors. */
LS_API ls_dataset *ls_tensor_dataset_new(ls_tensor *x, ls_tensor *y);

/* Makes float32 of images [C,H,W] of float16, float32, float64, uint8 (divided by 255) or bool, and
 * augments them in this order (torchvision's RandomCrop, RandomHorizontalFlip,
 * Normalize; He et al. 2016, section 4.2): shifts each by at most crop_padding pixels in each
 * direction and fills with zeros; mirrors it with probability 1/2; computes (x - mean) / std for
 * each channel. The random choices depend only on (seed, epoch, index). Targets do not change.
 * Takes `images`, also when it fails. */
typedef struct ls_transform_options {
    size_t size;
    int64_t crop_padding;     /* in pixels; default 0: no shift */
    bool flip;                /* default false */
    const double *mean, *std; /* [channels], copied; NULL: 0 and 1 */
    int channels;             /* length of mean and std; must be the images' */
    uint64_t seed;            /* default 0 */
} ls_transform_options;
#define LS_DEFAULTS_ls_transform_options
LS_DEFAULTS_FUNCTION(transform)
LS_API ls_dataset *ls_transform_dataset_new(ls_dataset *images,
                                            const ls_transform_options *options);

/* For data that only rank 0 can read (LS_FEED_SCATTER). Collective over the world. Rank 0 passes
 * its dataset and gets the same one back. On other ranks `dataset` is ignored, and the result is a
 * new dataset of the same count, shapes and dtypes, without samples: its `get` is LS_ERR_STATE. If
 * rank 0 passes NULL, the call is LS_ERR_INVALID on all ranks. */
LS_API ls_dataset *ls_dataset_share(ls_dataset *dataset);

/* ---- sampler ------------------------------------------------------------------------------ */

typedef struct ls_sampler ls_sampler;
typedef struct ls_sampler_options {
    size_t size;
    int64_t batch;        /* samples per step of each *rank*; default 1 */
    bool shuffle;         /* default true */
    bool drop_last;       /* default false: the last step may have fewer samples, shared unevenly */
    uint64_t seed;        /* default 0 */
    int rank, world_size; /* default -1: the runtime's */
    /* [world_size] samples per step of each rank, at least 1, in place of `batch`: shares by speed
       (ls_shares_by_speed), which are the same on all ranks. Copied; default NULL. With a loader
       not for SHARED, SCATTER or shards */
    const int64_t *batches;
} ls_sampler_options;
#define LS_DEFAULTS_ls_sampler_options .batch = 1, .shuffle = true, .rank = -1, .world_size = -1,
LS_DEFAULTS_FUNCTION(sampler)
/* A sampler of `count` samples (torch.utils.data.DistributedSampler). LS_ERR_INVALID when there are
 * fewer samples than ranks. */
LS_API ls_sampler *ls_sampler_new(int64_t count, const ls_sampler_options *options);
LS_API void ls_sampler_free(ls_sampler *sampler);           /* NULL is allowed */
LS_API int64_t ls_sampler_steps(const ls_sampler *sampler); /* per epoch; equal on all ranks */
/* Writes the global indices of this rank's samples at (epoch, step), at most `batch`, and returns
 * their number, which can be 0 in the last step. Step s consists of the global positions
 * [s*batch*world_size, (s+1)*batch*world_size), of which each rank gets a contiguous block; with
 * `batches` their sum takes the place of batch*world_size. */
LS_API int64_t ls_sampler_get(const ls_sampler *sampler, int64_t epoch, int64_t step,
                              int64_t *indices);

/* ---- loader ------------------------------------------------------------------------------- */

typedef struct ls_loader ls_loader;

/* How the ranks get their samples. Steps, batch sizes and positions are the same for all three.
 *   SPLIT    Each rank reads its part of the sampler's common order, so an epoch contains every
 *            sample once.
 *   SHARED   Each rank shuffles the whole dataset differently: it reads no sample twice in an
 *            epoch, but several ranks read the same samples. The sampler must shuffle.
 *   SCATTER  Rank 0 reads in the order of SPLIT and sends each rank its part (ls_scatter_v). The
 *            batches are bitwise those of SPLIT, but only rank 0 needs the data. ls_loader_new,
 *            _next, _seek and _free are then collective over the world; an error of rank 0 in
 *            reading becomes an error on all ranks and ends the loader.
 * To give all ranks the same batch, as tensor parallelism needs it, use SPLIT and a sampler with
 * .rank = 0, .world_size = 1. */
typedef enum ls_feed { LS_FEED_SPLIT = 0, LS_FEED_SHARED = 1, LS_FEED_SCATTER = 2 } ls_feed;

typedef struct ls_loader_options {
    size_t size;
    int prefetch; /* batches that a thread reads ahead; default 2; 0: ls_loader_next reads them */
    ls_feed feed; /* default LS_FEED_SPLIT */
    int shards; /* of a step, over all ranks; default 0. See ls_ddp_options.shards: the rank's batch
                   is handed out in shards/ranks calls, in equal parts, each with the step's
                   number and its own sample offset (random.h). The state can be saved only
                   between steps. Not with SHARED, nor with a shorter last step */
} ls_loader_options;
#define LS_DEFAULTS_ls_loader_options .prefetch = 2,
LS_DEFAULTS_FUNCTION(loader)

typedef struct ls_batch {
    size_t size;          /* set to sizeof before the call */
    ls_tensor *x, *y;     /* [n,..]; borrowed: the loader overwrites them in its next call, so run
                             ls_backward before it, or keep an ls_clone. Of a data set with
                             get_sample its first two arrays; y NULL if there is one */
    int64_t count;        /* n; may be 0 on a rank without samples in the last step */
    int64_t global_count; /* samples of all ranks in this step */
    int64_t epoch, step;
    bool last;               /* the last batch of its epoch */
    ls_step_context context; /* as the call has set it, for ls_micro_batch.context */
    int array_count;         /* of a data set with get_sample; 2 of another: x and y */
    ls_tensor *arrays[LS_SAMPLE_ARRAYS_MAX]; /* borrowed, as x and y */
} ls_batch;

/* A loader over `dataset` in the order of `sampler` (torch.utils.data.DataLoader); both are
 * borrowed: free the loader before them. Collective with LS_FEED_SCATTER. LS_ERR_UNSUPPORTED: a
 * data set with get_sample, with LS_FEED_SCATTER or shards. */
LS_API ls_loader *ls_loader_new(ls_dataset *dataset, ls_sampler *sampler,
                                const ls_loader_options *options);
/* NULL is allowed. If the data set's get function hangs in the loader's thread for longer than the
 * job's timeout, a warning is logged, and the memory of the loader and of the data set stays
 * allocated (ls_dataset_free then does nothing). */
LS_API void ls_loader_free(ls_loader *loader);
/* Fills *batch with the next batch and sets the step context of random.h. False at the end of an
 * epoch, after which the next call begins the next epoch, or on an error (ls_loader_status), such
 * as LS_ERR_INVALID for an impossible batch->size. */
LS_API bool ls_loader_next(ls_loader *loader, ls_batch *batch);
LS_API ls_status ls_loader_status(const ls_loader *loader); /* LS_OK, or the error that ended it */
/* The next batch will be that of `step` in `epoch`. */
LS_API ls_status ls_loader_seek(ls_loader *loader, int64_t epoch, int64_t step);
/* Passes the position to the visitor: the epoch, its samples that all ranks have read, the seed,
 * the size of the dataset, which must be the same when loading, and the number of batches so far,
 * which is the step of ls_step_begin, so that no random number is drawn twice. With another number
 * of ranks the rest of the epoch is divided into steps again from that sample on, so no sample is
 * lost or repeated; the `step` of a batch is then the number of its first sample / global batch. */
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
