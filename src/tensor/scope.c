/* Scopes: who owns the tensors and graph nodes that operations make.
 *
 * A thread's scopes form a stack; the innermost is ls__self.scope. Below all lies a root scope,
 * made when the thread makes a tensor outside any LS_SCOPE: its tensors live until ls_free or
 * the end of the runtime. Left scopes are pooled with their arenas, so entering one allocates
 * nothing.
 *
 *     pooled (live false)  -- scope_push -->  live, on top of its thread's stack
 *     live                 -- scope_pop  -->  cleared, pooled; a root scope is never popped
 */
#include "tensor/graph.h"

#include "base/assert.h"
#include "base/log.h"

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
    LS_ASSERT(!scope->live && scope->nodes == NULL && ls__list_empty(&scope->records));
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

/* Tensors first: a node may hold the last reference to a storage that a tensor shares. */
static void scope_clear(ls_scope *scope)
{
    ls__scope_forget(scope);
    for (ls__tensor_node *node = scope->nodes; node != NULL; node = node->next) {
        ls__node_release(node);
    }
    scope->nodes = NULL;
    scope->warned = false;
    ls__arena_rewind(&scope->arena, scope->start);
}

/* Leaves the innermost scope of this thread: frees its tensors and nodes and pools it with its
 * arena. */
static void scope_pop(void)
{
    ls_scope *scope = ls__self.scope;
    LS_ASSERT(scope->live && !scope->root);
    ls__tensors *tensors = scope->tensors;
    ls__self.scope = scope->parent;
    scope_clear(scope);
    scope->live = false;
    pthread_mutex_lock(&tensors->lock);
    scope->parent = tensors->free_scopes;
    tensors->free_scopes = scope;
    pthread_mutex_unlock(&tensors->lock);
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

/* Also leaves the scopes entered since, so an early return inside a loop loses nothing. A scope of
 * another thread is ignored. */
void ls_scope_leave(ls_scope *scope)
{
    ls_scope *at = ls__self.scope;
    while (at != NULL && at != scope) {
        at = at->parent;
    }
    if (at == NULL || at->root) { /* not entered by this thread, or left before */
        return;
    }
    while (ls__self.scope != scope) {
        scope_pop();
    }
    scope_pop();
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
