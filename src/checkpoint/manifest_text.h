/* SPDX-License-Identifier: Apache-2.0 */
/* Where the manifest's own hash stands in its text: right at the beginning, so that it can be taken
 * over the bytes of the file, whatever they are. */
#ifndef LS_CHECKPOINT_MANIFEST_TEXT_H
#define LS_CHECKPOINT_MANIFEST_TEXT_H

#include <string.h>

#include "base/assert.h"
#include "base/digest.h"

#define LS__MANIFEST_HEAD "{\"hash\":\""
#define LS__MANIFEST_HASH_AT (sizeof LS__MANIFEST_HEAD - 1)

/* The hash of the text as it was before the hash was filled in. The caller guarantees bytes >=
 * LS__MANIFEST_HASH_AT + LS__DIGEST_HEX. */
static inline ls_status ls__manifest_hash(const char *text, size_t bytes,
                                          uint8_t out[LS__DIGEST_BYTES])
{
    const size_t behind = LS__MANIFEST_HASH_AT + LS__DIGEST_HEX;
    char zeros[LS__DIGEST_HEX];
    ls__digest hash;
    LS_ASSERT(bytes >= behind);
    memset(zeros, '0', sizeof zeros);
    ls__digest_init(&hash);
    ls__digest_add(&hash, text, LS__MANIFEST_HASH_AT);
    ls__digest_add(&hash, zeros, sizeof zeros);
    ls__digest_add(&hash, text + behind, bytes - behind);
    return ls__digest_end(&hash, out);
}

#endif
