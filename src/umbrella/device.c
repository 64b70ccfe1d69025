/* SPDX-License-Identifier: Apache-2.0 */
/* Devices by name: "cpu", or KIND:NUMBER of a plug-in ls_device_KIND.so (device/device.h). A device
 * that was opened stays open, and a plug-in is asked for it once. */
#include <lockstep/lockstep.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "autograd/param.h"
#include "base/error.h"
#include "base/text.h"
#include "comm/backend/plugin.h"
#include "nn/module.h"
#include "tensor/across.h"
#include "tensor/fill.h"

#define OPEN_MAX 16 /* more than a host has */
#define KIND_MAX 16
#define NUMBER_MAX 1024
#define LOAD (RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)

typedef struct asked { /* "cuda:1" */
    char kind[KIND_MAX];
    int number; /* without one: the number of the rank on its host */
} asked;

typedef struct opened {
    asked name;
    const ls__device *device;
} opened;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static opened table[OPEN_MAX];
static int count;

static ls_status parse(const char *name, asked *out)
{
    char kind[KIND_MAX] = "", rest[2] = "";
    int number = -1;
    const int read = sscanf(name, "%15[a-z0-9_]:%4d%1s", kind, &number, rest);
    const bool whole = read == 1 ? name[strlen(kind)] == '\0' : read == 2 && number >= 0;
    const int numbers = strcmp(kind, "cpu") == 0 ? 1 : NUMBER_MAX; /* there is one processor */
    if (!whole || number >= numbers) {
        return ls__fail(
            LS_ERR_INVALID,
            "device \"%.60s\" is no name of a device; give cpu, cuda, or a number as in "
            "cuda:0",
            name);
    }
    memcpy(out->kind, kind, sizeof kind);
    out->number = number >= 0 ? number : ls_local_rank();
    return LS_OK;
}

/* ---- the plug-in -------------------------------------------------------------------------- */

static void *load(const char *path, const char *what)
{
    char real[LS__TRUSTED_PATH_MAX];
    void *library = NULL;
    if (ls__plugin_check_place(what, path, real) == LS_OK) {
        library = dlopen(real, LOAD);
        if (library == NULL) {
            (void)ls__fail(LS_ERR_UNSUPPORTED, "%s: %s cannot be loaded: %.300s", what, path,
                           dlerror());
        }
    }
    return library;
}

/* The first file of the kind that exists. NULL with the error set. */
static void *find(const asked *a, const char *what, char *path, size_t bytes)
{
    char folder[LS__BACKEND_PATH_MAX - 64], looked[300] = "";
    ls__text list = {looked, sizeof looked};
    for (int i = 0; ls__plugin_folder(i, folder, sizeof folder); i++) {
        snprintf(path, bytes, "%s/ls_device_%s.so", folder, a->kind);
        if (access(path, F_OK) == 0) {
            return load(path, what);
        }
        ls__text_add(&list, "%s%s", i == 0 ? "" : ", ", folder);
    }
    (void)ls__fail(LS_ERR_NOT_FOUND,
                   "%s: there is no ls_device_%s.so in %s; install the plug-in, or give its folder "
                   "in LOCKSTEP_BACKEND_PATH",
                   what, a->kind, looked);
    return NULL;
}

static ls_status open_device(const asked *a, const ls__device **out)
{
    char path[LS__BACKEND_PATH_MAX], what[64], error[LS__DEVICE_ERROR_MAX] = "";
    ls__device_plugin_fn *plugin = NULL;
    snprintf(what, sizeof what, "device \"%s:%d\"", a->kind, a->number);
    void *library = find(a, what, path, sizeof path);
    if (library == NULL) {
        return ls__self.status;
    }
    void *symbol = dlsym(library, LS__DEVICE_SYMBOL);
    memcpy(&plugin, &symbol, sizeof plugin); /* ISO C does not convert them */
    const ls__device_plugin *p = plugin != NULL ? plugin() : NULL;
    if (p == NULL || strcmp(p->version, LS_VERSION) != 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "%s: %s is of another build than this library, %s; install the one that "
                        "came with it",
                        what, path, LS_VERSION);
    }
    if (p->interface != ls__device_interface()) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "%s: %s has interface %016llx, and this library, also %s, has %016llx; "
                        "install both from one build",
                        what, path, (unsigned long long)p->interface, LS_VERSION,
                        (unsigned long long)ls__device_interface());
    }
    *out = p->open(a->number, error);
    return *out != NULL ? LS_OK : ls__fail(LS_ERR_UNSUPPORTED, "%s: %s", what, error);
}

