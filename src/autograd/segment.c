/* SPDX-License-Identifier: Apache-2.0 */
/* A recomputed segment of the graph, as it is kept between its two runs. */
#include "autograd/segment.h"

#include <string.h>

#include "tensor/op.h"

/* Runs when the joint dies, or without one at the end of the call. A node among the outputs is held
 * only between the first run and wrap_results. */
static void segment_fini(ls__storage *storage)
{
    const ls__segment *p = storage->data;
    for (int i = 0; i < p->input_count; i++) {
        ls__storage_unref(p->input[i].record.storage);
    }
    for (int i = 0; i < p->output_count; i++) {
        ls__storage_unref(p->output[i].y.storage);
        ls__node_unref(p->output[i].y.node);
        ls__storage_unref(p->output[i].links);
    }
    ls__storage_unref(p->log.drawn);
}

/* One block of memory holds the struct and its two arrays. Draws and autocast are noted now, as the
 * second run must see them. */
ls__storage *ls__segment_new(ls__tensors *tensors, const ls__segment_callee *f, int input_count,
                             int output_count)
{
    const size_t inputs = (size_t)input_count * sizeof(ls__segment_argument);
    const size_t bytes =
        sizeof(ls__segment) + inputs + (size_t)output_count * sizeof(ls__segment_outcome);
    ls__storage *storage = ls__storage_new(&tensors->host, bytes);
    if (storage == NULL) {
        return NULL;
    }
    memset(storage->data, 0, bytes);
    ls__segment *p = storage->data;
    p->callee = *f;
    p->input_count = input_count;
    p->output_count = output_count;
    p->input = (ls__segment_argument *)(void *)(p + 1);
    p->output = (ls__segment_outcome *)(void *)((char *)p->input + inputs);
    ls__draw_log_init(&p->log, tensors->runtime);
    p->autocast = ls__self.autocast;
    storage->fini = segment_fini;
    return storage;
}

/* The layout of `y`, for comparing the two runs. */
ls__segment_result ls__segment_result_of(const ls__record *y)
{
    ls__segment_result r = {.shape = ls__record_shape(y),
                            .offset = y->offset,
                            .base_numel = y->node->numel,
                            .base_offset = y->node->offset,
                            .dtype = y->dtype};
    memcpy(r.stride, y->stride, sizeof r.stride);
    return r;
}

/* A function that returned success may still have left an output NULL or poisoned; such a result is
 * an error here. */
ls_status ls__segment_call(ls__tensors *tensors, const ls__segment *p, ls_tensor *const *inputs,
                           ls__record **y)
{
    const ls__segment_callee *f = &p->callee;
    ls_tensor *outputs[LS_CALL_TENSORS_MAX] = {NULL};
    if (f->one != NULL) {
        outputs[0] = f->one(inputs[0], f->arg);
    } else {
        const ls__user_call user = ls__user_call_begin();
        const ls_status status = f->many(inputs, p->input_count, outputs, p->output_count, f->arg);
        LS_TRY(ls__user_call_check(&user, status, "the function of ls_recompute_call_many"));
    }
    for (int i = 0; i < p->output_count; i++) {
        y[i] = ls__record_sound(tensors, outputs[i], "recompute");
        if (y[i] == NULL) {
            return ls__self.status;
        }
    }
    return LS_OK;
}
