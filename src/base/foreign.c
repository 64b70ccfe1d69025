/* SPDX-License-Identifier: Apache-2.0 */
/* See foreign.h. Magic numbers are those of the formats' own documents. A file of raw 16-bit tokens
 * may begin with any bytes, so every rule here compares at least three of them. */
#include "base/foreign.h"

#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/log.h"

#define TAR_MAGIC_AT 257 /* POSIX.1-1988: "ustar" in the first header */

typedef struct magic {
    const char *text;
    size_t bytes;
    ls__foreign_kind kind;
} magic;

#define MAGIC(text, kind)                                                                          \
    {                                                                                              \
        text, sizeof(text) - 1, kind                                                               \
    }

static const magic magics[] = {
    MAGIC("version https://git-lfs", LS__FOREIGN_LFS),
    MAGIC("PK\x03\x04", LS__FOREIGN_ZIP),
    MAGIC("\x1f\x8b\x08", LS__FOREIGN_GZIP),
    MAGIC("\xfd"
          "7zXZ",
          LS__FOREIGN_PACKED),
    MAGIC("BZh91AY", LS__FOREIGN_PACKED),
    MAGIC("\x28\xb5\x2f\xfd", LS__FOREIGN_PACKED),
    MAGIC("\x93NUMPY", LS__FOREIGN_NPY),
    MAGIC("GGUF", LS__FOREIGN_GGUF),
    MAGIC("\x89HDF\r\n", LS__FOREIGN_HDF5),
    MAGIC("PAR1", LS__FOREIGN_PARQUET),
    MAGIC("MMIDIDX\0", LS__FOREIGN_INDEX),
    MAGIC("TNTIDX\0", LS__FOREIGN_INDEX),
};

static const char *const words[LS__FOREIGN_KINDS] = {
    [LS__FOREIGN_LFS] = "it is a git-lfs pointer: run git lfs pull to get the file itself",
    [LS__FOREIGN_HTML] = "it is an HTML page, perhaps of an error: download the file itself",
    [LS__FOREIGN_PICKLE] =
        "it is a pickle of Python, which may hold code: save its arrays as .npy or safetensors",
    [LS__FOREIGN_ZIP] = "it is a ZIP archive, as numpy.savez and torch.save write: unzip it, or "
                        "save its arrays as .npy or safetensors",
    [LS__FOREIGN_GZIP] = "it is compressed: run gunzip first",
    [LS__FOREIGN_PACKED] = "it is compressed, by xz, bzip2 or zstd: unpack it first",
    [LS__FOREIGN_TAR] = "it is a tar archive: unpack it by tar -xf first",
    [LS__FOREIGN_NPY] = "it is an array of NumPy (.npy)",
    [LS__FOREIGN_GGUF] = "it is a model of llama.cpp (GGUF): give the safetensors file",
    [LS__FOREIGN_HDF5] = "it is an HDF5 file: save its arrays as .npy or safetensors",
    [LS__FOREIGN_PARQUET] = "it is a Parquet file: write its column as text or .npy",
    [LS__FOREIGN_INDEX] =
        "it is the index of a token file of Megatron or fairseq, not the file of tokens",
};

/* Protocols 4 and 5 go on with a frame and its length, of less than 2^40 bytes; 2 and 3 with one of
 * the opcodes that begin what people pickle: an empty dict or list, a tuple, a class, torch.save's
 * long integer, a text. */
static bool is_pickle(const uint8_t *data, size_t bytes)
{
    if (bytes < 11 || data[0] != 0x80 || data[1] < 2 || data[1] > 5) {
        return false;
    }
    return data[1] >= 4 ? data[2] == 0x95 && data[8] == 0 && data[9] == 0 && data[10] == 0
                        : memchr("}](c\x8aXU", data[2], 7) != NULL;
}

/* Servers write the first tag in any case, after white space or a byte order mark. */
static bool is_html(const uint8_t *data, size_t bytes)
{
    static const char *const tags[] = {"<!doctype html", "<html", "<head>"};
    const char *text = (const char *)data;
    size_t at = bytes >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < bytes && memchr(" \t\r\n", data[at], 4) != NULL) {
        at++;
    }
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        const size_t length = strlen(tags[i]);
        if (bytes - at >= length && strncasecmp(text + at, tags[i], length) == 0) {
            return true;
        }
    }
    return false;
}

ls__foreign_kind ls__foreign_kind_of(const uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        if (bytes >= magics[i].bytes && memcmp(data, magics[i].text, magics[i].bytes) == 0) {
            return magics[i].kind;
        }
    }
    if (bytes >= TAR_MAGIC_AT + 5 && memcmp(data + TAR_MAGIC_AT, "ustar", 5) == 0) {
        return LS__FOREIGN_TAR;
    }
    return bytes > 0 && is_html(data, bytes) ? LS__FOREIGN_HTML
           : is_pickle(data, bytes)          ? LS__FOREIGN_PICKLE
                                             : LS__FOREIGN_NONE;
}

const char *ls__foreign_words(ls__foreign_kind kind, const char *otherwise)
{
    LS_ASSERT(kind < LS__FOREIGN_KINDS);
    return kind != LS__FOREIGN_NONE ? words[kind] : otherwise;
}

ls_status ls__foreign_check_text(const char *what, const char *path, const uint8_t *data,
                                 size_t bytes, bool named)
{
    const ls__foreign_kind kind = ls__foreign_kind_of(data, bytes);
    if (kind == LS__FOREIGN_NONE || kind == LS__FOREIGN_HTML) {
        return LS_OK;
    }
    if (named) {
        return ls__fail(LS_ERR_FORMAT, "%s: \"%s\" is not a text: %s", what, path, words[kind]);
    }
    LS__WARN("%s: \"%s\" is read as text, but %s; or move it to another folder", what, path,
             words[kind]);
    return LS_OK;
}