/* ---- by name ------------------------------------------------------------------------------ */

/* *out: NULL for the processor. Under lock. */
static ls_status open_once(const asked *a, const ls__device **out)
{
    for (int i = 0; i < count; i++) {
        if (memcmp(&table[i].name, a, sizeof *a) == 0) {
            *out = table[i].device;
            return LS_OK;
        }
    }
    LS_TRY(open_device(a, out));
    if (count < OPEN_MAX) {
        table[count++] = (opened){*a, *out};
    }
    return LS_OK;
}

/* `name` NULL: where tensors are made. NULL with the error set. */
static ls__pool *pool_of(const char *name, const char *what)
{
    ls__tensors *tensors = ls__tensors_get(what);
    const ls__device *device = NULL;
    asked a;
    memset(&a, 0, sizeof a); /* names are compared as bytes */
    if (tensors == NULL || name == NULL) {
        return tensors != NULL ? tensors->made : NULL;
    }
    if (parse(name, &a) < 0) {
        return NULL;
    }
    if (strcmp(a.kind, "cpu") != 0) {
        pthread_mutex_lock(&lock);
        const ls_status status = open_once(&a, &device);
        pthread_mutex_unlock(&lock);
        if (status < 0) {
            return NULL;
        }
    }
    return ls__tensors_pool(tensors, device);
}

ls_status ls_device_use(const char *device)
{
    ls__pool *pool = pool_of(device, "ls_device_use");
    if (pool == NULL) {
        return ls__fail_at_site(ls__self.status);
    }
    pool->tensors->made = pool;
    return LS_OK;
}

const char *ls_device_of(const ls_tensor *t)
{
    ls__tensors *tensors = ls__tensors_get("ls_device_of");
    const ls__record *record =
        tensors != NULL ? ls__record_sound(tensors, t, "ls_device_of") : NULL;
    return record != NULL ? record->storage->pool->device->name : NULL;
}

ls_tensor *ls_to(ls_tensor *t, const char *device)
{
    ls__pool *pool = pool_of(device, "ls_to");
    if (pool == NULL) {
        const ls_status refused = ls__fail_at_site(ls__self.status);
        ls__tensors *tensors = ls__tensors_get("ls_to");
        return tensors != NULL ? ls__poison(tensors) : ls__poison_fixed(refused);
    }
    return ls__tensor_to(t, pool);
}

/* ---- a module ----------------------------------------------------------------------------- */

/* Elements in a bucket, or a gradient, belong to a wrapper or to a backward that was there. */
static ls_status check_item(const ls__module_item *item, const ls__record *record)
{
    const bool wrapped = ls_requires_grad(item->value) && ls__param_observer(item->value) != NULL;
    if (wrapped || record->storage->size_class == LS__STORAGE_BORROWED) {
        return ls__fail(LS_ERR_STATE,
                        "ls_module_to: the memory of %.200s is not its own; move the module before "
                        "it is wrapped (ls_ddp_new)",
                        item->name);
    }
    if (ls_requires_grad(item->value) && ls__param_grad_present(item->value)) {
        return ls__fail(LS_ERR_STATE,
                        "ls_module_to: %.200s has a gradient; move the module before ls_backward, "
                        "or after ls_optim_zero_grad",
                        item->name);
    }
    return LS_OK;
}

static ls_status each_item(ls_module *module, ls__pool *pool, bool moves)
{
    int items = 0;
    const ls__module_item *item = ls__module_items(module, &items);
    if (item == NULL && items > 0) {
        return ls__self.status;
    }
    for (int i = 0; i < items; i++) {
        const ls__record *record = ls__record_sound(pool->tensors, item[i].value, "ls_module_to");
        if (record == NULL) {
            return ls__self.status;
        }
        LS_TRY(moves ? ls__storage_to(record->storage, pool) : check_item(&item[i], record));
    }
    return LS_OK;
}

/* Nothing has moved after a refusal. Parameters whose values are not drawn yet are drawn there. */
ls_status ls_module_to(ls_module *module, const char *device)
{
    const ls_status sound =
        module != NULL ? ls_module_status(module) : ls__module_missing("ls_module_to");
    ls__pool *pool = sound == LS_OK ? pool_of(device, "ls_module_to") : NULL;
    if (pool == NULL || each_item(module, pool, false) < 0 || each_item(module, pool, true) < 0) {
        return ls__fail_at_site(ls__self.status);
    }
    return LS_OK;
}
