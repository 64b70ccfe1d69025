/* SPDX-License-Identifier: Apache-2.0 */
/* CIFAR-10, .npy and token shards: what a good file gives, and that every bad one is refused with
 * its name and the place in it. */
#include "scratch.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/data.h>

static void start(void)
{
    CHECK_OK(ls_init(NULL));
    scratch_begin();
}

static void end(void)
{
    scratch_end();
    CHECK_OK(ls_finalize());
}

/* The call failed with `status` and the message holds both words. */
static void check_refused(ls_status got, ls_status status, const char *word, const char *other)
{
    const char *text = ls_error_message();
    if (got != status || !strstr(text, word) || !strstr(text, other)) {
        test_fail(__FILE__, __LINE__, "%s instead of %s with \"%s\" and \"%s\": %s",
                  ls_status_name(got), ls_status_name(status), word, other, text);
    }
}

/* ---- CIFAR-10 ------------------------------------------------------------------------------- */

enum { PIXELS = 3072, RECORD = 3073 };

/* Image k of file f: label (f + k) % 10, and pixels that tell both. */
static uint8_t pixel(int f, int k, int i)
{
    return (uint8_t)(i * 7 + k * 31 + f * 101);
}

static const char *write_cifar(const char *name, int f, int images)
{
    uint8_t *bytes = malloc((size_t)images * RECORD);
    CHECK(bytes != NULL);
    for (int k = 0; k < images; k++) {
        bytes[k * RECORD] = (uint8_t)((f + k) % 10);
        for (int i = 0; i < PIXELS; i++) {
            bytes[k * RECORD + 1 + i] = pixel(f, k, i);
        }
    }
    const char *path = scratch_write(name, bytes, (size_t)images * RECORD);
    free(bytes);
    return path;
}

static void check_cifar(ls_dataset *d, int64_t index, int f, int k)
{
    static float x[PIXELS];
    int32_t y;
    CHECK_OK(d->get(d, index, x, &y));
    CHECK_INT(y, (f + k) % 10);
    for (int i = 0; i < PIXELS; i++) {
        CHECK(x[i] == (float)pixel(f, k, i) / 255.0f);
    }
}

TEST(cifar_10_is_read_from_its_folder_and_from_one_file)
{
    start();
    char name[32];
    for (int f = 1; f <= 5; f++) {
        (void)snprintf(name, sizeof name, "data_batch_%d.bin", f);
        (void)write_cifar(name, f, f == 3 ? 4 : 2);
    }
    (void)write_cifar("test_batch.bin", 6, 3);
    ls_dataset *train = NULL, *test = NULL, *one = NULL;
    CHECK_OK(train = ls_cifar10_dataset_new(scratch_folder(), true));
    CHECK_OK(test = ls_cifar10_dataset_new(scratch_folder(), false));
    CHECK_OK(one = ls_cifar10_dataset_new(scratch_at("data_batch_3.bin"), false));
    CHECK_INT(train->count, 12);
    CHECK_INT(test->count, 3);
    CHECK_INT(one->count, 4);
    CHECK_INT(train->x_shape.ndim, 3);
    CHECK(train->x_shape.dim[0] == 3 && train->x_shape.dim[1] == 32 && train->x_shape.dim[2] == 32);
    CHECK(train->y_shape.ndim == 0 && train->y_dtype == LS_INT32);
    static const int file_of[] = {1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 5, 5};
    static const int image_of[] = {0, 1, 0, 1, 0, 1, 2, 3, 0, 1, 0, 1};
    for (int64_t i = 0; i < 12; i++) {
        check_cifar(train, i, file_of[i], image_of[i]);
    }
    check_cifar(test, 2, 6, 2);
    check_cifar(one, 3, 3, 3);
    check_refused(train->get(train, 12, NULL, NULL), LS_ERR_INVALID, "no sample 12", "0 to 11");
    check_refused(train->get(train, -1, NULL, NULL), LS_ERR_INVALID, "no sample -1", "0 to 11");
    ls_dataset_free(train);
    ls_dataset_free(test);
    ls_dataset_free(one);
    end();
}

