/* SPDX-License-Identifier: Apache-2.0 */
/* Text and IDX files: what a good one gives, and that every bad one is answered in words. */
#include "comm/runtime/init.h"
#include "data/paths.h"
#include "says.h"
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
    CHECK(ls_init(NULL) == LS_OK);
    scratch_begin();
}

static void end(void)
{
    scratch_end();
    CHECK(ls_finalize() == LS_OK);
}

/* The call fails with `status` and the message holds both words. */
static void check_refused(ls_status got, ls_status status, const char *word, const char *other)
{
    const char *text = ls_error_message();
    if (got != status || !strstr(text, word) || !strstr(text, other)) {
        test_fail(__FILE__, __LINE__, "%s instead of %s with \"%s\" and \"%s\": %s",
                  ls_status_name(got), ls_status_name(status), word, other, text);
    }
}

/* ---- text --------------------------------------------------------------------------------- */

static ls_dataset *text(const char *name, int64_t context, int64_t stride, ls_text_part part)
{
    ls_dataset *made = NULL;
    ls_status status = LS_STATUS_OF(
        made = ls_text_dataset_new(scratch_at(name), LS_OPTIONS(ls_text_options, .context = context,
                                                                .stride = stride, .part = part)));
    if (status < 0) {
        test_fail(__FILE__, __LINE__, "%s", ls_error_message());
    }
    return made;
}

TEST(windows_of_text_never_cross_a_file_and_skip_links)
{
    start();
    uint8_t bytes[100];
    for (int i = 0; i < 100; i++) {
        bytes[i] = (uint8_t)(i + 100);
    }
    CHECK(mkdir(scratch_at("d"), 0700) == 0 && mkdir(scratch_at("d/sub"), 0700) == 0);
    scratch_write("d/b", bytes, 40);         /* 36 + 4 */
    scratch_write("d/a", bytes + 40, 10);    /* 9 + 1 */
    scratch_write("d/sub/c", bytes + 50, 5); /* 5 + 0 */
    scratch_write("d/empty", bytes, 0);
    CHECK(symlink(scratch_at("d/a"), scratch_at("d/link")) == 0);

    ls_dataset *train = text("d", 4, 3, LS_TEXT_TRAIN);
    CHECK_INT(ls_text_files(train), 4);
    CHECK_INT(ls_text_bytes(train), 36 + 9 + 5);
    /* windows of 5 bytes at stride 3: a (36-? bytes) (9-5)/3+1 = 2, b (36-5)/3+1 = 11, c 1 */
    CHECK_INT(train->count, 2 + 11 + 1);
    static const int first[] = {140, 143, 100, 103, 106, 109, 112,
                                115, 118, 121, 124, 127, 130, 150};
    for (int i = 0; i < 14; i++) {
        int32_t x[4], y[4];
        CHECK(train->get(train, i, x, y) == LS_OK);
        for (int k = 0; k < 4; k++) {
            CHECK_INT(x[k], first[i] + k);
            CHECK_INT(y[k], first[i] + k + 1);
        }
    }
    check_refused(train->get(train, 14, NULL, NULL), LS_ERR_INVALID, "14", "14");
    ls_dataset_free(train);

    ls_dataset *held_out = text("d", 3, 0, LS_TEXT_HELD_OUT);
    CHECK_INT(ls_text_bytes(held_out), 4 + 1);
    CHECK_INT(held_out->count, 1);
    int32_t x[3], y[3];
    CHECK(held_out->get(held_out, 0, x, y) == LS_OK);
    CHECK_INT(x[0], 136);
    CHECK_INT(y[2], 139);
    ls_dataset_free(held_out);
    end();
}

