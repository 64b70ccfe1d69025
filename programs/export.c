/* Exporting a model whose stages are on several ranks. Rank 0 learns what the others have, receives
 * it, and writes one file of all. */
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
} weight;

typedef struct weights {
    ls_module *net; /* of rank 0, whose weights are not in the list */
    weight *list;
    int count, room;
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

static ls_status add_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    if (strlen(name) >= NAME_BYTES) {
        return ls_fail(LS_ERR_LIMIT, "--export: a name has more than %d bytes: \"%.80s…\"",
                       NAME_BYTES - 1, name);
    }
    weight *added = append(self);
    *added = (weight){.tensor = *tensor, .bytes = (int64_t)ls_dtype_size(tensor->dtype)};
    (void)snprintf(added->name, sizeof added->name, "%s", name);
    for (int i = 0; i < tensor->ndim; i++) {
        added->bytes *= tensor->local[i];
    }
    return LS_OK;
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

static void list_weights(weights *w, ls_module *net)
{
    must(ls_module_state(net, "",
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
static void receive_from(ls_group *group, int rank, const weight *sent, int count,
                         const weights *mine, weights *all)
{
    for (int i = 0; i < count; i++) {
        weight one = sent[i];
        one.tensor.data = malloc((size_t)one.bytes + 1);
        if (one.tensor.data == NULL) {
            give_up(EXIT_FAILURE, "--export: no memory for \"%s\"", one.name);
        }
        must(ls_recv(group, one.tensor.data, one.bytes, LS_UINT8, rank, 0,
                     LS_OPTIONS(ls_collective_options, .tag = "export"), NULL));
        if (is_known(mine, one.name) || is_known(all, one.name)) {
            free(one.tensor.data);
        } else {
            *append(all) = one;
        }
    }
}

static ls_status weights_state(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    const weights *w = object;
    LS_TRY(ls_module_state(w->net, prefix, visitor));
    for (int i = 0; i < w->count; i++) {
        LS_TRY(visitor->tensor(visitor->self, w->list[i].name, &w->list[i].tensor));
    }
    return LS_OK;
}

static void write_file(weights *all, const char *path)
{
    const ls_checkpoint_item item = {sizeof item, "", all, weights_state};
    must(ls_safetensors_save(path, &item, 1, NULL));
    for (int i = 0; i < all->count; i++) {
        free(all->list[i].tensor.data);
    }
    free(all->list);
}

/* Of several replicas the first ones send. */
static void export_stages(const parallel *p, ls_module *net, const char *path)
{
    ls_bytes *lists = NULL;
    weights mine = {0}, all = {.net = net};
    list_weights(&mine, net);
    must(ls_gather_bytes(p->stages, mine.list, (size_t)mine.count * sizeof *mine.list, 0,
                         LS_OPTIONS(ls_collective_options, .tag = "export"), &lists));
    if (ls_group_rank(p->stages) > 0) {
        send_all(p->stages, &mine);
    } else {
        for (int r = 1; r < ls_group_size(p->stages); r++) {
            receive_from(p->stages, r, lists[r].data, (int)(lists[r].length / sizeof(weight)),
                         &mine, &all);
        }
        write_file(&all, path);
    }
    ls_bytes_free(lists);
    free(mine.list);
}

void parallel_export(const parallel *p, ls_module *net, const char *path)
{
    if (p->stages == NULL && ls_rank() == 0) {
        must(ls_module_save_safetensors(net, path, NULL));
    } else if (p->stages != NULL && ls_group_rank(p->replicas) == 0) {
        export_stages(p, net, path);
    }
}
