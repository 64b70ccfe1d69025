/* SPDX-License-Identifier: Apache-2.0 */
/* The table of plans; see plans.h. Entries hang in chains by the hash of their key; the count is
 * bounded, and the entry used longest ago makes room. A plan's memory lies behind its entry, so
 * that giving one back needs no search. One lock guards the table and is held while a plan is
 * made. */
#include "kernel/cpu/plans.h"

#include <pthread.h>
#include <string.h>

#include "base/assert.h"
#include "base/env.h"

#define CHAINS 256 /* a power of two */

/* taken: from ls__plans_take to ls__plans_give, by one thread; free entries may be evicted. */
typedef struct entry entry;
struct entry {
    entry *next; /* in its chain */
    ls__plan_key key;
    const ls__plan_kind *kind;
    uint64_t used; /* the table's `now` when it was taken last */
    bool taken;
    _Alignas(64) unsigned char plan[];
};

struct ls__plans { /* one for each runtime */
    const ls__env *env;
    pthread_mutex_t lock; /* of everything below */
    entry *chain[CHAINS];
    int count;    /* entries, taken ones included */
    uint64_t now; /* takes so far: the clock of `used` */
};

/* NULL if there is no memory; every user of plans works without a store. */
ls__plans *ls__plans_new(const ls__env *env)
{
    ls__plans *plans = env->allocate(env, sizeof *plans);
    if (plans != NULL) {
        memset(plans, 0, sizeof *plans);
        plans->env = env;
        (void)pthread_mutex_init(&plans->lock, NULL);
    }
    return plans;
}

/* The plan's own parts first; its kind knows them. */
static void entry_free(const ls__plans *plans, entry *e)
{
    e->kind->fini(e->plan);
    plans->env->release(plans->env, e, sizeof *e + e->kind->bytes);
}

/* No plan may be taken at that time. */
void ls__plans_free(ls__plans *plans)
{
    if (plans == NULL) {
        return;
    }
    for (int i = 0; i < CHAINS; i++) {
        for (entry *e = plans->chain[i], *next; e != NULL; e = next) {
            next = e->next;
            entry_free(plans, e);
        }
    }
    (void)pthread_mutex_destroy(&plans->lock);
    plans->env->release(plans->env, plans, sizeof *plans);
}

/* The chain of a key: FNV-1a over its words, the upper half folded in. */
static entry **chain_of(ls__plans *plans, const ls__plan_key *key)
{
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < LS__PLAN_KEY; i++) {
        hash = (hash ^ (uint64_t)key->at[i]) * 1099511628211u;
    }
    return &plans->chain[(hash ^ hash >> 32) % CHAINS];
}

/* Keys are compared byte by byte, so they must be filled without gaps. */
static entry *find(ls__plans *plans, const ls__plan_key *key)
{
    entry *e = *chain_of(plans, key);
    while (e != NULL && memcmp(&e->key, key, sizeof *key) != 0) {
        e = e->next;
    }
    return e;
}

/* Frees the free entry that was used longest ago, where there are too many. If all are taken the
 * table grows beyond its bound. Under lock. */
static void make_room(ls__plans *plans)
{
    entry **oldest = NULL;
    for (int i = 0; plans->count >= LS__PLANS_MAX && i < CHAINS; i++) {
        for (entry **at = &plans->chain[i]; *at != NULL; at = &(*at)->next) {
            if (!(*at)->taken && (oldest == NULL || (*at)->used < (*oldest)->used)) {
                oldest = at;
            }
        }
    }
    if (oldest != NULL) {
        entry *e = *oldest;
        *oldest = e->next;
        entry_free(plans, e);
        plans->count--;
    }
}

/* A plan is made under the lock: two threads that need the same shape at once make it once. */
static entry *add(ls__plans *plans, const ls__plan_key *key, const ls__plan_kind *kind,
                  const void *arg)
{
    make_room(plans);
    entry *e = plans->env->allocate(plans->env, sizeof *e + kind->bytes);
    if (e == NULL) {
        return NULL;
    }
    memset(e, 0, sizeof *e + kind->bytes);
    e->key = *key;
    e->kind = kind;
    if (!kind->make(e->plan, arg)) {
        plans->env->release(plans->env, e, sizeof *e + kind->bytes);
        return NULL;
    }
    entry **chain = chain_of(plans, key);
    e->next = *chain;
    *chain = e;
    plans->count++;
    return e;
}

/* Lends the plan of `key` to the caller alone, made if need be. NULL where another thread works
 * with the plan, it cannot be made or memory is out: the caller then makes one for itself. */
void *ls__plans_take(ls__plans *plans, const ls__plan_key *key, const ls__plan_kind *kind,
                     const void *arg)
{
    (void)pthread_mutex_lock(&plans->lock);
    entry *e = find(plans, key);
    e = e == NULL ? add(plans, key, kind, arg) : e->taken ? NULL : e;
    if (e != NULL) {
        e->taken = true;
        e->used = ++plans->now;
    }
    (void)pthread_mutex_unlock(&plans->lock);
    return e != NULL ? e->plan : NULL;
}

/* Only for plans of ls__plans_take, by the thread that holds it. */
void ls__plans_give(ls__plans *plans, void *plan)
{
    entry *e = (entry *)(void *)((unsigned char *)plan - offsetof(entry, plan));
    (void)pthread_mutex_lock(&plans->lock);
    LS_ASSERT(e->taken);
    e->taken = false;
    (void)pthread_mutex_unlock(&plans->lock);
}
