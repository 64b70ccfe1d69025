/* SPDX-License-Identifier: Apache-2.0 */
/* Inside a tensor: records, storages, and the pools of one runtime.
 *
 *   ls_tensor *  ->  ls__record (shape, strides)  ->  ls__storage (counted)  ->  memory
 *
 * Note [Handles]
 * Records live in slabs at multiples of 256 bytes. A handle is the record's address with the
 * record's generation in the low 8 bits; freeing a record raises its generation and appends it to a
 * FIFO of free ones. So a handle that outlived its tensor is seen, unless its record was reused an
 * exact multiple of 256 times since: the FIFO (at least RECORDS_FIRST long) puts that more than
 * 260,000 tensors away. Handles are decoded, never dereferenced.
 *
 * Note [Threads and tensors]
 * A tensor in a scope belongs to the thread whose scope it is. Kept tensors may be used by any
 * thread, one at a time. Storages are counted atomically, so views may live on several threads.
 */
#ifndef LS_TENSOR_TENSOR_H
#define LS_TENSOR_TENSOR_H

#include <lockstep/memory.h>
#include <lockstep/tensor.h>

#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/compiler.h"
#include "base/list.h"
#include "base/runtime.h"
#include "device/device.h"
#include "tensor/regions.h"

typedef struct ls__tensors ls__tensors;
typedef struct ls__pool ls__pool;
typedef struct ls__pool_blocks ls__pool_blocks;
typedef struct ls__storage ls__storage;
typedef struct ls__tensor_node ls__tensor_node; /* graph.h */

/* ---- storage --------------------------------------------------------------------------------- */

struct ls__storage {
    _Atomic int32_t refs;     /* Sync: atomic; the last unref frees */
    _Atomic uint32_t version; /* Sync: atomic; raised by every change in place */
    uint16_t size_class;      /* of the block; LS__STORAGE_BORROWED: the caller's memory */
    _Atomic bool due;         /* something, before elements are read. Sync: fill.h */
    void *data;
    ls__region_piece *piece;            /* whose data it is; NULL: not a large block */
    ls__pool_blocks *blocks;            /* to which its block goes back; NULL: borrowed */
    size_t bytes;                       /* asked for */
    ls__pool *pool;                     /* of the device on which it lies */
    void (*fini)(ls__storage *storage); /* before the block is given back; NULL: nothing */
    ls__storage *next;                  /* in the list of free headers */
    struct ls__initial *initial;        /* of a parameter (fill.h); NULL: nothing is known */
    ls__storage *rounded;               /* elements in fewer bits (quantize.h), held; NULL: none */
};

#define LS__STORAGE_BORROWED UINT16_MAX

/* Uninitialised memory, 64-byte aligned, one reference. NULL (message set) when memory is out. */
ls__storage *ls__storage_new(ls__pool *pool, size_t bytes);
/* A header over memory of the caller's, that the device can reach. */
ls__storage *ls__storage_borrow(ls__pool *pool, void *data, size_t bytes);
void ls__storage_unref(ls__storage *storage); /* NULL is allowed */
void ls__storages_release_cached(ls__tensors *tensors);
/* Moves the elements to `memory`, which is then borrowed (NULL: to a block of its own again). All
 * tensors that share the storage follow. The elements must not be in use during the move. */
ls_status ls__storage_move(ls__storage *storage, void *memory);
/* Moves the elements to another device, into a block of the storage's own. */
ls_status ls__storage_to(ls__storage *storage, ls__pool *on);
/* What a captured step has of parameters holds no more: it is captured anew. */
void ls__storages_moved(ls__tensors *tensors);
/* Exchanges memory, size and version of two storages of one device. */
void ls__storage_swap(ls__storage *a, ls__storage *b);
/* Blocks of a captured step: what its thread takes from the pool while it is recorded comes from
 * there, and no other memory does, until they are given up and become the pool's. NULL with the
 * error set. */
ls__pool_blocks *ls__pool_blocks_new(ls__pool *pool);
void ls__pool_blocks_give_up(ls__pool *pool, ls__pool_blocks *blocks);