TEST(bad_cifar_10_files_are_refused_with_name_and_offset)
{
    start();
    ls_dataset *d = NULL;
    uint8_t bytes[2 * RECORD] = {0};
    check_refused(LS_STATUS_OF(d = ls_cifar10_dataset_new(scratch_at("none"), true)),
                  LS_ERR_NOT_FOUND, "none", "No such file");
    check_refused(LS_STATUS_OF(d = ls_cifar10_dataset_new("", true)), LS_ERR_INVALID, "no path",
                  "");
    check_refused(LS_STATUS_OF(d = ls_cifar10_dataset_new("/dev/null", true)), LS_ERR_INVALID,
                  "/dev/null", "regular");
    check_refused(LS_STATUS_OF(d = ls_cifar10_dataset_new(scratch_write("empty", "", 0), true)),
                  LS_ERR_INVALID, "empty\"", "is empty");
    check_refused(
        LS_STATUS_OF(d = ls_cifar10_dataset_new(scratch_write("cut", bytes, 2 * RECORD - 5), true)),
        LS_ERR_FORMAT, "cut\"", "3068 bytes at offset 3073");
    check_refused(LS_STATUS_OF(d = ls_cifar10_dataset_new(scratch_write("one", bytes, 1), true)),
                  LS_ERR_FORMAT, "one\"", "offset 0");
    bytes[RECORD] = 10;
    check_refused(
        LS_STATUS_OF(d = ls_cifar10_dataset_new(scratch_write("label", bytes, 2 * RECORD), true)),
        LS_ERR_FORMAT, "label\"", "label 10 at offset 3073");
    check_refused(
        LS_STATUS_OF(d = ls_cifar10_dataset_new(scratch_write("gz", "\x1f\x8b\x08", 3), true)),
        LS_ERR_FORMAT, "gz\"", "compressed");
    check_refused(
        LS_STATUS_OF(d = ls_cifar10_dataset_new(scratch_write("pickle", "\x80\x02}", 3), true)),
        LS_ERR_FORMAT, "pickle\"", "Python");
    for (int f = 1; f <= 4; f++) {
        char name[32];
        (void)snprintf(name, sizeof name, "data_batch_%d.bin", f);
        (void)write_cifar(name, f, 1);
    }
    check_refused(LS_STATUS_OF(d = ls_cifar10_dataset_new(scratch_folder(), true)),
                  LS_ERR_NOT_FOUND, "data_batch_5.bin\": No such file", "test_batch.bin");
    check_refused(LS_STATUS_OF(d = ls_cifar10_dataset_new(scratch_folder(), false)),
                  LS_ERR_NOT_FOUND, "test_batch.bin\": No such file", "");
    CHECK(d == NULL);
    end();
}

/* ---- .npy ----------------------------------------------------------------------------------- */

/* A file of version `major` with this header, padded to 64 bytes as NumPy does, and `bytes` bytes
 * of data 0, 1, 2, … */
static const char *write_npy(const char *name, int major, const char *header, size_t bytes)
{
    uint8_t file[1024] = {0x93, 'N', 'U', 'M', 'P', 'Y', (uint8_t)major, 0};
    const size_t prefix = major == 1 ? 10 : 12, text = strlen(header);
    const size_t length = (prefix + text + 1 + 63) / 64 * 64 - prefix;
    CHECK(prefix + length + bytes <= sizeof file);
    file[8] = (uint8_t)length;
    file[9] = (uint8_t)(length >> 8);
    memcpy(file + prefix, header, text);
    memset(file + prefix + text, ' ', length - text - 1);
    file[prefix + length - 1] = '\n';
    for (size_t i = 0; i < bytes; i++) {
        file[prefix + length + i] = (uint8_t)i;
    }
    return scratch_write(name, file, prefix + length + bytes);
}

