/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with files of images, arrays and tokens, with transforms, and with who feeds whom. */
#include <sys/stat.h>

#include "golden.h"

#define FILE_OF(name, ...)                                                                         \
    golden_file(name, (const unsigned char[]){__VA_ARGS__},                                        \
                sizeof((const unsigned char[]){__VA_ARGS__}))

static ls_dataset *made;

/* A folder that holds nothing yet. */
static const char *new_folder(const char *name)
{
    static char path[300];
    (void)snprintf(path, sizeof path, "%s/%s", golden_folder(), name);
    if (mkdir(path, 0700) != 0) {
        exit(3);
    }
    return path;
}

/* ---- images ---------------------------------------------------------------------------------- */

static void show_cifar(const char *what, const char *path)
{
    golden_show(what, LS_STATUS_OF(made = ls_cifar10_dataset_new(path, true)));
}

GOLDEN(cifar_10)
{
    static unsigned char images[2 * 3073];
    float x[3072];
    int32_t y;
    SHOW(made = ls_cifar10_dataset_new(NULL, true));
    show_cifar("missing", "/does/not/exist");
    show_cifar("no file", "/dev/null");
    show_cifar("empty", golden_file("empty", "", 0));
    show_cifar("truncated", golden_file("cut.bin", images, sizeof images - 1));
    show_cifar("an archive", golden_file("images.zip", "PK\x03\x04", 4));
    show_cifar("for Python", FILE_OF("data_batch_1", 0x80, 2, '}'));
    images[3073] = 77;
    show_cifar("damaged", golden_file("damaged.bin", images, sizeof images));
    images[3073] = 7;
    const char *folder = new_folder("cifar");
    golden_show("a folder without its files",
                LS_STATUS_OF(made = ls_cifar10_dataset_new(folder, false)));
    (void)golden_file("cifar/data_batch_1.bin", images, sizeof images);
    golden_show("a folder without all of them",
                LS_STATUS_OF(made = ls_cifar10_dataset_new(folder, true)));
    MUST(made = ls_cifar10_dataset_new(golden_file("good.bin", images, sizeof images), true));
    SHOW(made->get(made, 2, x, &y));
}

GOLDEN(images_that_are_none)
{
    const char *labels = FILE_OF("labels", 0, 0, 8, 1, 0, 0, 0, 2, 0, 1);
    const char *rows = FILE_OF("rows", 0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 1, 5, 6);
    SHOW(made = ls_idx_images_dataset_new(rows, labels));
}

GOLDEN(transforms)
{
    const double zero[1] = {0};
    const char *labels = FILE_OF("labels", 0, 0, 8, 1, 0, 0, 0, 2, 0, 1);
    const char *images =
        FILE_OF("images", 0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4);
    SHOW(made = ls_transform_dataset_new(NULL, NULL));
    SHOW(made = ls_transform_dataset_new(&(ls_dataset){.count = 1}, NULL));
    MUST(made = ls_idx_dataset_new(images, labels));
    SHOW(made = ls_transform_dataset_new(made, NULL));
    MUST(made = ls_idx_images_dataset_new(images, labels));
    SHOW(made =
             ls_transform_dataset_new(made, LS_OPTIONS(ls_transform_options, .crop_padding = -3)));
    MUST(made = ls_idx_images_dataset_new(images, labels));
    SHOW(made = ls_transform_dataset_new(
             made, LS_OPTIONS(ls_transform_options, .mean = zero, .channels = 3)));
    MUST(made = ls_idx_images_dataset_new(images, labels));
    SHOW(made = ls_transform_dataset_new(
             made, LS_OPTIONS(ls_transform_options, .std = zero, .channels = 1)));
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* A file of version 1.0 with this header and `bytes` zeros behind it. */
static const char *npy(const char *header, size_t bytes)
{
    unsigned char file[400] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)strlen(header)};
    memcpy(file + 10, header, strlen(header));
    return golden_file("a.npy", file, 10 + strlen(header) + bytes);
}

static void show_npy(const char *header, size_t bytes)
{
    const char *x = npy(header, bytes);
    golden_show(header, LS_STATUS_OF(made = ls_npy_dataset_new(x, x)));
}

GOLDEN(headers_of_npy_files)
{
    show_npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }", 16);
    show_npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 2), }", 16);
    show_npy("{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }", 16);
    show_npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", 8);
    show_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", 4);
    show_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", 15);
    show_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", 17);
    show_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 16);
    show_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 16);
    show_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 4);
    show_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4), }", 0);
    show_npy("['descr']", 0);
    show_npy("{descr: 1}", 0);
    show_npy("{'descr", 0);
    show_npy("{'descr'", 0);
    show_npy("{'descr': f4}", 0);
    show_npy("{'fortran_order': 1}", 0);
    show_npy("{'shape': 2}", 0);
    show_npy("{'shape': (2)}", 0);
    show_npy("{'shape': (two,)}", 0);
    show_npy("{'shape': (2,), 'shape': (2,)}", 0);
    show_npy("{'shape': (2,) 'descr': 1}", 0);
    show_npy("{'shape': (2,)}", 0);
    show_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } and more", 4);
}

