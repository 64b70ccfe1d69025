/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's buffers on every rank, in one broadcast a step.
 *
 *   forward ──▶ backward ─────────────────────────────▶ step ──▶ evaluate, save, next forward
 *               begin: pack, start the broadcast   end: wait, unpack
 *
 * PyTorch's DDP broadcasts before a forward pass whose predecessor was to synchronise. Here it is
 * that predecessor's backward pass: buffers are final when it begins, so the broadcast runs beside
 * it, and no forward pass comes between the two moments. Rank 0's own buffers are never written, so
 * all follow the same values as in PyTorch; and the model that is evaluated or saved after a step
 * is equal on all ranks without asking. Micro-batches that do not synchronise leave buffers alone,
 * as in PyTorch.
 *
 * While ranks have run out of data (join.c), the lowest one with data takes rank 0's place from the
 * step after the one in which rank 0 has joined: a rank's own buffers follow its own batches only.
 *
 * Only bytes that differ are written: a constant (a mask, say) that another graph has saved stays
 * as that graph saw it. */
#include "ddp/buffers.h"

#include <string.h>

#include "base/assert.h"
#include "base/runtime.h"
#include "comm/api/collective.h"
#include "comm/backend/plugin_group.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#define ALIGNMENT 16

/* Of the elements; buffers are contiguous. */
static size_t bytes_of(const ls_tensor *buffer)
{
    return (size_t)ls_numel(buffer) * ls_dtype_size(ls_dtype_of(buffer));
}

/* Each buffer starts aligned in the flat memory. */
static size_t rounded(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Borrows the handles from the module, which must outlive `b`. */
ls_status ls__buffers_init(ls__buffers *b, const ls__env *env, ls_module *module, ls_group *group)
{
    int items = 0;
    const ls__module_item *item = ls__module_items(module, &items);
    *b = (ls__buffers){.env = env, .group = group};
    if (item == NULL) {
        return ls__self.status;
    }
    b->list_bytes = ((size_t)items + 1) * sizeof *b->list;
    b->list = env->allocate(env, b->list_bytes);
    if (b->list == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for a table of %d buffers", items);
    }
    for (int i = 0; i < items; i++) {
        if (item[i].buffer && ls_numel(item[i].value) > 0) {
            b->list[b->count++] = item[i].value;
            b->bytes += rounded(bytes_of(item[i].value));
        }
    }
    void *memory = NULL;
    if (b->count > 0) {
        LS_TRY(ls__group_memory(group, b->bytes, &memory));
    }
    b->flat = memory;
    return LS_OK;
}

/* Waits for a broadcast under way, since it writes to the memory that is freed here. */
void ls__buffers_fini(ls__buffers *b)
{
    (void)ls__buffers_finish(b);
    if (b->flat != NULL) {
        (void)ls_group_dealloc(b->group, b->flat);
    }
    if (b->list != NULL) {
        b->env->release(b->env, b->list, b->list_bytes);
    }
    *b = (ls__buffers){0};
}

void ls__buffers_drop(ls__buffers *b)
{
    if (b->list != NULL) {
        b->env->release(b->env, b->list, b->list_bytes);
    }
    *b = (ls__buffers){0};
}

ls_status ls__buffers_note(ls__buffers *b)
{
    char *at = b->flat;
    LS_ASSERT(b->work == NULL);
    for (int i = 0; i < b->count; i++) {
        LS_TRY(ls_copy_out(b->list[i], at, bytes_of(b->list[i])));
        at += rounded(bytes_of(b->list[i]));
    }
    return LS_OK;
}

/* Writes only the buffers that differ. */
ls_status ls__buffers_take_back(ls__buffers *b)
{
    const char *at = b->flat;
    for (int i = 0; i < b->count; i++) {
        const size_t bytes = bytes_of(b->list[i]);
        ls__host_view view;
        LS_TRY(ls__host_view_of(b->list[i], &view));
        const bool differs = memcmp(view.data, at, bytes) != 0;
        ls__host_view_close(&view, false);
        if (differs) {
            LS_TRY(ls_copy_in(b->list[i], at, bytes));
        }
        at += rounded(bytes);
    }
    return LS_OK;
}

/* The root packs its values; the others only receive. Without buffers nothing is sent. */
ls_status ls__buffers_start(ls__buffers *b, int root)
{
    LS_ASSERT(b->work == NULL);
    b->root = root;
    if (b->count == 0) {
        return LS_OK;
    }
    if (ls_group_rank(b->group) == root) {
        LS_TRY(ls__buffers_note(b));
    }
    const ls_collective_options options = {.size = sizeof options, .tag = "buffers of the module"};
    const ls__collective args = {.operation = LS__OP_BROADCAST,
                                 .input = b->flat,
                                 .output = b->flat,
                                 .count = (int64_t)b->bytes,
                                 .dtype = LS_UINT8,
                                 .root = root,
                                 .anywhere = true, /* ls_backward or ls_ddp_join */
                                 .control = !ls__group_on_host(b->group), /* the pack is there */
                                 .options = &options};
    return ls__collective_start(b->group, &args, &b->work);
}

/* The root keeps its own values. */
ls_status ls__buffers_finish(ls__buffers *b)
{
    if (b->work == NULL) {
        return LS_OK;
    }
    const ls_status status = ls_work_wait(b->work);
    b->work = NULL;
    LS_TRY(status);
    return ls_group_rank(b->group) != b->root ? ls__buffers_take_back(b) : LS_OK;
}
