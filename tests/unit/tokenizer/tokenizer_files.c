/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a tokenizer: what is read, and that every bad one is answered in words. */
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"
#include "says.h"
#include "scratch.h"
#include "tokenizer/tokenizer.h"

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

/* A tokenizer.json of this model and what stands beside it. */
static ls_status open_json(const char *model, const char *beside)
{
    char text[4096];
    ls_tokenizer *t = NULL;
    int bytes = snprintf(text, sizeof text, "{%s\"model\":{%s}}", beside, model);
    scratch_write("tokenizer.json", text, (size_t)bytes);
    ls_status status = LS_STATUS_OF(t = ls_tokenizer_new(scratch_at("tokenizer.json")));
    ls_tokenizer_free(t);
    return status;
}

static void check_json(const char *model, const char *beside, ls_status want, const char *word)
{
    CHECK_STATUS(open_json(model, beside), want);
    if (want < 0) {
        CHECK_CONTAINS(ls_error_message(), word);
        CHECK_CONTAINS(ls_error_message(), "tokenizer.json");
    }
}

static ls_status open_pair(const char *vocab, const char *merges)
{
    ls_tokenizer *t = NULL;
    (void)unlink(scratch_at("tokenizer.json"));
    scratch_write("vocab.json", vocab, strlen(vocab));
    scratch_write("merges.txt", merges, strlen(merges));
    ls_status status = LS_STATUS_OF(t = ls_tokenizer_new(scratch_folder()));
    ls_tokenizer_free(t);
    return status;
}

static void check_pair(const char *vocab, const char *merges, ls_status want, const char *word)
{
    CHECK_STATUS(open_pair(vocab, merges), want);
    CHECK_CONTAINS(ls_error_message(), word);
}

#define WHOLE "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false},"
#define AB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define GOOD AB ",\"merges\":[\"a b\"]"

TEST(good_files_are_read_in_both_forms_of_merges)
{
    start();
    check_json("\"type\":\"BPE\"," GOOD, WHOLE, LS_OK, "");
    check_json(AB ",\"merges\":[[\"a\",\"b\"]]", WHOLE "\"normalizer\":null,", LS_OK, "");
    check_json("\"unk_token\":\"\",\"dropout\":null," GOOD, WHOLE, LS_OK, "");
    check_json(GOOD, "\"added_tokens\":[{\"id\":9,\"content\":\"<x y>\"}]," WHOLE, LS_OK, "");
    end();
}

TEST(what_would_change_ids_and_is_not_read_is_refused)
{
    start();
    check_json("\"type\":\"Unigram\"", WHOLE, LS_ERR_UNSUPPORTED, "Unigram");
    check_json("\"dropout\":0.1," GOOD, WHOLE, LS_ERR_UNSUPPORTED, "dropout");
    check_json("\"byte_fallback\":true," GOOD, WHOLE, LS_ERR_UNSUPPORTED, "byte_fallback");
    check_json("\"end_of_word_suffix\":\"</w>\"," GOOD, WHOLE, LS_ERR_UNSUPPORTED, "end_of_word");
    check_json(GOOD, "\"normalizer\":{\"type\":\"NFKC\"}," WHOLE, LS_ERR_UNSUPPORTED, "NFKC");
    check_json(
        GOOD,
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}," WHOLE,
        LS_ERR_UNSUPPORTED, "Lowercase");
    check_json(GOOD, "\"normalizer\":{\"type\":\"Sequence\"}," WHOLE, LS_ERR_FORMAT, "normalizers");
    check_json(GOOD, "", LS_ERR_UNSUPPORTED, "pre_tokenizer");
    check_json(GOOD, "\"pre_tokenizer\":{\"type\":\"Whitespace\"},", LS_ERR_UNSUPPORTED,
               "ByteLevel");
    check_json(
        GOOD,
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}]},",
        LS_ERR_UNSUPPORTED, "ByteLevel");
    check_json(GOOD,
               "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},"
               "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}]},",
               LS_ERR_UNSUPPORTED, "a space before");
    check_json(GOOD, WHOLE "\"added_tokens\":[{\"id\":9,\"content\":\"x\",\"single_word\":true}],",
               LS_ERR_UNSUPPORTED, "single_word");
    end();
}

