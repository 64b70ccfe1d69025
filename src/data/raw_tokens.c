/* SPDX-License-Identifier: Apache-2.0 */
/* A file of tokens without a header is read as tokens of 2 bytes, as nanoGPT writes them. Other
 * tools write files of 4 bytes without a header as well: read so, every second token is the upper
 * half of one, 0 in most vocabularies, and a model would learn that without complaint. */
#include "data/shard.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/foreign.h"
#include "base/log.h"
#include "data/bytes.h"

#define TOKENS_OF_2_BYTES 65536
#define LOOKED_AT ((size_t)2048) /* tokens at the beginning; of so many no text has half the same */
#define LOOKED_AT_MIN ((size_t)64)

/* a/b.bin -> a/b.idx, the name that Megatron and fairseq give; NULL without memory. */
static char *index_path(const char *path)
{
    const size_t length = strlen(path);
    const size_t stem = length > 4 && strcmp(path + length - 4, ".bin") == 0 ? length - 4 : length;
    char *name = malloc(stem + sizeof ".idx");
    if (name != NULL) {
        memcpy(name, path, stem);
        memcpy(name + stem, ".idx", sizeof ".idx");
    }
    return name;
}

static ls_status check_index(const ls__env *env, const char *path)
{
    ls__env_stat stat;
    ls__file head = {0};
    char *name = index_path(path);
    if (name == NULL) {
        return ls__fail(LS_ERR_MEMORY, "tokens: no memory for a path");
    }
    ls_status status = LS_OK;
    if (env->stat(env, name, true, &stat) == 0 && stat.kind == LS__ENV_FILE) {
        status = ls__file_read(env, "tokens", name, LS__FOREIGN_BYTES, &head);
    }
    if (ls__foreign_kind_of(head.data, head.bytes) == LS__FOREIGN_INDEX) {
        status = ls__fail(LS_ERR_UNSUPPORTED,
                          "tokens: \"%s\" says that \"%s\" is a token file of Megatron or fairseq, "
                          "which is not supported; write the tokens as uint16 to a file of another "
                          "name, or with a header of llm.c, or make them of text by lockstep data "
                          "tokens",
                          name, path);
    }
    ls__file_release(env, &head);
    free(name);
    return status;
}

/* Of 4-byte tokens, little-endian, below 65536. */
static bool every_second_is_zero(const uint8_t *data, size_t count)
{
    bool first = false, second = false;
    for (size_t i = 0; i + 1 < count && i < LOOKED_AT; i += 2) {
        first = first || ls__little_16(data + 2 * i) != 0;
        second = second || ls__little_16(data + 2 * i + 2) != 0;
    }
    return count >= LOOKED_AT_MIN && first && !second;
}

ls_status ls__shard_check_raw(const ls__env *env, const ls__file *file, const char *path,
                              int64_t vocab)
{
    if (vocab > TOKENS_OF_2_BYTES) {
        return ls__fail(
            LS_ERR_UNSUPPORTED,
            "tokens: \"%s\" begins with %s, which is not a magic number of llm.c, so it "
            "has tokens of 2 bytes, but a vocabulary of %lld needs 4; write it with a "
            "header of llm.c (magic 20240801), or by lockstep data tokens",
            path, ls__shard_begins(file->data, file->bytes).text, (long long)vocab);
    }
    LS_TRY(check_index(env, path));
    if (every_second_is_zero(file->data, file->bytes / 2)) {
        LS__WARN("tokens: every second token of \"%s\" is 0: it has no header, so it is read as "
                 "tokens of 2 bytes, but looks like one of 4; then write it with a header of llm.c "
                 "(magic 20240801), or by lockstep data tokens",
                 path);
    }
    return LS_OK;
}
