/* SPDX-License-Identifier: Apache-2.0 */
/* Replaying a log of averages: the workers of a round train one after the other from the same
 * start, each with its own optimizer state, and their parameters are added in the order of the
 * ranks, as the collective adds them. */
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "ddp/wrapper.h"
#include "kernel/reduce/reduce.h"
#include "tensor/tensor.h"

/* Bytes that a state function has shown, in its order. */
typedef struct blob {
    char *data;
    size_t bytes, room, at; /* at: of a walk that puts them back */
} blob;

typedef struct replay {
    ls__ddp *d;
    ls_optim *optim;
    ls_average_replay_options set;
    ls__replay_log log;
    int workers;
    size_t elements_bytes; /* of all parameters of a worker */
    char **values;         /* [workers] the parameters that each has reached, one after the other */
    blob *states;          /* [workers] of their optimizers */
    blob start, first; /* the module at the start of the round, and as its first worker left it */
    bool begun;        /* a worker with a weight was trained in the round */
    double *weights;   /* [workers] */
    const void **sources; /* [workers] of one parameter */
} replay;

static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "ls_average_replay: no memory");
}

/* ---- snapshots ------------------------------------------------------------------------------- */

static ls_status put_bytes(blob *b, const void *data, size_t bytes)
{
    if (b->bytes + bytes > b->room) {
        const size_t room = 2 * (b->bytes + bytes);
        char *data_now = realloc(b->data, room);
        if (data_now == NULL) {
            return no_memory();
        }
        b->data = data_now;
        b->room = room;
    }
    ls__elements_copy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
    return LS_OK;
}

static size_t tensor_bytes(const ls_state_tensor *tensor)
{
    size_t bytes = ls_dtype_size(tensor->dtype);
    for (int i = 0; i < tensor->ndim; i++) {
        bytes *= (size_t)tensor->local[i];
    }
    return bytes;
}

static ls_status take_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    (void)name;
    return put_bytes(self, tensor->data, tensor_bytes(tensor));
}

static ls_status take_int64(void *self, const char *name, int64_t *value)
{
    (void)name;
    return put_bytes(self, value, sizeof *value);
}

static ls_status take_float64(void *self, const char *name, double *value)
{
    (void)name;
    return put_bytes(self, value, sizeof *value);
}

/* The walk shows what it showed before. */
static void give(blob *b, void *to, size_t bytes)
{
    ls__elements_copy(to, b->data + b->at, bytes);
    b->at += bytes;
}

static ls_status give_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    (void)name;
    give(self, tensor->data, tensor_bytes(tensor));
    return LS_OK;
}

static ls_status give_int64(void *self, const char *name, int64_t *value)
{
    (void)name;
    give(self, value, sizeof *value);
    return LS_OK;
}

static ls_status give_float64(void *self, const char *name, double *value)
{
    (void)name;
    give(self, value, sizeof *value);
    return LS_OK;
}

static ls_state_visitor taking(blob *b)
{
    b->bytes = 0;
    return (ls_state_visitor){.size = sizeof(ls_state_visitor),
                              .self = b,
                              .tensor = take_tensor,
                              .int64 = take_int64,
                              .float64 = take_float64};
}

static ls_state_visitor giving(blob *b)
{
    b->at = 0;
    return (ls_state_visitor){.size = sizeof(ls_state_visitor),
                              .self = b,
                              .tensor = give_tensor,
                              .int64 = give_int64,
                              .float64 = give_float64};
}

static ls_status take_module(replay *r, blob *to)
{
    const ls_state_visitor visitor = taking(to);
    return ls_module_state(r->d->inner, "", &visitor);
}

static ls_status give_module(replay *r, blob *from)
{
    const ls_state_visitor visitor = giving(from);
    return ls_module_state(r->d->inner, "", &visitor);
}

/* Copies the parameters to or from memory in which they follow each other. */
static ls_status copy_values(replay *r, char *memory, bool back)
{
    for (int i = 0; i < r->d->param_count; i++) {
        ls__host_view view;
        LS_TRY(ls__host_view_of(r->d->params[i].value, &view));
        ls__elements_copy(back ? view.data : memory, back ? memory : view.data, view.bytes);
        memory += view.bytes;
        ls__host_view_close(&view, back);
        ls__tensor_changed(r->d->params[i].value);
    }
    return LS_OK;
}