#define MARK "\xe2\x96\x81"
#define PIECES(scheme)                                                                             \
    "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" MARK                            \
    "\",\"prepend_scheme\":\"" scheme "\",\"split\":false},"
#define WRITES(more)                                                                               \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" more                                 \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}]},"
#define PREPEND(text) "{\"type\":\"Prepend\",\"prepend\":\"" text "\"},"

TEST(what_would_change_ids_of_pieces_is_refused)
{
    start();
    CHECK_STATUS(open_json(GOOD, PIECES("first")), LS_OK);
    CHECK_STATUS(open_json(GOOD, WRITES(PREPEND(MARK))), LS_OK);
    CHECK_STATUS(open_json(GOOD, WRITES(PREPEND("_"))), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "tokenizer: \"%s\": the normalizer prepends \"%.60s\"; only "
                                   "\"" MARK "\" is supported");
    CHECK_STATUS(open_json(GOOD, WRITES("") "\"added_tokens\":[{\"id\":9,\"content\":\"x\","
                                            "\"normalized\":true,\"lstrip\":true}],"),
                 LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "tokenizer: \"%s\": the added token \"%.60s\" is normalized and "
                                   "takes white space, which is not supported beside the "
                                   "normalizer Replace");
    CHECK_STATUS(
        open_json(GOOD, "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"},"),
        LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "tokenizer: \"%s\": Metaspace writes a space as \"%.60s\"; only "
                                   "\"" MARK "\" is supported");
    check_json(GOOD, WRITES("{\"type\":\"NFC\"},"), LS_ERR_UNSUPPORTED, "NFC");
    check_json(GOOD, WRITES("") WHOLE, LS_ERR_UNSUPPORTED, "pre_tokenizer");
    end();
}

#define TEMPLATE(name)                                                                             \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"" name               \
    "\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]}"

static void check_start(const char *post, int32_t want)
{
    char beside[1024];
    ls_tokenizer *t = NULL;
    (void)snprintf(beside, sizeof beside, WHOLE "\"post_processor\":%s,", post);
    CHECK_STATUS(open_json(GOOD, beside), LS_OK);
    CHECK_OK(LS_STATUS_OF(t = ls_tokenizer_new(scratch_at("tokenizer.json"))));
    CHECK_INT(ls_tokenizer_start(t), want);
    ls_tokenizer_free(t);
}

TEST(the_token_before_a_text_is_that_of_the_post_processor)
{
    start();
    check_start(TEMPLATE("b"), 1);
    check_start(
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TEMPLATE("a") "]}", 0);
    check_start("null", -1);
    check_start("{\"type\":\"ByteLevel\"}", -1);
    check_start("{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}}]}", -1);
    CHECK_INT(ls_tokenizer_start(NULL), -1);
    CHECK_STATUS(open_json(GOOD, WHOLE "\"post_processor\":" TEMPLATE("<s>") ","), LS_ERR_FORMAT);
    CHECK_SAYS(ls_error_message(), "the token before a text in \"post_processor\"");
    end();
}

#define DIGITS "{\"type\":\"Digits\"},"

