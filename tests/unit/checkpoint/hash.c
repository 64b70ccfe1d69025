/* BLAKE2b against RFC 7693's way of building it (published digests) and against b2sum. */
#include "checkpoint/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

static void digest(const uint8_t *data, size_t bytes, size_t part, char hex[LS__HASH_HEX + 1])
{
    ls__hash hash;
    uint8_t out[LS__HASH_BYTES];
    ls__hash_init(&hash);
    for (size_t at = 0; at < bytes; at += part) {
        ls__hash_add(&hash, data + at, bytes - at < part ? bytes - at : part);
    }
    ls__hash_end(&hash, out);
    ls__hash_hex(out, hex);
}

TEST(known_texts_have_their_published_digests)
{
    static const char *const known[][2] = {
        {"", "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"},
        {"abc", "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"}};
    char hex[LS__HASH_HEX + 1];
    for (int i = 0; i < 2; i++) {
        digest((const uint8_t *)known[i][0], strlen(known[i][0]), 7, hex);
        CHECK_CONTAINS(hex, known[i][1]);
    }
}

TEST(any_length_in_any_parts_gives_what_b2sum_gives)
{
    static const size_t lengths[] = {1, 127, 128, 129, 255, 256, 257, 1023, 100003};
    static uint8_t data[100003];
    char command[128], path[] = "/tmp/lockstep-hash-XXXXXX", hex[LS__HASH_HEX + 1];
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)(i * i + i / 251);
    }
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        FILE *f = fopen(path, "wb");
        CHECK(f && fwrite(data, 1, lengths[i], f) == lengths[i] && fclose(f) == 0);
        (void)snprintf(command, sizeof command, "b2sum -l 256 %s", path);
        test_output tool = test_run(command, 10);
        if (tool.status == 127) {
            SKIP("no b2sum here");
        }
        for (size_t part = 1; part < 300; part += 63) {
            digest(data, lengths[i], part, hex);
            CHECK_CONTAINS(tool.text, hex);
        }
        free(tool.text);
    }
    (void)remove(path);
}

TEST_MAIN