#define HEADER(descr, order, shape)                                                                \
    "{'descr': '" descr "', 'fortran_order': " order ", 'shape': " shape ", }"

/* As numpy.save(path, numpy.array([[1, 2], [3, 4.5]], 'float32')) wrote it. */
static const uint8_t of_numpy[] =
    "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }"
    "                                                          \n"
    "\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x90\x40";

TEST(a_file_that_numpy_wrote_gives_its_numbers)
{
    start();
    CHECK_INT(sizeof of_numpy - 1, 128 + 16);
    ls_dataset *d = NULL;
    CHECK_OK(d = ls_npy_dataset_new(scratch_write("x", of_numpy, sizeof of_numpy - 1),
                                    write_npy("y", 1, HEADER("<i8", "False", "(2,)"), 16)));
    float x[2];
    int64_t y;
    CHECK_INT(d->count, 2);
    CHECK(d->x_dtype == LS_FLOAT32 && d->x_shape.ndim == 1 && d->x_shape.dim[0] == 2);
    CHECK(d->y_dtype == LS_INT64 && d->y_shape.ndim == 0);
    CHECK_OK(d->get(d, 1, x, &y));
    CHECK(x[0] == 3.0f && x[1] == 4.5f && y == 0x0f0e0d0c0b0a0908);
    CHECK_OK(d->get(d, 0, x, &y));
    CHECK(x[0] == 1.0f && x[1] == 2.0f && y == 0x0706050403020100);
    check_refused(d->get(d, 2, x, &y), LS_ERR_INVALID, "no sample 2", "0 to 1");
    ls_dataset_free(d);
    end();
}

TEST(arrays_of_every_type_and_version_are_read)
{
    start();
    static const struct {
        const char *header;
        ls_dtype dtype;
        size_t bytes;
        int ndim;
    } cases[] = {
        {HEADER("<f4", "False", "(2, 3)"), LS_FLOAT32, 24, 2},
        {HEADER("<f8", "False", "(2, 3)"), LS_FLOAT64, 48, 2},
        {HEADER("<f2", "False", "(2,)"), LS_FLOAT16, 4, 1},
        {HEADER("|i1", "False", "(2, 1, 3)"), LS_INT8, 6, 3},
        {HEADER("|u1", "False", "(2, 2, 2, 2, 1, 1, 1, 1)"), LS_UINT8, 16, 8},
        {HEADER("<i4", "False", "(2, 3,)"), LS_INT32, 24, 2},
        {HEADER("<i8", "False", "(2, 3)"), LS_INT64, 48, 2},
        {HEADER("|b1", "False", "(2,)"), LS_BOOL, 2, 1},
        {HEADER("<i2", "False", "(2, 3)"), LS_INT16, 12, 2},
        {HEADER("<u2", "False", "(2, 3)"), LS_UINT16, 12, 2},
        {HEADER("<u4", "False", "(2, 3)"), LS_UINT32, 24, 2},
        {HEADER("<u8", "False", "(2, 3)"), LS_UINT64, 48, 2},
        {"{\"shape\":(2,),\"descr\":\"<i4\",\"fortran_order\":False}", LS_INT32, 8, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int major = 1; major <= 3; major++) {
            ls_dataset *d = NULL;
            const char *x = write_npy("x", major, cases[i].header, cases[i].bytes);
            CHECK_OK(d = ls_npy_dataset_new(x, x));
            CHECK_INT(d->count, 2);
            CHECK_INT(d->x_dtype, cases[i].dtype);
            CHECK_INT(d->x_shape.ndim, cases[i].ndim - 1);
            uint8_t row[64], same[64];
            CHECK_OK(d->get(d, 1, row, same));
            for (size_t k = 0; k < cases[i].bytes / 2; k++) {
                CHECK_INT(row[k], cases[i].bytes / 2 + k);
                CHECK_INT(same[k], row[k]);
            }
            ls_dataset_free(d);
        }
    }
    end();
}

