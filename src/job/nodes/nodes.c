/* What both sides share: life, texts, findings. */
#include "job/nodes/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

/* ---- life ---------------------------------------------------------------------------------- */

static void adopt(ls__nodes *n, const ls__nodes_spec *spec)
{
    n->env = spec->env;
    n->store = spec->store;
    n->first = spec->first;
    n->wanted = spec->nodes;
    n->node = spec->first ? 0 : spec->node;
    n->ranks = spec->ranks;
    n->given_world = spec->world_size;
    n->place = *spec->place;
    n->timeout_ms = spec->timeout_ms;
    n->deadline_ns = ls__deadline_after(n->env, spec->timeout_ms);
    for (int r = 0; r < spec->ranks && spec->world_rank != NULL; r++) {
        n->world_rank[r] = spec->world_rank[r];
    }
    snprintf(n->id, sizeof n->id, "%s", spec->id);
    snprintf(n->host, sizeof n->host, "%s", spec->host);
    snprintf(n->version, sizeof n->version, "%s", spec->version);
    snprintf(n->world.run_id, sizeof n->world.run_id, "%s", spec->run_id);
    n->world.attempt = spec->attempt;
    n->link_spec =
        (ls__link_spec){.env = n->env, .secret = n->secret, .mode = spec->mode, .purpose = "store"};
    n->has_secret = spec->secret != NULL;
    if (n->has_secret) {
        memcpy(n->secret, spec->secret, sizeof n->secret);
    }
    ls__list_init(&n->peers);
    n->poller = n->exchange_fd = -1;
}

/* Without a secret only processes of this user on this host can be distinguished from others. */
static ls_status check_secret(const ls__nodes *n)
{
    if (n->has_secret || ls__place_is_loopback(&n->place)) {
        return ls__link_available(n->link_spec.mode); /* now, not once another node comes */
    }
    return ls__fail(
        LS_ERR_AUTH,
        "%s %s:%d leaves this host, and without a secret anybody there could join: make "
        "one with `lockstep secret FILE`, copy it to every node, and give all of them "
        "--secret-file FILE (LOCKSTEP_SECRET_FILE=FILE)",
        n->place.from, n->place.host, n->place.port);
}

ls_status ls__nodes_open(const ls__nodes_spec *spec, ls__nodes **out)
{
    const ls__env *env = spec->env;
    ls__nodes *n = env->allocate(env, sizeof *n);
    if (n == NULL) {
        return ls__fail(LS_ERR_MEMORY, "the job's nodes");
    }
    memset(n, 0, sizeof *n);
    adopt(n, spec);
    n->poller = env->poller_open(env);
    ls_status status = n->poller < 0 ? ls__fail(LS_ERR_SYSTEM, "a poller for the job's nodes: %s",
                                                strerror(-n->poller))
                                     : check_secret(n);
    if (status == LS_OK) {
        status = ls__interface_wanted(env, &n->has_interface, &n->interface);
    }
    if (status == LS_OK) {
        status = n->first ? ls__first_open(n) : ls__other_open(n);
    }
    if (status < 0) {
        ls__nodes_close(n);
        return status;
    }
    *out = n;
    return LS_OK;
}

void ls__nodes_close(ls__nodes *n)
{
    if (n == NULL) {
        return;
    }
    ls__first_close(n);
    ls__frames_close(&n->frames);
    if (n->poller >= 0) {
        n->env->close(n->env, n->poller);
    }
    memset(n->secret, 0, sizeof n->secret);
    n->env->release(n->env, n, sizeof *n);
}

void ls__nodes_fail(ls__nodes *n, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(n->error, sizeof n->error, format, arguments);
    va_end(arguments);
    n->state = LS__NODES_FAILED;
}

/* ---- the owner's loop ---------------------------------------------------------------------- */

int ls__nodes_fd(const ls__nodes *n)
{
    return n->poller;
}

uint64_t ls__nodes_deadline(const ls__nodes *n)
{
    return n->first ? ls__first_deadline(n) : ls__other_deadline(n);
}

/* Which of them has news is not kept: all are looked at, they are few. */
static void drain(ls__nodes *n)
{
    ls__env_ready ready[16];
    int got;
    do {
        got = n->env->poller_wait(n->env, n->poller, ready, 16, n->env->now_ns(n->env));
    } while (got == 16);
}

void ls__nodes_turn(ls__nodes *n)
{
    drain(n);
    uint64_t now = n->env->now_ns(n->env);
    if (n->first) {
        ls__first_turn(n, now);
    } else {
        ls__other_turn(n, now);
    }
    ls__nodes_flush(n);
}

void ls__nodes_flush(ls__nodes *n)
{
    if (n->first) {
        ls__first_flush(n);
    } else if (n->frames.link != NULL && n->frames.open) {
        ls__frames_write(&n->frames);
    }
}

/* ---- looking ------------------------------------------------------------------------------- */

