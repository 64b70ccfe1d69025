/* Writing and reading what a rank waits for: a sequence lock, since its readers are other processes.
 */
#include <string.h>

#include "job/blocked.h"

void ls__blocked_write(ls__blocked_record *record, const ls__blocked *blocked)
{
    const uint32_t version = atomic_load_explicit(&record->version, memory_order_relaxed) | 1u;
    atomic_store_explicit(&record->version, version, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* odd before any of it changes */
    memcpy(&record->blocked, blocked, sizeof *blocked);
    /* Sync: release; pairs with the acquire in ls__blocked_read. */
    atomic_store_explicit(&record->version, version + 1, memory_order_release);
}

static void trust_no_count(ls__blocked *b)
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
    atomic_thread_fence(memory_order_acquire);
    const uint32_t after = atomic_load_explicit(&record->version, memory_order_relaxed);
    trust_no_count(out);
    return before == after && before % 2 == 0;
}
