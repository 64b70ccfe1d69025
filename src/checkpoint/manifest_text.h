/* Where the manifest's own hash stands in its text: right at the beginning, so that it can be taken
 * over the bytes of the file, whatever they are. */
#ifndef LS_CHECKPOINT_MANIFEST_TEXT_H
#define LS_CHECKPOINT_MANIFEST_TEXT_H

#include <string.h>

#include "checkpoint/hash.h"

#define LS__MANIFEST_HEAD "{\"hash\":\""
#define LS__MANIFEST_HASH_AT (sizeof LS__MANIFEST_HEAD - 1)

/* The hash of the text as it was before the hash was filled in. bytes >= HASH_AT + HASH_HEX. */
static inline void ls__manifest_hash(const char *text, size_t bytes, uint8_t out[LS__HASH_BYTES])
{
    const size_t behind = LS__MANIFEST_HASH_AT + LS__HASH_HEX;
    char zeros[LS__HASH_HEX];
    ls__hash hash;
    memset(zeros, '0', sizeof zeros);
    ls__hash_init(&hash);
    ls__hash_add(&hash, text, LS__MANIFEST_HASH_AT);
    ls__hash_add(&hash, zeros, sizeof zeros);
    ls__hash_add(&hash, text + behind, bytes - behind);
    ls__hash_end(&hash, out);
}

#endif