ls__nodes_state ls__nodes_state_of(const ls__nodes *n)
{
    return n->state;
}

const char *ls__nodes_error(const ls__nodes *n)
{
    return n->error;
}

const ls__nodes_world *ls__nodes_world_of(const ls__nodes *n)
{
    return &n->world;
}

const uint8_t *ls__nodes_secret(const ls__nodes *n)
{
    return n->secret;
}

const char *ls__nodes_protection(const ls__nodes *n)
{
    LS__LIST_EACH (at, &n->peers) {
        const ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        if (p->known && p->frames.link != NULL) {
            return ls__link_protection(p->frames.link);
        }
    }
    return n->frames.link != NULL ? ls__link_protection(n->frames.link) : "";
}

int ls__nodes_take_stop(ls__nodes *n)
{
    int stop = n->stop;
    n->stop = 0;
    return stop;
}

const ls__failure_record *ls__nodes_failure(const ls__nodes *n)
{
    return n->has_failure ? &n->failure : NULL;
}

const ls__failure_record *ls__nodes_cause(const ls__nodes *n)
{
    return n->has_cause ? &n->cause : NULL;
}

const ls__nodes_end *ls__nodes_end_of(const ls__nodes *n)
{
    return n->has_end ? &n->end : NULL;
}

/* ---- saying -------------------------------------------------------------------------------- */

void ls__nodes_note(ls__nodes *n, const ls__failure_record *f)
{
    if (!n->has_failure || f->kind < n->failure.kind) {
        n->failure = *f;
        n->has_failure = true;
    }
}

void ls__nodes_stop(ls__nodes *n, int signal)
{
    if (n->first) {
        ls__first_tell(n, NULL, LS__NODE_STOP, json_pack("{s:i}", "signal", signal));
    } else {
        (void)ls__frames_say(&n->frames, LS__NODE_STOP, json_pack("{s:i}", "signal", signal));
    }
}

void ls__nodes_report(ls__nodes *n, const ls__failure_record *f)
{
    if (!n->first) {
        (void)ls__frames_say(&n->frames, LS__NODE_FAILURE, ls__failure_pack(f));
    }
}

void ls__nodes_done(ls__nodes *n, const char *tail)
{
    if (!n->first) {
        (void)ls__frames_say(&n->frames, LS__NODE_DONE, json_pack("{s:s}", "tail", tail));
    }
}

/* ---- texts --------------------------------------------------------------------------------- */

json_t *ls__node_parse(const uint8_t *payload, size_t bytes)
{
    json_t *object = json_loadb((const char *)payload, bytes, JSON_REJECT_DUPLICATES, NULL);
    if (object != NULL && !json_is_object(object)) {
        json_decref(object);
        return NULL;
    }
    return object;
}

void ls__node_text(const json_t *from, const char *key, char *out, size_t bytes)
{
    const char *text = json_string_value(json_object_get(from, key));
    snprintf(out, bytes, "%s", text != NULL ? text : "");
}

/* Output of programs may be anything; JSON is UTF-8. */
static json_t *loose_text(const char *text)
{
    json_t *string = json_string(text);
    return string != NULL ? string : json_string("(its text is not UTF-8)");
}

json_t *ls__failure_pack(const ls__failure_record *f)
{
    return json_pack("{s:i s:i s:i s:i s:i s:i s:i s:b s:b s:b s:I s:I s:o}", "kind", (int)f->kind,
                     "failed_rank", f->failed_rank, "pid", f->pid, "signal", f->signal, "code",
                     f->code, "job_code", f->job_code, "status", f->status, "final", f->final,
                     "stop", f->stop, "before_init", f->before_init, "step", (json_int_t)f->step,
                     "updates", (json_int_t)f->updates, "text", loose_text(f->text));
}

bool ls__failure_unpack(const json_t *from, ls__failure_record *out)
{
    int kind = 0, final = 0, stop = 0, before_init = 0;
    json_int_t step = 0, updates = 0;
    memset(out, 0, sizeof *out);
    if (json_unpack((json_t *)(uintptr_t)from, "{s:i s:i s:i s:i s:i s:i s:i s:b s:b s:b s:I s:I}",
                    "kind", &kind, "failed_rank", &out->failed_rank, "pid", &out->pid, "signal",
                    &out->signal, "code", &out->code, "job_code", &out->job_code, "status",
                    &out->status, "final", &final, "stop", &stop, "before_init", &before_init,
                    "step", &step, "updates", &updates) != 0 ||
        kind < 0 || kind >= LS__FAILURE_NONE) {
        return false;
    }
    out->kind = (ls__failure_kind)kind;
    out->final = final != 0;
    out->stop = stop != 0;
    out->before_init = before_init != 0;
    out->step = (uint64_t)step;
    out->updates = (uint64_t)updates;
    ls__node_text(from, "text", out->text, sizeof out->text);
    return out->text[0] != '\0';
}