static void check_bad_npy(const char *header, size_t bytes, ls_status status, const char *word)
{
    ls_dataset *d = NULL;
    check_refused(LS_STATUS_OF(d = ls_npy_dataset_new(write_npy("bad", 1, header, bytes),
                                                      scratch_at("good"))),
                  status, "bad\"", word);
    CHECK(d == NULL);
}

TEST(bad_npy_files_are_refused_with_name_and_offset)
{
    start();
    ls_dataset *d = NULL;
    const char *good = write_npy("good", 1, HEADER("<f4", "False", "(2,)"), 8);
    check_refused(LS_STATUS_OF(d = ls_npy_dataset_new(NULL, good)), LS_ERR_INVALID,
                  "a path is missing", "");
    check_refused(LS_STATUS_OF(d = ls_npy_dataset_new(scratch_at("none"), good)), LS_ERR_NOT_FOUND,
                  "none", "No such file");
    check_refused(LS_STATUS_OF(d = ls_npy_dataset_new(scratch_folder(), good)), LS_ERR_INVALID,
                  scratch_folder(), "regular");
    for (size_t cut = 0; cut < 128; cut++) {
        check_refused(
            LS_STATUS_OF(d = ls_npy_dataset_new(scratch_write("bad", of_numpy, cut), good)),
            LS_ERR_FORMAT, "bad\"", cut < 10 ? "at least 10" : "within its header of 128");
    }
    check_refused(LS_STATUS_OF(d = ls_npy_dataset_new(scratch_write("bad", of_numpy, 143), good)),
                  LS_ERR_FORMAT, "bad\"", "16 bytes of elements, but 15 follow from offset 128");
    check_refused(LS_STATUS_OF(d = ls_npy_dataset_new(
                                   scratch_write("bad", "PK\x03\x04 and the rest", 16), good)),
                  LS_ERR_FORMAT, "bad\"", "ZIP archive");
    check_refused(
        LS_STATUS_OF(d = ls_npy_dataset_new(scratch_write("bad", "hello, I am text", 16), good)),
        LS_ERR_FORMAT, "68 65 6c 6c", "another format");
    check_refused(LS_STATUS_OF(d = ls_npy_dataset_new(
                                   write_npy("bad", 4, HEADER("<f4", "False", "(2,)"), 8), good)),
                  LS_ERR_UNSUPPORTED, "4.0", "offset 6");
    check_bad_npy(HEADER("<f4", "True", "(2, 2)"), 16, LS_ERR_UNSUPPORTED, "Fortran order");
    check_bad_npy(HEADER(">f4", "False", "(2,)"), 8, LS_ERR_UNSUPPORTED, "big-endian");
    check_bad_npy(HEADER("<c8", "False", "(2,)"), 16, LS_ERR_UNSUPPORTED, "'<c8' (offset 20)");
    check_bad_npy(HEADER("|O", "False", "(2,)"), 4, LS_ERR_UNSUPPORTED, "'|O'");
    check_bad_npy(HEADER("<abcdefghijklmnopqrstuvw", "False", "(2,)"), 4, LS_ERR_UNSUPPORTED,
                  "'<abcdefghijklmn'"); /* cut */
    check_bad_npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", 8,
                  LS_ERR_UNSUPPORTED, "records");
    check_bad_npy(HEADER("<f4", "False", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), 4, LS_ERR_UNSUPPORTED,
                  "more than 8");
    check_bad_npy(HEADER("<f4", "False", "(3,)"), 8, LS_ERR_FORMAT, "12 bytes");
    check_bad_npy(HEADER("<f4", "False", "(2)"), 8, LS_ERR_FORMAT, "a comma expected at offset");
    check_bad_npy(HEADER("<f4", "False", "(-2,)"), 8, LS_ERR_FORMAT, "a dimension");
    check_bad_npy(HEADER("<f4", "0", "(2,)"), 8, LS_ERR_FORMAT, "True or False");
    check_bad_npy(HEADER("<f4", "False", "2"), 8, LS_ERR_FORMAT, "a shape");
    check_bad_npy(HEADER("<f4", "False", "(99999999999999999999,)"), 8, LS_ERR_FORMAT, "2^63");
    check_bad_npy(HEADER("<f4", "False", "(4294967296, 4294967296)"), 8, LS_ERR_FORMAT, "overflow");
    check_bad_npy(HEADER("<f4", "False", "(4611686018427387904,)"), 8, LS_ERR_FORMAT, "overflow");
    check_bad_npy(HEADER("<f4", "False", "(2,)") "}", 8, LS_ERR_FORMAT, "the end of the header");
    check_bad_npy("{'descr': '<f4', 'shape': (2,), }", 8, LS_ERR_FORMAT, "'fortran_order'");
    check_bad_npy("{'descr': '<f4', 'descr': '<f4', }", 8, LS_ERR_FORMAT, "one each");
    check_bad_npy("{'descr': '<f4", 8, LS_ERR_FORMAT, "the type of elements");
    check_bad_npy("import os", 8, LS_ERR_FORMAT, "a dictionary");
    check_bad_npy(HEADER("|b1", "False", "(3,)"), 3, LS_ERR_FORMAT, "bool 2 at offset 130");
    check_bad_npy(HEADER("<f4", "False", "()"), 4, LS_ERR_INVALID, "a single number");
    check_bad_npy(HEADER("<f4", "False", "(0, 3)"), 0, LS_ERR_INVALID, "no elements");
    check_bad_npy(HEADER("<f4", "False", "(3, 1)"), 12, LS_ERR_INVALID, "3 samples");
    end();
}

