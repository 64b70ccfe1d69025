/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding and decoding: beside ids of the `tokenizers` package (fixture/ids.json, written by
 * make_fixture.py), beside a plain quadratic merge, and there and back. */
#include <jansson.h>
#include <pthread.h>

#include "common.h"
#include "tokenizer/tokenizer.h"

#define TEXT_MAX 8192

/* ---- ids ---------------------------------------------------------------------------------- */

static size_t from_hex(const char *hex, char *out)
{
    size_t bytes = strlen(hex) / 2;
    CHECK(bytes <= TEXT_MAX);
    for (size_t i = 0; i < bytes; i++) {
        unsigned value = 0;
        CHECK(sscanf(hex + 2 * i, "%2x", &value) == 1);
        out[i] = (char)value;
    }
    return bytes;
}

static void check_ids(const char *text, tokens got, const json_t *want)
{
    bool same = got.count == (int64_t)json_array_size(want);
    for (int64_t i = 0; same && i < got.count; i++) {
        same = got.ids[i] == json_integer_value(json_array_get(want, (size_t)i));
    }
    if (!same) {
        test_fail(__FILE__, __LINE__, "other ids (%lld, want %zu) for the text %s",
                  (long long)got.count, json_array_size(want), text);
    }
}

/* All texts of ids.json; `name` says which ids. */
static void check_all(const char *path, const char *name)
{
    char text[TEXT_MAX];
    size_t number;
    json_t *row, *rows = json_load_file(fixture("ids.json"), 0, NULL);
    CHECK(ls_init(NULL) == LS_OK);
    ls_tokenizer *t = open_path(path);
    CHECK(json_array_size(rows) > 100);
    json_array_foreach(rows, number, row)
    {
        const char *hex = json_string_value(json_object_get(row, "text"));
        tokens got = encode(t, text, from_hex(hex, text));
        check_ids(hex, got, json_object_get(row, name));
        ls_bytes_free(got.ids);
    }
    json_decref(rows);
    ls_tokenizer_free(t);
    CHECK(ls_finalize() == LS_OK);
}

TEST(ids_of_vocab_and_merges_equal_those_of_the_package)
{
    check_all(fixture("gpt2"), "json");
}

TEST(ids_of_a_tokenizer_json_equal_those_of_the_package)
{
    check_all(fixture("json/tokenizer.json"), "json");
}

TEST(ids_with_another_expression_and_added_tokens_equal_those_of_the_package)
{
    check_all(fixture("split"), "split");
}

TEST(ids_without_an_expression_equal_those_of_the_package)
{
    check_all(fixture("one_word"), "one_word");
}

TEST(ids_of_pieces_equal_those_of_the_package)
{
    check_all(fixture("pieces"), "pieces");
}

TEST(bytes_are_their_own_tokens)
{
    CHECK(ls_init(NULL) == LS_OK);
    ls_tokenizer *t = open_path("bytes");
    CHECK_INT(ls_tokenizer_count(t), 256);
    CHECK_INT(ls_tokenizer_id(t, "a"), 'a');
    CHECK_INT(ls_tokenizer_id(t, "ab"), -1);
    tokens got = encode(t, "\xff\0a", 3);
    CHECK_INT(got.count, 3);
    CHECK(got.ids[0] == 255 && got.ids[1] == 0 && got.ids[2] == 'a');
    ls_bytes_free(got.ids);
    got = encode(t, NULL, 0);
    CHECK(got.count == 0 && got.ids != NULL);
    ls_bytes_free(got.ids);
    check_round_trip(t, "", 0);
    ls_tokenizer_free(t);
    ls_tokenizer_free(NULL);
    CHECK(ls_finalize() == LS_OK);
}

TEST(special_tokens_have_ids_and_are_found_the_longest_first)
{
    CHECK(ls_init(NULL) == LS_OK);
    ls_tokenizer *t = open_path(fixture("split"));
    int32_t x = ls_tokenizer_id(t, "<|x|>"), y = ls_tokenizer_id(t, "<|x|>y");
    int32_t end = ls_tokenizer_id(t, "<|endoftext|>");
    CHECK(x >= 0 && y >= 0 && x != y && end >= 0);
    tokens got = encode(t, "<|x|>y<|x|><|endoftext|>", 24);
    CHECK_INT(got.count, 3);
    CHECK(got.ids[0] == y && got.ids[1] == x && got.ids[2] == end);
    CHECK_INT(ls_tokenizer_id(t, "<|no such|>"), -1);
    ls_bytes_free(got.ids);
    got = encode(t, " the", 4);
    CHECK_INT(ls_tokenizer_id(t, " the"), got.ids[0]);
    ls_bytes_free(got.ids);
    ls_tokenizer_free(t);
    CHECK(ls_finalize() == LS_OK);
}

