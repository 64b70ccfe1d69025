/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a server, and the end of it and of its thread. */
#include "base/options.h"
#include "base/size.h"
#include "comm/backend/plugin_group.h"
#include "server/server.h"

int ls__server_rank(const ls__server *s, int shard)
{
    return s->size - s->set.servers + shard;
}

/* ---- the memory ------------------------------------------------------------------------------ */

/* Hands out pieces of one block: first sizes are added up with `base` NULL. */
typedef struct carving {
    char *base;
    size_t at;
} carving;

static char *carve(carving *c, size_t bytes)
{
    char *piece = c->base != NULL ? c->base + c->at : NULL;
    c->at += ls__round_up(bytes, LS__CACHE_LINE);
    return piece;
}

/* Memory that is sent or received, and therefore registered. */
static void carve_registered(const ls__server *s, carving *c)
{
    ls__server_state *state = s->state;
    const size_t bytes = s->layout.shard_bytes[s->shard];
    const size_t buffers = s->shard == 0 ? s->buffers_bytes : 0;
    state->stepper.parameters = carve(c, bytes);
    state->stepper.gradient = carve(c, bytes);
    state->buffers = carve(c, buffers);
    for (int w = 0; w < s->workers; w++) {
        state->clients[w].gradient = carve(c, bytes);
        state->clients[w].buffers = carve(c, buffers);
    }
    for (int i = 0; i <= s->workers; i++) {
        state->copies[i] = (ls__server_copy){carve(c, bytes), carve(c, buffers), -1, 0};
    }
}

static void carve_tables(ls__server *s, carving *c)
{
    const size_t workers = (size_t)s->workers;
    const size_t count = (size_t)s->layout.buckets + 2;
    ls__server_state *state = (void *)carve(c, sizeof *state);
    ls__server_client *clients = (void *)carve(c, workers * sizeof *clients);
    ls__server_copy *copies = (void *)carve(c, (workers + 1) * sizeof *copies);
    ls__optim_place *places = (void *)carve(c, (size_t)s->layout.part_count * sizeof *places);
    int64_t *steps = (void *)carve(c, (size_t)s->layout.part_count * sizeof *steps);
    const void **operands = (void *)carve(c, workers * sizeof *operands);
    ls__server_push *pushes = (void *)carve(c, workers * sizeof *pushes);
    const size_t params = (size_t)s->d->param_count, servers = (size_t)s->set.servers;
    double *squares = (void *)carve(c, (1 + servers) * params * sizeof *squares);
    ls_work **exchange = (void *)carve(c, 2 * servers * sizeof *exchange);
    for (size_t w = 0; w < workers; w++) {
        ls__server_head *head = (void *)carve(c, s->head_bytes);
        ls_work **works = (void *)carve(c, count * sizeof *works);
        if (state != NULL) {
            clients[w] = (ls__server_client){.head = head, .works = works};
        }
    }
    if (state != NULL) {
        *state = (ls__server_state){.clients = clients,
                                    .copies = copies,
                                    .pushes = pushes,
                                    .stepper = {.layout = &s->layout,
                                                .shard = s->shard,
                                                .optim_param = s->optim_param,
                                                .operands = operands,
                                                .steps = steps,
                                                .places = places,
                                                .clip_norm = s->set.clip_norm,
                                                .params = s->d->param_count,
                                                .squares = squares,
                                                .add_squares = ls__server_add_squares,
                                                .arg = s},
                                    .squares = squares != NULL ? squares + params : NULL,
                                    .exchange = exchange};
        s->state = state;
    }
}

static ls_status open_log(ls__server *s)
{
    return s->shard == 0 && s->set.log != NULL
               ? ls__replay_open(&s->state->log, s->env, s->set.log, s->set.command, s->set.servers)
               : LS_OK;
}

ls_status ls__server_state_new(ls__server *s)
{
    carving tables = {0}, registered = {0};
    void *memory = NULL;
    carve_tables(s, &tables);
    const size_t table_bytes = tables.at;
    tables = (carving){.base = s->env->allocate(s->env, table_bytes)};
    if (tables.base == NULL) {
        return ls__fail(LS_ERR_MEMORY, "server: no memory for the tables of %d workers",
                        s->workers);
    }
    carve_tables(s, &tables);
    s->state->table_bytes = table_bytes;
    carve_registered(s, &registered);
    LS_TRY(ls__group_memory(s->group, registered.at, &memory));
    s->state->registered = memory;
    registered = (carving){.base = memory};
    carve_registered(s, &registered);
    return open_log(s);
}

static void free_state(ls__server *s)
{
    ls__server_state *state = s->state;
    if (state == NULL) {
        return;
    }
    (void)ls__replay_close(&state->log);
    if (s->d->guest.runtime != NULL && state->registered != NULL) {
        (void)ls_group_dealloc(s->group, state->registered);
    }
    s->env->release(s->env, state, state->table_bytes);
    s->state = NULL;
}

/* ---- the end --------------------------------------------------------------------------------- */

ls_status ls__server_end_thread(ls__server *s)
{
    if (s->thread == NULL) {
        return LS_OK;
    }
    s->env->thread_join(s->env, s->thread);
    s->thread = NULL;
    return s->served < 0 ? ls__fail_again(s->served, s->served_message) : LS_OK;
}

/* The other ranks wait for this one, or will. */
static void stop_serving(ls__server *s)
{
    if (s->running && s->d->guest.runtime != NULL) {
        (void)ls_group_abort(s->group, "the module was freed while its servers ran; call "
                                       "ls_server_join first");
    }
    (void)ls__server_end_thread(s);
}

/* Also after ls_finalize, when groups and their memory are gone. */
void ls__server_free(ls__ddp *d)
{
    ls__server *s = d->server;
    stop_serving(s);
    free_state(s);
    ls__server_layout_fini(&s->layout);
    if (d->guest.runtime != NULL) {
        (void)ls_group_dealloc(s->group, s->staging);
        d->observer.owners = NULL;
        (void)ls_group_free(s->group);
    }
    if (s->heads != NULL) {
        s->env->release(s->env, s->heads, s->table_bytes);
    }
    s->env->release(s->env, s, sizeof *s);
    d->remote = NULL;
    d->server = NULL;
}
