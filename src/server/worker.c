/* SPDX-License-Identifier: Apache-2.0 */
/* A worker: pulls before a forward pass, pushes in backward.
 *
 *     backward   head ────▶ body ────▶ embed ──▶
 *     push       begin  bucket 0 ──▶ bucket 1 ──▶ bucket 2 ──▶ end     each when it is full
 *
 * The last head says what is known at the end only: which gradients there are, and their weight. A
 * version is made of whole pushes, so a backward that fails in between leaves none.
 *
 * A pull arrives beside the parameters and is copied when all servers have sent all of it, so a
 * failure leaves the version before. All ranks have the version with which a period begins, so a
 * push may come before the first pull. */
#include <stdio.h>
#include <string.h>

#include "autograd/param.h"
#include "base/assert.h"
#include "base/nonfinite.h"
#include "base/options.h"
#include "kernel/reduce/reduce.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "server/server.h"
#include "tensor/tensor.h"

/* ---- messages ------------------------------------------------------------------------------- */

static ls_work **next_work(ls__server *s)
{
    LS_ASSERT(s->pending_count < s->pending_max);
    return &s->pending[s->pending_count++];
}

/* Keeps no handle of a call that failed. */
static ls_status keep_started(ls__server *s, ls_status status)
{
    s->pending_count -= status < 0 ? 1 : 0;
    return status;
}

static ls_status send_to(ls__server *s, int shard, const void *from, size_t bytes, int tag,
                         const char *what)
{
    return keep_started(s,
                        ls_send(s->group, from, (int64_t)bytes, LS_UINT8, ls__server_rank(s, shard),
                                tag, LS_OPTIONS(ls_collective_options, .tag = what), next_work(s)));
}

static ls_status receive_from(ls__server *s, int shard, void *to, size_t bytes, int tag,
                              const char *what)
{
    return keep_started(s,
                        ls_recv(s->group, to, (int64_t)bytes, LS_UINT8, ls__server_rank(s, shard),
                                tag, LS_OPTIONS(ls_collective_options, .tag = what), next_work(s)));
}

ls_status ls__server_wait(ls__server *s)
{
    ls_status first = LS_OK;
    for (int i = 0; i < s->pending_count; i++) {
        const ls_status status = ls_work_wait(s->pending[i]);
        first = first < 0 ? first : status;
    }
    s->pending_count = 0;
    return first;
}

ls_status ls__server_give_up(ls__server *s, ls_status status)
{
    char message[LS__MESSAGE_MAX];
    memcpy(message, ls_error_message(), sizeof message);
    (void)ls_group_abort(s->group, message);
    (void)ls__server_wait(s);
    return ls__fail_again(status, message);
}

static ls__server_head *head_of(const ls__server *s, int shard)
{
    return (ls__server_head *)(void *)(s->heads + (size_t)shard * s->head_bytes);
}

static const char *name_of(int32_t kind)
{
    return kind == LS__SERVER_PULL ? "pull" : kind == LS__SERVER_JOIN ? "join" : "push";
}

/* A push has two heads, and the first may still be on its way when the last is written. */
static ls__server_head *head_for(const ls__server *s, int32_t kind, int shard)
{
    return head_of(s, kind == LS__SERVER_PUSH ? s->set.servers + shard : shard);
}

ls_status ls__server_ask(ls__server *s, const ls__server_head *head)
{
    for (int shard = 0; shard < s->set.servers; shard++) {
        ls__server_head *own = head_for(s, head->kind, shard);
        *own = *head;
        own->read = s->read[shard];
        LS_TRY(send_to(s, shard, own, s->head_bytes, LS__SERVER_TAG_REQUEST, name_of(head->kind)));
    }
    return LS_OK;
}

/* ---- pulling -------------------------------------------------------------------------------- */

static ls_status receive_version(ls__server *s, int shard, ls__server_version *version)
{
    const ls__server_layout *l = &s->layout;
    LS_TRY(receive_from(s, shard, version, sizeof *version, LS__SERVER_TAG_VERSION, "version"));
    for (int b = 0; b < l->buckets; b++) {
        const ls__server_slice *slice = ls__server_slice_of(l, shard, b);
        LS_TRY(receive_from(s, shard, s->staging + ls__server_slice_at(l, slice), slice->bytes,
                            LS__SERVER_TAG_PARAMETERS, "parameters"));
    }
    return shard == 0 && s->buffers_bytes > 0
               ? receive_from(s, 0, s->d->buffers.flat, s->buffers_bytes, LS__SERVER_TAG_PARAMETERS,
                              "buffers")
               : LS_OK;
}