/* ---- any bytes ---------------------------------------------------------------------------- */

static size_t random_text(uint32_t *state, char *text, size_t room)
{
    static const char *const pieces[] = {"the ",
                                         " \n ",
                                         "\xc3\xa9",
                                         "\xe4\xbd\xa0",
                                         "\xf0\x9f\x98\x80",
                                         "\xed\xa0\x80",
                                         "\xc0\x80",
                                         "\xf4\x90\x80\x80",
                                         "\xff",
                                         "\xe4\xbd",
                                         "<|endoftext|>",
                                         "ab",
                                         "12",
                                         "' 's"};
    size_t bytes = 0, pieces_count = sizeof pieces / sizeof *pieces;
    for (uint32_t left = draw(state, 60); left > 0 && bytes + 16 < room; left--) {
        uint32_t which = draw(state, (uint32_t)pieces_count + 3);
        if (which >= pieces_count) {
            text[bytes++] = (char)draw(state, 256);
        } else {
            memcpy(text + bytes, pieces[which], strlen(pieces[which]));
            bytes += strlen(pieces[which]);
        }
    }
    return bytes;
}

static void round_trips(const char *path)
{
    char text[TEXT_MAX];
    uint32_t state = (uint32_t)test_seed();
    CHECK(ls_init(NULL) == LS_OK);
    ls_tokenizer *t = open_path(path);
    for (int i = 0; i < 2000; i++) {
        size_t bytes = random_text(&state, text, sizeof text);
        check_round_trip(t, text, bytes);
    }
    ls_tokenizer_free(t);
    CHECK(ls_finalize() == LS_OK);
}

TEST(any_bytes_come_back_from_gpt2s_form)
{
    round_trips(fixture("gpt2"));
}

TEST(any_bytes_come_back_with_added_tokens)
{
    round_trips(fixture("split"));
}

/* With the space that is put before each of them. */
TEST(any_bytes_come_back_from_pieces_behind_a_space)
{
    char text[TEXT_MAX], *back = NULL;
    size_t back_bytes = 0;
    uint32_t state = (uint32_t)test_seed();
    CHECK(ls_init(NULL) == LS_OK);
    ls_tokenizer *t = open_path(fixture("pieces"));
    for (int i = 0; i < 2000; i++) {
        const size_t bytes = random_text(&state, text, sizeof text);
        tokens got = encode(t, text, bytes);
        CHECK_OK(ls_tokenizer_decode(t, got.ids, got.count, &back, &back_bytes));
        CHECK_INT(back_bytes, bytes > 0 ? bytes + 1 : 0);
        CHECK(bytes == 0 || (back[0] == ' ' && memcmp(back + 1, text, bytes) == 0));
        ls_bytes_free(back);
        ls_bytes_free(got.ids);
    }
    ls_tokenizer_free(t);
    CHECK(ls_finalize() == LS_OK);
}

TEST(any_bytes_come_back_from_bytes)
{
    round_trips("bytes");
}

TEST(bytes_that_are_no_utf8_stand_apart_and_change_nothing_around)
{
    CHECK(ls_init(NULL) == LS_OK);
    ls_tokenizer *t = open_path(fixture("gpt2"));
    tokens left = encode(t, "the work  ", 10), right = encode(t, "you may", 7);
    tokens bad = encode(t, "\xe4\xbd", 2), all = encode(t, "the work  \xe4\xbdyou may", 19);
    CHECK_INT(all.count, left.count + bad.count + right.count);
    CHECK(memcmp(all.ids, left.ids, (size_t)left.count * 4) == 0);
    CHECK(memcmp(all.ids + left.count, bad.ids, (size_t)bad.count * 4) == 0);
    CHECK(memcmp(all.ids + left.count + bad.count, right.ids, (size_t)right.count * 4) == 0);
    ls_bytes_free(left.ids);
    ls_bytes_free(right.ids);
    ls_bytes_free(bad.ids);
    ls_bytes_free(all.ids);
    ls_tokenizer_free(t);
    CHECK(ls_finalize() == LS_OK);
}

