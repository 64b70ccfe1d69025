/* SPDX-License-Identifier: Apache-2.0 */
/* See served.h. */
#include "served.h"

#include <stdlib.h>
#include <string.h>

#include "trainer_internal.h"

#define BUCKET_BYTES ((size_t)25 << 20)

/* ---- options ------------------------------------------------------------------------------ */

static _Noreturn void give_up_text(const char *text)
{
    give_up(EXIT_USAGE,
            "--server is \"%s\"; give sync, async or stale=N, and after a colon servers=N, "
            "backup=N or colocated, as in sync:servers=2,backup=1",
            text);
}

/* A number after `name`; -1: another word. */
static int64_t number_of(const char *word, size_t length, const char *name)
{
    const size_t own = strlen(name);
    char *end = NULL;
    if (length <= own || strncmp(word, name, own) != 0) {
        return -1;
    }
    const long value = strtol(word + own, &end, 10);
    return end == word + length && value >= 0 && value <= 65536 ? value : -1;
}

static bool read_mode(const char *word, size_t length, ls_server_options *o)
{
    const int64_t bound = number_of(word, length, "stale=");
    const bool sync = length == 4 && strncmp(word, "sync", 4) == 0;
    const bool async = length == 5 && strncmp(word, "async", 5) == 0;
    o->mode = sync ? LS_SERVER_SYNC : async ? LS_SERVER_ASYNC : LS_SERVER_STALE;
    o->staleness = bound > 0 ? (int)bound : 0;
    return sync || async || bound >= 0;
}

static bool read_word(const char *word, size_t length, ls_server_options *o)
{
    const int64_t servers = number_of(word, length, "servers=");
    const int64_t backup = number_of(word, length, "backup=");
    const bool colocated = length == 9 && strncmp(word, "colocated", 9) == 0;
    o->servers = servers >= 0 ? (int)servers : o->servers;
    o->backup = backup >= 0 ? (int)backup : o->backup;
    o->colocated = o->colocated || colocated;
    return servers >= 0 || backup >= 0 || colocated;
}

static void read_server(const char *text, ls_server_options *o)
{
    const char *at = text;
    size_t length = strcspn(at, ":");
    *o = ls_server_defaults();
    o->size = sizeof *o;
    if (!read_mode(at, length, o)) {
        give_up_text(text);
    }
    for (at += length; *at != '\0'; at += length) {
        at++;
        length = strcspn(at, ",");
        if (!read_word(at, length, o)) {
            give_up_text(text);
        }
    }
}

static const char *excluded(const trainer_options *o)
{
    return o->mesh != NULL                   ? "--mesh"
           : o->plan != NULL                 ? "--plan"
           : o->local_steps > 0              ? "--local-steps"
           : o->shares_of != NULL            ? "--shares"
           : o->zero > 0                     ? "--zero"
           : trainer_has_hook(o)             ? "--comm"
           : strcmp(o->exact, "run") != 0    ? "--exact layout"
           : strcmp(o->feed, "scatter") == 0 ? "--feed scatter"
                                             : NULL;
}

static void check_replay(const trainer_options *o)
{
    if (o->replayed != NULL && o->workers == 0) {
        give_up(EXIT_USAGE,
                "--replay is for lockstep replay, which takes the command from the "
                "log: lockstep replay %s",
                o->replayed);
    }
    if (o->replayed != NULL && o->resume != NULL) {
        give_up(EXIT_USAGE, "--replay begins with the first values of the parameters, and the log "
                            "of a run that went on from a checkpoint does not; record one without "
                            "--resume");
    }
}

void served_check(const trainer_options *o)
{
    ls_server_options read;
    check_replay(o);
    if (o->server == NULL) {
        if (o->replay != NULL && o->local_steps == 0 && !parallel_steps_within(o)) {
            give_up(EXIT_USAGE, "--log-replay is the log of servers, of averages or of a pipeline "
                                "that steps within a batch; give --server, --local-steps or "
                                "--schedule pipedream as well");
        }
        return;
    }
    read_server(o->server, &read);
    const char *other = excluded(o);
    if (other != NULL) {
        give_up(EXIT_USAGE,
                "--server %s with %s: servers train replicas of whole models, whose gradients are "
                "sent as they are; leave one of them out",
                o->server, other);
    }
    if (o->clip > 0.0 && (read.mode != LS_SERVER_SYNC || read.backup > 0)) {
        give_up(EXIT_USAGE,
                "--server %s: a version is not made of the gradients of all workers, so there is "
                "no common one whose norm could be limited; give --clip 0",
                o->server);
    }
}