/* ---- a round --------------------------------------------------------------------------------- */

static ls_status train(replay *r, const ls__replay_event *e)
{
    blob *state = &r->states[e->worker];
    const ls_state_visitor before = giving(state);
    LS_TRY(give_module(r, &r->start));
    LS_TRY(ls_optim_state(r->optim, "", &before));
    const ls__user_call user = ls__user_call_begin();
    const ls_status status = r->set.train(r->set.arg, &r->d->base, r->optim, e->worker, e->step);
    LS_TRY(ls__user_call_check(&user, status, "training worker %d to step %lld", e->worker,
                               (long long)e->step));
    const ls_state_visitor after = taking(state);
    LS_TRY(ls_optim_state(r->optim, "", &after));
    LS_TRY(copy_values(r, r->values[e->worker], false));
    r->weights[e->worker] = e->weight;
    const bool gives = e->worker == 0 || (e->weight > 0.0 && !r->begun);
    r->begun = r->begun || e->weight > 0.0;
    return gives ? take_module(r, &r->first) : LS_OK;
}

/* As ls_ddp_average: weights are applied and rounded before the sum, unless they are 1. */
static void average_param(replay *r, size_t at, int64_t count, ls_dtype dtype, double sum)
{
    void *to = r->values[0] + at;
    for (int w = 0; w < r->workers; w++) {
        char *value = r->values[w] + at;
        if (r->weights[w] != 1.0) {
            ls__scale(value, value, count, dtype, r->weights[w]);
        }
        r->sources[w] = value;
    }
    ls__reduce(&(ls__reduce_args){.dst = &to,
                                  .dst_count = 1,
                                  .src = r->sources,
                                  .src_count = r->workers,
                                  .count = count,
                                  .dtype = dtype,
                                  .op = LS_SUM,
                                  .averages = true,
                                  .divisor = sum});
}

static double sum_of_weights(replay *r)
{
    double sum = 0.0;
    void *to = &sum;
    for (int w = 0; w < r->workers; w++) {
        r->sources[w] = &r->weights[w];
    }
    ls__reduce(&(ls__reduce_args){.dst = &to,
                                  .dst_count = 1,
                                  .src = r->sources,
                                  .src_count = r->workers,
                                  .count = 1,
                                  .dtype = LS_FLOAT64,
                                  .op = LS_SUM});
    return sum;
}

/* Buffers are those of the first worker with a weight. */
static ls_status average(replay *r)
{
    r->begun = false;
    LS__OPTIONS(ls_outer_options, outer, r->set.outer); /* as they are now */
    if (r->set.outer != NULL && !r->d->outer.noted) {   /* of equal parameters: none */
        return ls__outer_step(r->d, &outer);
    }
    const double sum = sum_of_weights(r);
    size_t at = 0;
    for (int i = 0; i < r->d->param_count; i++) {
        const ls_tensor *value = r->d->params[i].value;
        const ls_dtype dtype = ls_dtype_of(value);
        average_param(r, at, ls_numel(value), dtype, sum);
        at += (size_t)ls_numel(value) * ls_dtype_size(dtype);
    }
    LS_TRY(give_module(r, &r->first));
    LS_TRY(copy_values(r, r->values[0], true));
    LS_TRY(r->set.outer != NULL ? ls__outer_step(r->d, &outer) : LS_OK);
    return take_module(r, &r->start);
}

static ls_status compare(const replay *r, const ls__replay_event *e)
{
    const uint64_t hash = ls_module_hash(r->d->inner);
    if (hash == e->hash) {
        return LS_OK;
    }
    return ls__fail(LS_ERR_MISMATCH,
                    "ls_average_replay: %s, line %lld: average %lld has hash %016llx there, and "
                    "%016llx here; the run had other data, settings or code, or the log was "
                    "changed",
                    r->set.log, (long long)e->line, (long long)e->made, (unsigned long long)e->hash,
                    (unsigned long long)hash);
}

/* ---- the log --------------------------------------------------------------------------------- */

