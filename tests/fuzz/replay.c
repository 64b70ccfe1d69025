/* SPDX-License-Identifier: Apache-2.0 */
/* The corpus as a plain test: good-… is accepted, bad-… refused; what the fuzzer found (any other
 * name) only must not crash. Then all of it damaged in simple ways, with a fixed seed. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "targets.h"
#include "test.h"
#include "tokenizer/split.h"

#define INPUT_MAX (1 << 20)

static uint8_t *load(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    CHECK(f);
    uint8_t *data = malloc(INPUT_MAX);
    CHECK(data);
    *bytes = fread(data, 1, INPUT_MAX, f);
    (void)fclose(f);
    return data;
}

/* In an allocation of just its size, so that a sanitizer sees a read behind it. */
static bool try(bool (*target)(const uint8_t *, size_t), const uint8_t *data, size_t bytes)
{
    uint8_t *exact = malloc(bytes > 0 ? bytes : 1);
    CHECK(exact);
    memcpy(exact, data, bytes);
    bool accepted = target(exact, bytes);
    free(exact);
    return accepted;
}

/* Fewer `rounds` where the target writes files. */
static void damage(bool (*target)(const uint8_t *, size_t), uint8_t *data, size_t bytes, int rounds)
{
    uint32_t random = 12345;
    for (int round = 0; bytes > 0 && round < rounds; round++) {
        random = random * 1664525u + 1013904223u;
        size_t at = (random >> 4) % bytes;
        uint8_t before = data[at];
        data[at] = (uint8_t)("0-9\"{}[],:\\\xff"[random % 13]);
        (void)try(target, data, round % 3 ? bytes : at);
        data[at] = before;
    }
}

static void replay(const char *name, bool (*target)(const uint8_t *, size_t), int at_least,
                   int rounds)
{
    char folder[512], path[1024];
    int good = 0, bad = 0;
    (void)snprintf(folder, sizeof folder, "%s/%s", test_source_path("tests/fuzz/corpus"), name);
    DIR *list = opendir(folder);
    CHECK(list);
    for (struct dirent *e = readdir(list); e; e = readdir(list)) {
        if (e->d_name[0] == '.') {
            continue;
        }
        size_t bytes = 0;
        (void)snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        uint8_t *data = load(path, &bytes);
        bool accepted = try(target, data, bytes);
        if (strncmp(e->d_name, accepted ? "bad-" : "good-", accepted ? 4 : 5) == 0) {
            test_fail(__FILE__, __LINE__, "%s: %s (%s)", e->d_name,
                      accepted ? "accepted" : "refused", ls_error_message());
        }
        good += accepted;
        bad += !accepted;
        damage(target, data, bytes, rounds);
        free(data);
    }
    (void)closedir(list);
    CHECK(good >= 2 && bad >= at_least);
}

TEST(malformed_safetensors_files_are_refused_and_good_ones_accepted)
{
    replay("safetensors", fuzz_safetensors, 20, 300);
}

TEST(malformed_manifests_are_refused_and_good_ones_accepted)
{
    replay("manifest", fuzz_manifest, 20, 300);
}

TEST(malformed_handshakes_are_refused_and_good_ones_accepted)
{
    replay("handshake", fuzz_handshake, 12, 300);
}

TEST(malformed_npy_files_are_refused_and_good_ones_accepted)
{
    replay("npy", fuzz_npy, 20, 300);
}

TEST(malformed_token_shards_are_refused_and_good_ones_accepted)
{
    replay("shard", fuzz_shard, 12, 300);
}

TEST(malformed_cifar_10_files_are_refused_and_good_ones_accepted)
{
    replay("cifar", fuzz_cifar, 6, 300);
}

TEST(malformed_idx_files_are_refused_and_good_ones_accepted)
{
    replay("idx", fuzz_idx, 12, 40);
}

TEST(malformed_tokenizers_are_refused_and_good_ones_accepted)
{
    replay("tokenizer", fuzz_tokenizer, 20, 40);
}

TEST(malformed_schedules_are_refused_and_good_ones_accepted)
{
    replay("schedule", fuzz_schedule, 10, 300);
}

TEST(malformed_plans_are_refused_and_good_ones_accepted)
{
    replay("plan", fuzz_plan, 20, 300);
}

TEST(malformed_profiles_are_refused_and_good_ones_accepted)
{
    replay("profile", fuzz_profile, 20, 100);
}

TEST(malformed_clusters_are_refused_and_good_ones_accepted)
{
    replay("cluster", fuzz_cluster, 15, 300);
}

TEST(malformed_devices_are_refused_and_good_ones_accepted)
{
    replay("device", fuzz_device, 15, 300);
}

TEST(malformed_vocabularies_and_merges_are_refused_and_good_ones_accepted)
{
    ls__split *split = NULL;
    if (ls__split_new("a", "a test", &split) == LS_ERR_UNSUPPORTED) {
        SKIP("this build has no PCRE2, and so no vocabulary is good");
    }
    ls__split_free(split);
    replay("merges", fuzz_merges, 12, 40);
}

TEST(a_header_above_64_mib_is_refused_though_the_file_holds_it)
{
    const size_t length = ((size_t)64 << 20) + 1;
    uint8_t *file = malloc(8 + length);
    CHECK(file);
    memset(file, ' ', 8 + length);
    file[8] = '{';
    file[9] = '}';
    for (int extra = 0; extra < 2; extra++) {
        for (int i = 0; i < 8; i++) {
            file[i] = (uint8_t)((length - 1 + (size_t)extra) >> (8 * i));
        }
        CHECK(fuzz_safetensors(file, 8 + length - 1 + (size_t)extra) == (extra == 0));
    }
    free(file);
}

TEST_MAIN