static inline ls__storage *ls__storage_ref(ls__storage *storage)
{
    /* Relaxed: whoever takes a reference holds one already. */
    atomic_fetch_add_explicit(&storage->refs, 1, memory_order_relaxed);
    return storage;
}

/* Whether there are no references but these `refs`. Acquire pairs with the release of unref. */
static inline bool ls__storage_has_only(ls__storage *storage, int32_t refs)
{
    return atomic_load_explicit(&storage->refs, memory_order_acquire) == refs;
}

/* Whether the caller's reference is the only one. */
static inline bool ls__storage_sole(ls__storage *storage)
{
    return ls__storage_has_only(storage, 1);
}

static inline uint32_t ls__storage_version(ls__storage *storage)
{
    return atomic_load_explicit(&storage->version, memory_order_relaxed);
}

/* ---- records --------------------------------------------------------------------------------- */

enum ls__record_flag {
    LS__RECORD_LIVE = 1,
    LS__RECORD_LEAF = 2,   /* requires gradients itself: node is its leaf, owned */
    LS__RECORD_OWNED = 4,  /* belongs to the library (a gradient's view): ls_free leaves it alone */
    LS__RECORD_WITHIN = 8, /* made by a module for itself: backward frees it on its way */
};

/* What the layers above have noted about a parameter; it stays when the parameter is frozen. */
typedef struct ls__param_notes {
    uint8_t summed;   /* bit a: a reducer adds its gradient over axis a of the mesh in force */
    uint8_t complete; /* bit a: its gradient is complete along axis a, though batches vary there */
    uint8_t staged;   /* bit a: axis a is that of a pipeline, of whose stage it is */
    uint8_t layout;   /* of the mesh along whose axes this is a part; 0: it is whole */
    bool is_staged;   /* of a stage of a pipeline */
    bool is_table;    /* an embedding's, of whose gradient a pass may reach few rows */
} ls__param_notes;

typedef struct ls__record {
    int64_t dim[LS_DIMS_MAX], stride[LS_DIMS_MAX]; /* strides in elements */
    int64_t offset, numel;                         /* of the first element, in elements */
    ls__storage *storage;                          /* of a poisoned tensor: its message */
    ls__tensor_node *node;   /* where its gradient flows to; NULL: outside the graph */
    ls_scope *scope;         /* NULL: kept */
    ls__list link;           /* in its scope, among the kept or among the free */
    struct ls__record *peer; /* during a backward pass: another one of the same node */
    const char *file;        /* where it was made; NULL: unknown */
    int32_t line;
    int16_t status;        /* ls_status; negative: poisoned */
    uint32_t place;        /* on each axis of the mesh in force (placement.h); 0: unplaced */
    ls__param_notes notes; /* of a frozen parameter; of others their leaf has them */
    uint8_t generation, ndim, dtype, flags;
} ls__record;

#define LS__RECORD_BYTES 256

static inline ls_tensor *ls__handle(const ls__record *record)
{
    return (ls_tensor *)((uintptr_t)record | record->generation);
}

/* The record of a handle, poisoned ones too. NULL with LS_ERR_INVALID (NULL handle) or LS_ERR_STALE
 * set; `what` names the call, `argument` its number from 1 (0: its only one). */
ls__record *ls__record_of(ls__tensors *tensors, const ls_tensor *handle, const char *what,
                          int argument);
/* The same for calls that cannot work with a poisoned tensor: its error is set, NULL returned. */
ls__record *ls__record_sound(ls__tensors *tensors, const ls_tensor *handle, const char *what);

/* A live record in the innermost scope, everything zero. NULL when memory is out. */
ls__record *ls__record_new(ls__tensors *tensors);
/* Another record of the same elements: shares storage and node. NULL when memory is out. */
ls__record *ls__record_alias(ls__tensors *tensors, const ls__record *of);
void ls__record_free(ls__tensors *tensors, ls__record *record);
void ls__record_keep(ls__tensors *tensors, ls__record *record); /* out of its scope */
/* Shape, row-major strides, dtype. False, with a message after `what`, when it is invalid. */
bool ls__record_set_shape(ls__record *record, ls_shape shape, ls_dtype dtype, const char *what);