TEST(a_pre_tokenizer_of_too_many_steps_is_refused)
{
    start();
    static const char beside[] =
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" DIGITS DIGITS DIGITS DIGITS
            DIGITS DIGITS DIGITS DIGITS DIGITS "{\"type\":\"ByteLevel\",\"use_regex\":false}]},";
    CHECK_STATUS(open_json(GOOD, beside), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(
        ls_error_message(),
        "tokenizer: \"%s\": the pre_tokenizer has more than %d steps, which is not supported");
    end();
}

static void check_ids(ls_tokenizer *t, const char *text, const char *ids)
{
    char got[100] = "";
    tokens found = encode(t, text, strlen(text));
    for (int64_t i = 0; i < found.count; i++) {
        const size_t used = strlen(got);
        (void)snprintf(got + used, sizeof got - used, i > 0 ? " %d" : "%d", found.ids[i]);
    }
    ls_bytes_free(found.ids);
    if (strcmp(got, ids) != 0) {
        test_fail(__FILE__, __LINE__, "%s: %s instead of %s", text, got, ids);
    }
}

static void check_pieces(const char *model, const char *beside, const char *text, const char *ids)
{
    ls_tokenizer *t = NULL;
    CHECK_STATUS(open_json(model, beside), LS_OK);
    CHECK_OK(LS_STATUS_OF(t = ls_tokenizer_new(scratch_at("tokenizer.json"))));
    check_ids(t, text, ids);
    ls_tokenizer_free(t);
}

/* "?" is the unknown token. */
#define SPACED                                                                                     \
    "\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"" MARK "\":2,\"" MARK "a\":3,"               \
    "\"<0x62>\":4},\"merges\":[\"" MARK " a\"]"

TEST(characters_without_a_token_are_bytes_or_unknown)
{
    start();
    check_pieces(SPACED, PIECES("never"), "a abba", "1 3 0 0 1");
    check_pieces("\"fuse_unk\":true," SPACED, PIECES("never"), "a abba", "1 3 0 1");
    check_pieces("\"byte_fallback\":true," SPACED, PIECES("never"), "abcca", "1 4 0 0 1");
    check_pieces("\"byte_fallback\":true,\"fuse_unk\":true," SPACED, PIECES("never"), "abccbca",
                 "1 4 0 4 0 1");
    end();
}

TEST(pieces_get_the_space_that_the_file_asks_for)
{
    static const char added[] = "\"added_tokens\":[{\"id\":9,\"content\":\"<s>\"}],";
    char beside[1000];
    const struct {
        const char *form, *ids;
    } forms[] = {{PIECES("never"), "1 9 1 9 3"},
                 {PIECES("first"), "3 9 1 9 3"},
                 {PIECES("always"), "3 9 3 9 3"},
                 {WRITES(PREPEND(MARK)), "3 9 3 9 2 3"}};
    start();
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        (void)snprintf(beside, sizeof beside, "%s%s", added, forms[i].form);
        check_pieces(SPACED, beside, "a<s>a<s> a", forms[i].ids);
    }
    check_pieces(SPACED,
                 "\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"normalized\":true}]," WRITES(
                     PREPEND(MARK)),
                 "<s>a <s> a", "9 1 9 3");
    end();
}

/* As `tokenizers` does; tests/python/tokenizer_ids.py compares with it on random texts. */
TEST(added_tokens_take_the_space_around_them)
{
    start();
    CHECK_OK(open_json("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"Ġ\":3},\"merges\":[\"a b\"]", WHOLE
                       "\"added_tokens\":[{\"id\":9,\"content\":\"<m>\",\"lstrip\":true},"
                       "{\"id\":8,\"content\":\"<r>\",\"rstrip\":true,\"normalized\":true}],"));
    ls_tokenizer *t = open_path(scratch_at("tokenizer.json"));
    check_ids(t, "a \t\xe3\x80\x80<m> b", "0 9 3 1");
    check_ids(t, "<m>  <m>", "9 9");
    check_ids(t, "a <r> \xc2\x85 b", "0 3 8 1");
    check_ids(t, " <m>", "9");
    check_ids(t, "<r> <m> ", "8 9 3");
    CHECK_INT((int64_t)ls__tokenizer_cut(t, "ab <m>ab <m>", 12, 1, 12), 2);
    ls_tokenizer_free(t);
    end();
}

TEST(nfc_joins_a_letter_and_its_accents)
{
    start();
    const char *beside =
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}," WHOLE;
    const char *vocab =
        "\"vocab\":{\"e\":0,\"Ã\":1,\"©\":2,\"Ì\":3,\"ģ\":4,\"£\":5,\"a\":6},\"merges\":[]";
    if (open_json(vocab, beside) == LS_ERR_UNSUPPORTED) {
        CHECK_SAYS(ls_error_message(),
                   "tokenizer: \"%s\" has the normalizer NFC, and this build has no utf8proc; "
                   "install libutf8proc-dev and build again");
        SKIP("this build has no utf8proc");
    }
    ls_tokenizer *t = open_path(scratch_at("tokenizer.json"));
    check_ids(t, "e\xcc\x81", "1 2");
    check_ids(t, "\xc3\xa9", "1 2");
    check_ids(t, "ae", "6 0");
    CHECK_STATUS(
        open_json("\"vocab\":{\"e\":0},\"merges\":[]",
                  "\"added_tokens\":[{\"id\":9,\"content\":\"e\xcc\x81\",\"normalized\":true}],"
                  "\"normalizer\":{\"type\":\"NFC\"}," WHOLE),
        LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "tokenizer: \"%s\": the added token \"%.60s\" is not in the form NFC of the "
               "normalizer, which is not supported");
    /* no cut between a letter and its accent, nor within the three parts of a Korean syllable */
    CHECK_INT((int64_t)ls__tokenizer_cut(t, "e\xcc\x81\xcc\x81--", 7, 1, 3), 5);
    CHECK_INT((int64_t)ls__tokenizer_cut(t, "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8-----", 14, 6, 7),
              9);
    CHECK_INT((int64_t)ls__tokenizer_cut(t, "\xe4\xb8\xad\xe6\x96\x87-----", 11, 2, 4), 3);
    ls_tokenizer_free(t);
    end();
}