TEST(ids_that_no_token_has_are_refused)
{
    char *text = NULL;
    size_t bytes = 0;
    CHECK(ls_init(NULL) == LS_OK);
    ls_tokenizer *t = open_path("bytes");
    CHECK_STATUS(ls_tokenizer_decode(t, (int32_t[]){1, 256}, 2, &text, &bytes), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "token 1 of 2 is 256");
    CHECK(text == NULL);
    CHECK_STATUS(ls_tokenizer_decode(t, (int32_t[]){-1}, 1, &text, &bytes), LS_ERR_INVALID);
    ls_tokenizer_free(t);
    CHECK(ls_finalize() == LS_OK);
}

/* ---- merging ------------------------------------------------------------------------------ */

/* The definition: of all pairs the one of the lowest rank, the leftmost of equals, until none has a
 * rank. Quadratic. */
static int64_t merge_plainly(const ls_tokenizer *t, int32_t *ids, int64_t count)
{
    for (;;) {
        int64_t place = -1;
        const ls__merge *best = NULL;
        for (int64_t i = 0; i + 1 < count; i++) {
            const ls__merge *m = ls__merges_find(&t->merges, ls__pair(ids[i], ids[i + 1]));
            if (m && (!best || m->rank < best->rank)) {
                best = m;
                place = i;
            }
        }
        if (!best) {
            return count;
        }
        ids[place] = best->id;
        memmove(ids + place + 1, ids + place + 2, (size_t)(count - place - 2) * sizeof *ids);
        count--;
    }
}

/* Words of what the licence is made of, so that many merges apply. */
static void draw_word(uint32_t *state, const char *from, size_t from_bytes, char *word,
                      size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t piece = 1 + draw(state, 12), place = draw(state, (uint32_t)(from_bytes - 12));
        piece = piece < bytes - at ? piece : bytes - at;
        memcpy(word + at, from + place, piece);
        at += piece;
    }
}

static char *licence(size_t *bytes)
{
    char *text = malloc(20000);
    FILE *file = fopen(test_source_path("LICENSE"), "rb");
    CHECK(file != NULL && text != NULL);
    *bytes = fread(text, 1, 20000, file);
    (void)fclose(file);
    CHECK(*bytes > 5000);
    return text;
}

TEST(short_and_long_words_merge_as_the_definition_says)
{
    char word[400];
    int32_t want[400];
    size_t from_bytes;
    uint32_t state = (uint32_t)test_seed();
    CHECK(ls_init(NULL) == LS_OK);
    char *from = licence(&from_bytes);
    ls_tokenizer *t = open_path(fixture("one_word"));
    t->prefix = LS__PREFIX_NONE;
    for (int round = 0; round < 1500; round++) {
        size_t bytes = 1 + draw(&state, round % 10 == 0 ? 400 : 40);
        draw_word(&state, from, from_bytes, word, bytes);
        for (size_t i = 0; i < bytes; i++) {
            want[i] = t->byte_id[(unsigned char)word[i]];
        }
        int64_t count = merge_plainly(t, want, (int64_t)bytes);
        tokens got = encode(t, word, bytes);
        CHECK_INT(got.count, count);
        CHECK(memcmp(got.ids, want, (size_t)count * sizeof *want) == 0);
        ls_bytes_free(got.ids);
    }
    free(from);
    ls_tokenizer_free(t);
    CHECK(ls_finalize() == LS_OK);
}

/* Quadratic, these would take hours; the test's deadline is a minute. */
TEST(a_word_of_millions_of_bytes_is_not_quadratic)
{
    const size_t bytes = (size_t)2 << 20;
    size_t from_bytes;
    uint32_t state = 7;
    CHECK(ls_init(NULL) == LS_OK);
    char *from = licence(&from_bytes), *word = malloc(bytes);
    ls_tokenizer *t = open_path(fixture("one_word"));
    t->prefix = LS__PREFIX_NONE;
    memset(word, 'a', bytes);
    check_round_trip(t, word, bytes);
    draw_word(&state, from, from_bytes, word, bytes);
    check_round_trip(t, word, bytes);
    ls_tokenizer_free(t);
    t = open_path(fixture("gpt2"));
    memset(word, 'e', bytes);
    check_round_trip(t, word, bytes);
    memset(word, ' ', bytes);
    check_round_trip(t, word, bytes);
    ls_tokenizer_free(t);
    free(word);
    free(from);
    CHECK(ls_finalize() == LS_OK);
}

