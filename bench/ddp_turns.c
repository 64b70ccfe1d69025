/* SPDX-License-Identifier: Apache-2.0 */
/* Warm-up, turns and means of `lockstep bench ddp` and `lockstep bench replay`: all contenders are
 * alive and take turns, so that a slow minute of the machine meets all of them; the first one of a
 * turn is another each time. Under a launcher its ranks take part, else -n ranks are started on
 * this host. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/runtime.h"
#include "ddp.h"

void ls__bench_ddp_set_parts(double parts[BENCH_DDP_PARTS], const uint64_t at[4],
                             double wire_seconds, double exposed_seconds)
{
    parts[0] = (double)(at[3] - at[0]) * 1e-9;
    parts[1] = (double)(at[1] - at[0]) * 1e-9;
    parts[2] = (double)(at[2] - at[1]) * 1e-9 - exposed_seconds;
    parts[3] = wire_seconds;
    parts[4] = exposed_seconds;
    parts[5] = (double)(at[3] - at[2]) * 1e-9;
}

/* One sample: the mean over the steps between one synchronisation and the next. */
static ls_status sample(const ls__bench_ddp *b, ls__bench_ddp_contender *c,
                        double mean[BENCH_DDP_PARTS])
{
    double parts[BENCH_DDP_PARTS];
    memset(mean, 0, BENCH_DDP_PARTS * sizeof *mean);
    for (int s = 1; s <= c->skip; s++) {
        LS_TRY(b->of->step(b, c, s == c->skip, parts));
        c->taken++;
        for (int p = 0; p < BENCH_DDP_PARTS; p++) {
            mean[p] += parts[p] / c->skip;
        }
    }
    return LS_OK;
}

/* As many as have the steps that were asked for. */
static int samples_of_turn(const ls__bench_ddp *b, const ls__bench_ddp_contender *c)
{
    return (b->steps + c->skip - 1) / c->skip;
}

/* All ranks begin together. */
static ls_status turn(const ls__bench_ddp *b, ls__bench_ddp_contender *c)
{
    double unused[BENCH_DDP_PARTS];
    LS_TRY(ls_barrier(ls_world(), NULL, NULL));
    for (int s = 0; s < b->untimed; s++) { /* the caches have another contender's numbers */
        LS_TRY(b->of->step(b, c, true, unused));
    }
    for (int s = samples_of_turn(b, c); s > 0; s--) {
        LS_TRY(sample(b, c, c->own[c->samples++]));
        if (b->of->note != NULL) {
            LS_TRY(b->of->note(b, c));
        }
    }
    return LS_OK;
}

static ls_status warm_up(const ls__bench_ddp *b, ls__bench_ddp_contender *c)
{
    double unused[BENCH_DDP_PARTS];
    for (int s = 0; s < b->warmups; s++) {
        LS_TRY(b->of->step(b, c, true, unused));
    }
    return LS_OK;
}

/* Of the steps of each turn. */
static void medians_of(const ls__bench_ddp *b, const ls__bench_ddp_contender *c,
                       double (*seconds)[BENCH_DDP_PARTS], double *medians)
{
    const int count = samples_of_turn(b, c);
    double sorted[1000];
    for (int round = 0; round < b->rounds; round++) {
        for (int s = 0; s < count; s++) {
            sorted[s] = seconds[round * count + s][0];
        }
        medians[round] = ls__bench_median(sorted, count);
    }
}

/* Without communication no rank waits for another: only the slowest one's time is comparable. */
static ls_status find_slowest(const ls__bench_ddp *b, ls__bench_ddp_contender *c)
{
    const int64_t count = (int64_t)c->samples * BENCH_DDP_PARTS;
    double(*most)[BENCH_DDP_PARTS] = malloc((size_t)count * sizeof(double));
    if (most == NULL) {
        return ls_fail(LS_ERR_MEMORY, "no memory");
    }
    const ls_status status =
        ls_all_reduce(ls_world(), c->own, most, count, LS_FLOAT64, LS_MAX, NULL, NULL);
    medians_of(b, c, most, c->slowest);
    free(most);
    return status;
}