TEST(one_file_is_cut_where_the_header_says)
{
    start();
    static uint8_t bytes[1023];
    memset(bytes, 'x', sizeof bytes);
    scratch_write("f", bytes, sizeof bytes);
    ls_dataset *train = text("f", 16, 1, LS_TEXT_TRAIN);
    CHECK_INT(ls_text_bytes(train), 1023 - 102);
    CHECK_INT(train->count, 1023 - 102 - 16);
    CHECK_INT(train->x_shape.ndim, 1);
    CHECK_INT(train->x_shape.dim[0], 16);
    int64_t n;
    CHECK(ls_text_file(train, 0, &n) != NULL && n == 921);
    CHECK(ls_text_file(train, 1, &n) == NULL && n == 0);
    ls_dataset_free(train);
    end();
}

TEST(bad_text_is_refused_by_name)
{
    start();
    ls_dataset *d = NULL;
    check_refused(LS_STATUS_OF(d = ls_text_dataset_new(scratch_at("none"), NULL)), LS_ERR_NOT_FOUND,
                  "none", "No such file or directory");
    check_refused(LS_STATUS_OF(d = ls_text_dataset_new("", NULL)), LS_ERR_INVALID, "path", "");
    check_refused(LS_STATUS_OF(d = ls_text_dataset_new("/dev/null", NULL)), LS_ERR_INVALID,
                  "/dev/null", "regular");
    scratch_write("empty", "", 0);
    check_refused(LS_STATUS_OF(d = ls_text_dataset_new(scratch_at("empty"), NULL)), LS_ERR_INVALID,
                  "empty\"", "is empty");
    scratch_write("short", "hello", 5);
    check_refused(LS_STATUS_OF(d = ls_text_dataset_new(scratch_at("short"), NULL)), LS_ERR_INVALID,
                  "short\"", "129");
    CHECK(mkdir(scratch_at("folder"), 0700) == 0);
    check_refused(LS_STATUS_OF(d = ls_text_dataset_new(scratch_at("folder"), NULL)), LS_ERR_INVALID,
                  "folder\"", "no regular");
    scratch_write("folder/tiny", "ab", 2);
    scratch_write("folder/less", "a", 1);
    check_refused(LS_STATUS_OF(d = ls_text_dataset_new(scratch_at("folder"), NULL)), LS_ERR_INVALID,
                  "tiny\"", "shorter");
    check_refused(LS_STATUS_OF(d = ls_text_dataset_new(scratch_at("short"),
                                                       LS_OPTIONS(ls_text_options, .context = 0))),
                  LS_ERR_INVALID, "context 0", "");
    check_refused(
        LS_STATUS_OF(d = ls_text_dataset_new(scratch_at("short"),
                                             LS_OPTIONS(ls_text_options, .held_out = 1.5))),
        LS_ERR_INVALID, "held_out", "1.5");
    CHECK(d == NULL);
    if (geteuid() != 0) { /* root reads everything */
        CHECK(chmod(scratch_at("folder/tiny"), 0) == 0);
        check_refused(LS_STATUS_OF(d = ls_text_dataset_new(scratch_at("folder"), NULL)),
                      LS_ERR_SYSTEM, "tiny", "denied");
    }
    end();
}

/* ---- IDX ---------------------------------------------------------------------------------- */

static void write_idx(const char *name, const uint8_t *head, size_t head_bytes, size_t data_bytes)
{
    uint8_t file[512] = {0};
    CHECK(head_bytes + data_bytes <= sizeof file);
    memcpy(file, head, head_bytes);
    for (size_t i = 0; i < data_bytes; i++) {
        file[head_bytes + i] = (uint8_t)(i * 7);
    }
    scratch_write(name, file, head_bytes + data_bytes);
}

static const uint8_t images_head[] = {0, 0, 8, 3, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 3};
static const uint8_t labels_head[] = {0, 0, 8, 1, 0, 0, 0, 5};

