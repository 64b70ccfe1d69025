/* SPDX-License-Identifier: Apache-2.0 */
/* Files near the limits of each parser: as large, deep, wide or repetitive as they may be, and a
 * little more. libFuzzer's inputs are some kilobytes, so it finds nothing of this kind. Each input
 * is parsed in a child, which may take only so much memory and time, in proportion to the input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "targets.h"
#include "test.h"

#define MIB ((size_t)1 << 20)

typedef bool (*target)(const uint8_t *data, size_t bytes);

typedef struct text {
    char *data;
    size_t bytes, room;
} text;

static void put(text *t, const void *data, size_t bytes)
{
    CHECK(t->bytes + bytes <= t->room);
    memcpy(t->data + t->bytes, data, bytes);
    t->bytes += bytes;
}

static void puts_to(text *t, const char *piece)
{
    put(t, piece, strlen(piece));
}

static text text_of(size_t room)
{
    text t = {.data = malloc(room), .room = room};
    CHECK(t.data != NULL);
    return t;
}

/* `piece` (a format of one number, twice) as often as `count` says, or until `room` is full. */
static void repeat(text *t, const char *piece, size_t count, size_t tail)
{
    char one[256];
    for (size_t i = 0; i < count; i++) {
        const int length = snprintf(one, sizeof one, piece, i, i);
        if (t->bytes + (size_t)length + tail > t->room) {
            break;
        }
        put(t, one, (size_t)length);
    }
}

/* In the child: the input was made by the parent, so what the child takes is the parser's. */
static int parse(target fn, const text *t, size_t memory)
{
    struct rusage before, after;
    CHECK(getrusage(RUSAGE_SELF, &before) == 0);
    (void)fn((const uint8_t *)t->data, t->bytes);
    CHECK(getrusage(RUSAGE_SELF, &after) == 0);
    return (size_t)(after.ru_maxrss - before.ru_maxrss) << 10 > memory ? 3 : 0;
}