GOLDEN(npy_files)
{
    unsigned char none[144] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 118};
    int32_t x[4], y[4];
    SHOW(made = ls_npy_dataset_new("x.npy", ""));
    SHOW(made = ls_npy_dataset_new("/does/not/exist", "y.npy"));
    SHOW(made = ls_npy_dataset_new("/tmp", "y.npy"));
    SHOW(made = ls_npy_dataset_new(golden_file("empty", "", 0), "y.npy"));
    SHOW(made = ls_npy_dataset_new(golden_file("short", none, 9), "y.npy"));
    SHOW(made = ls_npy_dataset_new(golden_file("cut", none, 100), "y.npy"));
    SHOW(made = ls_npy_dataset_new(golden_file("a.npz", "PK\x03\x04 and so on", 14), "y.npy"));
    SHOW(made = ls_npy_dataset_new(golden_file("text", "1, 2, 3, 4, 5", 13), "y.npy"));
    none[6] = 9;
    SHOW(made = ls_npy_dataset_new(golden_file("version", none, 144), "y.npy"));
    char bools[80] = "\x93NUMPY\x01";
    const char *header = "{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}";
    bools[8] = (char)strlen(header);
    memcpy(bools + 10, header, strlen(header));
    memcpy(bools + 10 + strlen(header), "\x01\x05", 2);
    SHOW(made = ls_npy_dataset_new(golden_file("bools", bools, 12 + strlen(header)), "y.npy"));
    const char *two = npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}", 8);
    char path[300];
    (void)snprintf(path, sizeof path, "%s/b.npy", golden_folder());
    if (rename(two, path) != 0) {
        exit(3);
    }
    SHOW(made = ls_npy_dataset_new(
             npy("{'descr': '<i4', 'fortran_order': False, 'shape': (3,)}", 12), path));
    MUST(made = ls_npy_dataset_new(path, path));
    SHOW(made->get(made, 2, x, y));
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static void show_tokens(const char *what, const char *path)
{
    golden_show(what, LS_STATUS_OF(made = ls_tokens_dataset_new(path, NULL)));
}

GOLDEN(shards)
{
    unsigned char shard[1024 + 8] = {0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 4, 0, 0, 0};
    show_tokens("no path", "");
    show_tokens("missing", "/does/not/exist");
    show_tokens("no file", "/dev/null");
    show_tokens("empty", golden_file("empty.bin", "", 0));
    show_tokens("half a token", golden_file("odd.bin", "12345", 5));
    show_tokens("few tokens", golden_file("few.bin", "1234", 4));
    show_tokens("header cut", golden_file("head.bin", shard, 1000));
    show_tokens("truncated", golden_file("cut.bin", shard, sizeof shard - 1));
    shard[4] = 3;
    show_tokens("another version", golden_file("version.bin", shard, sizeof shard));
    shard[4] = 1;
    shard[8] = 0;
    show_tokens("no tokens", golden_file("none.bin", shard, 1024));
    shard[0] = 0x8a;
    show_tokens("an evaluation", golden_file("eval.bin", shard, sizeof shard));
    show_tokens("weights", FILE_OF("gpt2.bin", 0xc6, 0xd7, 0x34, 1, 3, 0, 0, 0));
    show_tokens("a state", FILE_OF("state.bin", 0xc7, 0xd7, 0x34, 1, 3, 0, 0, 0));
    show_tokens("a tokenizer", FILE_OF("tokenizer.bin", 0xc8, 0xd7, 0x34, 1, 3, 0, 0, 0));
    show_tokens("an array", golden_file("a.npy", "\x93NUMPY\x01", 7));
    show_tokens("an archive", golden_file("a.zip", "PK\x03\x04", 4));
    show_tokens("a pointer",
                golden_file("lfs.bin", "version https://git-lfs.github.com/spec/v1", 42));
    show_tokens("compressed", FILE_OF("a.bin.gz", 0x1f, 0x8b, 8, 8));
}

GOLDEN(tokens_of_2_or_of_4_bytes)
{
    unsigned char tokens[600] = {0};
    for (size_t i = 0; i < sizeof tokens; i += 4) {
        tokens[i] = 7;
    }
    const char *path = golden_file("wide.bin", tokens, sizeof tokens);
    SHOW(made = ls_tokens_dataset_new(path, LS_OPTIONS(ls_tokens_options, .vocab = 128256)));
    MUST(made = ls_tokens_dataset_new(path, NULL));
    (void)golden_file("wide.idx", "MMIDIDX\0\0\1", 10);
    show_tokens("with an index", path);
}