TEST(idx_files_give_scaled_pixels_and_labels)
{
    start();
    write_idx("images", images_head, 16, 30);
    write_idx("labels", labels_head, 8, 5);
    ls_dataset *d = NULL;
    CHECK(LS_STATUS_OF(d = ls_idx_dataset_new(scratch_at("images"), scratch_at("labels"))) ==
          LS_OK);
    CHECK_INT(d->count, 5);
    CHECK_INT(d->x_shape.ndim, 1);
    CHECK_INT(d->x_shape.dim[0], 6);
    CHECK_INT(d->y_shape.ndim, 0);
    for (int64_t i = 0; i < 5; i++) {
        float x[6];
        int32_t y;
        CHECK(d->get(d, i, x, &y) == LS_OK);
        CHECK_INT(y, i * 7);
        for (int64_t k = 0; k < 6; k++) {
            CHECK(x[k] == (float)(uint8_t)((i * 6 + k) * 7) / 255.0f);
        }
    }
    float x[6];
    int32_t y;
    CHECK(d->get(d, 5, x, &y) == LS_ERR_INVALID);
    CHECK(d->get(d, -1, x, &y) == LS_ERR_INVALID);
    ls_dataset_free(d);
    end();
}

/* An images file made of `head` and some data, beside good labels, must be refused. */
static void check_bad_images(const uint8_t *head, size_t head_bytes, size_t data_bytes,
                             ls_status status, const char *word)
{
    ls_dataset *d = NULL;
    write_idx("bad", head, head_bytes, data_bytes);
    check_refused(LS_STATUS_OF(d = ls_idx_dataset_new(scratch_at("bad"), scratch_at("labels"))),
                  status, "bad\"", word);
    CHECK(d == NULL);
}

#define BYTES(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

TEST(malformed_idx_files_are_refused_in_words)
{
    start();
    ls_dataset *d = NULL;
    write_idx("images", images_head, 16, 30);
    write_idx("labels", labels_head, 8, 5);
    check_refused(LS_STATUS_OF(d = ls_idx_dataset_new(scratch_at("none"), scratch_at("labels"))),
                  LS_ERR_NOT_FOUND, "none", "No such file");
    check_refused(LS_STATUS_OF(d = ls_idx_dataset_new(scratch_at("images"), scratch_at("gone"))),
                  LS_ERR_NOT_FOUND, "gone", "No such file");
    check_refused(LS_STATUS_OF(d = ls_idx_dataset_new(scratch_at("images"), NULL)), LS_ERR_INVALID,
                  "labels", "");
    check_refused(LS_STATUS_OF(d = ls_idx_dataset_new(scratch_folder(), scratch_at("labels"))),
                  LS_ERR_INVALID, scratch_folder(), "regular");
    check_bad_images(images_head, 0, 0, LS_ERR_FORMAT, "0 bytes");
    for (size_t cut = 4; cut < 16; cut++) { /* within the header */
        check_bad_images(images_head, cut, 0, LS_ERR_FORMAT, "truncated");
    }
    check_bad_images(BYTES(0, 0, 8, 3, 1, 2, 3, 4, 0, 0, 0, 1, 0, 0, 0, 1), 3, LS_ERR_FORMAT,
                     "claims 16909060 bytes");
    check_bad_images(images_head, 16, 29, LS_ERR_FORMAT, "truncated");
    check_bad_images(images_head, 16, 31, LS_ERR_FORMAT, "31");
    check_bad_images(BYTES('P', 'K', 3, 4), 20, LS_ERR_FORMAT, "ZIP archive");
    check_bad_images(BYTES('v', 'e', 'r', 's'), 20, LS_ERR_FORMAT, "another format");
    check_bad_images(BYTES(0, 0, 0x0d, 1, 0, 0, 0, 1), 4, LS_ERR_UNSUPPORTED, "0x0d");
    check_bad_images(BYTES(0, 0, 8, 0), 4, LS_ERR_FORMAT, "0 dimensions");
    check_bad_images(BYTES(0, 0, 8, 9), 90, LS_ERR_FORMAT, "9 dimensions");
    check_bad_images(BYTES(0, 0, 8, 1, 0xff, 0xff, 0xff, 0xff), 4, LS_ERR_FORMAT, "4294967295");
    check_bad_images(BYTES(0, 0, 8, 1, 0x12, 0x34, 0x56, 0x78), 4, LS_ERR_FORMAT, "305419896");
    check_bad_images(
        BYTES(0, 0, 8, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
        4, LS_ERR_FORMAT, "overflow");
    check_bad_images(BYTES(0, 0, 8, 1, 0, 0, 0, 0), 0, LS_ERR_INVALID, "no data");
    check_bad_images(BYTES(0, 0, 8, 2, 0, 0, 0, 5, 0, 0, 0, 0), 0, LS_ERR_INVALID, "no data");
    check_bad_images(BYTES(0, 0, 8, 2, 0, 0, 0, 4, 0, 0, 0, 1), 4, LS_ERR_INVALID, "4 images");
    check_refused(LS_STATUS_OF(d = ls_idx_dataset_new(scratch_at("labels"), scratch_at("images"))),
                  LS_ERR_FORMAT, "images\"", "swapped");
    end();
}

/* A member as RFC 1952 has it, of one stored block, so that zlib does not check itself; returns its
 * bytes. */
static size_t gzip(const uint8_t *from, size_t bytes, uint8_t *to)
{
    const uint8_t head[] = {0x1f,
                            0x8b,
                            8,
                            0,
                            0,
                            0,
                            0,
                            0,
                            0,
                            255,
                            1,
                            (uint8_t)bytes,
                            (uint8_t)(bytes >> 8),
                            (uint8_t)~bytes,
                            (uint8_t)(~bytes >> 8)};
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= from[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        }
    }
    const uint32_t tail[2] = {~crc, (uint32_t)bytes};
    memcpy(to, head, sizeof head);
    memcpy(to + sizeof head, from, bytes);
    memcpy(to + sizeof head + bytes, tail, sizeof tail);
    return sizeof head + bytes + sizeof tail;
}

