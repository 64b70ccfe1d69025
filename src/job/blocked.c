/* SPDX-License-Identifier: Apache-2.0 */
/* Writing and reading the record of a blocked rank: a sequence lock, because its readers are other
 * processes, and a rank that dies within a write must not block them. The version is odd while the
 * record changes; a reader that saw it odd, or saw it change, discards its copy and tries later.
 */
#include "job/blocked.h"

#include <string.h>

/* The caller holds its rank's progress lock, so the record has one writer. The counts are not
 * checked here: those of a remote rank come from the network, and every reader checks its copy. */
void ls__blocked_write(ls__blocked_record *record, const ls__blocked *blocked)
{
    const uint32_t version = atomic_load_explicit(&record->version, memory_order_relaxed) | 1u;
    atomic_store_explicit(&record->version, version, memory_order_relaxed);
    /* Sync: the version is odd before any of the record changes; pairs with the acquire fence. */
    atomic_thread_fence(memory_order_release);
    memcpy(&record->blocked, blocked, sizeof *blocked);
    /* Sync: release; pairs with the acquire in ls__blocked_read. */
    atomic_store_explicit(&record->version, version + 1, memory_order_release);
}

/* Empties a copy whose counts exceed their arrays: its writer was another process, and the copy may
 * be a mixture of two records. */
static void discard_unsound(ls__blocked *b)
{
    const bool sound =
        b->wait_count <= LS__BLOCKED_WAITS_MAX && b->group_count <= LS__BLOCKED_GROUPS_MAX &&
        b->send_count <= LS__BLOCKED_MESSAGES_MAX &&
        b->announced_count <= LS__BLOCKED_MESSAGES_MAX && b->cycle_count <= LS__BLOCKED_CYCLE_MAX;
    if (!sound) {
        memset(b, 0, sizeof *b);
    }
}

bool ls__blocked_read(const ls__blocked_record *record, ls__blocked *out)
{
    const uint32_t before = atomic_load_explicit(&record->version, memory_order_acquire);
    memcpy(out, &record->blocked, sizeof *out);
    /* Sync: the copy is complete before the version is read again; pairs with the release fence. */
    atomic_thread_fence(memory_order_acquire);
    const uint32_t after = atomic_load_explicit(&record->version, memory_order_relaxed);
    discard_unsound(out);
    return before == after && before % 2 == 0;
}
