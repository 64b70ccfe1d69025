/* SPDX-License-Identifier: Apache-2.0 */
/* Exporting a model whose stages or parts of layers are on several ranks. Rank 0 writes one file of
 * all. Of stages it learns what the others have, and receives it; parts of a stage's layers are
 * gathered before. Without stages rank 0 gathers one parameter after the other, when it writes
 * that: the model need not fit on one rank. */
#include "parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

#define NAME_BYTES 512

typedef struct weight {
    char name[NAME_BYTES];
    ls_state_tensor tensor;
    int64_t bytes;
    void *gathered; /* the elements, if they are the list's own */
} weight;

typedef struct weights {
    weight *list;
    int count, room;
    ls_module *net; /* whose state is walked */
} weights;

static bool is_known(const weights *w, const char *name)
{
    for (int i = 0; i < w->count; i++) {
        if (strcmp(w->list[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static weight *append(weights *w)
{
    if (w->count == w->room) {
        w->room = w->room > 0 ? 2 * w->room : 64;
        w->list = realloc(w->list, (size_t)w->room * sizeof *w->list);
        if (w->list == NULL) {
            give_up(EXIT_FAILURE, "no memory");
        }
    }
    return &w->list[w->count++];
}

static bool is_whole(const ls_state_tensor *t)
{
    return memcmp(t->local, t->global, (size_t)t->ndim * sizeof t->local[0]) == 0;
}

/* The parts on all ranks of the stage, in place of this rank's. */
static ls_status gather_parts(const weights *w, weight *to)
{
    LS_SCOPE;
    ls_tensor *part = ls_module_param(w->net, to->name);
    ls_tensor *whole = part != NULL ? ls_tensor_whole(part) : NULL;
    if (whole == NULL) {
        return ls_fail(LS_ERR_UNSUPPORTED, "--export: \"%s\" is a part of a buffer", to->name);
    }
    LS_TRY(ls_tensor_status(whole));
    to->bytes = (int64_t)ls_dtype_size(to->tensor.dtype) * ls_numel(whole);
    memcpy(to->tensor.local, to->tensor.global, sizeof to->tensor.local);
    memset(to->tensor.start, 0, sizeof to->tensor.start);
    to->gathered = malloc((size_t)to->bytes + 1);
    if (to->gathered == NULL) {
        give_up(EXIT_FAILURE, "--export: no memory for \"%s\"", to->name);
    }
    to->tensor.data = to->gathered;
    return ls_copy_out(whole, to->gathered, (size_t)to->bytes);
}

/* Boxes of a part follow each other: the first stands for all. */
static ls_status add_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    weights *w = self;
    if (strlen(name) >= NAME_BYTES) {
        return ls_fail(LS_ERR_LIMIT, "--export: a name has more than %d bytes: \"%.80s…\"",
                       NAME_BYTES - 1, name);
    }
    if (!is_whole(tensor) && w->count > 0 && strcmp(w->list[w->count - 1].name, name) == 0) {
        return LS_OK;
    }
    weight *added = append(w);
    *added = (weight){.tensor = *tensor, .bytes = (int64_t)ls_dtype_size(tensor->dtype)};
    (void)snprintf(added->name, sizeof added->name, "%s", name);
    for (int i = 0; i < tensor->ndim; i++) {
        added->bytes *= tensor->local[i];
    }
    return is_whole(tensor) ? LS_OK : gather_parts(w, added);
}

/* A file of weights has no scalars. */
static ls_status skip_int64(void *self, const char *name, int64_t *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static ls_status skip_float64(void *self, const char *name, double *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

/* ---- the file ------------------------------------------------------------------------------ */

/* An item whose tensors get their names of the file. */
typedef struct renamed {
    const ls_checkpoint_item *item;
    parallel_show *show;
    const ls_state_visitor *file;
} renamed;

static ls_status rename_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    const renamed *r = self;
    return r->show(r->file, name, tensor);
}

static ls_status renamed_state(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    renamed *r = object;
    r->file = visitor;
    return r->item->state(r->item->object, prefix,
                          &(ls_state_visitor){.size = sizeof(ls_state_visitor),
                                              .self = r,
                                              .tensor = rename_tensor,
                                              .int64 = skip_int64,
                                              .float64 = skip_float64});
}

static ls_status save(const ls_checkpoint_item *item, parallel_show *show, const char *path)
{
    renamed r = {.item = item, .show = show};
    const ls_checkpoint_item other = {
        .size = sizeof other, .prefix = "", .object = &r, .state = renamed_state};
    return ls_safetensors_save(path, show != NULL ? &other : item, 1, NULL);
}

/* ---- stages -------------------------------------------------------------------------------- */

static void list_weights(weights *w)
{
    must(ls_module_state(w->net, "",
                         &(ls_state_visitor){.size = sizeof(ls_state_visitor),
                                             .self = w,
                                             .tensor = add_tensor,
                                             .int64 = skip_int64,
                                             .float64 = skip_float64}));
}

static void send_all(ls_group *group, const weights *mine)
{
    for (int i = 0; i < mine->count; i++) {
        must(ls_send(group, mine->list[i].tensor.data, mine->list[i].bytes, LS_UINT8, 0, 0,
                     LS_OPTIONS(ls_collective_options, .tag = "export"), NULL));
    }
}

/* A tied weight comes several times, and is kept once. */
static void receive_from(ls_group *group, int rank, const weight *sent, int count, weights *all)
{
    for (int i = 0; i < count; i++) {
        weight one = sent[i];
        one.tensor.data = one.gathered = malloc((size_t)one.bytes + 1);
        if (one.gathered == NULL) {
            give_up(EXIT_FAILURE, "--export: no memory for \"%s\"", one.name);
        }
        must(ls_recv(group, one.tensor.data, one.bytes, LS_UINT8, rank, 0,
                     LS_OPTIONS(ls_collective_options, .tag = "export"), NULL));
        if (is_known(all, one.name)) {
            free(one.gathered);
        } else {
            *append(all) = one;
        }
    }
}

static ls_status weights_state(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    const weights *w = object;
    (void)prefix;
    for (int i = 0; i < w->count; i++) {
        LS_TRY(visitor->tensor(visitor->self, w->list[i].name, &w->list[i].tensor));
    }
    return LS_OK;
}

static void write_file(weights *all, parallel_show *show, const char *path)
{
    const ls_checkpoint_item item = {
        .size = sizeof item, .prefix = "", .object = all, .state = weights_state};
    must(save(&item, show, path));
}

static void exchange_lists(const parallel *p, weights *mine, parallel_show *show, const char *path)
{
    ls_bytes *lists = NULL;
    must(ls_gather_bytes(p->stages, mine->list, (size_t)mine->count * sizeof *mine->list, 0,
                         LS_OPTIONS(ls_collective_options, .tag = "export"), &lists));
    if (ls_group_rank(p->stages) > 0) {
        send_all(p->stages, mine);
    } else {
        for (int r = 1; r < ls_group_size(p->stages); r++) {
            receive_from(p->stages, r, lists[r].data, (int)(lists[r].length / sizeof(weight)),
                         mine);
        }
        write_file(mine, show, path);
    }
    ls_bytes_free(lists);
}

/* Of several copies the first ones send, and of the ranks with other parts those beside rank 0. */
static void export_stages(const parallel *p, ls_module *net, parallel_show *show, const char *path)
{
    weights mine = {.net = net};
    list_weights(&mine);
    if (!p->tensor || ls_mesh_coordinate(p->mesh, "tp") == 0) {
        if (!p->experts || ls_mesh_coordinate(p->mesh, "ep") == 0) {
            exchange_lists(p, &mine, show, path);
        }
    }
    for (int i = 0; i < mine.count; i++) {
        free(mine.list[i].gathered);
    }
    free(mine.list);
}

/* ---- parts of layers ---------------------------------------------------------------------- */

#define WRITING_MS 3600000 /* for rank 0 to write a tensor, and at the end the whole file */

/* The ranks along tp and ep. Rank 0 walks the model as ls_safetensors_save asks for it, and says
 * which parameter is to be gathered next; the others take part. */
typedef struct gathering {
    ls_module *net;
    ls_group *group;
    ls_param *params;
    int count;
    int last; /* that was gathered; -1: none */
    const ls_state_visitor *file;
} gathering;

/* The index of a parameter, or -1 at the end. */
static ls_status tell(const gathering *g, int64_t *next)
{
    return ls_broadcast(
        g->group, next, 1, LS_INT64, 0,
        LS_OPTIONS(ls_collective_options, .tag = "export", .timeout_ms = WRITING_MS), NULL);
}

static int index_of(const gathering *g, const char *name)
{
    int i = 0;
    while (i < g->count && strcmp(g->params[i].name, name) != 0) {
        i++;
    }
    return i;
}

/* Shows the file the whole of parameter `at`. */
static ls_status show_whole(gathering *g, int64_t at, const char *name)
{
    LS_SCOPE;
    LS_TRY(tell(g, &at));
    ls_tensor *whole = ls_to(ls_tensor_whole(g->params[at].value), "cpu");
    LS_TRY(ls_tensor_status(whole));
    ls_state_tensor shown = {
        .dtype = ls_dtype_of(whole), .ndim = ls_ndim(whole), .data = ls_data(whole)};
    for (int d = 0; d < shown.ndim; d++) {
        shown.global[d] = shown.local[d] = ls_size(whole, d);
    }
    return g->file->tensor(g->file->self, name, &shown);
}

/* The boxes of a part follow each other. */
static ls_status take_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    gathering *g = self;
    const int at = is_whole(tensor) ? g->count : index_of(g, name);
    if (at == g->count) { /* a buffer of which there is a slice is refused there */
        return g->file->tensor(g->file->self, name, tensor);
    }
    const bool first = at != g->last;
    g->last = at;
    return first ? show_whole(g, at, name) : LS_OK;
}

static ls_status gathered_state(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    gathering *g = object;
    g->file = visitor;
    g->last = -1;
    return ls_module_state(g->net, prefix,
                           &(ls_state_visitor){.size = sizeof(ls_state_visitor),
                                               .self = g,
                                               .tensor = take_tensor,
                                               .int64 = skip_int64,
                                               .float64 = skip_float64});
}

static void take_part(const gathering *g)
{
    for (int64_t at = 0;;) {
        must(tell(g, &at));
        if (at < 0) {
            return;
        }
        LS_SCOPE;
        must(ls_tensor_status(ls_tensor_whole(g->params[at].value)));
    }
}

/* The others are told that it is over also where the disk is full. */
static void lead(gathering *g, parallel_show *show, const char *path)
{
    char why[1024];
    int64_t end = -1;
    const ls_checkpoint_item item = {
        .size = sizeof item, .prefix = "", .object = g, .state = gathered_state};
    const ls_status status = save(&item, show, path);
    (void)snprintf(why, sizeof why, "%s", ls_error_message());
    const ls_status told = tell(g, &end);
    if (status < 0) {
        give_up(EXIT_FAILURE, "%s", why);
    }
    must(told);
}

static void export_parts(const parallel *p, ls_module *net, parallel_show *show, const char *path)
{
    gathering g = {.net = net, .group = p->parts, .count = ls_module_param_count(net)};
    g.params = calloc((size_t)g.count + 1, sizeof *g.params);
    if (g.params == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    (void)ls_module_params(net, g.params, g.count);
    if (ls_rank() == 0) {
        lead(&g, show, path);
    } else {
        take_part(&g);
    }
    free(g.params);
}

/* Of equal copies one is written. */
void parallel_export(const parallel *p, ls_module *net, parallel_show *show, const char *path)
{
    if (p->stages == NULL && !p->tensor && !p->experts) {
        must(ls_rank() == 0 ? save(&(ls_checkpoint_item)LS_ITEM("", net), show, path) : LS_OK);
    } else if (parallel_is_first_copy(p)) {
        (p->stages != NULL ? export_stages : export_parts)(p, net, show, path);
    }
}