/* Means over ranks, then over steps. */
static ls_status sum_up(const ls__bench_ddp *b, ls__bench_ddp_contender *c)
{
    LS_TRY(find_slowest(b, c));
    LS_TRY(ls_all_reduce(ls_world(), c->own, c->seconds, (int64_t)c->samples * BENCH_DDP_PARTS,
                         LS_FLOAT64, LS_AVG, NULL, NULL));
    for (int p = 0; p < BENCH_DDP_PARTS; p++) {
        double sum = 0.0, squares = 0.0;
        for (int s = 0; s < c->samples; s++) {
            sum += c->seconds[s][p];
        }
        c->mean[p] = sum / c->samples;
        for (int s = 0; s < c->samples; s++) {
            squares += (c->seconds[s][p] - c->mean[p]) * (c->seconds[s][p] - c->mean[p]);
        }
        c->deviation[p] = c->samples > 1 ? sqrt(squares / (c->samples - 1)) : 0.0;
    }
    medians_of(b, c, c->seconds, c->medians);
    ls_reducer_stats stats = {.size = sizeof stats};
    if (c->reducer != NULL) {
        LS_TRY(ls_reducer_get_stats(c->reducer, &stats));
    }
    c->buckets = stats.buckets;
    c->sent = stats.sent_bytes;
    LS_TRY(ls_all_reduce(ls_world(), &c->sent, &c->sent, 1, LS_UINT64, LS_SUM, NULL, NULL));
    c->sent /= (uint64_t)b->ranks;
    for (int i = 0; i < c->buckets && i < BENCH_DDP_BUCKETS; i++) {
        ls_reducer_bucket bucket = {.size = sizeof bucket};
        LS_TRY(ls_reducer_get_bucket(c->reducer, i, &bucket));
        c->bytes[i] = bucket.bytes;
    }
    return LS_OK;
}

/* One byte from or to a named pipe of --gate, blocking. */
static ls_status pass(const ls__bench_ddp *b, const char *name, bool writes)
{
    char path[4096], byte = '.';
    (void)snprintf(path, sizeof path, "%s/%s", b->gate, name);
    const int file = open(path, (writes ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
    const ssize_t moved = file < 0 ? -1 : writes ? write(file, &byte, 1) : read(file, &byte, 1);
    const int why = moved == 0 ? EPIPE : errno;
    if (file >= 0) {
        (void)close(file);
    }
    return moved == 1 ? LS_OK
                      : ls_fail(LS_ERR_SYSTEM, "--gate: no turn from %s: %s", path, strerror(why));
}

/* All ranks are done; wait for the next turn, asleep. */
static ls_status wait_for_turn(const ls__bench_ddp *b)
{
    char rank[16];
    (void)snprintf(rank, sizeof rank, "%d", ls_rank());
    if (b->gate != NULL) {
        LS_TRY(ls_barrier(ls_world(), NULL, NULL));
        LS_TRY(ls_rank() == 0 ? pass(b, "done", true) : LS_OK);
        LS_TRY(pass(b, rank, false));
    }
    return LS_OK;
}

static ls_status sum_up_all(ls__bench_ddp *b)
{
    for (int i = 0; i < b->count; i++) {
        LS_TRY(sum_up(b, &b->contender[i]));
    }
    return LS_OK;
}

/* The rows of the turns so far, in case there are no more of them. */
static ls_status keep(ls__bench_ddp *b, int rounds)
{
    const int asked = b->rounds;
    if (rounds == asked) {
        return LS_OK;
    }
    b->rounds = rounds;
    const ls_status status = sum_up_all(b);
    if (status == LS_OK && ls_rank() == 0 && b->json != NULL) {
        ls__bench_ddp_keep(b);
    }
    b->rounds = asked;
    return status;
}

static ls_status open_all(ls__bench_ddp *b)
{
    for (int i = 0; i < b->count; i++) {
        ls__bench_ddp_contender *c = &b->contender[i];
        c->own = calloc((size_t)(b->steps * b->rounds), sizeof *c->own);
        c->seconds = calloc((size_t)(b->steps * b->rounds), sizeof *c->seconds);
        if (c->own == NULL || c->seconds == NULL) {
            return ls_fail(LS_ERR_MEMORY, "no memory");
        }
        LS_TRY(b->of->open(b, c));
        LS_TRY(warm_up(b, c));
    }
    return LS_OK;
}

static ls_status measure(ls__bench_ddp *b)
{
    LS_TRY(open_all(b));
    for (int round = 0; round < b->rounds; round++) {
        LS_TRY(wait_for_turn(b));
        for (int i = 0; i < b->count; i++) {
            LS_TRY(turn(b, &b->contender[(i + round) % b->count]));
        }
        LS_TRY(keep(b, round + 1));
    }
    LS_TRY(wait_for_turn(b));
    return sum_up_all(b);
}

/* One rank. Returns its exit status. */
static int run_rank(void *arg)
{
    ls__bench_ddp *b = arg;
    LS_CHECK(ls_init(NULL));
    b->ranks = ls_world_size();
    if (b->of->check != NULL && !b->of->check(b)) {
        LS_CHECK(ls_finalize());
        return 1;
    }
    bool written = true;
    LS_CHECK(measure(b));
    if (ls_rank() == 0) {
        ls__bench_ddp_print(b);
        written = b->json == NULL || ls__bench_ddp_write(b);
        written = written && (b->of->end == NULL || b->of->end(b));
    }
    for (int i = 0; i < b->count; i++) {
        free(b->contender[i].own);
        free(b->contender[i].seconds);
        LS_CHECK(b->of->close(&b->contender[i]));
    }
    LS_CHECK(ls_finalize());
    return written ? 0 : 1;
}

int ls__bench_ddp_measure(ls__bench_ddp *b)
{
    return ls__bench_start(b->transport, b->json, b->ranks, run_rank, b);
}