/* ---- tokens --------------------------------------------------------------------------------- */

/* Token i of file f, of `bytes` bytes. */
static uint32_t token(int f, int i, int bytes)
{
    const uint32_t t = (uint32_t)(f * 1000 + i * 3);
    return bytes == 2 ? t : t + 70000;
}

/* magic 0: nanoGPT's form */
static const char *write_shard(const char *name, uint32_t magic, uint32_t version, int f, int count)
{
    static uint8_t file[1024 + 4 * 1000];
    const int bytes = magic == 20240801 ? 4 : 2;
    uint32_t head[3] = {magic, version, (uint32_t)count};
    size_t length = magic ? 1024 : 0;
    memset(file, 0, sizeof file);
    memcpy(file, head, magic ? sizeof head : 0); /* this machine is little-endian */
    for (int i = 0; i < count; i++) {
        const uint32_t t = token(f, i, bytes);
        memcpy(file + length, &t, (size_t)bytes);
        length += (size_t)bytes;
    }
    return scratch_write(name, file, length);
}

static ls_dataset *open_tokens(const char *path, int64_t context, int64_t stride, const char *part)
{
    ls_dataset *d = NULL;
    CHECK_OK(d = ls_tokens_dataset_new(path, LS_OPTIONS(ls_tokens_options, .context = context,
                                                        .stride = stride, .part = part)));
    return d;
}

static void check_window(ls_dataset *d, int64_t index, int f, int start_at, int bytes)
{
    int32_t x[5], y[5];
    CHECK_OK(d->get(d, index, x, y));
    for (int i = 0; i < 5; i++) {
        CHECK_INT(x[i], token(f, start_at + i, bytes));
        CHECK_INT(y[i], token(f, start_at + i + 1, bytes));
    }
}

TEST(shards_of_nanogpt_and_llm_c_are_told_apart_by_their_magic)
{
    start();
    static const uint32_t magic[] = {0, 20240520, 20240801}, version[] = {0, 1, 7};
    for (int m = 0; m < 3; m++) {
        ls_dataset *d = open_tokens(write_shard("s.bin", magic[m], version[m], 4, 100), 5, 0, NULL);
        const int bytes = m == 2 ? 4 : 2;
        CHECK_INT(d->count, 19); /* 5 * 19 + 1 <= 100 < 5 * 20 + 1 */
        CHECK(d->x_dtype == LS_INT32 && d->x_shape.ndim == 1 && d->x_shape.dim[0] == 5);
        check_window(d, 0, 4, 0, bytes);
        check_window(d, 18, 4, 90, bytes);
        check_refused(d->get(d, 19, NULL, NULL), LS_ERR_INVALID, "no sample 19", "0 to 18");
        ls_dataset_free(d);
    }
    end();
}

