/* SPDX-License-Identifier: Apache-2.0 */
/* Scopes: who owns the tensors and graph nodes that operations make.
 *
 * A thread's scopes form a stack; the innermost is ls__self.scope. Below all lies a root scope,
 * made when the thread makes a tensor outside any LS_SCOPE: its tensors live until ls_free or
 * the end of the runtime. Left scopes are pooled with their arenas, so entering one allocates
 * nothing.
 *
 *     pooled (live false)  -- scope_push -->  live, on top of its thread's stack
 *     live                 -- suspend    -->  suspended, in the list of the scope around it
 *     suspended            -- resume     -->  live, on top of that scope again
 *     live, suspended      -- scope_end  -->  cleared, pooled; a root scope is never ended
 *
 * A graph's edges lead to nodes of the same scope or of scopes around it. So that this stays true,
 * a suspended scope is resumed in the scope where it was entered and ends with it at the latest,
 * and no other scope may continue its graph (ls__graph_open).
 */
#include "tensor/graph.h"

#include "base/assert.h"
#include "base/log.h"
#include "tensor/shape.h"

#define ARENA_CHUNK_BYTES ((size_t)64 << 10)
#define ROOT_TENSORS_MANY 100000 /* alive outside any scope: surely a loop without LS_SCOPE */

/* Returned by ls_scope_enter when a scope cannot be made: the block still runs, its tensors are
 * poisoned or go to the scope around. */
static const ls_scope no_scope;

/* Under lock. The arena's chunk is taken at the first use, not here. */
static ls_scope *scope_make(ls__tensors *tensors)
{
    ls__env *env = &tensors->env.table;
    ls_scope *scope = env->allocate(env, sizeof *scope);
    if (scope == NULL) {
        return NULL;
    }
    *scope = (ls_scope){.tensors = tensors};
    ls__list_init(&scope->records);
    ls__arena_init(&scope->arena, env, ARENA_CHUNK_BYTES);
    scope->start = ls__arena_mark_get(&scope->arena);
    ls__list_push_back(&tensors->scopes, &scope->link);
    return scope;
}

/* A pooled scope, or a new one, becomes the innermost of this thread. The root scope is pushed
 * the same way, below all that the user enters. NULL with the error set. */
static ls_scope *scope_push(ls__tensors *tensors, bool root)
{
    pthread_mutex_lock(&tensors->lock);
    ls_scope *scope = tensors->free_scopes;
    if (scope != NULL) {
        tensors->free_scopes = scope->parent;
    } else {
        scope = scope_make(tensors);
    }
    pthread_mutex_unlock(&tensors->lock);
    if (scope == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "scope_enter: out of memory for a scope");
        return NULL;
    }
    LS_ASSERT(!scope->live && scope->nodes == NULL && ls__list_empty(&scope->records) &&
              scope->suspended == NULL && !scope->is_suspended && scope->later == NULL);
    scope->live = true;
    scope->root = root;
    scope->parent = ls__self.scope;
    ls__self.scope = scope;
    return scope;
}

/* Once for each root scope: the loop that forgot its scope would fill the log. */
static void warn_root(ls_scope *scope)
{
    scope->warned = true;
    LS__WARN("%lld tensors are alive outside any scope and will be until ls_free; write "
             "LS_SCOPE; at the start of the loop's body",
             (long long)scope->count);
}

/* The thread's scope; its root scope is made on the first call. NULL with the status set if there
 * is no memory. */
ls_scope *ls__scope_current(ls__tensors *tensors)
{
    ls_scope *scope = ls__self.scope;
    if (scope == NULL) {
        return scope_push(tensors, true);
    }
    if (LS__UNLIKELY(scope->root && scope->count >= ROOT_TENSORS_MANY && !scope->warned)) {
        warn_root(scope);
    }
    return scope;
}

/* Memory that ends with the scope; nothing frees it before. NULL with the status set. */
void *ls__scope_alloc(ls__tensors *tensors, size_t bytes)
{
    ls_scope *scope = ls__scope_current(tensors);
    void *memory = scope != NULL ? ls__arena_alloc(&scope->arena, bytes) : NULL;
    if (memory == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "recording the graph: out of memory");
    }
    return memory;
}

/* Frees all tensors of the scope. From the front, because freeing a record takes it out of the
 * list. */
void ls__scope_forget(ls_scope *scope)
{
    while (!ls__list_empty(&scope->records)) {
        ls__record_free(scope->tensors, LS__LIST_ITEM(scope->records.next, ls__record, link));
    }
}

/* Tensors first: a node may hold the last reference to a storage that a tensor shares. Work that
 * was put off holds nodes, so it goes before them. */
static void scope_clear(ls_scope *scope)
{
    ls__scope_forget(scope);
    ls__storage_unref(scope->later);
    scope->later = NULL;
    for (ls__tensor_node *node = scope->nodes; node != NULL; node = node->next) {
        ls__node_release(node);
        ls__node_hooks_free(node);
    }
    scope->nodes = NULL;
    scope->warned = false;
    ls__arena_rewind(&scope->arena, scope->start);
}

/* Clears a scope that is on no stack, and pools it with its arena. */
static void scope_finish(ls_scope *scope)
{
    LS_ASSERT(scope->live && !scope->root && scope->suspended == NULL);
    ls__tensors *tensors = scope->tensors;
    scope_clear(scope);
    scope->live = false;
    pthread_mutex_lock(&tensors->lock);
    scope->parent = tensors->free_scopes;
    tensors->free_scopes = scope;
    pthread_mutex_unlock(&tensors->lock);
}

