/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives that stand for a bucket; see exchange.c. */
#ifndef LS_REDUCE_EXCHANGE_H
#define LS_REDUCE_EXCHANGE_H

#include "comm/core/collective.h"
#include "reduce/internal.h"

/* One collective, which stands for a phase of a bucket. */
typedef struct ls__reduce_exchange {
    ls__operation operation; /* … */
    bool none;               /* … unless nothing is sent in this phase, on no rank */
    const void *input;
    void *output;
    int64_t count; /* as of the operation's public call */
    ls_dtype dtype;
    double divisor; /* of a sum; 0: none */
} ls__reduce_exchange;

/* The kinds of exchange. A bucket's kind is chosen when it is launched. `before` fills in what a
 * phase sends, `after` reads what it has received; both may compute. They run on the thread of
 * backward or on the reducer's own, one at a time for a reducer, never in a callback of the engine.
 * A phase runs in the order of buckets, so a kind may keep state without a lock. */
typedef struct ls__exchange_kind {
    int phases; /* 1 to LS__PHASES_MAX */
    ls_status (*before)(ls_reducer *r, ls__reduce_bucket *bucket, int phase,
                        ls__reduce_exchange *out);
    ls_status (*after)(ls_reducer *r, ls__reduce_bucket *bucket, int phase); /* NULL: nothing */
} ls__exchange_kind;

/* The bucket itself is sent and summed in place. */
extern const ls__exchange_kind ls__exchange_plain;

/* Each rank gets the sums of its part of the bucket, in place; the rest is undefined afterwards. */
extern const ls__exchange_kind ls__exchange_scattered, ls__exchange_hybrid;

/* Starts the reducer's own thread; a world of one has none. */
ls_status ls__exchange_open(ls_reducer *r);
void ls__exchange_close(ls_reducer *r);

/* A backward begins: every bucket is being filled. */
void ls__exchange_begin(ls_reducer *r);
/* A part of the control exchange has come; from a callback. */
void ls__exchange_opened(ls_reducer *r);
/* A gradient became ready, maybe the last one of its bucket; from any thread. */
void ls__exchange_ready(ls_reducer *r, bool last);
/* How many buckets have ended, the first ones: averages are in place. */
int ls__exchange_ended(ls_reducer *r);

/* The calling thread, that of backward, takes all steps from now on. */
void ls__exchange_take_over(ls_reducer *r);
/* Waits until this bucket and all before it have ended, or one has failed. */
ls_status ls__exchange_wait(ls_reducer *r, int bucket);
/* After a failure: on return no step begins, no thread is inside one, and nothing is on its way. */
void ls__exchange_stop(ls_reducer *r);

/* record.c: records an operation of a bucket, in place of starting it; takes args->place. */
ls_status ls__captured_exchange(ls_reducer *r, ls_group *group, const ls__collective *args,
                                double divisor);

#endif