TEST(files_of_other_vocabularies_are_named)
{
    start();
    ls_tokenizer *t = NULL;
    const struct {
        const char *text, *says;
    } others[] = {{"IQ== 0\nIg== 1\n",
                   SAYS("it is a .tiktoken file: give the tokenizer.json of the same model")},
                  {"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02",
                   SAYS("it is a model of SentencePiece, which is not read: give the "
                        "tokenizer.json of the same model")},
                  {"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"},
                  {"<html><body>404</body></html>", "HTML page"}};
    for (int i = 0; i < 4; i++) {
        const size_t bytes = i == 1 ? 17 : strlen(others[i].text);
        CHECK_STATUS(t = ls_tokenizer_new(scratch_write("tokenizer.json", others[i].text, bytes)),
                     LS_ERR_FORMAT);
        CHECK_CONTAINS(ls_error_message(), others[i].says);
    }
    CHECK(t == NULL);
    end();
}

TEST(the_files_of_gpt_2_have_openai_s_names_too)
{
    start();
    scratch_write("encoder.json", "{\"a\":0,\"b\":1,\"ab\":2}", 20);
    scratch_write("vocab.bpe", "#version: 0.2\na b\n", 18);
    ls_tokenizer *t = open_path(scratch_folder());
    check_ids(t, "ab", "2");
    ls_tokenizer_free(t);
    end();
}

TEST(malformed_files_are_refused_with_file_and_place)
{
    start();
    check_json("\"vocab\":[],\"merges\":[]", WHOLE, LS_ERR_FORMAT, "vocabulary");
    check_json("\"vocab\":{\"a\":\"b\"},\"merges\":[]", WHOLE, LS_ERR_FORMAT, "\"a\"");
    check_json("\"vocab\":{\"a\":-1},\"merges\":[]", WHOLE, LS_ERR_FORMAT, "-1");
    check_json("\"vocab\":{\"a\":99999999999},\"merges\":[]", WHOLE, LS_ERR_LIMIT, "99999999999");
    check_json("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]", WHOLE, LS_ERR_FORMAT, "another token");
    check_json("\"vocab\":{\"\":0},\"merges\":[]", WHOLE, LS_ERR_FORMAT, "empty");
    check_json(AB, WHOLE, LS_ERR_FORMAT, "merges");
    check_json(AB ",\"merges\":[\"a b\",\"a\"]", WHOLE, LS_ERR_FORMAT, "merge 1");
    check_json(AB ",\"merges\":[\"a  b\"]", WHOLE, LS_ERR_FORMAT, "merge 0");
    check_json(AB ",\"merges\":[\"a c\"]", WHOLE, LS_ERR_FORMAT, "\"c\" is not a token");
    check_json(AB ",\"merges\":[\"b a\"]", WHOLE, LS_ERR_FORMAT, "merge into a text");
    check_json(GOOD, WHOLE "\"added_tokens\":[{\"id\":1,\"content\":\"c\"}],", LS_ERR_FORMAT,
               "another token has it");
    check_json(GOOD, WHOLE "\"added_tokens\":[{\"id\":7,\"content\":\"a\"}],", LS_ERR_FORMAT,
               "it has another");
    check_json("}", WHOLE, LS_ERR_FORMAT, "line 1");
    check_pair("{\"a\":0,\"b\":1,\"ab\":2}", "#version: 0.2\na b\na\n", LS_ERR_FORMAT,
               "line 3 (byte 18)");
    check_pair("{\"a\":0,\"b\":1,\"ab\":2}", "a b c\n", LS_ERR_FORMAT, "line 1 (byte 0)");
    check_pair("{\"a\":0", "a b\n", LS_ERR_FORMAT, "vocab.json");
    check_pair("", "a b\n", LS_ERR_FORMAT, "empty");
    end();
}

