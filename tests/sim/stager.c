/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of a pipeline between the operations of the script: each rank walks its list of a
 * schedule and posts what the executor does (src/parallel/pipeline/values.c), a head and elements
 * of each value, in a message of their own where the size is another one than in the call before,
 * and gradients from two buffers. Numbers stand for activations; every element that arrives is
 * compared. */
#include <stdio.h>
#include <string.h>

#include "schedule/schedule.h"
#include "sim/scenario.h"

#define MICROS_MAX 12
#define COUNT_MAX 400
#define OUTBOX 2
#define STAGES_MAX 2 /* of a rank */

enum { HEAD, ELEMENTS, OTHERS, GRADIENT, KINDS };

typedef struct head {
    int64_t count; /* of elements; 0: none yet */
    int64_t call;
} head;

typedef struct side { /* of a value: where it is made, or where it is taken */
    head now, before;
    ls_work *work[3];
    float element[COUNT_MAX];
    float grad[COUNT_MAX];
    ls_work *grad_work;
    bool posted;
} side;

typedef struct stage {
    int number;
    side made[MICROS_MAX], taken[MICROS_MAX];
    float outbox[OUTBOX][COUNT_MAX];
    ls_work *outbox_work[OUTBOX];
    int next;
} stage;

struct ls__staged {
    ls__schedule *schedule;
    stage stage[STAGES_MAX];
    int stages;
    double loss[MICROS_MAX];
};

/* ---- what is drawn, alike on all ranks ------------------------------------------------------ */

static ls__sim_random dice_of(const ls__stager *t, int64_t call, int of, int m)
{
    ls__sim_random r = {t->plan->seed * 0x2127599bf4325c37u + (uint64_t)(call + 1)};
    r.state = ls__sim_draw(&r) ^ (uint64_t)(of + 1) << 8 ^ (uint64_t)(m + 1);
    return r;
}

/* Of a value; in every fourth call another one than usual. */
static int64_t count_of(const ls__stager *t, int of, int m)
{
    ls__sim_random r = dice_of(t, t->calls, of, m), usual = dice_of(t, -1, of, m);
    return 1 + (int64_t)ls__sim_below(ls__sim_below(&r, 4) == 0 ? &r : &usual, COUNT_MAX);
}

static float element_of(const ls__stager *t, int of, int m, int64_t i)
{
    ls__sim_random r = dice_of(t, t->calls, of, m);
    return ls__oracle_float(ls__sim_draw(&r) & ~LS__ORACLE_WHOLE, of, i);
}

static ls_status draw_schedule(const ls__stager *t, ls__schedule **out)
{
    static const char *const names[] = {"gpipe", "1f1b", "zb-h1", "pipedream", "interleaved"};
    ls__sim_random r = dice_of(t, -2, 0, 0);
    ls__schedule_spec spec = {.ranks = t->plan->ranks};
    const int kind = (int)ls__sim_below(&r, 7);
    char replicas[64] = "";
    spec.micro_batches = 1 + (int)ls__sim_below(&r, MICROS_MAX);
    if (kind == 4) { /* interleaved */
        spec.micro_batches = t->plan->ranks <= MICROS_MAX ? t->plan->ranks : 0;
    }
    if (kind > 4 &&
        t->plan->ranks < MICROS_MAX) { /* the first stage has all ranks but one or two */
        const int behind = t->plan->ranks < 3 ? t->plan->ranks - 1 : 1 + (int)ls__sim_below(&r, 2);
        (void)snprintf(replicas, sizeof replicas, "%d%s", t->plan->ranks - behind,
                       behind == 0   ? ""
                       : behind == 1 ? ",1"
                                     : ",1,1");
        spec.replicas = replicas;
        spec.micro_batches = MICROS_MAX;
    }
    if (spec.micro_batches == 0) {
        spec.micro_batches = MICROS_MAX;
        return ls__schedule_new(&ls__sim_env, "zb-h1", &spec, out);
    }
    return ls__schedule_new(&ls__sim_env, kind > 4 ? names[kind - 5] : names[kind], &spec, out);
}

/* ---- waiting and comparing ------------------------------------------------------------------ */

static ls_status wait_for(const ls__stager *t, ls_work **work)
{
    ls_work *waiting = *work;
    const ls__wait_begin begun = ls__wait_begins();
    *work = NULL;
    const ls_status status = waiting != NULL ? ls_work_wait(waiting) : LS_OK;
    ls__wait_ends(t->outcome, begun, t->outcome->operation);
    return status;
}

static ls_status wait_for_all(const ls__stager *t, ls_work **work, int count)
{
    ls_status status = LS_OK;
    for (int i = 0; i < count; i++) {
        const ls_status ended = wait_for(t, &work[i]);
        status = status < 0 ? status : ended;
    }
    return status;
}