GOLDEN(folders_of_shards)
{
    const char *folder = new_folder("shards");
    SHOW(made = ls_tokens_dataset_new(folder, NULL));
    (void)golden_file("shards/train.bin", "01234567", 8);
    (void)golden_file("shards/val.bin", "01234567", 8);
    SHOW(made = ls_tokens_dataset_new(folder, NULL));
    SHOW(made = ls_tokens_dataset_new(folder, LS_OPTIONS(ls_tokens_options, .part = "test")));
}

GOLDEN(tokens)
{
    int32_t x[2], y[2];
    const char *path = golden_file("shard.bin", "\x01\0\x02\0\x09\0\x03\0", 8);
    SHOW(made =
             ls_tokens_dataset_new("x", LS_OPTIONS(ls_tokens_options, .context = 0, .stride = -1)));
    SHOW(made = ls_tokens_dataset_new("x", LS_OPTIONS(ls_tokens_options, .vocab = -1)));
    MUST(made =
             ls_tokens_dataset_new(path, LS_OPTIONS(ls_tokens_options, .context = 2, .vocab = 9)));
    SHOW(made->get(made, 0, x, y));
    SHOW(made->get(made, 1, x, y));
    const unsigned char shard[1024 + 8] = {0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 4, [1026] = 9};
    path = golden_file("made.bin", shard, sizeof shard);
    MUST(made =
             ls_tokens_dataset_new(path, LS_OPTIONS(ls_tokens_options, .context = 2, .vocab = 9)));
    SHOW(made->get(made, 0, x, y));
}

/* ---- who feeds whom -------------------------------------------------------------------------- */

static ls_dataset *numbers(int64_t columns)
{
    ls_dataset *d = NULL;
    MUST(d = ls_tensor_dataset_new(ls_zeros(LS_SHAPE(10, columns), LS_FLOAT32),
                                   ls_zeros(LS_SHAPE(10), LS_INT32)));
    return d;
}

static ls_sampler *sampler(int rank, bool shuffle)
{
    ls_sampler *s = NULL;
    MUST(s = ls_sampler_new(10, LS_OPTIONS(ls_sampler_options, .rank = rank,
                                           .world_size = rank < 0 ? -1 : 2, .shuffle = shuffle)));
    return s;
}

GOLDEN(feeds)
{
    ls_loader *l = NULL;
    ls_dataset *d = numbers(2);
    SHOW(l = ls_loader_new(d, sampler(0, true), LS_OPTIONS(ls_loader_options, .feed = (ls_feed)7)));
    SHOW(l = ls_loader_new(d, sampler(0, false),
                           LS_OPTIONS(ls_loader_options, .feed = LS_FEED_SHARED)));
    SHOW(l = ls_loader_new(d, sampler(1, true),
                           LS_OPTIONS(ls_loader_options, .feed = LS_FEED_SCATTER)));
    SHOW(d = ls_dataset_share(NULL));
}

GOLDEN_BARE(a_data_set_shared_before_ls_init)
{
    SHOW(made = ls_dataset_share(NULL));
}

static ls_status give_up(ls_dataset *self, int64_t index, void *x, void *y)
{
    (void)self;
    (void)index;
    (void)x;
    (void)y;
    return ls_tensor_status(ls_relu(NULL)); /* any error */
}

GOLDEN_RANKS(data_that_rank_0_cannot_read, 2)
{
    ls_loader *l = NULL;
    ls_batch batch = {.size = sizeof batch};
    ls_dataset *d = NULL;
    MUST(d = ls_dataset_share(ls_rank() == 0 ? numbers(2) : NULL));
    if (ls_rank() == 0) {
        d->get = give_up;
    } else {
        SHOW(d->get(d, 3, NULL, NULL));
    }
    MUST(l = ls_loader_new(d, sampler(-1, true),
                           LS_OPTIONS(ls_loader_options, .feed = LS_FEED_SCATTER)));
    MUST(ls_barrier(ls_world(), NULL, NULL)); /* else rank 1 may learn of it in ls_loader_new */
    (void)ls_loader_next(l, &batch);
    SHOW(ls_loader_status(l));
    ls_loader_free(l);
}

GOLDEN_RANKS(ranks_that_expect_other_samples, 2)
{
    ls_loader *l = NULL;
    ls_dataset *d = numbers(2 + ls_rank());
    SHOW(l = ls_loader_new(d, sampler(-1, true),
                           LS_OPTIONS(ls_loader_options, .feed = LS_FEED_SCATTER)));
}

GOLDEN_RANKS(ranks_that_are_fed_in_other_ways, 2)
{
    ls_loader *l = NULL;
    ls_module *net = ls_ddp_new(ls_linear_new(2, 1, NULL), ls_world(), NULL);
    MUST(l = ls_loader_new(numbers(2), sampler(-1, true),
                           LS_OPTIONS(ls_loader_options,
                                      .feed = ls_rank() == 0 ? LS_FEED_SPLIT : LS_FEED_SHARED)));
    SHOW(ls_backward(ls_mean(ls_forward(net, ls_ones(LS_SHAPE(2, 2), LS_FLOAT32)))));
    ls_loader_free(l);
    ls_module_free(net);
}