TEST(missing_files_are_told)
{
    ls_tokenizer *t = NULL;
    start();
    CHECK_STATUS(t = ls_tokenizer_new(NULL), LS_ERR_INVALID);
    CHECK_STATUS(t = ls_tokenizer_new(""), LS_ERR_INVALID);
    CHECK_STATUS(t = ls_tokenizer_new(scratch_at("none")), LS_ERR_NOT_FOUND);
    CHECK_STATUS(t = ls_tokenizer_new(scratch_folder()), LS_ERR_NOT_FOUND);
    CHECK_CONTAINS(ls_error_message(), "no vocab.json");
    scratch_write("vocab.json", "{}", 2);
    CHECK_STATUS(t = ls_tokenizer_new(scratch_folder()), LS_ERR_NOT_FOUND);
    CHECK_CONTAINS(ls_error_message(), "vocab.json without merges.txt");
    CHECK(t == NULL);
    end();
}

TEST(bytes_without_a_token_are_errors_or_the_unknown_token)
{
    tokens got = {0};
    start();
    CHECK_OK(open_json(GOOD, WHOLE));
    ls_tokenizer *t = open_path(scratch_at("tokenizer.json"));
    CHECK_STATUS(ls_tokenizer_encode(t, "aabxb", 5, &got.ids, &got.count), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "byte 0x78 at offset 3");
    CHECK(got.ids == NULL);
    ls_tokenizer_free(t);
    CHECK_OK(open_json("\"unk_token\":\"?\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"?\":3},"
                       "\"merges\":[\"a b\"]",
                       WHOLE));
    t = open_path(scratch_at("tokenizer.json"));
    got = encode(t, "aabxb", 5);
    CHECK_INT(got.count, 4);
    CHECK(got.ids[0] == 0 && got.ids[1] == 2 && got.ids[2] == 3 && got.ids[3] == 1);
    ls_bytes_free(got.ids);
    ls_tokenizer_free(t);
    end();
}

TEST(expressions_that_are_none_or_cannot_be_had_are_refused)
{
    start();
    static const char split[] = "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                                "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":"
                                "\"%s\",\"invert\":false},"
                                "{\"type\":\"ByteLevel\",\"use_regex\":false}]},";
    static const char *const tried[][3] = {
        {"(a", "Isolated",
         SAYS("tokenizer: \"%s\": its splitting expression is not valid: %s, at byte %zu of "
              "%.300s")},
        {"[a[b]]", "Isolated",
         SAYS("tokenizer: \"%s\": its splitting expression has a set within a set, which is not "
              "supported: %.300s")},
        {"[a&&b]", "Isolated", "expression"},
        {"a", "Removed", "pre_tokenizer"}};
    for (int i = 0; i < 4; i++) {
        char beside[512];
        (void)snprintf(beside, sizeof beside, split, tried[i][0], tried[i][1]);
        CHECK(open_json(GOOD, beside) < 0);
        if (strstr(ls_error_message(), "has no PCRE2") != NULL) {
            CHECK_SAYS(
                ls_error_message(),
                "tokenizer: \"%s\" splits by a regular expression, and this build has no "
                "PCRE2; install libpcre2-dev and build again, or use the tokenizer \"bytes\"");
        } else {
            CHECK_SAYS(ls_error_message(), tried[i][2]);
        }
    }
    end();
}

/* ---- damage ------------------------------------------------------------------------------- */

#define FILE_MAX ((size_t)1 << 16)

static size_t read_fixture(const char *name, char *text)
{
    FILE *file = fopen(fixture(name), "rb");
    CHECK(file != NULL);
    size_t bytes = fread(text, 1, FILE_MAX, file);
    (void)fclose(file);
    CHECK(bytes > 1000 && bytes < FILE_MAX);
    return bytes;
}

/* A byte of a good file is something else, most often one with a meaning, or the file ends there:
 * an error that names a file or not, but no crash, and what is opened can encode. */