/* Every average has a line of each worker, in their order; the last has the hash. */
static ls_status check_event(const replay *r, int64_t index)
{
    const ls__replay_event *e = &r->log.events[index];
    const int64_t round = index / r->workers;
    const int worker = (int)(index % r->workers);
    if (e->kind == LS__REPLAY_AVERAGE && e->worker == worker && e->round == round &&
        e->made == round + 1 && e->hashed == (worker == r->workers - 1)) {
        return LS_OK;
    }
    return ls__fail(
        LS_ERR_MISMATCH,
        "ls_average_replay: %s, line %lld: worker %d of round %lld comes next, and made "
        "%lld; the log was changed, or lines are missing",
        r->set.log, (long long)e->line, worker, (long long)round, (long long)(round + 1));
}

static ls_status run(replay *r)
{
    for (int64_t i = 0; i < r->log.count; i++) {
        const ls__replay_event *e = &r->log.events[i];
        LS_TRY(check_event(r, i));
        LS_TRY(train(r, e));
        if (e->hashed) {
            LS_TRY(average(r));
            LS_TRY(compare(r, e));
            *r->set.versions += 1;
        }
    }
    return LS_OK;
}

/* Those of the first average. */
static int count_workers(const ls__replay_log *log)
{
    int count = 0;
    while (count < log->count && !log->events[count].hashed) {
        count++;
    }
    return count + 1;
}

static ls_status allocate(replay *r)
{
    const size_t workers = (size_t)r->workers;
    r->values = calloc(workers, sizeof *r->values);
    r->states = calloc(workers, sizeof *r->states);
    r->weights = calloc(workers, sizeof *r->weights);
    r->sources = calloc(workers, sizeof *r->sources);
    if (r->values == NULL || r->states == NULL || r->weights == NULL || r->sources == NULL) {
        return no_memory();
    }
    for (int i = 0; i < r->d->param_count; i++) {
        const ls_tensor *value = r->d->params[i].value;
        r->elements_bytes += (size_t)ls_numel(value) * ls_dtype_size(ls_dtype_of(value));
    }
    LS_TRY(take_module(r, &r->start));
    for (int w = 0; w < r->workers; w++) {
        const ls_state_visitor visitor = taking(&r->states[w]);
        LS_TRY(ls_optim_state(r->optim, "", &visitor));
        r->values[w] = malloc(r->elements_bytes + 1);
        LS_TRY(r->values[w] != NULL ? LS_OK : no_memory());
    }
    return LS_OK;
}

static void release(replay *r)
{
    for (int w = 0; r->values != NULL && r->states != NULL && w < r->workers; w++) {
        free(r->values[w]);
        free(r->states[w].data);
    }
    free(r->start.data);
    free(r->first.data);
    free(r->values);
    free(r->states);
    free(r->weights);
    free((void *)(uintptr_t)r->sources);
    ls__replay_release(&r->log);
}

static ls_status read_and_run(replay *r)
{
    *r->set.versions = 0;
    LS_TRY(ls__replay_read(r->d->env, r->set.log, &r->log));
    r->workers = count_workers(&r->log);
    LS_TRY(allocate(r));
    return run(r);
}

static ls_status check(const ls__ddp *d, const ls_optim *optim,
                       const ls_average_replay_options *options)
{
    if (d == NULL || optim == NULL || options->log == NULL || options->train == NULL ||
        ls_group_size(d->group) > 1 || !d->local) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_average_replay: give a wrapper of ls_ddp_new on one rank after "
                        "ls_ddp_set_local(ddp, true), its optimizer, a log, and a function that "
                        "trains");
    }
    LS__OPTIONS(ls_outer_options, outer, options->outer);
    return ls__outer_check(&outer);
}

ls_status ls_average_replay(ls_module *ddp, ls_optim *optim,
                            const ls_average_replay_options *options)
{
    LS__OPTIONS(ls_average_replay_options, given, options);
    int64_t versions = 0;
    replay r = {.d = ls__ddp_of(ddp), .optim = optim, .set = given};
    r.set.versions = given.versions != NULL ? given.versions : &versions;
    ls_status status = check(r.d, optim, &r.set);
    if (status < 0) {
        return ls__fail_at_site(status);
    }
    status = read_and_run(&r);
    if (status == LS_OK && given.ended != NULL) {
        *given.ended = r.log.ended;
    }
    release(&r);
    return status; /* the last line noted is that of a call within `train` */
}