static ls_dataset *open_packed(const uint8_t *images, size_t bytes)
{
    ls_dataset *d = NULL;
    (void)scratch_write("images.gz", images, bytes);
    const ls_status status =
        LS_STATUS_OF(d = ls_idx_dataset_new(scratch_at("images.gz"), scratch_at("labels")));
    if (status == LS_ERR_UNSUPPORTED) {
        CHECK_SAYS(
            ls_error_message(),
            "%s: \"%s\" is compressed by gzip, and this build has no zlib; run gunzip first, or "
            "install zlib1g-dev and build again");
        test_skip("this build has no zlib");
    }
    return d;
}

TEST(files_compressed_by_gzip_are_read_as_what_they_hold)
{
    static uint8_t plain[46], packed[2 * 46 + 100];
    start();
    write_idx("labels", labels_head, 8, 5);
    memcpy(plain, images_head, 16);
    for (int i = 0; i < 30; i++) {
        plain[16 + i] = (uint8_t)(i * 5);
    }
    for (size_t cut = 0; cut < 46; cut += 15) { /* two members, of which one may be empty */
        size_t bytes = gzip(plain, cut, packed);
        bytes += gzip(plain + cut, 46 - cut, packed + bytes);
        ls_dataset *d = open_packed(packed, bytes);
        if (d == NULL) {
            break;
        }
        CHECK(d->count == 5 && d->x_shape.dim[0] == 6);
        float x[6];
        int32_t y;
        CHECK_OK(d->get(d, 4, x, &y));
        CHECK(x[5] == 145.0f / 255.0f && y == 28);
        ls_dataset_free(d);
    }
    end();
}

