/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between stages in memory of a device.
 *
 * NCCL runs the messages of a communicator one after the other, so two that cross on one would wait
 * for each other. A link is therefore a group of two ranks that carries messages one way, with the
 * backend of the device: rank 0 of it sends, rank 1 receives, and both start them in one order.
 *
 *     stage 0 on rank a  ══ activations ══▶  stage 1 on rank b          link a ▶ b
 *                        ◀══ gradients ════                             link b ▶ a
 *
 * Heads stay messages of the host (Note [Values]); they say where the elements are. The receiver
 * waits for the head before it asks for the elements, and its stream, not the host, for these. A
 * gradient is asked for when the table says so, in memory that the stream has left by then. */
#include "base/error.h"
#include "base/options.h"
#include "comm/api/control.h"
#include "comm/diagnose/fail.h"
#include "comm/group/make.h"
#include "parallel/pipeline/internal.h"
#include "tensor/across.h"

/* The ranks to which this one sends activations or gradients. */
static void find_receivers(const ls_pipeline *p, int ranks, uint8_t *sends)
{
    for (int k = 0; k < p->own_count; k++) {
        const ls__stage *s = &p->own[k];
        for (int i = 0; i < s->arriving_count + s->leaving_count; i++) {
            const ls__stage_edge *e =
                i < s->arriving_count ? &s->arriving[i] : &s->leaving[i - s->arriving_count];
            for (int number = 0; number < ranks && !e->own; number++) {
                sends[ls__stage_edge_peer(p, e, number)] = 1;
            }
        }
    }
}

/* All ranks come here with the same pair. */
static ls_status open_link(ls_pipeline *p, int from, int to)
{
    ls_group *group = NULL;
    const int ranks[] = {from, to};
    LS_TRY(ls_group_create(p->group,
                           LS_OPTIONS(ls_group_options, .ranks = ranks, .count = 2, .name = "link",
                                      .backend = p->backend),
                           &group));
    if (group != NULL && p->rank == from) {
        p->links[to].out = group;
    } else if (group != NULL) {
        p->links[from].in = group;
    }
    return LS_OK;
}

ls_status ls__stage_links_open(ls_pipeline *p)
{
    ls__plugin *plugin = NULL;
    const int ranks = ls_group_size(p->group);
    if (p->backend == NULL || ranks == 1) {
        return LS_OK;
    }
    LS_TRY(ls__backend_everywhere(p->group, p->backend, &plugin));
    if (plugin == NULL) {
        return LS_OK;
    }
    uint8_t *all = ls__arena_alloc(&p->arena, (size_t)(ranks + 1) * (size_t)ranks);
    p->links = ls__arena_alloc(&p->arena, (size_t)ranks * sizeof *p->links);
    if (all == NULL || p->links == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_pipeline_new: no memory");
    }
    uint8_t *own = all + (size_t)ranks * (size_t)ranks;
    find_receivers(p, ranks, own);
    LS_TRY(ls__control_all_gather(p->group, own, all, ranks, LS_UINT8,
                                  LS_OPTIONS(ls_collective_options, .tag = "links")));
    for (int i = 0; i < ranks * ranks; i++) {
        LS_TRY(all[i] != 0 ? open_link(p, i / ranks, i % ranks) : LS_OK);
    }
    return LS_OK;
}

/* In the order in which they were made, so that no two ranks wait for each other. */
ls_status ls__stage_links_close(ls_pipeline *p)
{
    const int ranks = p->links != NULL ? ls_group_size(p->group) : 0;
    ls_status first = LS_OK;
    for (int i = 0; i < ranks * ranks; i++) {
        const int from = i / ranks, to = i % ranks;
        ls_group *group = p->rank == from ? p->links[to].out
                          : p->rank == to ? p->links[from].in
                                          : NULL;
        const ls_status status = ls_group_free(group);
        first = first < 0 ? first : status;
    }
    p->links = NULL;
    return first;
}

void ls__stage_links_fail(ls_pipeline *p, ls_status status, const char *text)
{
    for (int r = 0; p->links != NULL && r < ls_group_size(p->group); r++) {
        if (p->links[r].out != NULL) {
            ls__group_fail(p->links[r].out, status, text);
        }
        if (p->links[r].in != NULL) {
            ls__group_fail(p->links[r].in, status, text);
        }
    }
}

bool ls__stage_link_carries(const ls_pipeline *p, int peer, ls_tensor *value)
{
    ls__pool *on = NULL;
    return p->links != NULL && p->links[peer].out != NULL && ls_numel(value) > 0 &&
           ls__tensor_elements(value, &on) != NULL && on->device->backend != NULL;
}

ls_status ls__stage_link_send(const ls_pipeline *p, const ls__stage_link_message *m,
                              const void *elements, ls_work **work)
{
    return ls_send(p->links[m->peer].out, elements, m->count, m->dtype, 1, m->tag,
                   LS_OPTIONS(ls_collective_options, .tag = m->what, .stream = m->on->stream),
                   work);
}

ls_status ls__stage_link_receive(const ls_pipeline *p, const ls__stage_link_message *m,
                                 void *elements, ls_work **work)
{
    return ls_recv(p->links[m->peer].in, elements, m->count, m->dtype, 0, m->tag,
                   LS_OPTIONS(ls_collective_options, .tag = m->what, .stream = m->on->stream),
                   work);
}
