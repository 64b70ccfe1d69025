/* SPDX-License-Identifier: Apache-2.0 */
/* --replay: makes the versions of a log again with the data of its workers, or of the copies of its
 * pipeline, and compares them. Each has a loader, which reads what the worker has read. */
#include <stdio.h>
#include <stdlib.h>

#include "trainer_internal.h"

typedef struct replay {
    trainer *t;
    int workers;           /* or copies */
    ls_sampler **samplers; /* [workers] */
    ls_loader **loaders;
    int64_t *next; /* the step that a worker is at */
    ls_outer_options outer;
    int64_t versions;
    bool ended;
} replay;

static void open_workers(replay *r)
{
    const size_t workers = (size_t)r->workers;
    r->samplers = calloc(workers, sizeof *r->samplers);
    r->loaders = calloc(workers, sizeof *r->loaders);
    r->next = calloc(workers, sizeof *r->next);
    if (r->samplers == NULL || r->loaders == NULL || r->next == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    for (int w = 0; w < r->workers; w++) {
        trainer_open_loader(r->t, w, r->workers, &r->samplers[w], &r->loaders[w]);
    }
}

static ls_status turn_to(replay *r, int worker)
{
    if (worker >= r->workers) {
        return ls_fail(LS_ERR_INVALID, "the log has worker %d, and --workers is %d", worker,
                       r->workers);
    }
    r->t->loader = r->loaders[worker];
    return LS_OK;
}

/* ---- averages -------------------------------------------------------------------------------- */

static ls_status train_worker(void *arg, ls_module *net, ls_optim *optim, int worker, int64_t step)
{
    replay *r = arg;
    trainer *t = r->t;
    double norm = 0.0;
    (void)net, (void)optim;
    LS_TRY(turn_to(r, worker));
    for (; r->next[worker] < step; r->next[worker]++) {
        (void)trainer_step(t, r->next[worker], &norm);
    }
    r->outer.inner_lr = t->outer.inner_lr && t->lr > 0.0 ? t->lr : 1.0;
    return LS_OK;
}

static ls_status replay_averages(replay *r)
{
    trainer *t = r->t;
    r->outer = t->outer.options;
    LS_TRY(ls_ddp_set_local(t->net, true));
    return ls_average_replay(t->net, t->optim,
                             LS_OPTIONS(ls_average_replay_options, .log = t->set->replayed,
                                        .train = train_worker, .arg = r,
                                        .outer = t->outer.given ? &r->outer : NULL,
                                        .versions = &r->versions, .ended = &r->ended));
}

/* ---- servers --------------------------------------------------------------------------------- */

/* A step whose gradient was dropped has read its batches as well. */
static ls_status compute_step(void *arg, ls_module *net, int worker, int64_t step)
{
    replay *r = arg;
    trainer *t = r->t;
    (void)net;
    LS_TRY(turn_to(r, worker));
    for (; r->next[worker] < step; r->next[worker]++) {
        for (int64_t m = 0; m < t->micro; m++) {
            ls_batch batch = {.size = sizeof batch};
            LS_SCOPE;
            trainer_next_batch(t, &batch);
        }
    }
    r->next[worker]++;
    return trainer_replay_step(t, step);
}

static ls_status replay_servers(replay *r)
{
    const trainer *t = r->t;
    return ls_server_replay(t->net, t->optim,
                            LS_OPTIONS(ls_server_replay_options, .log = t->set->replayed,
                                       .step = compute_step, .arg = r, .clip_norm = t->set->clip,
                                       .versions = &r->versions, .ended = &r->ended));
}

/* ---- pipelines ------------------------------------------------------------------------------- */

/* Micro-batches of a copy are asked for in their order. */
static ls_status micro_of(void *arg, int copy, int64_t number, ls_micro_batch *out)
{
    replay *r = arg;
    LS_TRY(turn_to(r, copy));
    trainer_set_rate(r->t, number / r->t->micro);
    *out = trainer_next_micro_batch(r->t);
    return LS_OK;
}

static ls_status replay_pipeline(replay *r)
{
    const trainer *t = r->t;
    LS_AUTOCAST(trainer_in_bf16(t));
    return ls_pipeline_replay(
        t->net, t->optim,
        LS_OPTIONS(ls_pipeline_replay_options, .log = t->set->replayed, .micro = micro_of, .arg = r,
                   .copies = r->workers, .cut = t->set->cut, .loss = t->task.loss,
                   .loss_arg = t->task.arg, .versions = &r->versions, .ended = &r->ended));
}

/* ---- all ------------------------------------------------------------------------------------- */

_Noreturn void trainer_replay(trainer *t)
{
    const trainer_options *o = t->set;
    replay r = {.t = t, .workers = (int)o->workers};
    if (ls_world_size() > 1) {
        give_up(EXIT_USAGE, "--replay runs in one process; call it without -n");
    }
    open_workers(&r);
    must(o->local_steps > 0  ? replay_averages(&r)
         : o->replays_stages ? replay_pipeline(&r)
                             : replay_servers(&r));
    (void)printf("%s: %lld versions, each with the bits of the run\n", o->replayed,
                 (long long)r.versions);
    if (!r.ended) {
        (void)printf("%s: the log has no end: the run was killed, its disk was full, or lines are "
                     "missing\n",
                     o->replayed);
    }
    exit(cli_end(EXIT_SUCCESS));
}
