/* SPDX-License-Identifier: Apache-2.0 */
/* Open addressing; a hash of all bytes of the key. */
#include "cuda/plans.h"

#include <stdint.h>
#include <string.h>

#include "base/hash.h"

void *ls__cuda_plan_place(const ls__cuda_plans *table, const void *key)
{
    const uint64_t hash = ls__hash_bytes(LS__HASH_START, key, table->key_bytes);
    for (size_t at = hash ^ hash >> 32;; at++) {
        char *plan = (char *)table->plans + at % LS__CUDA_PLANS * table->plan_bytes;
        const bool *used = (const bool *)(plan + table->used_at);
        if (!*used || memcmp(plan + table->key_at, key, table->key_bytes) == 0) {
            return plan;
        }
    }
}
