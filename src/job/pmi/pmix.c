/* SPDX-License-Identifier: Apache-2.0 */
/* PMIx by its library, libpmix.so.2, opened at run time. The process manager may be of another
 * version of PMIx than the library: the two agree on a protocol by themselves.
 *
 * The types are those of the PMIx standard, version 3 and later (https://pmix.github.io), as far as
 * these calls need them; its header is not needed for building. Arrays of pmix_info_t have one
 * element here, so that the size of the type, which has grown, is never used. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/pmi/pmi.h"

#define PMIX_LIBRARY "libpmix.so.2"
#define PMIX_RANK_WILDCARD (UINT32_MAX - 1)
#define PMIX_GLOBAL 3 /* pmix_scope_t */
#define PMIX_BOOL 1   /* pmix_data_type_t */
#define PMIX_STRING 3
#define PMIX_COLLECT_DATA "pmix.collect" /* the fence also distributes the values */
#define POLL_MS 1

typedef struct pmix_proc {
    char nspace[256];
    uint32_t rank;
} pmix_proc;

typedef struct pmix_value {
    uint16_t type;
    union {
        bool flag;
        char *string;
        void *room[8]; /* larger than the standard's largest */
    } data;
} pmix_value;

typedef struct pmix_info {
    char key[512];
    uint32_t flags;
    pmix_value value;
} pmix_info;

typedef void (*pmix_done)(int status, void *arg);

typedef struct pmix_calls {
    int (*init)(pmix_proc *self, pmix_info *info, size_t count);
    int (*finalize)(const pmix_info *info, size_t count);
    int (*put)(uint8_t scope, const char *key, pmix_value *value);
    int (*commit)(void);
    int (*fence_nb)(const pmix_proc *procs, size_t count, const pmix_info *info, size_t infos,
                    pmix_done done, void *arg);
    int (*get)(const pmix_proc *proc, const char *key, const pmix_info *info, size_t count,
               pmix_value **out);
    const char *(*text)(int status);
} pmix_calls;

/* Never closed: MPI in this process may use the same library. */
static bool open_library(pmix_calls *calls, char *reason)
{
    static const char *const names[] = {"PMIx_Init",        "PMIx_Finalize", "PMIx_Put",
                                        "PMIx_Commit",      "PMIx_Fence_nb", "PMIx_Get",
                                        "PMIx_Error_string"};
    void **const to[] = {(void **)&calls->init,   (void **)&calls->finalize, (void **)&calls->put,
                         (void **)&calls->commit, (void **)&calls->fence_nb, (void **)&calls->get,
                         (void **)&calls->text};
    /* Global, because the library's own plug-ins look for its functions there. */
    void *library = dlopen(PMIX_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        const char *why = dlerror();
        snprintf(reason, LS__PMI_REASON, "%.200s", why != NULL ? why : PMIX_LIBRARY);
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *to[i] = dlsym(library, names[i]);
        if (*to[i] == NULL) {
            snprintf(reason, LS__PMI_REASON, "%s has no function %s", PMIX_LIBRARY, names[i]);
            return false;
        }
    }
    return true;
}

static bool good(const pmix_calls *calls, int status, const char *call, char *reason)
{
    if (status == 0) {
        return true;
    }
    snprintf(reason, LS__PMI_REASON, "%s: %.180s", call, calls->text(status));
    return false;
}

#define UNDER_WAY 1 /* no status of PMIx: those are 0 and below */

/* Sync: written by a thread of PMIx, release; read by the caller of fence, acquire. Static, because
 * PMIx may still write it after this call has given up. */
static _Atomic int fence_status;

static void fence_done(int status, void *arg)
{
    (void)arg;
    atomic_store_explicit(&fence_status, status, memory_order_release);
}

/* PMIx_Fence itself has no deadline that every version keeps. */
static bool fence(const ls__env *env, const pmix_calls *calls, const pmix_proc *self,
                  uint64_t deadline_ns, char *reason)
{
    pmix_proc all = *self;
    pmix_info collect = {.key = PMIX_COLLECT_DATA,
                         .value = {.type = PMIX_BOOL, .data = {.flag = true}}};
    all.rank = PMIX_RANK_WILDCARD;
    atomic_store_explicit(&fence_status, UNDER_WAY, memory_order_relaxed);
    int status = calls->fence_nb(&all, 1, &collect, 1, fence_done, NULL);
    if (!good(calls, status, "PMIx_Fence_nb", reason)) {
        return false;
    }
    while ((status = atomic_load_explicit(&fence_status, memory_order_acquire)) == UNDER_WAY) {
        if (env->now_ns(env) >= deadline_ns) {
            snprintf(reason, LS__PMI_REASON,
                     "PMIx_Fence: not all ranks have called ls_init within the deadline");
            return false;
        }
        env->sleep_until(env, ls__deadline_after(env, POLL_MS));
    }
    return good(calls, status, "PMIx_Fence", reason);
}

static bool put(const pmix_calls *calls, const char *key, char *text, char *reason)
{
    pmix_value value = {.type = PMIX_STRING, .data = {.string = text}};
    return good(calls, calls->put(PMIX_GLOBAL, key, &value), "PMIx_Put", reason) &&
           good(calls, calls->commit(), "PMIx_Commit", reason);
}

/* The answer belongs to the caller; its text is erased, as it holds the secret. */
static bool get(const pmix_calls *calls, const pmix_proc *self, const char *key, char *out,
                char *reason)
{
    pmix_proc first = *self;
    pmix_value *value = NULL;
    first.rank = 0;
    if (!good(calls, calls->get(&first, key, NULL, 0, &value), "PMIx_Get", reason)) {
        return false;
    }
    out[0] = '\0';
    if (value != NULL && value->type == PMIX_STRING && value->data.string != NULL) {
        snprintf(out, LS__PMI_VALUE, "%s", value->data.string);
        explicit_bzero(value->data.string, strlen(value->data.string));
        free(value->data.string);
    }
    free(value);
    return true;
}

bool ls__pmix_broadcast(const ls__env *env, int rank, const char *key, char value[LS__PMI_VALUE],
                        uint64_t deadline_ns, char reason[LS__PMI_REASON])
{
    pmix_calls calls;
    pmix_proc self;
    memset(&self, 0, sizeof self);
    if (!open_library(&calls, reason) ||
        !good(&calls, calls.init(&self, NULL, 0), "PMIx_Init", reason)) {
        return false;
    }
    return (rank != 0 || put(&calls, key, value, reason)) &&
           fence(env, &calls, &self, deadline_ns, reason) && get(&calls, &self, key, value, reason);
}

void ls__pmix_end(void)
{
    pmix_calls calls;
    char reason[LS__PMI_REASON];
    if (open_library(&calls, reason)) {
        (void)calls.finalize(NULL, 0);
    }
}
