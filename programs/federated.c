/* SPDX-License-Identifier: Apache-2.0 */
/* See federated.h (McMahan et al. 2017, algorithm 1). The data is cut into as many pieces as there
 * are clients, and client c lives on rank c mod ranks: only that rank reads its samples.
 *
 *     every rank     draws the same clients
 *     rank of each   --local-steps steps from the round's start, with a new optimizer state
 *     every rank     the mean of its clients, weighted by their samples, goes into ls_ddp_average
 *
 * Nothing of a client is kept between rounds but which of its samples come next, and that follows
 * from the number of the round; so a checkpoint between two rounds is that of one model. */
#include "federated.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer_internal.h"

/* A client's samples. */
typedef struct piece {
    ls_dataset base;
    ls_dataset *of;
    int64_t first;
} piece;

/* ---- options --------------------------------------------------------------------------------- */

void federated_check(const trainer_options *o)
{
    if (o->clients == 0 && o->per_round > 0) {
        give_up(EXIT_USAGE,
                "--per-round %lld is for federated rounds: give --clients, their number",
                (long long)o->per_round);
    }
    if (o->clients == 0) {
        return;
    }
    if (o->local_steps == 0) {
        give_up(EXIT_USAGE, "--clients is for federated rounds: give --local-steps, the steps of a "
                            "client in a round");
    }
    if (o->per_round < 1 || o->per_round > o->clients) {
        give_up(EXIT_USAGE,
                "--per-round is %lld; give the clients of a round, from 1 to --clients %lld",
                (long long)o->per_round, (long long)o->clients);
    }
    if (o->local_after > 0 || o->replay != NULL || strcmp(o->feed, "split") != 0) {
        give_up(EXIT_USAGE,
                "--clients with --%s: federated rounds begin with the first step, have no replay "
                "log, and each rank reads the samples of its clients; leave one of them out",
                o->local_after > 0  ? "local-after"
                : o->replay != NULL ? "log-replay"
                                    : "feed");
    }
}

bool federated_is_on(const trainer *t)
{
    return t->set->clients > 0;
}

/* ---- clients --------------------------------------------------------------------------------- */

static int64_t first_of(const trainer *t, int64_t client)
{
    const int64_t count = t->task.data->count, clients = t->set->clients;
    return count / clients * client + count % clients * client / clients;
}

static int64_t samples_of(const trainer *t, int64_t client)
{
    return first_of(t, client + 1) - first_of(t, client);
}

static ls_status get_of(ls_dataset *self, int64_t index, void *x, void *y)
{
    const piece *p = (piece *)(void *)self;
    return p->of->get(p->of, p->first + index, x, y);
}

static ls_status get_of_epoch(ls_dataset *self, int64_t epoch, int64_t index, void *x, void *y)
{
    const piece *p = (piece *)(void *)self;
    return p->of->get_in_epoch(p->of, epoch, p->first + index, x, y);
}

static piece piece_of(const trainer *t, int64_t client)
{
    piece p = {.base = *t->task.data, .of = t->task.data, .first = first_of(t, client)};
    p.base.count = samples_of(t, client);
    p.base.get = get_of;
    p.base.get_in_epoch = t->task.data->get_in_epoch != NULL ? get_of_epoch : NULL;
    p.base.free = NULL;
    return p;
}

static void read_round(trainer *t, int64_t round)
{
    must(ls_sample_clients((uint64_t)t->set->seed, round, t->set->clients, t->set->per_round,
                           t->fed.drawn));
}

/* Running statistics of a client would become the model's. */
static ls_status count_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    (void)name, (void)tensor;
    ++*(int *)self;
    return LS_OK;
}

static void check_model(trainer *t)
{
    int tensors = 0;
    const ls_state_visitor visitor = {
        .size = sizeof visitor, .self = &tensors, .tensor = count_tensor};
    must(ls_module_state(trainer_net(t), "", &visitor));
    if (tensors > ls_module_param_count(trainer_net(t))) {
        give_up(EXIT_USAGE, "--clients: the model has running statistics (batch norm), and those "
                            "of one client would become the model's; give a model without");
    }
}