static void damage(const char *name, const char *path, const char *open)
{
    static char text[FILE_MAX];
    size_t bytes = read_fixture(name, text);
    uint32_t state = (uint32_t)test_seed();
    for (int round = 0; round < 200; round++) {
        ls_tokenizer *t = NULL;
        size_t place = draw(&state, (uint32_t)(round % 2 ? bytes : 600));
        char before = text[place];
        text[place] = "0-9\"{}[],:\\\xff \n"[draw(&state, 14)];
        scratch_write(path, text, round % 3 ? bytes : place);
        text[place] = before;
        if (LS_STATUS_OF(t = ls_tokenizer_new(open)) == LS_OK) {
            tokens got = {0};
            (void)ls_tokenizer_encode(t, text, 200, &got.ids, &got.count);
            ls_bytes_free(got.ids);
        } else {
            CHECK_CONTAINS(ls_error_message(), "tokenizer");
        }
        ls_tokenizer_free(t);
    }
    scratch_write(path, text, bytes);
}

TEST(damaged_files_do_no_harm)
{
    static char text[FILE_MAX];
    start();
    damage("one_word/tokenizer.json", "tokenizer.json", scratch_at("tokenizer.json"));
    CHECK(remove(scratch_at("tokenizer.json")) == 0);
    scratch_write("merges.txt", text, read_fixture("gpt2/merges.txt", text));
    damage("gpt2/vocab.json", "vocab.json", scratch_folder());
    damage("gpt2/merges.txt", "merges.txt", scratch_folder());
    end();
}

/* 2.8 million merges "[]" in 8 MiB, for which jansson would take 0.4 GB. */
TEST(a_tokenizer_of_empty_merges_takes_no_memory)
{
    static char text[8 << 20];
    static const char head[] = "{\"model\":{\"merges\":[[]", tail[] = "]}}";
    struct rusage before, after;
    start();
    memset(text, ' ', sizeof text);
    memcpy(text, head, sizeof head - 1);
    for (size_t at = sizeof head - 1; at + sizeof head < sizeof text; at += 3) {
        memcpy(text + at, ",[]", 3);
    }
    memcpy(text + sizeof text - 3, tail, 3);
    const char *path = scratch_write("tokenizer.json", text, sizeof text);
    CHECK(getrusage(RUSAGE_SELF, &before) == 0);
    CHECK_STATUS(LS_STATUS_OF(ls_tokenizer_new(path)), LS_ERR_LIMIT);
    CHECK_CONTAINS(ls_error_message(), "tokenizer.json\": its JSON has ");
    CHECK_CONTAINS(ls_error_message(), " objects and arrays, but at most 1048576 are allowed");
    CHECK(getrusage(RUSAGE_SELF, &after) == 0);
#if TEST_SLOWER == 1 /* a sanitizer takes memory of its own */
    CHECK(after.ru_maxrss - before.ru_maxrss < 50 << 10);
#endif
    end();
}

/* A tokenizer of the letter a, with this expression; NULL without PCRE2. */
static ls_tokenizer *open_expression(const char *expression)
{
    char text[1024];
    const int bytes = snprintf(
        text, sizeof text,
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"pattern\":"
        "{\"Regex\":\"%s\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
        "\"use_regex\":false}]},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
        expression);
    return open_path(scratch_write("tokenizer.json", text, (size_t)bytes));
}

/* Expressions whose searches take time that grows with a power of the text, or memory with its
 * length: PCRE2's own limits allow 20 GB. */
TEST(expressions_made_to_be_slow_end_with_an_error)
{
    static const char *const slow[] = {"(a+)+$b", "(?:a|aa)+(?=[^a])", "(a*)*(?=[^a])"};
    static char text[1 << 20];
    struct rusage before, after;
    memset(text, 'a', sizeof text);
    start();
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++) {
        ls_tokenizer *t = open_expression(slow[i]);
        int32_t *ids = NULL;
        int64_t count = 0;
        CHECK(getrusage(RUSAGE_SELF, &before) == 0);
        CHECK_STATUS(ls_tokenizer_encode(t, text, sizeof text, &ids, &count), LS_ERR_LIMIT);
        const char *said = ls_error_message();
        CHECK_INT(
            test_count_said(said, SAYS("tokenizer: the splitting expression fails at byte %zu of "
                                       "the text: %s")) +
                test_count_said(said, SAYS("tokenizer: the splitting expression is too slow for "
                                           "this text: it has come to byte %zu; is the "
                                           "tokenizer's file from a source that you trust?")),
            1);
        CHECK(getrusage(RUSAGE_SELF, &after) == 0);
        CHECK(after.ru_utime.tv_sec - before.ru_utime.tv_sec < 30 * TEST_SLOWER);
#if TEST_SLOWER == 1
        CHECK(after.ru_maxrss - before.ru_maxrss < 400 << 10);
#endif
        ls_tokenizer_free(t);
    }
    end();
}