ls_status ls__server_take(ls__server *s)
{
    LS_TRY(ls__server_copy_in(&s->layout, s->d, s->staging));
    return s->buffers_bytes > 0 ? ls__buffers_take_back(&s->d->buffers) : LS_OK;
}

/* The answers lie where the requests did. */
static ls_status pull_parameters(ls__server *s)
{
    uint32_t stop = 0;
    LS_TRY(ls__server_ask(s, &(ls__server_head){.kind = LS__SERVER_PULL}));
    LS_TRY(ls__server_wait(s));
    for (int shard = 0; shard < s->set.servers; shard++) {
        LS_TRY(receive_version(s, shard, (ls__server_version *)(void *)head_of(s, shard)));
    }
    LS_TRY(ls__server_wait(s));
    for (int shard = 0; shard < s->set.servers; shard++) {
        const ls__server_version *version = (const void *)head_of(s, shard);
        s->read[shard] = version->version;
        stop = version->stop > stop ? version->stop : stop;
    }
    if (stop != 0) { /* never withdrawn */
        atomic_store_explicit(&s->d->runtime->stop_agreed, stop, memory_order_relaxed);
    }
    return ls__server_take(s);
}

static ls_status fail_outside(const char *what)
{
    return ls__fail(LS_ERR_STATE,
                    "%s: no server runs: call ls_server_run before the first step, "
                    "and again after ls_server_join",
                    what);
}

static ls_status on_pull(ls__ddp *d)
{
    ls__server *s = d->server;
    if (!s->running) {
        return fail_outside("ls_forward");
    }
    if (!s->works) {
        return ls__fail(LS_ERR_STATE,
                        "ls_forward: rank %d is a server and has no data; train where "
                        "ls_server_works is true",
                        s->rank);
    }
    if (s->fresh) {
        return LS_OK;
    }
    const uint64_t begun = s->env->now_ns(s->env);
    const ls_status status = pull_parameters(s);
    if (status < 0) {
        return ls__server_give_up(s, status);
    }
    s->pulling_ns = s->env->now_ns(s->env) - begun;
    s->fresh = s->may_push = true;
    return LS_OK;
}

/* ---- pushing -------------------------------------------------------------------------------- */

/* Checked here: the sum of a version does not tell whose gradient it was. */
static ls_status check_finite(const ls__server *s, int i)
{
    const ls__ddp *d = s->d;
    const ls_tensor *value = d->params[i].value;
    const int64_t count = ls_numel(value);
    const int64_t at =
        ls__nonfinite_find(ls__reducer_grad(d->reducer, i), ls_dtype_of(value), 0, count);
    return at < 0
               ? LS_OK
               : ls__fail(LS_ERR_INVALID,
                          "server: the gradient of %.200s is not finite on rank %d (element %lld "
                          "of %lld) in step %lld, and was not pushed; look for a division by "
                          "zero or a logarithm of 0, or lower the learning rate: without a "
                          "common step it must be lower than with one",
                          d->params[i].name, s->rank, (long long)at, (long long)count,
                          (long long)s->step);
}

/* Gradients that are absent are sent as zeros. */
static ls_status finish_bucket(const ls__server *s, int bucket)
{
    const ls__ddp *d = s->d;
    for (int i = 0; i < d->param_count; i++) {
        const bool in = ls__reducer_bucket_of(d->reducer, i) == bucket;
        LS_TRY(in && *ls__reducer_present(d->reducer, i) ? check_finite(s, i) : LS_OK);
    }
    ls__server_zero_absent(d, bucket);
    return LS_OK;
}

static ls_status send_bucket(ls__server *s, int bucket)
{
    LS_TRY(finish_bucket(s, bucket));
    for (int shard = 0; shard < s->set.servers; shard++) {
        const ls__server_slice *slice = ls__server_slice_of(&s->layout, shard, bucket);
        LS_TRY(send_to(s, shard, ls__server_grads(s->d, slice->region) + slice->from, slice->bytes,
                       LS__SERVER_TAG_GRADIENT, "gradient"));
    }
    return LS_OK;
}

/* In their order, in which servers receive them. */
static ls_status send_full_buckets(ls__server *s)
{
    while (s->sent < s->layout.buckets && s->missing[s->sent] == 0) {
        s->sending_ns = s->sent == 0 ? s->env->now_ns(s->env) : s->sending_ns;
        LS_TRY(send_bucket(s, s->sent));
        s->sent++;
    }
    return LS_OK;
}

static void count_missing(ls__server *s, const uint8_t *used)
{
    memset(s->missing, 0, (size_t)s->layout.buckets * sizeof *s->missing);
    for (int i = 0; i < s->d->param_count; i++) {
        s->missing[ls__reducer_bucket_of(s->d->reducer, i)] += used == NULL || used[i];
    }
}