static void check(const ls__stager *t, const char *what, int of, int m, const float *x, float sign)
{
    const int64_t count = count_of(t, of, m);
    for (int64_t i = 0; i < count; i++) {
        if (x[i] != sign * element_of(t, of, m, i)) {
            ls__sim_stop("wrong bits: schedule %s, call %lld: element %lld of the %s of stage %d, "
                         "micro-batch %d, on rank %d",
                         t->staged->schedule->name, (long long)t->calls, (long long)i, what, of, m,
                         t->rank);
        }
    }
}

static void fill(const ls__stager *t, int of, int m, float sign, float *x)
{
    const int64_t count = count_of(t, of, m);
    for (int64_t i = 0; i < count; i++) {
        x[i] = sign * element_of(t, of, m, i);
    }
}

/* ---- messages ------------------------------------------------------------------------------- */

static int tag_of(int to, int m, int kind)
{
    return (to * MICROS_MAX + m) * KINDS + kind;
}

/* The receives of a value, elements for the size of the call before. */
static ls_status expect_value(ls__stager *t, const stage *s, int m, int peer, side *v)
{
    v->posted = true;
    v->before = v->now;
    LS_TRY(ls_recv(t->group, &v->now, (int64_t)sizeof v->now, LS_UINT8, peer,
                   tag_of(s->number, m, HEAD), NULL, &v->work[HEAD]));
    return v->before.count == 0
               ? LS_OK
               : ls_recv_up_to(t->group, v->element, v->before.count, LS_FLOAT32, peer,
                               tag_of(s->number, m, ELEMENTS), NULL, &v->work[ELEMENTS]);
}

static ls_status take_value(ls__stager *t, const stage *s, int m, side *v)
{
    const int peer = ls__schedule_rank(t->staged->schedule, s->number - 1, m);
    v->posted = false;
    LS_TRY(wait_for_all(t, v->work, 2));
    if (v->now.call != t->calls || v->now.count != count_of(t, s->number - 1, m)) {
        ls__sim_stop("stage %d of rank %d got the head of another value", s->number, t->rank);
    }
    if (v->now.count != v->before.count) {
        LS_TRY(ls_recv(t->group, v->element, v->now.count, LS_FLOAT32, peer,
                       tag_of(s->number, m, OTHERS), NULL, &v->work[OTHERS]));
        LS_TRY(wait_for(t, &v->work[OTHERS]));
    }
    check(t, "value", s->number - 1, m, v->element, 1);
    return LS_OK;
}

static ls_status send_value(ls__stager *t, const stage *s, int m, int peer, side *v)
{
    const int to = s->number + 1;
    v->before = v->now;
    v->now = (head){.count = count_of(t, s->number, m), .call = t->calls};
    const bool same = v->now.count == v->before.count;
    fill(t, s->number, m, 1, v->element);
    LS_TRY(ls_send(t->group, &v->now, (int64_t)sizeof v->now, LS_UINT8, peer, tag_of(to, m, HEAD),
                   NULL, &v->work[HEAD]));
    if (v->before.count > 0) {
        LS_TRY(ls_send(t->group, v->element, same ? v->now.count : 0, LS_FLOAT32, peer,
                       tag_of(to, m, ELEMENTS), NULL, &v->work[ELEMENTS]));
    }
    return same ? LS_OK
                : ls_send(t->group, v->element, v->now.count, LS_FLOAT32, peer,
                          tag_of(to, m, OTHERS), NULL, &v->work[OTHERS]);
}

static ls_status expect_grad(ls__stager *t, const stage *s, int m, int peer, side *v)
{
    return ls_recv(t->group, v->grad, v->now.count, LS_FLOAT32, peer,
                   tag_of(s->number + 1, m, GRADIENT), NULL, &v->grad_work);
}

static ls_status send_grad(ls__stager *t, stage *s, int m, int peer)
{
    const int place = s->next;
    s->next = (s->next + 1) % OUTBOX;
    LS_TRY(wait_for(t, &s->outbox_work[place]));
    fill(t, s->number - 1, m, -1, s->outbox[place]);
    return ls_send(t->group, s->outbox[place], count_of(t, s->number - 1, m), LS_FLOAT32, peer,
                   tag_of(s->number, m, GRADIENT), NULL, &s->outbox_work[place]);
}

/* ---- the list ------------------------------------------------------------------------------- */

static ls_status forward(ls__stager *t, const stage *s, int m, side *taken)
{
    LS_TRY(taken->posted ? take_value(t, s, m, taken) : LS_OK);
    if (s->number == t->staged->schedule->stages - 1) {
        t->staged->loss[m] = (double)element_of(t, s->number, m, 0);
    }
    return LS_OK;
}