TEST(windows_of_tokens_never_cross_a_shard)
{
    start();
    CHECK(mkdir(scratch_at("d"), 0700) == 0);
    (void)write_shard("d/x_train_000002.bin", 20240801, 7, 2, 9);
    (void)write_shard("d/x_train_000001.bin", 0, 0, 1, 13);
    (void)write_shard("d/x_train_000003.bin", 20240520, 1, 3, 5); /* no window */
    (void)write_shard("d/x_train_000004.bin", 20240520, 1, 4, 6);
    (void)write_shard("d/x_val_000000.bin", 20240520, 1, 5, 7);
    (void)scratch_write("d/meta_train.pkl", "\x80\x04", 2);
    ls_dataset *d = open_tokens(scratch_at("d"), 5, 3, "train");
    CHECK_INT(d->count, 3 + 2 + 0 + 1);
    static const int file_of[] = {1, 1, 1, 2, 2, 4}, start_of[] = {0, 3, 6, 0, 3, 0};
    for (int64_t i = 0; i < 6; i++) {
        check_window(d, i, file_of[i], start_of[i], file_of[i] == 2 ? 4 : 2);
    }
    ls_dataset_free(d);
    d = open_tokens(scratch_at("d"), 5, 1, "val");
    CHECK_INT(d->count, 2);
    check_window(d, 1, 5, 1, 2);
    ls_dataset_free(d);
    ls_dataset *none = NULL;
    check_refused(LS_STATUS_OF(none = ls_tokens_dataset_new(scratch_at("d"), NULL)), LS_ERR_INVALID,
                  "validation", ".part");
    check_refused(LS_STATUS_OF(none = ls_tokens_dataset_new(
                                   scratch_at("d"), LS_OPTIONS(ls_tokens_options, .part = "test"))),
                  LS_ERR_NOT_FOUND, "d\"", "*test*.bin");
    end();
}

/* As many as the list of paths has room for at first, so that a step beyond its end is seen. */
TEST(shards_of_the_other_part_are_left_out)
{
    char name[32];
    start();
    CHECK(mkdir(scratch_at("d"), 0700) == 0);
    for (int f = 0; f < 16; f++) {
        (void)snprintf(name, sizeof name, "d/x_%s_%06d.bin", f % 4 == 3 ? "val" : "train", f);
        (void)write_shard(name, 0, 0, f, 6);
    }
    ls_dataset *d = open_tokens(scratch_at("d"), 5, 0, "train");
    CHECK_INT(d->count, 12);
    check_window(d, 3, 4, 0, 2);
    check_window(d, 11, 14, 0, 2);
    ls_dataset_free(d);
    end();
}

static void check_bad_tokens(const char *path, const char *name, ls_status status, const char *word)
{
    ls_dataset *d = NULL;
    check_refused(LS_STATUS_OF(d = ls_tokens_dataset_new(path, NULL)), status, name, word);
    CHECK(d == NULL);
}

