/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are made to be expensive: whatever a file says, reading it takes memory and time in
 * proportion to its size. Each test is a process of its own, so its peak of memory is its own. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/runtime.h"
#include "base/text.h"
#include "checkpoint/boxes.h"
#include "checkpoint/manifest_text.h"
#include "checkpoint/weights.h"
#include "says.h"
#include "scratch.h"

#define BYTES ((size_t)16 << 20) /* jansson would take 0.7 to 1.3 GB for a text of this size */
#define GROWTH ((long)100 << 10) /* KiB: the text itself, three times, and what the process has */

static long peak_kib(void)
{
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_maxrss;
}

static double cpu_seconds(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* `head`, then `piece` as often as there is room, then `tail`. Not terminated. */
static char *bomb(const char *head, const char *piece, const char *tail)
{
    char *text = malloc(BYTES);
    const size_t one = strlen(piece), ends = strlen(head) + strlen(tail);
    CHECK(text != NULL);
    memset(text, ' ', BYTES);
    memcpy(text, head, strlen(head));
    for (size_t at = strlen(head); at + one + ends < BYTES; at += one) {
        memcpy(text + at, piece, one);
    }
    memcpy(text + BYTES - strlen(tail), tail, strlen(tail));
    return text;
}

static const ls__env *begin(void)
{
    static ls_runtime runtime;
    scratch_begin();
    ls__runtime_init(&runtime, ls__env_posix());
    CHECK_OK(ls_runtime_attach(&runtime));
    return ls__env_posix();
}

static void expect_refused(ls_status status, const char *file, long before)
{
    CHECK_STATUS(status, LS_ERR_LIMIT);
    CHECK_CONTAINS(ls_error_message(), file);
    CHECK_CONTAINS(ls_error_message(), ", but at most ");
#if TEST_SLOWER == 1 /* a sanitizer takes memory of its own */
    CHECK(peak_kib() - before < GROWTH);
#else
    (void)before;
#endif
}

static void try_header(const char *head, const char *piece, const char *tail)
{
    const uint64_t length = BYTES;
    ls__weights weights;
    const ls__env *env = begin();
    char *text = bomb(head, piece, tail), *file = malloc(BYTES + 8);
    CHECK(file != NULL);
    memcpy(file, &length, 8);
    memcpy(file + 8, text, BYTES);
    const char *path = scratch_write("m.safetensors", file, BYTES + 8);
    const long before = peak_kib();
    expect_refused(ls__weights_open(env, path, &weights), "m.safetensors", before);
    ls__weights_close(&weights);
    free(text);
    free(file);
    scratch_end();
}

TEST(a_header_of_empty_objects_takes_no_memory)
{
    try_header("{\"a\":[{}", ",{}", "]}");
}

TEST(a_header_of_empty_arrays_takes_no_memory)
{
    try_header("{\"a\":[[]", ",[]", "]}");
}

TEST(a_header_of_numbers_takes_no_memory)
{
    try_header("{\"a\":[1", ",1", "]}");
}

TEST(a_header_of_nested_arrays_takes_no_memory)
{
    try_header("{\"a\":", "[", "]}");
}

TEST(an_index_of_empty_objects_takes_no_memory)
{
    ls__weights weights;
    const ls__env *env = begin();
    char *text = bomb("{\"weight_map\":{},\"a\":[{}", ",{}", "]}");
    const char *path = scratch_write("model.safetensors.index.json", text, BYTES);
    const long before = peak_kib();
    expect_refused(ls__weights_open(env, path, &weights), "index.json", before);
    ls__weights_close(&weights);
    free(text);
    scratch_end();
}

/* Beyond the limit of bytes, where nothing is counted; the file has no blocks on the disk. */
TEST(an_index_of_any_size_takes_no_memory)
{
    ls__weights weights;
    const ls__env *env = begin();
    const char *path = scratch_write("model.safetensors.index.json", "{}", 2);
    char command[256];
    (void)snprintf(command, sizeof command, "truncate -s 10G '%s'", path);
    test_output out = test_run(command, 10);
    CHECK_INT(out.status, 0);
    free(out.text);
    const long before = peak_kib();
    expect_refused(ls__weights_open(env, path, &weights), "its JSON has 10737418240 bytes", before);
    ls__weights_close(&weights);
    scratch_end();
}

/* A file without data: `count` tensors of no elements, numbered from `first`. */
static void write_empty_tensors(const char *name, int first, int count)
{
    const size_t room = 16 + (size_t)count * 80;
    char *text = malloc(room);
    CHECK(text != NULL);
    ls__text to = {text + 8, room - 8};
    for (int i = 0; i < count; i++) {
        ls__text_add(&to, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                     i == 0 ? "{" : ",", first + i);
    }
    ls__text_add(&to, "%s", "}");
    const uint64_t length = (uint64_t)(to.at - text - 8);
    memcpy(text, &length, 8);
    (void)scratch_write(name, text, (size_t)(to.at - text));
    free(text);
}

/* An index of files of equal numbers of tensors, of which it lists the first. 0 tensors: all files
 * are names of the file "one", which is written before. */
static const char *write_index(int files, int tensors, int distance)
{
    const size_t room = 64 + (size_t)files * 64;
    char name[32], *text = malloc(room);
    CHECK(text != NULL);
    ls__text to = {text, room};
    ls__text_add(&to, "{\"weight_map\":{");
    for (int f = 0; f < files; f++) {
        (void)snprintf(name, sizeof name, "f%04d", f);
        if (tensors > 0) {
            write_empty_tensors(name, f * distance, tensors);
        } else {
            CHECK(link(scratch_at("one"), scratch_at(name)) == 0);
        }
        ls__text_add(&to, "%s\"t%d\":\"%s\"", f > 0 ? "," : "", f * distance, name);
    }
    ls__text_add(&to, "%s", "}}");
    const char *path = scratch_write("model.safetensors.index.json", text, (size_t)(to.at - text));
    free(text);
    return path;
}

/* 80,000 tensors, each looked up in all 4,000 files, took 3.8 s. */
TEST(an_index_of_many_files_takes_no_time)
{
    ls__weights weights;
    const ls__env *env = begin();
    const char *path = write_index(4000, 20, 20);
    const double start = cpu_seconds();
    CHECK_OK(ls__weights_open(env, path, &weights));
    CHECK(cpu_seconds() - start < 1.5 * TEST_SLOWER);
    CHECK_INT(weights.count, 4000);
    ls__weights_close(&weights);
    scratch_end();
}

TEST(a_tensor_of_two_files_is_refused)
{
    ls__weights weights;
    const ls__env *env = begin();
    CHECK_STATUS(ls__weights_open(env, write_index(3, 20, 19), &weights), LS_ERR_FORMAT);
    CHECK_CONTAINS(ls_error_message(), "is in \"f000");
    ls__weights_close(&weights);
    scratch_end();
}

/* Each file is within the limits of one, and all are the same on the disk. */
TEST(an_index_of_files_that_together_have_too_many_tensors_is_refused)
{
    ls__weights weights;
    const ls__env *env = begin();
    write_empty_tensors("one", 0, 65536);
    CHECK_STATUS(ls__weights_open(env, write_index(17, 0, 1), &weights), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "\"%s\": its files have more than %zu tensors");
    ls__weights_close(&weights);
    scratch_end();
}

TEST(an_index_of_files_whose_headers_are_too_large_together_is_refused)
{
    ls__weights weights;
    const ls__env *env = begin();
    char *file = malloc(LS__SAFETENSORS_HEADER_MAX + 8);
    static const char head[] = "{\"t0\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
                               "\"t1\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
                               "\"t2\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    const uint64_t length = LS__SAFETENSORS_HEADER_MAX;
    CHECK(file != NULL);
    memset(file, ' ', LS__SAFETENSORS_HEADER_MAX + 8); /* which a header may end with */
    memcpy(file, &length, 8);
    memcpy(file + 8, head, sizeof head - 1);
    (void)scratch_write("one", file, LS__SAFETENSORS_HEADER_MAX + 8);
    free(file);
    CHECK_STATUS(ls__weights_open(env, write_index(3, 0, 1), &weights), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(),
               "\"%s\": the headers of the index's files up to this one have %zu "
               "bytes; at most %zu are read");
    CHECK_CONTAINS(ls_error_message(), "f0002\"");
    ls__weights_close(&weights);
    scratch_end();
}

TEST(an_index_of_too_many_files_is_refused)
{
    ls__weights weights;
    const ls__env *env = begin();
    const char *path = write_index(LS__WEIGHTS_FILES_MAX + 1, 1, 1);
    CHECK_STATUS(ls__weights_open(env, path, &weights), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "\"%s\": its weight_map names more than %d files");
    ls__weights_close(&weights);
    scratch_end();
}

/* ---- manifests ------------------------------------------------------------------------------ */

static ls_status parse(char *text, size_t bytes, ls__manifest *out)
{
    static ls__arena arena;
    uint8_t hash[LS__DIGEST_BYTES];
    char hex[LS__DIGEST_HEX + 1];
    CHECK_OK(ls__manifest_hash(text, bytes, hash));
    ls__digest_hex(hash, hex);
    memcpy(text + LS__MANIFEST_HASH_AT, hex, LS__DIGEST_HEX);
    ls__arena_init(&arena, ls__env_posix(), 1 << 16);
    const ls_status status = ls__manifest_parse(text, bytes, "manifest.json", &arena, out);
    ls__arena_fini(&arena); /* only counts and statuses are looked at afterwards */
    return status;
}

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
#define HEAD                                                                                       \
    LS__MANIFEST_HEAD ZEROS                                                                        \
        "\",\"format\":\"lockstep checkpoint\",\"version\":2,\"library\":\"x\","                   \
        "\"step\":1,\"world_size\":1,\"hash_name\":\"sha256\","

TEST(a_manifest_of_empty_objects_takes_no_memory)
{
    ls__manifest manifest;
    const ls__env *env = begin();
    (void)env;
    char *text = bomb(HEAD "\"a\":[{}", ",{}", "]}");
    const long before = peak_kib();
    expect_refused(parse(text, BYTES, &manifest), "manifest.json", before);
    free(text);
    scratch_end();
}

/* `count` files, and two tensors each of which has a piece in every file, cut along the second
 * dimension: no order of the first one tells such pieces apart. */
static char *large_manifest(int count, int last_dim, size_t *bytes)
{
    const size_t room = 600 + (size_t)count * 400;
    char *text = malloc(room);
    CHECK(text != NULL);
    ls__text to = {text, room};
    ls__text_add(&to, HEAD "\"files\":{");
    for (int i = 0; i < count; i++) {
        ls__text_add(&to, "%s\"f%d\":{\"bytes\":1,\"hash\":\"" ZEROS "\"}", i > 0 ? "," : "", i);
    }
    ls__text_add(&to, "},\"tensors\":{");
    for (int t = 0; t < 2; t++) {
        ls__text_add(&to, "%s\"t%d\":{\"dtype\":\"F32\",\"shape\":[2,%d],\"pieces\":[",
                     t ? "," : "", t, count);
        for (int i = 0; i < count; i++) {
            ls__text_add(&to, "%s{\"file\":\"f%d\",\"start\":[0,%d],\"shape\":[2,%d]}",
                         i ? "," : "", i, i, i < count - 1 ? 1 : last_dim);
        }
        ls__text_add(&to, "%s", "]}");
    }
    ls__text_add(&to, "%s", "}}");
    *bytes = (size_t)(to.at - text);
    return text;
}

/* 40,000 files and 80,000 pieces took 7.5 s of comparisons. */
TEST(a_manifest_of_many_files_and_pieces_takes_no_time)
{
    size_t bytes;
    ls__manifest manifest;
    const ls__env *env = begin();
    (void)env;
    char *text = large_manifest(40000, 1, &bytes);
    const double start = cpu_seconds();
    CHECK_OK(parse(text, bytes, &manifest));
    CHECK(cpu_seconds() - start < 1.5 * TEST_SLOWER);
    CHECK_INT(manifest.file_count, 40000);
    CHECK_INT(manifest.tensor_count, 2);
    free(text);
    text = large_manifest(40000, 2, &bytes);
    CHECK_STATUS(parse(text, bytes, &manifest), LS_ERR_FORMAT);
    free(text);
    scratch_end();
}

/* ---- pieces --------------------------------------------------------------------------------- */

#define SIDE 3

typedef struct box {
    int64_t start[3], dim[3];
} box;

/* The plain twin: counts for each element the boxes that hold it. */
static bool tiles(const box *list, int count)
{
    int held[SIDE][SIDE][SIDE] = {0};
    for (int b = 0; b < count; b++) {
        for (int64_t i = 0; i < SIDE * SIDE * SIDE; i++) {
            const int64_t at[3] = {i / (SIDE * SIDE), i / SIDE % SIDE, i % SIDE};
            bool in = true;
            for (int d = 0; d < 3; d++) {
                in &= at[d] >= list[b].start[d] && at[d] < list[b].start[d] + list[b].dim[d];
            }
            held[at[0]][at[1]][at[2]] += in;
        }
    }
    for (int i = 0; i < SIDE * SIDE * SIDE; i++) {
        if (held[i / (SIDE * SIDE)][i / SIDE % SIDE][i % SIDE] != 1) {
            return false;
        }
    }
    return true;
}

static bool prints_tile(const box *list, int count)
{
    const ls__boxes boxes = ls__boxes_of("0123456789abcdef" ZEROS);
    static const int64_t origin[3], side[3] = {SIDE, SIDE, SIDE};
    uint64_t sum = 0;
    for (int b = 0; b < count; b++) {
        sum = ls__box_add(sum, ls__box_print(&boxes, list[b].start, list[b].dim, 3));
    }
    return sum == ls__box_print(&boxes, origin, side, 3);
}

static uint32_t next_random(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

/* Cuts boxes of a tiling in two, so that the result is a tiling; then changes it, mostly. */
static int draw(uint32_t *x, box *list, int cuts)
{
    int count = 1;
    list[0] = (box){{0, 0, 0}, {SIDE, SIDE, SIDE}};
    for (int i = 0; i < cuts; i++) {
        const uint32_t which = next_random(x) % (uint32_t)count, d = next_random(x) % 3;
        const int64_t left = next_random(x) % (uint32_t)(list[which].dim[d] + 1);
        list[count] = list[which];
        list[count].start[d] += left;
        list[count].dim[d] -= left;
        list[which].dim[d] = left;
        count++;
    }
    for (uint32_t i = next_random(x) % 3; i > 0; i--) {
        box *b = &list[next_random(x) % (uint32_t)count];
        const uint32_t d = next_random(x) % 3;
        b->start[d] = next_random(x) % SIDE;
        b->dim[d] = next_random(x) % (uint32_t)(SIDE - b->start[d] + 1);
    }
    return count;
}

TEST(fingerprints_tell_tilings_from_overlaps_and_holes)
{
    box list[9];
    uint32_t x = (uint32_t)test_seed();
    int good = 0, bad = 0;
    for (int i = 0; i < 20000; i++) {
        const int count = draw(&x, list, (int)(next_random(&x) % 9));
        const bool want = tiles(list, count);
        CHECK(prints_tile(list, count) == want);
        good += want;
        bad += !want;
    }
    CHECK(good > 1000 && bad > 1000);
}

/* Its size is known before a byte of it is read. */
TEST(a_manifest_of_too_many_bytes_is_refused)
{
    ls__arena arena;
    ls__manifest m;
    ls__arena_init(&arena, ls__env_posix(), 4096);
    CHECK_STATUS(ls__manifest_parse("{}", LS__MANIFEST_BYTES_MAX + 1, "manifest.json", &arena, &m),
                 LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "%s: it has %zu bytes, but at most %zu are allowed");
    ls__arena_fini(&arena);
}

TEST_MAIN