/* The other rank has read the value whose gradient is here. */
static ls_status backward(ls__stager *t, const stage *s, int m, side *made)
{
    if (made->grad_work != NULL) {
        LS_TRY(wait_for(t, &made->grad_work));
        check(t, "gradient", s->number, m, made->grad, -1);
    }
    return wait_for_all(t, made->work, 3);
}

static ls_status act(ls__stager *t, const ls__action *a)
{
    stage *s = t->staged->stage;
    const int m = a->micro_batch;
    s += s->number != a->stage;
    switch ((ls__action_kind)a->kind) {
    case LS__RECV_ACTIVATION:
        return expect_value(t, s, m, a->peer, &s->taken[m]);
    case LS__FORWARD:
        return forward(t, s, m, &s->taken[m]);
    case LS__SEND_ACTIVATION:
        return send_value(t, s, m, a->peer, &s->made[m]);
    case LS__RECV_GRADIENT:
        return expect_grad(t, s, m, a->peer, &s->made[m]);
    case LS__BACKWARD:
    case LS__INPUT_PART:
        return backward(t, s, m, &s->made[m]);
    case LS__SEND_GRADIENT:
        return send_grad(t, s, m, a->peer);
    default:
        return LS_OK;
    }
}

static ls_status share_losses(ls__stager *t)
{
    const int count = t->staged->schedule->micro_batches;
    ls_work *work = NULL;
    LS_TRY(ls_all_reduce(t->group, t->staged->loss, t->staged->loss, count, LS_FLOAT64, LS_SUM,
                         NULL, &work));
    LS_TRY(wait_for(t, &work));
    for (int m = 0; m < count; m++) {
        if (t->staged->loss[m] != (double)element_of(t, t->staged->schedule->stages - 1, m, 0)) {
            ls__sim_stop("rank %d has another loss of micro-batch %d", t->rank, m);
        }
    }
    return LS_OK;
}

static ls_status walk(ls__stager *t)
{
    const ls__actions *list = &t->staged->schedule->rank[t->rank];
    memset(t->staged->loss, 0, sizeof t->staged->loss);
    for (int i = 0; i < list->count; i++) {
        LS_TRY(act(t, &list->list[i]));
    }
    for (int k = 0; k < t->staged->stages; k++) {
        LS_TRY(wait_for_all(t, t->staged->stage[k].outbox_work, OUTBOX));
    }
    return share_losses(t);
}

/* As the executor does: nobody waits for this rank any more, and its works have ended. */
static ls_status give_up(ls__stager *t, ls_status status)
{
    char message[LS__MESSAGE_MAX];
    (void)snprintf(message, sizeof message, "%s", ls_error_message());
    (void)ls_group_abort(t->group, message);
    for (int k = 0; k < t->staged->stages; k++) {
        stage *s = &t->staged->stage[k];
        for (int m = 0; m < MICROS_MAX; m++) {
            (void)wait_for_all(t, s->made[m].work, 3);
            (void)wait_for_all(t, s->taken[m].work, 3);
            (void)wait_for(t, &s->made[m].grad_work);
        }
        (void)wait_for_all(t, s->outbox_work, OUTBOX);
    }
    return ls__fail_again(status, message);
}

/* ---- for the player ------------------------------------------------------------------------- */

ls_status ls__stager_begin(ls__stager *t, ls__plan *plan, int rank, ls__rank_outcome *outcome)
{
    *t = (ls__stager){.plan = plan, .rank = rank, .outcome = outcome};
    LS_TRY(ls_group_new(ls_world(), NULL, 0, "stages", &t->group));
    t->staged = ls__sim_env.allocate(&ls__sim_env, sizeof *t->staged);
    if (t->staged == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for the program's stages");
    }
    memset(t->staged, 0, sizeof *t->staged);
    LS_TRY(draw_schedule(t, &t->staged->schedule));
    for (int s = 0; s < t->staged->schedule->stages; s++) {
        const int replica = ls__schedule_replica(t->staged->schedule, s, rank);
        if (replica >= 0 && replica < t->staged->schedule->replicas[s]) {
            t->staged->stage[t->staged->stages++].number = s;
        }
    }
    return LS_OK;
}

ls_status ls__stager_call(ls__stager *t)
{
    const ls_status status = walk(t);
    t->calls++;
    return status < 0 ? give_up(t, status) : LS_OK;
}

ls_status ls__stager_end(ls__stager *t)
{
    ls__schedule_free(t->staged->schedule);
    ls__sim_env.release(&ls__sim_env, t->staged, sizeof *t->staged);
    return ls_group_free(t->group);
}