void federated_open(trainer *t)
{
    federated *f = &t->fed;
    const trainer_options *o = t->set;
    if (!federated_is_on(t)) {
        return;
    }
    check_model(t);
    if (t->task.data->count / o->clients < o->batch) {
        give_up(EXIT_USAGE,
                "--clients %lld: %lld samples are less than --batch %lld for each; give fewer "
                "clients or a smaller batch",
                (long long)o->clients, (long long)t->task.data->count, (long long)o->batch);
    }
    const size_t numel = (size_t)ls_module_numel(trainer_net(t));
    f->drawn = calloc((size_t)o->per_round, sizeof *f->drawn);
    f->rounds = calloc((size_t)o->clients, sizeof *f->rounds);
    f->sum = calloc(numel + 1, sizeof *f->sum);
    f->start = calloc(numel + 1, sizeof *f->start);
    if (f->drawn == NULL || f->rounds == NULL || f->sum == NULL || f->start == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    for (int64_t round = 0; round < t->start / o->local_steps; round++) {
        read_round(t, round);
        for (int64_t i = 0; i < o->per_round; i++) {
            f->rounds[f->drawn[i]]++;
        }
    }
}

void federated_close(trainer *t)
{
    free(t->fed.drawn);
    free(t->fed.rounds);
    free(t->fed.sum);
    free(t->fed.start);
}

void federated_context(trainer *t)
{
    if (t->fed.drawn != NULL) {
        ls_step_begin((ls_step_context){.step = t->fed.batches++, .sample_offset = t->fed.offset});
    }
}

/* ---- training one ---------------------------------------------------------------------------- */

typedef enum copying { TAKE, GIVE, ADD, MEAN } copying;

/* Of a parameter, wherever it lies. `start` becomes the mean that is given. */
static void copy_value(ls_tensor *value, copying how, double weight, float *start, double *sum)
{
    LS_NO_GRAD;
    LS_SCOPE;
    const int64_t n = ls_numel(value);
    ls_tensor *here = ls_to(value, "cpu");
    must(ls_tensor_status(here));
    const float *now = ls_data(here);
    for (int64_t k = 0; k < n; k++) {
        start[k] = how == TAKE ? now[k] : how == MEAN ? (float)(sum[k] / weight) : start[k];
        sum[k] = how == TAKE ? 0.0 : how == ADD ? sum[k] + weight * (double)now[k] : sum[k];
    }
    if (how == GIVE || how == MEAN) {
        must(ls_copy_in(value, start, (size_t)n * sizeof *start));
    }
}

/* Walks the parameters: takes or gives the round's start, adds to the sum with a weight, or gives
 * the mean by it. */
static void copy_values(trainer *t, copying how, double weight)
{
    const int count = ls_module_param_count(trainer_net(t));
    ls_param *params = calloc((size_t)count + 1, sizeof *params);
    if (params == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    (void)ls_module_params(trainer_net(t), params, count);
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        copy_value(params[i].value, how, weight, t->fed.start + at, t->fed.sum + at);
        at += (size_t)ls_numel(params[i].value);
    }
    free(params);
}

static ls_status zero_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    size_t bytes = ls_dtype_size(tensor->dtype);
    (void)self, (void)name;
    for (int i = 0; i < tensor->ndim; i++) {
        bytes *= (size_t)tensor->local[i];
    }
    memset(tensor->data, 0, bytes);
    return LS_OK;
}

static ls_status zero_int64(void *self, const char *name, int64_t *value)
{
    (void)self, (void)name;
    *value = 0;
    return LS_OK;
}

static ls_status keep_float64(void *self, const char *name, double *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

/* Zeros are the first state of every optimizer. */
static void renew_optimizer(const trainer *t)
{
    const ls_state_visitor visitor = {.size = sizeof visitor,
                                      .tensor = zero_tensor,
                                      .int64 = zero_int64,
                                      .float64 = keep_float64};
    must(ls_optim_state(t->optim, "", &visitor));
}

/* The client's next batches follow those of its earlier rounds. Returns the sum of its losses. */
static double train_client(trainer *t, int64_t client, int64_t from, int64_t to, double *norm)
{
    const trainer_options *o = t->set;
    double loss = 0.0;
    piece data = piece_of(t, client);
    ls_loader *all = t->loader;
    ls_sampler *sampler = NULL;
    must(LS_STATUS_OF(sampler = ls_sampler_new(
                          data.base.count, LS_OPTIONS(ls_sampler_options, .batch = o->batch,
                                                      .rank = 0, .world_size = 1, .drop_last = true,
                                                      .seed = (uint64_t)(o->seed + client)))));
    must(LS_STATUS_OF(t->loader = ls_loader_new(&data.base, sampler, NULL)));
    const int64_t at = t->fed.rounds[client] * o->local_steps * t->micro,
                  epoch = ls_sampler_steps(sampler);
    must(ls_loader_seek(t->loader, at / epoch, at % epoch));
    t->fed.batches = (uint64_t)(from * t->micro);
    t->fed.offset = client * o->batch;
    renew_optimizer(t);
    for (int64_t step = from; step < to; step++) {
        loss += trainer_step(t, step, norm);
    }
    ls_loader_free(t->loader);
    ls_sampler_free(sampler);
    t->loader = all;
    return loss;
}

/* ---- a round --------------------------------------------------------------------------------- */

/* This rank's clients, one after the other; *mine becomes the number of their samples. Returns the
 * sum of the mean losses of all steps, each weighted by its client's samples. */
static double train_clients(trainer *t, int64_t from, int64_t to, double *mine, double *norm)
{
    double loss = 0.0;
    *mine = 0.0;
    copy_values(t, TAKE, 0.0);
    for (int64_t i = 0; i < t->set->per_round; i++) {
        const int64_t client = t->fed.drawn[i];
        if (client % ls_world_size() == ls_rank()) {
            const double weight = (double)samples_of(t, client);
            copy_values(t, GIVE, 0.0);
            loss += weight * train_client(t, client, from, to, norm);
            copy_values(t, ADD, weight);
            *mine += weight;
        }
        t->fed.rounds[client]++;
    }
    if (*mine > 0.0) {
        copy_values(t, MEAN, *mine);
    }
    return loss;
}

static double samples_of_round(const trainer *t)
{
    double samples = 0.0;
    for (int64_t i = 0; i < t->set->per_round; i++) {
        samples += (double)samples_of(t, t->fed.drawn[i]);
    }
    return samples;
}

bool federated_round(trainer *t)
{
    const int64_t from = t->report.done, steps = t->set->local_steps,
                  to = from + steps < t->set->steps ? from + steps : t->set->steps;
    double mine = 0.0, norm = -1.0;
    bool stop = false;
    const double begun = ls_time();
    read_round(t, from / steps);
    const double loss = train_clients(t, from, to, &mine, &norm);
    const double averaging = local_average(t, to, mine);
    ls_step_begin((ls_step_context){.step = (uint64_t)(to * t->micro)}); /* on all ranks */
    LS_CHECK(ls_stop_agree(ls_world(), &stop));
    const double n = (double)(to - from), weight = (double)ls_world_size() / samples_of_round(t);
    trainer_note(t, to, to - from,
                 &(measure){loss * weight / n, (ls_time() - begun) / n, averaging / n}, norm,
                 &stop);
    return stop;
}
