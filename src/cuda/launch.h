/* SPDX-License-Identifier: Apache-2.0 */
/* The device that is open, and starting kernels on it. */
#ifndef LS_CUDA_LAUNCH_H
#define LS_CUDA_LAUNCH_H

#include "base/compiler.h"
#include "cuda/args.h"
#include "device/device.h"

#define LS__CUDA_BLOCKS_MAX 16384 /* of elements, which then take turns */
#define LS__CUDA_ROWS_MAX (1 << 20)
#define LS__CUDA_WORKSPACE ((size_t)32 << 20)

typedef enum ls__cuda_kernel {
#define X(name, together) CUDA_##name,
    CUDA_KERNELS(X)
#undef X
        CUDA_KERNEL_COUNT
} ls__cuda_kernel;

/* One a process. What an entry needs for itself lies in `workspace`: entries run one after the
 * other on the device's stream. */
typedef struct ls__cuda {
    ls__device device;
    ls__kernels table;
    ls__env memory;
    char name[24];
    void *context, *functions[CUDA_KERNEL_COUNT];
    void *workspace;
} ls__cuda;

extern ls__cuda ls__cuda_self;

typedef struct ls__cuda_grid {
    int64_t blocks;
    int threads;
} ls__cuda_grid;

static inline ls__cuda_grid per_element(int64_t elements)
{
    const int64_t blocks = (elements + LS__CUDA_THREADS - 1) / LS__CUDA_THREADS;
    return (ls__cuda_grid){blocks < LS__CUDA_BLOCKS_MAX ? blocks : LS__CUDA_BLOCKS_MAX,
                           LS__CUDA_THREADS};
}

static inline ls__cuda_grid per_row(int64_t count)
{
    return (ls__cuda_grid){count < LS__CUDA_ROWS_MAX ? count : LS__CUDA_ROWS_MAX, LS__CUDA_THREADS};
}

static inline int64_t numel(int ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int d = 0; d < ndim; d++) {
        count *= shape[d];
    }
    return count;
}

/* Elements at places of their own: those along a stride of 0 fall together. */
static inline int64_t distinct(const ls__strided *s, int ndim, const int64_t *shape)
{
    int64_t count = numel(ndim, shape) > 0 ? 1 : 0;
    for (int d = 0; d < ndim; d++) {
        count *= s->stride[d] != 0 ? shape[d] : 1;
    }
    return count;
}

static inline int64_t tiles(int64_t columns)
{
    return (columns + LS__CUDA_TILE - 1) / LS__CUDA_TILE;
}

static inline int64_t lines(const ls__pick *p)
{
    const int64_t count = numel(p->ndim, p->shape);
    return count > 0 ? count / p->shape[p->dim] : 0;
}

/* Makes the device's context that of this thread. */
void ls__cuda_enter(void);
/* Starts a kernel with a copy of its arguments; nothing for no blocks. */
void ls__cuda_launch(ls__cuda_kernel kernel, ls__cuda_grid grid, const void *args,
                     ls_stream *stream);
/* Notes an error of the driver or of a library; the first one stays. */
void ls__cuda_check(int code, const char *what);
void ls__cuda_fail(const char *what, const char *why);
const char *ls__cuda_failure(const ls__device *device);
/* Keeps a line for the user until the library asks for it (ls__device.notice); one at a time. */
void ls__cuda_note(const char *format, ...) LS__PRINTF(1, 2);
bool ls__cuda_notice(const ls__device *device, char text[]);

/* The whole table; written by entries.py. */
void ls__cuda_table(ls__kernels *to);

#endif