TEST(bad_shards_are_refused_with_name_and_offset)
{
    start();
    uint8_t file[1024 + 20] = {0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 10};
    check_bad_tokens(scratch_at("none"), "none", LS_ERR_NOT_FOUND, "No such file");
    check_bad_tokens("", "", LS_ERR_INVALID, "no path");
    check_bad_tokens(scratch_write("empty", "", 0), "empty\"", LS_ERR_INVALID, "is empty");
    check_bad_tokens(scratch_write("odd", "abc", 3), "odd\"", LS_ERR_FORMAT, "offset 2");
    check_bad_tokens(scratch_write("short", "abcd", 4), "short\"", LS_ERR_INVALID, "has 2 tokens");
    check_bad_tokens(scratch_write("head", file, 4), "head\"", LS_ERR_FORMAT, "ends at offset 4");
    check_bad_tokens(scratch_write("head", file, 1023), "head\"", LS_ERR_FORMAT, "offset 1023");
    check_bad_tokens(scratch_write("cut", file, 1024 + 19), "cut\"", LS_ERR_FORMAT,
                     "20 bytes, but 19 follow from offset 1024");
    check_bad_tokens(scratch_write("more", file, 1024), "more\"", LS_ERR_FORMAT, "0 follow");
    file[4] = 2;
    check_bad_tokens(scratch_write("version", file, 1044), "version\"", LS_ERR_UNSUPPORTED,
                     "version 2 at offset 4");
    file[4] = 1;
    file[8] = 0;
    check_bad_tokens(scratch_write("no", file, 1024), "no\"", LS_ERR_INVALID, "no tokens");
    file[0] = 0x8a;
    check_bad_tokens(scratch_write("eval", file, 1044), "eval\"", LS_ERR_FORMAT, "evaluation");
    file[0] = 0xc6;
    file[1] = 0xd7;
    check_bad_tokens(scratch_write("model", file, 1044), "model\"", LS_ERR_FORMAT, "weights");
    check_bad_tokens(scratch_write("x.npy", of_numpy, 144), "x.npy\"", LS_ERR_FORMAT, "NumPy");
    check_bad_tokens(scratch_write("x.zip", "PK\x03\x04 abc", 8), "x.zip\"", LS_ERR_FORMAT, "ZIP");
    check_bad_tokens(scratch_write("x.gz", "\x1f\x8b\x08\x00 abc", 8), "x.gz\"", LS_ERR_FORMAT,
                     "gunzip");
    CHECK(mkdir(scratch_at("folder"), 0700) == 0);
    check_bad_tokens(scratch_at("folder"), "folder\"", LS_ERR_NOT_FOUND, "no shard");
    end();
}

static const char *write_raw(const char *name, int count, int bytes)
{
    static uint8_t file[4 * 3000];
    for (int i = 0; i < count; i++) {
        const uint32_t t = (uint32_t)(i * 7 % 50000);
        memcpy(file + i * bytes, &t, (size_t)bytes);
    }
    return scratch_write(name, file, (size_t)(count * bytes));
}

static ls_status open_of_vocab(const char *path, int64_t vocab)
{
    ls_dataset *d = NULL;
    const ls_status status = LS_STATUS_OF(
        d = ls_tokens_dataset_new(path, LS_OPTIONS(ls_tokens_options, .vocab = vocab)));
    ls_dataset_free(d);
    return status;
}

/* 65536 is the last that fits. A file with a header says itself how wide its tokens are. */
TEST(a_vocabulary_that_2_bytes_cannot_hold_is_refused_for_files_without_a_header)
{
    start();
    const char *raw = write_raw("raw.bin", 1000, 2);
    CHECK_OK(open_of_vocab(raw, 65536));
    check_refused(open_of_vocab(raw, 65537), LS_ERR_UNSUPPORTED, "raw.bin\" begins with",
                  "a vocabulary of 65537 needs 4");
    CHECK_OK(open_of_vocab(write_shard("s.bin", 20240801, 7, 0, 300), 128256));
    CHECK_OK(open_of_vocab(write_shard("s.bin", 20240520, 1, 0, 300), 128256));
    end();
}