/* At most `memory` MiB and `seconds` of processor time, whether the input is accepted or not. */
static void within(target fn, const text *t, size_t memory, int seconds)
{
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        const rlim_t time = (rlim_t)seconds * TEST_SLOWER;
        const struct rlimit cpu = {time, time};
        (void)setrlimit(RLIMIT_CPU, &cpu);
        _exit(parse(fn, t, TEST_SLOWER == 1 ? memory * MIB : SIZE_MAX));
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        test_fail(__FILE__, __LINE__, "%zu bytes took more than %d s", t->bytes, seconds);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 3) {
        test_fail(__FILE__, __LINE__, "%zu bytes took more than %zu MiB", t->bytes, memory);
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- texts of JSON --------------------------------------------------------------------------- */

/* head, piece, piece … tail, of `bytes`. */
static text json(size_t bytes, const char *head, const char *piece, const char *tail)
{
    text t = text_of(bytes);
    puts_to(&t, head);
    repeat(&t, piece, SIZE_MAX, strlen(tail) + 1);
    if (t.data[t.bytes - 1] == ',') {
        t.bytes--;
    }
    puts_to(&t, tail);
    return t;
}

/* Of two sizes: within the limits on values, which is parsed, and beyond them, which takes a minute
 * in all. */
static void try_json(target fn, const char *head, const char *piece, const char *tail)
{
    static const size_t sizes[] = {2 * MIB, 24 * MIB};
    const size_t count = getenv("TEST_LONG") != NULL ? 2 : 1;
    for (size_t i = 0; i < count; i++) {
        text t = json(sizes[i], head, piece, tail);
        within(fn, &t, i == 0 ? 400 : 1400, 20);
        free(t.data);
    }
}

#define WIDE "\"%zu\":{},"
#define DEEP "{\"%zu\":["

TEST(vocabularies_near_the_limits)
{
    static const char head[] = "{\"model\":{\"vocab\":{", tail[] = "},\"merges\":[]}}";
    try_json(fuzz_tokenizer, head, "\"t%zu\":%zu,", tail);
    try_json(fuzz_tokenizer, head, "\"\":%zu,", tail);
    try_json(fuzz_tokenizer, "{\"model\":{\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[", "\"a a\",",
             "]}}");
    try_json(fuzz_tokenizer, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[",
             "{\"id\":%zu,\"content\":\"a%zu\"},", "]}");
    try_json(fuzz_tokenizer, "{\"a\":[", "[],", "]}");
    try_json(fuzz_tokenizer, "", DEEP, "");
    try_json(fuzz_merges, "{", "\"a%zu\":%zu,", "}\f");
    try_json(fuzz_merges, "{\"a\":0,\"aa\":1}\f", "a a\n", "");
}

/* Of as many stages and micro-batches as a schedule may have, with lists of many actions. */
TEST(schedules_near_the_limits)
{
    static const char head[] = "schedule x\nranks 256\nstages 256\nmicro-batches 4096\nper-step 1\n"
                               "rank 0:";
    text t = json(2 * MIB, head, " 0F%zu", "");
    within(fuzz_schedule, &t, 100, 5);
    free(t.data);
    t = json(2 * MIB, head, "\nrank %zu: 0F%zu", "");
    within(fuzz_schedule, &t, 100, 5);
    free(t.data);
}

/* As many parts as a model may have, and more. */
TEST(profiles_near_the_limits)
{
    static const char head[] =
        "{\"format\":\"lockstep profile\",\"version\":1,\"model\":\"m\",\"batch\":1,\"repeats\":1,"
        "\"machine\":{\"cpu\":\"c\",\"cores\":1,\"threads\":1},\"parts\":[";
    for (size_t bytes = 32 << 10; bytes <= 8 * MIB; bytes *= 4) {
        text t = json(bytes, head,
                      "{\"name\":\"p%zu\",\"from\":[-1],\"forward_ms\":1,\"input_ms\":1,"
                      "\"weight_ms\":%zu,\"output_bytes\":9,\"gradient_bytes\":9,\"kept_bytes\":9,"
                      "\"weight_bytes\":9},",
                      "]}");
        within(fuzz_profile, &t, 32, 5);
        free(t.data);
        t = json(bytes, head, "[],", "]}");
        within(fuzz_profile, &t, 32, 5);
        free(t.data);
    }
}

/* As many parts, and stages, as a plan may have, and more. */
TEST(plans_near_the_limits)
{
    static const char head[] = "{\"format\":\"lockstep plan\",\"version\":1,\"model\":\"m\",";
    char stages[256], parts[256];
    (void)snprintf(parts, sizeof parts, "%s\"parts\":[", head);
    (void)snprintf(stages, sizeof stages, "%s\"parts\":[\"0\"],\"stages\":[", head);
    for (size_t bytes = 8 << 10; bytes <= 2 * MIB; bytes *= 4) {
        text t = json(bytes, parts, "\"%zu\",", "]}");
        within(fuzz_plan, &t, 8, 2);
        free(t.data);
        t = json(bytes, stages, "{\"first\":\"%zu\",\"replicas\":1},", "]}");
        within(fuzz_plan, &t, 8, 2);
        free(t.data);
    }
}

/* The table of ids is as long as the largest id. */
TEST(a_large_id_in_a_small_vocabulary_takes_no_memory)
{
    text t = json(200, "{\"model\":{\"vocab\":{\"a\":4194303", " ", "},\"merges\":[]}}");
    within(fuzz_tokenizer, &t, 8, 5); /* 64 before ids were bounded */
    free(t.data);
}

static text safetensors(text header, size_t data)
{
    text t = text_of(8 + header.bytes + data);
    const uint64_t length = header.bytes;
    put(&t, &length, 8);
    put(&t, header.data, header.bytes);
    memset(t.data + t.bytes, 1, data);
    t.bytes += data;
    free(header.data);
    return t;
}

static void try_header(const char *head, const char *piece, const char *tail, size_t data)
{
    for (size_t bytes = MIB; bytes <= 64 * MIB; bytes *= 8) {
        text t = safetensors(json(bytes, head, piece, tail), data);
        within(fuzz_safetensors, &t, bytes < 4 * MIB ? 200 : 1400, 20);
        free(t.data);
    }
}

TEST(headers_of_safetensors_near_the_limits)
{
    try_header("{", "\"t%zu\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},", "}", 0);
    try_header("{", "\"t%zu\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,1]},", "}",
               1 << 20);
    try_header("{",
               "\"t%zu\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,9223372036854775807],"
               "\"data_offsets\":[0,18446744073709551615]},",
               "}", 16);
}

TEST(headers_of_safetensors_without_tensors_near_the_limits)
{
    try_header("{\"__metadata__\":{", "\"k%zu\":\"%zu\",", "}}", 0);
    try_header("{", WIDE, "}", 0);
    try_header("", DEEP, "", 0);
}

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
#define HEAD_OF(version)                                                                           \
    "{\"hash\":\"" ZEROS "\",\"format\":\"lockstep checkpoint\",\"version\":" version              \
    ",\"library\":\"x\",\"step\":1,\"world_size\":1,\"hash_name\":\"sha256\","
#define HEAD HEAD_OF("2")
#define A_FILE "\"files\":{\"f\":{\"bytes\":1,\"hash\":\"" ZEROS "\"}},\"tensors\":{"

TEST(manifests_near_the_limits)
{
    try_json(fuzz_manifest, HEAD "\"files\":{", "\"f%zu\":{\"bytes\":%zu,\"hash\":\"" ZEROS "\"},",
             "}}");
    try_json(fuzz_manifest,
             HEAD A_FILE "\"t\":{\"dtype\":\"F32\",\"shape\":[1000000000],\"pieces\":[",
             "{\"file\":\"f\",\"start\":[%zu],\"shape\":[1]},", "]}}}");
    try_json(fuzz_manifest, HEAD A_FILE "\"t\":{\"dtype\":\"F32\",\"shape\":[8],\"pieces\":[",
             "{\"file\":\"f\",\"start\":[0],\"shape\":[8]},", "]}}}"); /* all overlap */
    try_json(fuzz_manifest,
             HEAD_OF("3") A_FILE "\"t\":{\"dtype\":\"F32\",\"shape\":[1000000000],\"pieces\":[",
             "{\"file\":\"f\",\"key\":1,\"start\":[%zu],\"shape\":[1]},", "]}}}");
    try_json(fuzz_manifest,
             HEAD_OF("3") A_FILE "\"t\":{\"dtype\":\"F32\",\"shape\":[8],\"pieces\":[", "1,",
             "]}}}");
    try_json(fuzz_manifest, HEAD A_FILE, "\"t%zu\":{\"dtype\":\"F32\",\"shape\":[],\"pieces\":[]},",
             "}}");
    try_json(fuzz_manifest, HEAD "\"a\":[", "{},", "]}");
    try_json(fuzz_manifest, HEAD "\"a\":", DEEP, "");
}

/* ---- numbers that claim much ----------------------------------------------------------------- */

static void try_npy(const char *shape, size_t data)
{
    char head[65536];
    text t = text_of(sizeof head + 16 + data);
    const int length = snprintf(
        head, sizeof head, "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }\n", shape);
    const uint16_t bytes = (uint16_t)length;
    put(&t, "\x93NUMPY\x01\x00", 8);
    put(&t, &bytes, 2);
    put(&t, head, (size_t)length);
    memset(t.data + t.bytes, 0, data);
    t.bytes += data;
    within(fuzz_npy, &t, 16, 5);
    free(t.data);
}

TEST(arrays_that_claim_much_take_nothing)
{
    char many[60000] = "";
    for (size_t i = 0; i + 3 < sizeof many; i += 2) {
        memcpy(many + i, "1,", 3);
    }
    try_npy("9223372036854775807,", 64);
    try_npy("4294967296,4294967296,", 64);
    try_npy("99999999999999999999999999,", 64);
    try_npy("0,9223372036854775807,9223372036854775807,", 0);
    try_npy(many, 4);
}

static void try_bytes(target fn, const uint8_t *head, size_t bytes, size_t rest, uint8_t fill)
{
    text t = text_of(bytes + rest);
    put(&t, head, bytes);
    memset(t.data + t.bytes, fill, rest);
    t.bytes += rest;
    within(fn, &t, 64, 10);
    free(t.data);
}

TEST(images_and_shards_that_claim_much_take_nothing)
{
    static const uint8_t images[] = {0,   0,   8,   3,   255, 255, 255, 255,
                                     255, 255, 255, 255, 255, 255, 255, 255};
    static const uint8_t many[] = {0,   0,   8,   4,   0,   0,   0,   1,   127, 255,
                                   255, 255, 127, 255, 255, 255, 127, 255, 255, 255};
    static const uint8_t dims[] = {0, 0, 8, 255, 1, 1, 1, 1};
    try_bytes(fuzz_idx, images, sizeof images, 1024, 0);
    try_bytes(fuzz_idx, many, sizeof many, 1024, 0);
    try_bytes(fuzz_idx, dims, sizeof dims, 2048, 255);
    int32_t shard[256] = {20240520, 1, INT32_MAX};
    try_bytes(fuzz_shard, (uint8_t *)shard, sizeof shard, 1024, 255);
    shard[2] = -1;
    try_bytes(fuzz_shard, (uint8_t *)shard, sizeof shard, 1024, 255);
    try_bytes(fuzz_cifar, (uint8_t *)shard, 0, 3073 * 10000, 255);
    try_bytes(fuzz_cifar, (uint8_t *)shard, 0, 3073 * 10000 - 1, 9);
}

TEST_MAIN