TEST(a_damaged_compressed_file_is_refused_in_words)
{
    static uint8_t packed[46 + 100];
    start();
    write_idx("labels", labels_head, 8, 5);
    uint8_t plain[46] = {0};
    memcpy(plain, images_head, 16);
    const size_t bytes = gzip(plain, 46, packed);
    ls_dataset *whole = open_packed(packed, bytes);
    CHECK(whole != NULL || ls_error_status() == LS_ERR_UNSUPPORTED);
    ls_dataset_free(whole);
    for (size_t cut = 4; cut < bytes; cut++) {
        CHECK(open_packed(packed, cut) == NULL);
        CHECK_SAYS(ls_error_message(), "it ends too early");
    }
    packed[20] ^= 1;
    CHECK(open_packed(packed, bytes) == NULL);
    CHECK_SAYS(
        ls_error_message(),
        "%s: \"%s\" is compressed by gzip, but cannot be unpacked at byte %zu of %zu: %s; is it "
        "complete?");
    packed[20] ^= 1;
    packed[bytes] = 'x';
    CHECK(open_packed(packed, bytes + 1) == NULL);
    check_refused(ls_error_status(), LS_ERR_FORMAT, "images.gz\"", "cannot be unpacked");
    end();
}

static int warned;

static void count_warning(ls_log_level level, const char *text_of, void *arg)
{
    (void)arg;
    warned += level == LS_LOG_WARN;
    CHECK_SAYS(text_of, "%s: \"%s\" is read as text, but %s; or move it to another folder");
}

/* A page is a text; other bytes without a magic number are, too. */
TEST(pointers_and_archives_are_no_text)
{
    start();
    ls_dataset *d = NULL;
    CHECK(mkdir(scratch_at("f"), 0700) == 0);
    scratch_write("f/book.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:12345", 60);
    check_refused(LS_STATUS_OF(d = ls_text_dataset_new(scratch_at("f/book.txt"), NULL)),
                  LS_ERR_FORMAT, "book.txt\"", "git lfs pull");
    CHECK_SAYS(ls_error_message(), "%s: \"%s\" is not a text: %s");
    scratch_write("f/page.html", "<!DOCTYPE html><html><body>and so on, and on and on", 50);
    ls_set_log_callback(count_warning, NULL);
    for (int named = 0; named < 2; named++) {
        CHECK_OK(d = ls_text_dataset_new(scratch_at(named ? "f/page.html" : "f"),
                                         LS_OPTIONS(ls_text_options, .context = 4)));
        CHECK_INT(warned, 1);
        ls_dataset_free(d);
    }
    ls_set_log_callback(NULL, NULL);
    end();
}

/* As if the last byte went away behind the call. */
static int stat_one_more(const ls__env *env, const char *path, bool follow, ls__env_stat *out)
{
    (void)env;
    const int error = ls__env_posix()->stat(ls__env_posix(), path, follow, out);
    out->bytes++;
    return error;
}

TEST(an_idx_file_that_shrinks_while_it_is_read_is_named)
{
    static const unsigned char x[] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3};
    static const unsigned char y[] = {0, 0, 8, 1, 0, 0, 0, 2, 0};
    ls__env env = *ls__env_posix();
    env.stat = stat_one_more;
    CHECK_OK(ls__init_with(&env, NULL));
    scratch_begin();
    scratch_write("x", x, sizeof x);
    scratch_write("y", y, sizeof y);
    CHECK(ls_idx_dataset_new(scratch_at("x"), scratch_at("y")) == NULL);
    CHECK_SAYS(ls_error_message(),
               "IDX: \"%s\" shrank while it was read; is it still being written?");
    end();
}

static int list_for_ever(const ls__env *env, const char *path,
                         int (*each)(void *arg, const char *name), void *arg)
{
    (void)env;
    (void)path;
    while (each(arg, "name") == 0) {
    }
    return 0;
}

static int stat_a_file(const ls__env *env, const char *path, bool follow, ls__env_stat *out)
{
    (void)env;
    (void)path;
    (void)follow;
    *out = (ls__env_stat){.kind = LS__ENV_FILE, .bytes = 1};
    return 0;
}

TEST(a_folder_of_more_files_than_data_have_is_refused)
{
    ls__env env = *ls__env_posix();
    ls__paths files = {0};
    env.list = list_for_ever;
    env.stat = stat_a_file;
    CHECK_STATUS(ls__paths_find(&env, "text", "folder", &files), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "%s: more than %d files or folders at \"%s\"; name a folder "
                                   "that holds only the data");
    ls__paths_free(&files);
}

TEST_MAIN