/* A module's result belongs to its caller, no longer to it. */
void ls__tensor_give_out(ls_tensor *t);
/* Frees the elements of a tensor in a scope: from now on it is poisoned with `text`, which is
 * shared. */
void ls__record_hollow(ls__record *record, ls__storage *text);
/* A poisoned tensor that carries this thread's last error. */
ls_tensor *ls__poison(ls__tensors *tensors);
/* The same when there is no runtime, or no memory for a record. */
ls_tensor *ls__poison_fixed(ls_status status);

static inline char *ls__record_data(const ls__record *record)
{
    return (char *)record->storage->data +
           record->offset * (int64_t)ls_dtype_size((ls_dtype)record->dtype);
}

/* The same as the address of floats; elements of bfloat16 may travel so, too, to kernels that
 * know. */
static inline float *ls__record_floats(const ls__record *record)
{
    return (float *)(void *)ls__record_data(record);
}

bool ls__record_contiguous(const ls__record *record);
ls__strided ls__record_strided(const ls__record *record);

/* ---- scopes ---------------------------------------------------------------------------------- */

struct ls_scope {
    ls_scope *parent;
    ls__tensors *tensors;
    ls__list records;
    ls__tensor_node *nodes; /* graph nodes made here; die with the scope */
    int64_t count;
    ls__arena arena;
    ls__arena_mark start;
    ls__list link;            /* among all scopes, live or pooled */
    ls_scope *suspended;      /* the scopes that were entered here and are suspended … */
    ls_scope *next_suspended; /* … linked by this */
    ls__storage *later;       /* what was put off until ls_backward_weight_part; NULL: nothing */
    bool live, root, warned, is_suspended;
};

/* The innermost scope of this thread, its root scope when it has entered none. NULL without
 * memory. */
ls_scope *ls__scope_current(ls__tensors *tensors);
/* Zeroed memory that lives as long as the innermost scope. */
void *ls__scope_alloc(ls__tensors *tensors, size_t bytes);
/* Frees the tensors of `scope` now; operands that its graph saved stay until that goes. */
void ls__scope_forget(ls_scope *scope);
/* Takes the innermost scope off this thread's stack, with all that it owns; it ends later. */
void ls__scope_take(ls_scope *scope);
void ls__scope_end(ls_scope *scope);
/* Whether the present scope may continue the graph of `record`; false with the error set when that
 * belongs to a suspended scope. */
bool ls__graph_open(const ls__record *record);

/* ---- the pools of a runtime ------------------------------------------------------------------ */

#define LS__SIZE_CLASSES 37 /* 4 a power of two, from 256 bytes to LS__LARGE_BYTES */
#define LS__SLABS_MAX 24    /* each twice as large as the one before */

/* Calls of env->allocate on behalf of tensors, counted. First member: its own table. */
typedef struct ls__counted_env {
    ls__env table;
    const ls__env *real;
    _Atomic uint64_t calls; /* Sync: atomic */
} ls__counted_env;

typedef struct ls__slab {
    void *memory;
    size_t bytes;
    char *first; /* record */
    int64_t count;
} ls__slab;

/* Blocks that take turns in the same memory. */
struct ls__pool_blocks {
    ls__pool_blocks *next;                      /* of the pool's captured steps */
    ls__storage *free_blocks[LS__SIZE_CLASSES]; /* headers that have kept their blocks */
    ls__regions regions;                        /* large blocks */
    int64_t small_reserved;                     /* bytes of blocks of classes */
};

/* The memory of one device, and what computes there: all that an operation needs of it. */
struct ls__pool {
    ls__tensors *tensors;
    const ls__device *device;
    const ls__kernels *k; /* the device's */
    ls_stream *stream;    /* on which operations start */
    /* under tensors->lock: */
    ls__pool_blocks own;
    ls__pool_blocks *captured; /* of captured steps, which nobody else gets */
};