/* on_push refuses a backward that may not push. */
static ls_status on_begin(ls__ddp *d, const uint8_t *used)
{
    ls__server *s = d->server;
    s->pushing = s->running && s->may_push;
    if (!s->pushing) {
        return LS_OK;
    }
    s->sent = 0;
    count_missing(s, used);
    ls_status status = ls__server_ask(s, &(ls__server_head){.kind = LS__SERVER_PUSH});
    status = status < 0 ? status : send_full_buckets(s);
    return status < 0 ? ls__server_give_up(s, status) : LS_OK; /* no abort follows */
}

static ls_status on_ready(ls__ddp *d, int index)
{
    ls__server *s = d->server;
    if (!s->pushing) {
        return LS_OK;
    }
    int *missing = &s->missing[ls__reducer_bucket_of(d->reducer, index)];
    LS_ASSERT(*missing > 0);
    --*missing;
    return send_full_buckets(s);
}

/* Sends the rest of a push and waits for all of it. */
static ls_status finish_push(ls__server *s)
{
    const ls__ddp *d = s->d;
    const double weight = ls__reducer_weights(d->reducer);
    LS_ASSERT(s->sent == s->layout.buckets); /* every gradient is final */
    if (s->buffers_bytes > 0) {
        LS_TRY(ls__buffers_note(&s->d->buffers));
        LS_TRY(send_to(s, 0, s->d->buffers.flat, s->buffers_bytes, LS__SERVER_TAG_GRADIENT,
                       "buffers"));
    }
    for (int shard = 0; shard < s->set.servers; shard++) {
        ls__server_mark(d, head_of(s, shard));
    }
    LS_TRY(ls__server_ask(s, &(ls__server_head){.kind = LS__SERVER_PUSHED,
                                                .weighted = d->weighted,
                                                .weight = d->weighted ? weight : 1.0,
                                                .stop = ls__stop_wanted(d->runtime),
                                                .step = s->step,
                                                .lr = ls_optim_lr(s->optim)}));
    return ls__server_wait(s);
}

/* The gradients were sent: the next backward begins without any. */
static ls_status forget_push(ls__ddp *d)
{
    for (int i = 0; i < d->param_count; i++) {
        LS_TRY(ls__param_set_grad_present(d->params[i].value, false));
    }
    return LS_OK;
}

/* Counts the wait for a pull, and the part of a push that backward has not hidden. */
static void count_waits(ls__server *s, uint64_t ended_ns)
{
    ls__ddp *d = s->d;
    const uint64_t now = s->env->now_ns(s->env);
    const double pulling = (double)s->pulling_ns * 1e-9;
    ls__step_ended(&d->stats, s->env,
                   &(ls__backward_waits){.wire = pulling + (double)(now - s->sending_ns) * 1e-9,
                                         .exposed = pulling + (double)(now - ended_ns) * 1e-9});
    s->pulling_ns = 0;
}

static ls_status check_push(const ls__server *s)
{
    if (!s->running) {
        return fail_outside("ls_backward");
    }
    if (!s->may_push) {
        return ls__fail(LS_ERR_STATE,
                        "ls_backward: a push follows a push of the same version; call ls_forward "
                        "on what ls_server_new returned, or accumulate in LS_NO_SYNC");
    }
    return LS_OK;
}

static ls_status on_push(ls__ddp *d)
{
    ls__server *s = d->server;
    d->grads = GRADS_FAILED;
    LS_TRY(check_push(s));
    const uint64_t ended_ns = s->env->now_ns(s->env);
    const ls_status status = finish_push(s);
    if (status < 0) {
        return ls__server_give_up(s, status);
    }
    count_waits(s, ended_ns);
    s->step++;
    s->fresh = s->may_push = false;
    d->grads = GRADS_USABLE;
    return forget_push(d);
}

static void on_abort(ls__ddp *d, const char *message)
{
    ls__server *s = d->server;
    (void)ls_group_abort(s->group, message);
    (void)ls__server_wait(s); /* for the sends that it has begun */
}

const ls__ddp_remote ls__server_worker = {.pull = on_pull,
                                          .begin = on_begin,
                                          .ready = on_ready,
                                          .push = on_push,
                                          .abort = on_abort,
                                          .free = ls__server_free};

ls__server *ls__server_of(const ls_module *net)
{
    const bool wrapped = net != NULL && net->cls == &ls__ddp_class;
    const ls__ddp *d = wrapped ? (const ls__ddp *)net : NULL;
    return d != NULL && d->remote == &ls__server_worker ? d->server : NULL;
}
