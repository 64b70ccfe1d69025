/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 against FIPS 180-4's examples and sha256sum; HMAC against RFC 4231's. */
#include "base/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

static void digest(const uint8_t *data, size_t bytes, size_t part, char hex[LS__DIGEST_HEX + 1])
{
    ls__digest hash;
    uint8_t out[LS__DIGEST_BYTES];
    ls__digest_init(&hash);
    for (size_t at = 0; at < bytes; at += part) {
        ls__digest_add(&hash, data + at, bytes - at < part ? bytes - at : part);
    }
    CHECK(ls__digest_end(&hash, out) == LS_OK);
    ls__digest_hex(out, hex);
}

TEST(known_texts_have_their_published_digests)
{
    static const char *const known[][2] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    char hex[LS__DIGEST_HEX + 1];
    for (int i = 0; i < 3; i++) {
        digest((const uint8_t *)known[i][0], strlen(known[i][0]), 7, hex);
        CHECK_CONTAINS(hex, known[i][1]);
    }
}

TEST(any_length_in_any_parts_gives_what_sha256sum_gives)
{
    static const size_t lengths[] = {1, 127, 128, 129, 255, 256, 257, 1023, 100003};
    static uint8_t data[100003];
    char command[128], path[] = "/tmp/lockstep-hash-XXXXXX", hex[LS__DIGEST_HEX + 1];
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)(i * i + i / 251);
    }
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        FILE *f = fopen(path, "wb");
        CHECK(f && fwrite(data, 1, lengths[i], f) == lengths[i] && fclose(f) == 0);
        (void)snprintf(command, sizeof command, "sha256sum %s", path);
        test_output tool = test_run(command, 10);
        if (tool.status == 127) {
            SKIP("no sha256sum here");
        }
        for (size_t part = 1; part < 300; part += 63) {
            digest(data, lengths[i], part, hex);
            CHECK_CONTAINS(tool.text, hex);
        }
        free(tool.text);
    }
    (void)remove(path);
}

TEST(a_digest_that_is_thrown_away_leaks_nothing)
{
    ls__digest hash;
    ls__digest_init(&hash);
    ls__digest_add(&hash, "abc", 3);
    CHECK(ls__digest_end(&hash, NULL) == LS_OK);
    CHECK(hash.context == NULL);
}

/* ---- authentication codes ------------------------------------------------------------------ */

static void mac_is(const char *key, size_t key_bytes, const char *data, size_t bytes,
                   const char *expected)
{
    uint8_t out[LS__MAC_BYTES];
    char hex[LS__DIGEST_HEX + 1];
    CHECK(ls__mac(key, key_bytes, data, bytes, out) == LS_OK);
    ls__digest_hex(out, hex);
    CHECK_CONTAINS(hex, expected);
}

TEST(codes_are_those_of_rfc_4231)
{
    char key[131], data[50];
    memset(key, 0x0b, 20);
    mac_is(key, 20, "Hi There", 8,
           "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    mac_is("Jefe", 4, "what do ya want for nothing?", 28,
           "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    memset(data, 0xdd, sizeof data);
    mac_is(key, 20, data, sizeof data,
           "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    mac_is(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
           "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(a_code_without_a_key_is_not_one_with_the_key_before)
{
    const char *expected = "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad";
    mac_is("Jefe", 4, "", 0, "923598ca6d64af2a5dba79dcd021a8a0fe5c5f557519adaaf0ad532d4506dd30");
    mac_is(NULL, 0, "", 0, expected);
}

TEST(codes_that_differ_anywhere_are_not_equal)
{
    uint8_t a[LS__MAC_BYTES] = {1, 2, 3}, b[LS__MAC_BYTES] = {1, 2, 3};
    CHECK(ls__mac_equal(a, b));
    for (int i = 0; i < 8 * LS__MAC_BYTES; i++) {
        b[i / 8] ^= (uint8_t)(1 << i % 8);
        CHECK(!ls__mac_equal(a, b));
        b[i / 8] ^= (uint8_t)(1 << i % 8);
    }
}

TEST_MAIN