/* ---- threads and parts -------------------------------------------------------------------- */

typedef struct reading {
    const ls_tokenizer *t;
    const char *text;
    size_t bytes;
    tokens got;
} reading;

static void *read_text(void *arg)
{
    reading *r = arg;
    for (int i = 0; i < 20; i++) {
        free(r->got.ids);
        if (ls_tokenizer_encode(r->t, r->text, r->bytes, &r->got.ids, &r->got.count) < 0) {
            return r;
        }
    }
    return NULL;
}

TEST(threads_share_a_tokenizer)
{
    pthread_t threads[4];
    size_t bytes;
    CHECK(ls_init(NULL) == LS_OK);
    ls_tokenizer *t = open_path(fixture("json"));
    char *text = licence(&bytes);
    tokens want = encode(t, text, bytes);
    reading readings[4];
    for (int i = 0; i < 4; i++) {
        readings[i] = (reading){t, text, bytes, {0}};
        CHECK_INT(pthread_create(&threads[i], NULL, read_text, &readings[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed = NULL;
        CHECK_INT(pthread_join(threads[i], &failed), 0);
        CHECK(failed == NULL && readings[i].got.count == want.count);
        CHECK(memcmp(readings[i].got.ids, want.ids, (size_t)want.count * 4) == 0);
        free(readings[i].got.ids);
    }
    ls_bytes_free(want.ids);
    free(text);
    ls_tokenizer_free(t);
    CHECK(ls_finalize() == LS_OK);
}

static void check_parts(const ls_tokenizer *t, const char *text, size_t bytes, size_t step)
{
    ls__encoder e;
    tokens want = encode(t, text, bytes);
    int64_t at = 0;
    CHECK_OK(ls__encoder_init(&e, t));
    for (size_t from = 0, end; from < bytes; from = end) {
        end = ls__tokenizer_cut(t, text, bytes, from + step, bytes);
        CHECK(end > from);
        CHECK_OK(ls__encoder_run(&e, text + from, end - from, from == 0));
        CHECK(at + e.count <= want.count);
        CHECK(memcmp(e.ids, want.ids + at, (size_t)e.count * 4) == 0);
        at += e.count;
    }
    CHECK_INT(at, want.count);
    ls__encoder_fini(&e);
    ls_bytes_free(want.ids);
}

static void check_cuts(const char *path, bool prefix)
{
    size_t bytes;
    CHECK(ls_init(NULL) == LS_OK);
    char *text = licence(&bytes);
    memcpy(text + 1000, "<|end of turn|>", 15);
    memcpy(text + 2000, "\n\n  \n", 5);
    ls_tokenizer *t = open_path(path);
    t->prefix = prefix ? LS__PREFIX_MISSING : t->prefix;
    for (size_t step = 1; step < 3000; step += 1 + step / 3) {
        check_parts(t, text, bytes, step);
    }
    check_parts(t, text, bytes, 1000); /* in the special token */
    ls_tokenizer_free(t);
    free(text);
    CHECK(ls_finalize() == LS_OK);
}

TEST(a_text_that_is_cut_has_the_tokens_of_the_whole)
{
    check_cuts(fixture("gpt2"), false);
    check_cuts(fixture("split"), false);
    check_cuts(fixture("pieces"), false);
}

TEST(a_space_before_a_text_is_put_before_its_first_part_only)
{
    check_cuts(fixture("json"), true);
}

TEST(a_text_without_words_is_cut_between_characters)
{
    char text[300];
    CHECK(ls_init(NULL) == LS_OK);
    ls_tokenizer *t = open_path(fixture("one_word"));
    for (int i = 0; i < 300; i += 3) {
        memcpy(text + i, "\xe4\xbd\xa0", 3);
    }
    CHECK_INT(ls__tokenizer_cut(t, text, 300, 100, 200), 102);
    CHECK_INT(ls__tokenizer_cut(t, text, 300, 102, 200), 102);
    CHECK_INT(ls__tokenizer_cut(t, text, 300, 0, 200), 0);
    CHECK_INT(ls__tokenizer_cut(t, text, 300, 100, 400), 300);
    CHECK_INT(ls__tokenizer_cut(t, text, 300, 500, 600), 300);
    ls_tokenizer_free(t);
    CHECK(ls_finalize() == LS_OK);
}

TEST_MAIN