/* ---- setting up --------------------------------------------------------------------------- */

static size_t bucket_bytes(const trainer *t)
{
    return t->set->bucket_bytes > 0 ? (size_t)t->set->bucket_bytes : BUCKET_BYTES;
}

void served_open(trainer *t)
{
    served *s = &t->served;
    *s = (served){.workers = 0};
    if (t->set->server == NULL) {
        return;
    }
    read_server(t->set->server, &s->options);
    if (t->set->replayed != NULL) {
        s->workers = (int)t->set->workers;
        return;
    }
    const int size = ls_world_size();
    s->workers = s->options.colocated ? size : size - s->options.servers;
    int *ranks = calloc((size_t)size, sizeof *ranks);
    if (ranks == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    for (int i = 0; i < size; i++) {
        ranks[i] = i;
    }
    if (s->workers < 1) {
        give_up(EXIT_FAILURE,
                "--server %s: %d servers of %d ranks leave no worker; start more ranks",
                t->set->server, s->options.servers, size);
    }
    must(ls_group_new(ls_world(), ranks, s->workers, "workers", &s->group));
    free(ranks);
}

void served_close(trainer *t)
{
    if (t->served.group != NULL) {
        must(ls_group_free(t->served.group));
    }
}

ls_module *served_wrap(trainer *t)
{
    const size_t bytes = bucket_bytes(t);
    if (t->set->replayed != NULL) {
        return ls_ddp_new(t->task.net, ls_world(),
                          LS_OPTIONS(ls_ddp_options, .bucket_bytes = bytes));
    }
    t->served.options.bucket_bytes = bytes;
    t->served.options.clip_norm = t->set->clip;
    t->served.options.log = t->set->replay;
    if (t->set->replay != NULL) {
        t->command = trainer_command(t->set, t->served.workers);
        t->served.options.command = t->command;
    }
    return ls_server_new(t->task.net, ls_world(), &t->served.options);
}

int served_rank(const trainer *t)
{
    return ls_rank() < t->served.workers ? ls_rank() : 0; /* a server's is not read */
}

int served_workers(const trainer *t)
{
    return t->served.workers;
}

/* ---- steps -------------------------------------------------------------------------------- */

bool served_in_step(const trainer *t)
{
    const ls_server_options *o = &t->served.options;
    return o->mode == LS_SERVER_SYNC && o->backup == 0;
}

static bool meets_after(const trainer *t, int64_t step)
{
    const trainer_options *s = t->set;
    return step == s->steps || (t->checkpoint != NULL && step % s->every == 0) ||
           (s->eval_every > 0 && step % s->eval_every == 0);
}

/* Checkpoints compare where the ranks are. */
static void share_place(trainer *t, int64_t *step)
{
    trainer_place place = trainer_place_of(t->loader);
    must(ls_broadcast(ls_world(), place.value, PLACE_NUMBERS, LS_INT64, 0, NULL, NULL));
    must(ls_broadcast(ls_world(), step, 1, LS_INT64, 0, NULL, NULL));
    trainer_place_put(t->loader, &place);
}

static void join(trainer *t, int64_t *step)
{
    must(ls_server_join(t->net));
    t->served.running = false;
    share_place(t, step);
}

bool served_begin(trainer *t, int64_t *step)
{
    if (t->served.workers == 0) {
        return false;
    }
    if (!t->served.running) {
        must(ls_server_run(t->net, t->optim));
        t->served.running = true;
    }
    if (ls_server_works(t->net)) {
        return false;
    }
    join(t, step);
    return true;
}

bool served_meet(trainer *t, int64_t *step, bool *stop)
{
    if (t->served.workers == 0) {
        return true;
    }
    if (!*stop && !meets_after(t, *step)) {
        return false;
    }
    join(t, step);
    *stop = ls_stop_requested();
    return true;
}
