/* SPDX-License-Identifier: Apache-2.0 */
/* What files of other tools are, by their first bytes. */
#include "says.h"
#include "test.h"

#include "base/foreign.h"

static const char *said(const char *text, size_t bytes)
{
    return ls__foreign_words(ls__foreign_kind_of((const uint8_t *)text, bytes), "none");
}

#define SAID(literal) said(literal, sizeof(literal) - 1)

/* Each begins as the tool itself writes it. */
TEST(files_of_other_tools_are_named_with_the_remedy)
{
    CHECK_SAYS(SAID("version https://git-lfs.github.com/spec/v1\noid sha256:4665a5ea\n"),
               "it is a git-lfs pointer: run git lfs pull to get the file itself");
    CHECK_SAYS(SAID("\xef\xbb\xbf\n <!DOCTYPE html>\n<html lang=\"en\">"),
               "it is an HTML page, perhaps of an error: download the file itself");
    CHECK_SAYS(
        SAID("\x80\x02}q\0(X\x06\0\0\0weightq\1"),
        "it is a pickle of Python, which may hold code: save its arrays as .npy or safetensors");
    CHECK_SAYS(SAID("PK\x03\x04\0\0\x08\x08"),
               "it is a ZIP archive, as numpy.savez and torch.save write: unzip it, or save its "
               "arrays as .npy or safetensors");
    CHECK_SAYS(SAID("\x1f\x8b\x08\x08\xe7\x65"), "it is compressed: run gunzip first");
    CHECK_SAYS(SAID("\x28\xb5\x2f\xfd\x04"),
               "it is compressed, by xz, bzip2 or zstd: unpack it first");
    char tar[512] = "train/x.npy";
    memcpy(tar + 257, "ustar", 5);
    CHECK_SAYS(said(tar, sizeof tar), "it is a tar archive: unpack it by tar -xf first");
    CHECK_SAYS(SAID("\x93NUMPY\1\0v\0"), "it is an array of NumPy (.npy)");
    CHECK_SAYS(SAID("GGUF\3\0\0\0"),
               "it is a model of llama.cpp (GGUF): give the safetensors file");
    CHECK_SAYS(SAID("\x89HDF\r\n\x1a\n"),
               "it is an HDF5 file: save its arrays as .npy or safetensors");
    CHECK_SAYS(SAID("PAR1\x15\x04"), "it is a Parquet file: write its column as text or .npy");
    CHECK_SAYS(SAID("MMIDIDX\0\0\1\0\0"),
               "it is the index of a token file of Megatron or fairseq, not the file of tokens");
}

TEST(the_other_spellings_are_known_too)
{
    CHECK(ls__foreign_kind_of((const uint8_t *)"<html>\n", 7) == LS__FOREIGN_HTML);
    CHECK(ls__foreign_kind_of((const uint8_t *)"TNTIDX\0\0\1", 9) == LS__FOREIGN_INDEX);
    CHECK(ls__foreign_kind_of((const uint8_t *)"\xfd"
                                               "7zXZ\0",
                              6) == LS__FOREIGN_PACKED);
    CHECK(ls__foreign_kind_of((const uint8_t *)"BZh91AY&SY", 10) == LS__FOREIGN_PACKED);
    /* pickle.dumps({}, protocol=4) within a frame; torch.save's old form */
    CHECK(ls__foreign_kind_of((const uint8_t *)"\x80\4\x95\3\0\0\0\0\0\0\0}\x94.", 14) ==
          LS__FOREIGN_PICKLE);
    CHECK(ls__foreign_kind_of((const uint8_t *)"\x80\2\x8a\nl\xfc\x9c\x46\xf9\x20\x6a\xa8", 12) ==
          LS__FOREIGN_PICKLE);
}

/* Text, the start of a safetensors file, raw tokens, and files shorter than any magic. */
TEST(what_begins_otherwise_is_none_of_them)
{
    CHECK(strcmp(SAID("version https://example.org"), "none") == 0);
    CHECK(strcmp(SAID("\x10\0\0\0\0\0\0\0{\"a\":"), "none") == 0);
    CHECK(strcmp(SAID("\x80\2\x95\1\x80\2\x95\1\x80\2\x95\1"), "none") == 0);
    CHECK(strcmp(SAID("\x80\4\x95\3\1\2\3\4\5\6\7\x08"), "none") == 0);
    CHECK(strcmp(SAID("< html"), "none") == 0);
    CHECK(strcmp(SAID("\x1f\x8b"), "none") == 0);
    CHECK(strcmp(said(NULL, 0), "none") == 0);
    for (size_t bytes = 1; bytes < 13; bytes++) {
        CHECK(strcmp(said("                 ", bytes), "none") == 0);
        CHECK(strcmp(said("\x80\2}q\0(X\x06\0\0\0", bytes), "none") != 0 ? bytes >= 11
                                                                         : bytes < 11);
    }
}

TEST_MAIN