/* Takes `scope` out of the list of the scope in which it is suspended. */
static void forget_suspended(ls_scope *around, ls_scope *scope)
{
    ls_scope **at = &around->suspended;
    while (*at != scope) {
        LS_ASSERT(*at != NULL);
        at = &(*at)->next_suspended;
    }
    *at = scope->next_suspended;
    scope->next_suspended = NULL;
    scope->is_suspended = false;
}

/* Those that are suspended in it end first: their graphs lead into this one. */
void ls__scope_end(ls_scope *scope)
{
    while (scope->suspended != NULL) {
        ls_scope *inner = scope->suspended;
        forget_suspended(scope, inner);
        scope_finish(inner);
    }
    scope_finish(scope);
}

/* Whoever calls this ends the scope. */
void ls__scope_take(ls_scope *scope)
{
    LS_ASSERT(scope == ls__self.scope && scope->live && !scope->root);
    ls__self.scope = scope->parent;
}

/* Leaves the innermost scope of this thread. */
static void scope_pop(void)
{
    ls_scope *scope = ls__self.scope;
    ls__scope_take(scope);
    ls__scope_end(scope);
}

/* Never NULL: without memory it is a mark that ls_scope_leave ignores. */
ls_scope *ls_scope_enter(void)
{
    ls__tensors *tensors = ls__tensors_get("scope_enter");
    ls_scope *scope = NULL;
    /* The root scope lies below the first one entered, so that it is never the one left. */
    if (tensors != NULL && ls__scope_current(tensors) != NULL) {
        scope = scope_push(tensors, false);
    }
    return scope != NULL ? scope : (ls_scope *)(uintptr_t)&no_scope;
}

/* The scope of this thread in which `scope` is suspended; NULL: none. `scope` is compared and not
 * read, because it may have ended. */
static ls_scope *suspended_in(const ls_scope *scope)
{
    for (ls_scope *at = ls__self.scope; at != NULL; at = at->parent) {
        for (const ls_scope *inner = at->suspended; inner != NULL; inner = inner->next_suspended) {
            if (inner == scope) {
                return at;
            }
        }
    }
    return NULL;
}

/* How many scopes this thread has entered after `scope`; -1: it has not entered it. */
static int entered_since(const ls_scope *scope)
{
    int count = 0;
    for (const ls_scope *at = ls__self.scope; at != NULL && !at->root; at = at->parent) {
        if (at == scope) {
            return count;
        }
        count++;
    }
    return -1;
}

/* Also leaves the scopes entered since, so an early return inside a loop loses nothing. A scope of
 * another thread is ignored. */
void ls_scope_leave(ls_scope *scope)
{
    ls_scope *around = suspended_in(scope);
    if (around != NULL) {
        forget_suspended(around, scope);
        scope_finish(scope);
        return;
    }
    if (entered_since(scope) < 0) { /* not entered by this thread, or left before */
        return;
    }
    while (ls__self.scope != scope) {
        scope_pop();
    }
    scope_pop();
}

/* ---- suspended scopes --------------------------------------------------------------------- */

static ls_status fail_not_entered(const char *what)
{
    return ls__fail(LS_ERR_STATE,
                    "%s: this thread has not entered the scope, or has left it; give what "
                    "ls_scope_enter returned, on the same thread",
                    what);
}

/* Only the innermost scope, and none in which others are suspended: so every suspended scope hangs
 * directly on a scope of the stack. */
ls_status ls_scope_suspend(ls_scope *scope)
{
    const int inner = entered_since(scope);
    if (suspended_in(scope) != NULL) {
        return ls__fail(LS_ERR_STATE, "scope_suspend: the scope is suspended already");
    }
    if (inner < 0) {
        return fail_not_entered("scope_suspend");
    }
    if (inner > 0 || scope->suspended != NULL) {
        return ls__fail(LS_ERR_STATE,
                        "scope_suspend: scopes that were entered in this one have not ended; leave "
                        "them first");
    }
    ls__scope_take(scope);
    scope->next_suspended = scope->parent->suspended;
    scope->parent->suspended = scope;
    scope->is_suspended = true;
    return LS_OK;
}

/* The stack is then as it was when the scope was suspended. */
ls_status ls_scope_resume(ls_scope *scope)
{
    ls_scope *around = suspended_in(scope);
    if (around == NULL && entered_since(scope) >= 0) {
        return ls__fail(LS_ERR_STATE, "scope_resume: the scope is not suspended");
    }
    if (around == NULL) {
        return fail_not_entered("scope_resume");
    }
    if (around != ls__self.scope) {
        return ls__fail(LS_ERR_STATE,
                        "scope_resume: the innermost scope is not the one in which this scope was "
                        "entered; leave or suspend the scopes that were entered since");
    }
    forget_suspended(around, scope);
    ls__self.scope = scope;
    return LS_OK;
}

/* A leaf is counted and in no scope's arena, so any scope may use it. */
bool ls__graph_open(const ls__record *record)
{
    if (record->node == NULL || ls__node_is_leaf(record->node) || record->scope == NULL ||
        !record->scope->is_suspended) {
        return true;
    }
    (void)ls__fail(LS_ERR_STATE,
                   "the tensor %s made at %s:%d belongs to a suspended scope, whose graph no other "
                   "scope can continue; call ls_scope_resume first, or use ls_detach of the tensor",
                   ls__record_print(record).text, record->file != NULL ? record->file : "?",
                   record->line);
    return false;
}

/* Tensors and nodes of scopes that are still entered lie in memory that the pools give back as a
 * whole. */
void ls__scopes_fini(ls__tensors *tensors)
{
    LS__LIST_EACH (at, &tensors->scopes) {
        ls_scope *scope = LS__LIST_ITEM(at, ls_scope, link);
        ls__arena_fini(&scope->arena);
        tensors->env.table.release(&tensors->env.table, scope, sizeof *scope);
    }
}