struct ls__tensors {
    ls__counted_env env;
    ls_runtime *runtime;
    ls__device cpu;
    ls__pool host;               /* of it; the library's own notes lie there, too */
    ls__pool other;              /* of another device; without one its device is NULL */
    ls__pool *made;              /* where tensors are made from nothing */
    ls__plans *plans;            /* NULL: without memory for them */
    struct ls__spin_limit *spin; /* NULL: none is needed, see kernel/cpu/spin.h */
    _Atomic uint64_t nodes_made; /* Sync: atomic; the creation number of graph nodes */
    pthread_mutex_t lock;        /* of everything below */
    ls__slab slab[LS__SLABS_MAX];
    _Atomic int slab_count; /* Sync: written under lock with release; readers acquire */
    ls__list free_records;  /* FIFO */
    ls__list kept;
    ls__storage *free_headers;
    struct ls__header_slab *header_slabs;
    uint64_t moves; /* of elements to other memory, and other changes that end a captured step */
    ls_memory_stats memory; /* the parts in use */
    ls__list scopes;
    ls_scope *free_scopes; /* linked by parent */
};

/* The pools of the current runtime, made at first use. NULL with the error set; `what` names the
 * call. */
ls__tensors *ls__tensors_get(const char *what);
/* Calls of env->allocate on behalf of tensors so far (tests assert that a steady loop makes none).
 */
uint64_t ls__tensor_allocations(ls_runtime *runtime);
/* Replaces the kernel table (tests: the plain kernels as the oracle). */
ls_status ls__tensor_use_kernels(const ls__kernels *kernels);
/* The pool of `device` (NULL: the processor), made at its first use; it outlives the runtime. NULL
 * with the error set: a process has one device besides the processor. */
ls__pool *ls__tensors_pool(ls__tensors *tensors, const ls__device *device);
/* Tensors that are made from nothing lie on `device` from now on, and with them the results of
 * operations on them. */
ls_status ls__tensor_use_device(const ls__device *device);
/* The elements of a contiguous tensor for kernels of its device, and its pool; NULL with the error
 * set. ls_data is for those of the host. */
void *ls__tensor_elements(ls_tensor *t, ls__pool **pool);
/* The same where the caller reads only elements that are on this rank (fill.h). */
void *ls__tensor_place(ls_tensor *t, ls__pool **pool);
/* All elements become 0, of a contiguous tensor. */
ls_status ls__tensor_zero(ls_tensor *t);
/* *first: its first element that is not finite; -1: all are. */
ls_status ls__tensor_nonfinite(ls_tensor *t, int64_t *first);
/* Waits until the kernels that were started on its device have ended: before others than these read
 * what lies in memory of the program's. */
void ls__tensor_wait(const ls_tensor *t);

/* Elements where the program may read and write them, for the little that it does itself. */
typedef struct ls__host_view {
    void *data;        /* where they lie, if the program may; else a copy */
    ls__storage *copy; /* NULL: none was made */
    const ls__pool *on;
    void *elements;
    size_t bytes;
} ls__host_view;
ls_status ls__host_view_open(ls__pool *on, void *elements, size_t bytes, ls__host_view *out);
ls_status ls__host_view_of(ls_tensor *t, ls__host_view *out); /* of a contiguous tensor */
/* `written`: brings a copy back. */
void ls__host_view_close(ls__host_view *view, bool written);
/* Tensors now alive in the current runtime, kept and scoped. */
int64_t ls__tensor_alive(void);
/* Says that the elements of `t` were changed in place: a graph that saved it is now invalid. Layers
 * that write through ls_data (optimizers, initialisation) call it. */
void ls__tensor_changed(ls_tensor *t);

void ls__records_fini(ls__tensors *tensors);
void ls__scopes_fini(ls__tensors *tensors);
void ls__storages_fini(ls__tensors *tensors);

#endif
