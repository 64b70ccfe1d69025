/* SPDX-License-Identifier: Apache-2.0 */
/* A device: memory for the elements of tensors, and the kernels that compute there.
 *
 * Note [Devices]
 * Every storage lies on one device. Operations look their kernels up by it and start them on its
 * stream, in the order of the program; what a kernel gives (a loss, a norm, whether an index is
 * within its table) is written to the device's memory. Only code of the device reads or writes
 * elements: the program and the layers above have pointers that only kernels follow, until
 * ls__device_read waits for the stream and copies. The host is a device whose kernels have ended
 * when their call returns and whose memory anybody may read, so that a read is a copy and no wait.
 *
 * Memory is given back when its last tensor is freed, though kernels that were started may still
 * use it: what takes it next is started on the same stream, and so runs after them.
 */
#ifndef LS_DEVICE_DEVICE_H
#define LS_DEVICE_DEVICE_H

#include <lockstep/status.h>

#include "kernel/kernels.h"

#define LS__DEVICE_ERROR_MAX 512 /* of a line of the device's */

typedef struct ls__device ls__device;

/* How a device captures a step (captured.h). Between begin and end kernels that this thread starts
 * are recorded, memory is taken but not given back, and nothing waits. */
typedef struct ls__device_capture {
    /* False with a line in `why`, of LS__DEVICE_ERROR_MAX. */
    bool (*begin)(const ls__device *device, char why[]);
    /* What was recorded; NULL with a line in `why`: it failed, and the device is as before. */
    void *(*end)(const ls__device *device, char why[]);
    void (*launch)(const ls__device *device, void *graph);
    void (*free)(const ls__device *device, void *graph); /* waits until no launch runs */
    /* Kernels of optimizers that are recorded from here on look at the gate first. */
    void (*gate)(const ls__step_gate *gate, ls_stream *stream);
    /* *to becomes the rank if one of the checks, every `bytes`, does not begin with an int64_t
     * below 0, else -1. */
    void (*verdict)(int64_t *to, const void *checks, int64_t count, int64_t bytes, int64_t rank,
                    ls_stream *stream);
} ls__device_capture;

struct ls__device {
    const char *name; /* as programs give it: "cpu", "cuda:0" */
    const ls__kernels *kernels;
    ls_stream *stream;     /* on which operations start; NULL: the host's */
    const ls__env *memory; /* whose allocate and release give memory for elements */
    bool host;             /* the program may read and write elements */
    bool apart;            /* kernels, but for `copy`, do not reach memory of the program */
    const char *backend;   /* of groups that move its memory (lockstep/backend.h); NULL: none */
    /* Waits until all that was started has ended. NULL: it has. */
    void (*synchronize)(const ls__device *device);
    /* What went wrong since the device was opened, once and for all; NULL: nothing, or never. */
    const char *(*failure)(const ls__device *device);
    /* A line that the user should read, once, in `text` of LS__DEVICE_ERROR_MAX; false: there is
     * none. NULL: there never is. */
    bool (*notice)(const ls__device *device, char text[]);
    const ls__device_capture *capture; /* NULL: it captures no steps */
};

/* Note [Device plug-ins]
 * A device other than the processor is a shared object, ls_device_KIND.so, which exports one
 * function, LS__DEVICE_SYMBOL. It has the library's own structs, so it is of the same build: the
 * library compares its version and a number of their sizes. The first two fields stay where they
 * are, and a plug-in without them would have the function by another name. It links neither the
 * library nor what its device needs, which it loads when it is opened. */
typedef struct ls__device_plugin {
    const char *version; /* LS_VERSION, of the library that it was built with */
    uint64_t interface;  /* ls__device_interface() */
    /* The device of this number, for the rest of the process. NULL with a line in `error`. */
    const ls__device *(*open)(int number, char error[]);
} ls__device_plugin;

#define LS__DEVICE_SYMBOL "ls__device_plugin_get"
typedef const ls__device_plugin *ls__device_plugin_fn(void);

/* Of all that the library and a plug-in give each other. */
static inline uint64_t ls__device_interface(void)
{
    static const size_t sizes[] = {sizeof(ls__kernels),
                                   sizeof(ls__device),
                                   sizeof(ls__device_capture),
                                   sizeof(ls__env),
                                   sizeof(ls__gemm),
                                   sizeof(ls__gemm_bf16),
                                   sizeof(ls__linear_rounded),
                                   sizeof(ls__attention),
                                   sizeof(ls__conv2d),
                                   sizeof(ls__conv2d_data),
                                   sizeof(ls__pool2d),
                                   sizeof(ls__upsample2d),
                                   sizeof(ls__batch_norm),
                                   sizeof(ls__activation_grad),
                                   sizeof(ls__map),
                                   sizeof(ls__binary),
                                   sizeof(ls__compare),
                                   sizeof(ls__strided),
                                   sizeof(ls__pick),
                                   sizeof(ls__index_check),
                                   sizeof(ls__rotary),
                                   sizeof(ls__cross_entropy),
                                   sizeof(ls__vocab_loss),
                                   sizeof(ls__lookup),
                                   sizeof(ls__drop),
                                   sizeof(ls__step_numbers),
                                   sizeof(ls__step_part),
                                   sizeof(ls__step_gate),
                                   sizeof(ls__adamw_args),
                                   sizeof(ls__sgd_args),
                                   sizeof(ls__rmsprop_args)};
    uint64_t of_sizes = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        of_sizes = of_sizes * 31 + sizes[i];
    }
    return of_sizes;
}

/* The processor: kernels for it, memory of `env`. */
ls__device ls__device_host(const ls__env *env);
void ls__device_wait(const ls__device *device);
/* LS_ERR_SYSTEM with its failure, if it has one. */
ls_status ls__device_status(const ls__device *device);
/* Between the program's memory and the device's; waits, so `from` may change and `to` be read. */
void ls__device_read(const ls__device *device, void *to, const void *from, size_t bytes);
void ls__device_write(const ls__device *device, void *to, const void *from, size_t bytes);
/* From one device to another, of which one is the processor, or within one; waits. */
void ls__device_carry(const ls__device *to, void *data, const ls__device *from,
                      const void *elements, size_t bytes);

#endif
