/* SPDX-License-Identifier: Apache-2.0 */
/* Observers of backward passes: the list of them, and their notification during a pass. */
#include "autograd/observers.h"

#include <string.h>

#include "autograd/joint.h"
#include "autograd/pass.h"
#include "base/assert.h"

/* ---- the list ----------------------------------------------------------------------------- */

/* Called by the thread that owns the module, while no pass runs: the list has no lock. */
ls_status ls__observer_add(ls__observer *observer)
{
    ls__autograd *autograd = ls__autograd_get("observer_add");
    if (autograd == NULL) {
        return ls__self.status;
    }
    ls__list_push_back(&autograd->observers, &observer->link);
    return LS_OK;
}

ls__observer *ls__observer_after(const ls__observer *observer)
{
    ls__autograd *autograd = ls__autograd_get("observer_after");
    if (autograd == NULL) {
        return NULL;
    }
    const ls__list *at = observer != NULL ? &observer->link : &autograd->observers;
    return at->next != &autograd->observers ? LS__LIST_ITEM(at->next, ls__observer, link) : NULL;
}

void ls__observer_remove(ls__observer *observer)
{
    ls__list_remove(&observer->link);
}

/* ---- during a pass ------------------------------------------------------------------------ */

/* Finds the observer's part in this pass, or adds one with an empty bitmap. Returns NULL with the
 * error set. */
static ls__autograd_watch *watch_of(ls__autograd_pass *pass, ls__observer *observer)
{
    for (int i = 0; i < pass->watched; i++) {
        if (pass->watch[i].observer == observer) {
            return &pass->watch[i];
        }
    }
    if (pass->watched == LS__OBSERVERS_MAX) {
        (void)ls__fail(LS_ERR_LIMIT, "%s: more than %d data-parallel modules in one pass",
                       pass->name, LS__OBSERVERS_MAX);
        return NULL;
    }
    size_t count = (size_t)observer->param_count;
    ls__storage *used = ls__storage_new(&pass->tensors->host, count);
    if (used == NULL) {
        return NULL;
    }
    memset(used->data, 0, count);
    ls__autograd_watch *watch = &pass->watch[pass->watched++];
    *watch = (ls__autograd_watch){.observer = observer, .used = used};
    return watch;
}

/* Where its observer wants the rows marked; NULL: nowhere. */
static ls__rows *rows_of(const ls__leaf *leaf)
{
    ls__observer *observer = leaf->observer;
    return observer != NULL && observer->rows != NULL
               ? observer->rows(observer, leaf->observer_index)
               : NULL;
}

/* Called while planning, once per leaf: notes that the leaf's gradient will come in this pass. */
ls_status ls__observers_reached(ls__autograd_pass *pass, ls__leaf *leaf)
{
    if (leaf->observer == NULL) {
        return LS_OK;
    }
    ls__autograd_watch *watch = watch_of(pass, leaf->observer);
    if (watch == NULL) {
        return ls__self.status;
    }
    LS_ASSERT(leaf->observer_index >= 0 && leaf->observer_index < watch->observer->param_count);
    ((uint8_t *)watch->used->data)[leaf->observer_index] = 1;
    ls__rows *rows = rows_of(leaf);
    if (rows != NULL) {
        rows->some = false; /* unless ls__observers_mark_rows finds which */
    }
    return LS_OK;
}

/* The node of `edge` reaches the rows that its lookup names, else any. */
static void mark_edge(const ls__tensor_node *node, const ls__edge *edge, bool is_lookup)
{
    ls__rows *rows =
        edge->to != NULL && ls__node_is_leaf(edge->to) ? rows_of(ls__leaf_of(edge->to)) : NULL;
    if (rows != NULL && rows->some && is_lookup) {
        node->op->rows(node, rows);
    } else if (rows != NULL) {
        rows->some = false;
    }
}