TEST(token_files_with_the_index_of_another_tool_are_refused)
{
    start();
    char raw[500];
    (void)snprintf(raw, sizeof raw, "%s", write_raw("corpus_text_document.bin", 1000, 4));
    (void)scratch_write("corpus_text_document.idx", "MMIDIDX\0\0\1\0\0\0\0\0\0\0\4", 18);
    check_refused(open_of_vocab(raw, 50257), LS_ERR_UNSUPPORTED, "corpus_text_document.idx\" says",
                  "Megatron or fairseq");
    check_refused(open_of_vocab(scratch_folder(), 0), LS_ERR_UNSUPPORTED, "_document.idx\"",
                  "llm.c");
    check_bad_tokens(scratch_at("corpus_text_document.idx"), "_document.idx\" begins with 4d 4d",
                     LS_ERR_FORMAT, "the index of a token file");
    (void)scratch_write("corpus_text_document.idx", "TNTIDX\0\0\1", 9);
    check_refused(open_of_vocab(raw, 0), LS_ERR_UNSUPPORTED, "fairseq", "");
    (void)scratch_write("corpus_text_document.idx", "notes", 5);
    CHECK_OK(open_of_vocab(raw, 0));
    (void)write_shard("corpus_text_document.bin", 20240801, 7, 0, 300);
    (void)scratch_write("corpus_text_document.idx", "MMIDIDX\0\0\1", 10);
    CHECK_OK(open_of_vocab(raw, 0)); /* the header decides */
    end();
}

static int warnings;

static void count_warning(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    warnings += level == LS_LOG_WARN && strstr(text, "every second token of") != NULL;
}

static int warned_of(const char *path)
{
    warnings = 0;
    CHECK_OK(open_of_vocab(path, 0));
    return warnings;
}

TEST(a_file_of_4_byte_tokens_without_a_header_is_warned_of)
{
    start();
    ls_set_log_callback(count_warning, NULL);
    CHECK_INT(warned_of(write_raw("wide.bin", 3000, 4)), 1);
    CHECK_INT(warned_of(write_raw("narrow.bin", 3000, 2)), 0);
    CHECK_INT(warned_of(scratch_write("zeros.bin", (uint8_t[1000]){0}, 1000)), 0);
    uint16_t alternating[1200] = {0};
    for (int i = 0; i < 1200; i += 2) {
        alternating[i] = 5;
    }
    CHECK_INT(warned_of(scratch_write("a.bin", alternating, sizeof alternating)), 1);
    alternating[1199] = 1;
    CHECK_INT(warned_of(scratch_write("b.bin", alternating, sizeof alternating)), 0);
    ls_set_log_callback(NULL, NULL);
    end();
}

TEST(a_token_outside_of_the_vocabulary_is_named_with_its_place)
{
    start();
    ls_dataset *d = NULL;
    int32_t x[5], y[5];
    const char *path = write_shard("s.bin", 20240520, 1, 0, 100); /* tokens 0, 3, … 297 */
    CHECK_OK(
        d = ls_tokens_dataset_new(path, LS_OPTIONS(ls_tokens_options, .context = 5, .vocab = 31)));
    CHECK_OK(d->get(d, 1, x, y)); /* up to token 10, 30 */
    check_refused(d->get(d, 2, x, y), LS_ERR_FORMAT, "s.bin\" has token 33 at offset 1046",
                  "below 31");
    ls_dataset_free(d);
    uint8_t file[1024 + 8] = {0xa1, 0xd9, 0x34, 0x01, 7, 0, 0, 0, 2};
    memset(file + 1028, 0xff, 4);
    CHECK_OK(d = ls_tokens_dataset_new(scratch_write("large", file, sizeof file),
                                       LS_OPTIONS(ls_tokens_options, .context = 1)));
    check_refused(d->get(d, 0, x, y), LS_ERR_FORMAT, "token 4294967295 at offset 1028",
                  "below 2147483648");
    ls_dataset_free(d);
    d = NULL;
    check_refused(
        LS_STATUS_OF(d = ls_tokens_dataset_new(path, LS_OPTIONS(ls_tokens_options, .vocab = -1))),
        LS_ERR_INVALID, "-1", "");
    check_refused(
        LS_STATUS_OF(d = ls_tokens_dataset_new(path, LS_OPTIONS(ls_tokens_options, .context = 0))),
        LS_ERR_INVALID, "context 0", "");
    end();
}

TEST_MAIN
