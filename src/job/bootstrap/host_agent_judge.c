/* The verdict, as the launcher's agent gives it (src/launch/report.c), but by what can be seen from
 * beside: that a process has ended, and what it had noted on the board. Then leaving.
 */
#include <stdio.h>

#include "job/bootstrap/host_agent_internal.h"

#define SETTLE_MS 50
#define SETTLE_NODES_MS 200
#define LEAVE_MS 2000 /* after a failure, for the others to hear of it */
#define FAILED_CODE 1

/* ---- the verdict --------------------------------------------------------------------------- */

static ls__life life_of(const ls__host_agent *s, int l)
{
    return (ls__life)atomic_load_explicit(&s->board->rank[l].life, memory_order_acquire);
}

static ls__found_kind kind_of(const ls__board_rank *place)
{
    ls_status status = -(int)atomic_load_explicit(&place->failed, memory_order_acquire);
    bool waited = status == LS_ERR_PEER || status == LS_ERR_TIMEOUT || status == LS_ERR_ABORTED;
    return status == LS_OK ? LS__FOUND_SIGNAL : waited ? LS__FOUND_WAITED : LS__FOUND_MISMATCH;
}

/* How it ended its launcher knows, who is its parent; here it is only known that it has. */
static void describe(const ls__host_agent *s, int l, ls__found_kind kind, ls__finding *out)
{
    const ls__board_rank *place = &s->board->rank[l];
    char name[128], doing[640];
    *out = (ls__finding){.kind = kind, .culprit = place->world_rank, .job_code = FAILED_CODE};
    out->pid = s->member[l].pid;
    out->status = -(int)atomic_load_explicit(&place->failed, memory_order_acquire);
    ls__board_name(s->board, l, name, sizeof name);
    if (kind == LS__FOUND_SIGNAL) {
        ls__board_doing(s->board, s->env, l, doing, sizeof doing);
        snprintf(out->text, sizeof out->text,
                 "%s ended without ls_finalize while %s; its launcher (%s) knows how", name, doing,
                 s->found.launcher);
    } else {
        snprintf(out->text, sizeof out->text, "%s failed: %.800s", name, place->failed_text);
    }
}

static bool look_here(const ls__host_agent *s, ls__finding *out)
{
    int worst = -1;
    ls__found_kind best = LS__FOUND_NONE;
    for (int l = 0; l < s->found.local_size; l++) {
        ls__found_kind kind = kind_of(&s->board->rank[l]);
        if (s->member[l].ended && life_of(s, l) != LS__LIFE_LEFT && kind < best) {
            best = kind;
            worst = l;
        }
    }
    if (worst >= 0) {
        describe(s, worst, best, out);
    }
    return worst >= 0;
}

static void give(ls__host_agent *s, const ls__finding *f)
{
    s->given = true;
    s->settle_ns = LS__NEVER;
    (void)ls__board_give(s->board, s->env,
                         &(ls__verdict){.culprit = f->culprit,
                                        .pid = f->pid,
                                        .signal = f->signal,
                                        .code = f->code,
                                        .text = f->text});
    ls__store_server_fail(s->store, f->text);
    if (s->nodes != NULL) {
        ls__nodes_give(s->nodes, f);
        ls__nodes_flush(s->nodes);
    }
}

static bool settled(ls__host_agent *s, ls__found_kind kind)
{
    if (kind <= LS__FOUND_SIGNAL) {
        return true;
    }
    if (s->settle_ns == LS__NEVER) {
        s->settle_ns = ls__deadline_after(s->env, s->nodes != NULL ? SETTLE_NODES_MS : SETTLE_MS);
    }
    return s->env->now_ns(s->env) >= s->settle_ns;
}

static void look_and_give(ls__host_agent *s)
{
    ls__finding here;
    if (s->given) {
        return;
    }
    const bool first = s->nodes == NULL || s->world.node == 0;
    const ls__finding *verdict = first ? NULL : ls__nodes_verdict(s->nodes);
    const ls__finding *there = s->nodes != NULL ? ls__nodes_found(s->nodes) : NULL;
    if (verdict != NULL) {
        give(s, verdict);
        return;
    }
    bool found = look_here(s, &here);
    if (there != NULL && (!found || there->kind < here.kind)) {
        here = *there;
        found = true;
    }
    if (!found) {
        return;
    }
    if (!first && there == NULL) {
        if (here.kind < s->reported) {
            s->reported = here.kind;
            ls__nodes_find(s->nodes, &here);
            ls__nodes_flush(s->nodes);
        }
    } else if (settled(s, here.kind)) {
        give(s, &here);
    }
}

/* Only after the verdict, which says what it was doing before. */
static void mark_dead(ls__host_agent *s)
{
    for (int l = 0; l < s->found.local_size; l++) {
        ls__life life = life_of(s, l);
        if (s->member[l].ended && life != LS__LIFE_LEFT && life != LS__LIFE_DEAD && s->given) {
            atomic_store_explicit(&s->board->rank[l].life, LS__LIFE_DEAD, memory_order_release);
            for (int peer = 0; peer < s->board->ranks; peer++) {
                ls__board_ring(s->board, s->env, peer);
            }
        }
    }
}

void ls__host_agent_judge(ls__host_agent *s)
{
    look_and_give(s);
    mark_dead(s);
}

/* ---- leaving ------------------------------------------------------------------------------- */

static bool all_left(const ls__host_agent *s)
{
    for (int l = 0; l < s->found.local_size; l++) {
        if (life_of(s, l) != LS__LIFE_LEFT && !s->member[l].ended) {
            return false;
        }
    }
    return true;
}

static bool hosts_left(ls__host_agent *s)
{
    const char *tail = "";
    const ls__nodes_end end = {.again = false};
    if (s->nodes == NULL) {
        return true;
    }
    if (s->world.node == 0) {
        if (!ls__nodes_all_done(s->nodes, &tail)) {
            return false;
        }
        ls__nodes_finish(s->nodes, &end);
    } else if (!s->done) {
        s->done = true;
        ls__nodes_done(s->nodes, "");
    }
    ls__nodes_flush(s->nodes);
    return ls__nodes_state_of(s->nodes) != LS__NODES_RUNNING || ls__nodes_found(s->nodes) != NULL;
}

void ls__host_agent_look_for_the_end(ls__host_agent *s)
{
    const bool leaving = atomic_load_explicit(&s->leaving, memory_order_acquire) != 0;
    if (leaving && s->given && s->leave_ns == LS__NEVER) {
        s->leave_ns = ls__deadline_after(s->env, LEAVE_MS);
    }
    if ((all_left(s) && hosts_left(s) && leaving) || s->env->now_ns(s->env) >= s->leave_ns) {
        s->phase = LS__HOST_AGENT_OVER;
    }
}
