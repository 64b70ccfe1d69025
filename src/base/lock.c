/* SPDX-License-Identifier: Apache-2.0 */
/* The slow half of ls__lock: Drepper's second mutex ("Futexes are tricky", 2011, section 5). */
#include "base/lock.h"

void ls__lock_wait(ls__lock *lock, const ls__env *env)
{
    /* Sync: acquire; pairs with the release in ls__unlock. A value of 2 left behind by a waiter
     * costs one needless wake, never a lost one. */
    while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0) {
        (void)env->park(env, &lock->word, 2, LS__NEVER);
    }
}