/* A clock that is ten seconds later at each look. */
static uint64_t now_hastily(const ls__env *env)
{
    static uint64_t now;
    (void)env;
    return now += (uint64_t)10000000000;
}

/* Every word takes so long that no search reaches its own limit. */
TEST(a_text_that_takes_too_long_ends_with_an_error)
{
    ls__env hasty = *ls__env_posix();
    static char text[10000];
    int32_t *ids = NULL;
    int64_t count = 0;
    hasty.now_ns = now_hastily;
    memset(text, 'a', sizeof text);
    start();
    ls_tokenizer *t = open_expression("a");
    t->env = &hasty;
    CHECK_STATUS(ls_tokenizer_encode(t, text, sizeof text, &ids, &count), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(),
               "tokenizer: the splitting expression is too slow for this text: it has "
               "come to byte %zu; is the tokenizer's file from a source that you trust?");
    CHECK(ids == NULL && count == 0);
    t->env = ls__env_posix();
    tokens got = encode(t, text, sizeof text);
    CHECK_INT(got.count, sizeof text);
    ls_bytes_free(got.ids);
    ls_tokenizer_free(t);
    end();
}

/* At each of the text's characters this takes 4 million steps and finds nothing, which stays below
 * the limit of a search that begins at one character. */
TEST(one_search_through_a_long_text_ends_with_an_error)
{
    static char text[1 << 16];
    ls__env hasty = *ls__env_posix();
    int32_t *ids = NULL;
    int64_t count = 0;
    struct rusage before, after;
    hasty.now_ns = now_hastily;
    memset(text, 'a', sizeof text);
    start();
    ls_tokenizer *t = open_expression("(?:a|a){21}(?=[^a])");
    t->env = &hasty;
    CHECK(getrusage(RUSAGE_SELF, &before) == 0);
    CHECK_STATUS(ls_tokenizer_encode(t, text, sizeof text, &ids, &count), LS_ERR_LIMIT);
    CHECK(getrusage(RUSAGE_SELF, &after) == 0);
    CHECK(after.ru_utime.tv_sec - before.ru_utime.tv_sec < 10 * TEST_SLOWER);
    ls_tokenizer_free(t);
    end();
}

/* GPT-2's expression takes one word of any length. */
TEST(a_text_without_spaces_takes_time_in_proportion)
{
    static char text[4 << 20];
    struct rusage before, after;
    memset(text, 'a', sizeof text);
    start();
    ls_tokenizer *t = open_expression(" ?\\\\p{L}+|\\\\s+(?!\\\\S)|\\\\s+");
    CHECK(getrusage(RUSAGE_SELF, &before) == 0);
    tokens got = encode(t, text, sizeof text);
    CHECK(getrusage(RUSAGE_SELF, &after) == 0);
    CHECK_INT(got.count, sizeof text);
    CHECK(after.ru_utime.tv_sec - before.ru_utime.tv_sec < 10 * TEST_SLOWER);
    ls_bytes_free(got.ids);
    ls_tokenizer_free(t);
    end();
}

/* Before a byte of the word is read. */
TEST(more_merges_or_longer_words_than_a_tokenizer_can_have_are_refused)
{
    ls__encoder e;
    start();
    ls_tokenizer *t = ls_tokenizer_new("bytes");
    CHECK(t != NULL);
    CHECK_STATUS(ls__tokenizer_add_merge(t, "merges.txt", "a", "b", (int64_t)1 << 32),
                 LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "tokenizer: %s: more than 2^32 merges");
    CHECK_OK(ls__encoder_init(&e, t));
    CHECK_STATUS(ls__encoder_word(&e, "word", LS__WORD_BYTES_MAX + 1, 0), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(),
               "tokenizer: a word of %zu bytes at byte %zu; at most %zu are possible");
    ls__encoder_fini(&e);
    ls_tokenizer_free(t);
    end();
}

TEST_MAIN