static void mark_edges(const ls__tensor_node *node)
{
    const ls__joint_links *links = ls__links_of(node);
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        const ls__edge *edge = &node->edge[i];
        mark_edge(node, edge, i == 0 && node->op->rows != NULL && edge->geometry == NULL);
    }
    for (int64_t i = 0; links != NULL && i < links->count; i++) {
        mark_edge(node, &links->at[i].edge, false);
    }
}

/* A hook may write anything into a gradient, and the gradient of a root is the program's. */
void ls__observers_mark_rows(const ls__autograd_pass *pass, const ls__autograd_walk *walk)
{
    int64_t tables = 0;
    for (int64_t i = 0; i < walk->outside.count; i++) {
        const ls__leaf *leaf = ls__leaf_of(walk->outside.at[i]);
        ls__rows *rows = rows_of(leaf);
        if (rows != NULL && leaf->node.hooks == NULL) {
            ls__rows_clear(rows);
            tables++;
        }
    }
    for (int64_t i = 0; tables > 0 && i < walk->order.count; i++) {
        mark_edges(walk->order.at[i]);
    }
    for (int i = 0; tables > 0 && i < pass->roots; i++) {
        mark_edge(NULL, &pass->root[i].edge, false);
    }
}

/* Two threads may train two models: only the thread that armed an observer may begin it unreached.
 */
static bool is_armed_here(const ls__observer *observer)
{
    return atomic_load_explicit(&observer->armed, memory_order_relaxed) == &ls__self;
}

/* Observers begin in the order of the list, which is the same on every rank; the order in which
 * the pass finds their leaves is not. */
ls_status ls__observers_begin(ls__autograd_pass *pass)
{
    LS__LIST_EACH (at, &pass->autograd->observers) {
        ls__observer *observer = LS__LIST_ITEM(at, ls__observer, link);
        ls__autograd_watch *watch = NULL;
        for (int i = 0; i < pass->watched; i++) {
            watch = pass->watch[i].observer == observer ? &pass->watch[i] : watch;
        }
        if (watch == NULL && is_armed_here(observer) && !pass->cut) {
            watch = watch_of(pass, observer);
            if (watch == NULL) {
                return ls__self.status;
            }
        }
        if (watch != NULL) {
            ls__backward_info info = {watch->used->data, pass->weighted, pass->weight};
            LS_TRY(observer->begin(observer, &info));
            watch->begun = true;
        }
    }
    return LS_OK;
}

/* `leaf` has its final gradient; the observer may start reducing the bucket while the pass goes
 * on. */
ls_status ls__observers_ready(const ls__leaf *leaf)
{
    ls__observer *observer = leaf->observer;
    return observer != NULL ? observer->ready(observer, leaf->observer_index) : LS_OK;
}

/* An observer that fails has ended: only those that still have to end are aborted afterwards. */
ls_status ls__observers_end(ls__autograd_pass *pass)
{
    for (int i = 0; i < pass->watched; i++) {
        ls__autograd_watch *watch = &pass->watch[i];
        if (watch->begun) {
            watch->begun = false;
            LS_TRY(watch->observer->end(watch->observer)); /* the caller aborts the others */
        }
    }
    return LS_OK;
}

/* The message is copied first, because an abort may fail itself and overwrite it; the first error
 * is what the caller sees. */
void ls__observers_abort(ls__autograd_pass *pass, ls_status status)
{
    char message[LS__MESSAGE_MAX];
    memcpy(message, ls__self.message, sizeof message);
    LS__LIST_EACH (at, &pass->autograd->observers) {
        ls__observer *observer = LS__LIST_ITEM(at, ls__observer, link);
        bool begun = false;
        for (int i = 0; i < pass->watched; i++) {
            begun = begun || (pass->watch[i].observer == observer && pass->watch[i].begun);
        }
        if (begun || is_armed_here(observer)) { /* its peers wait for this backward */
            observer->abort(observer, status, message);
        }
    }
    (void)ls__fail_again(status, message);
}

/* Runs on every path, after end or abort. */
void ls__observers_drop(ls__autograd_pass *pass)
{
    for (int i = 0; i < pass->watched; i++) {
        ls__storage_unref(pass->watch[i].used);
    }
    pass->watched = 0;
}
