/* SPDX-License-Identifier: Apache-2.0 */
/* The loop device: the kernels of the processor behind the interface of an accelerator, to find
 * what would go wrong on one.
 *
 *   memory   mapped twice: where tensors have their address the program may not touch it, and a
 *            read or write of an element traps; kernels use the second mapping
 *   stream   a thread that runs the kernels in order, each after a random delay; a call copies its
 *            arguments and returns, so a result that nobody has waited for is not there yet
 *
 * Its results have the bits of the processor, whose kernels it runs. With an even seed it is
 * `apart`: a kernel but `copy` that is given memory of the program ends the process, which is
 * told. */
#ifndef TEST_LOOP_H
#define TEST_LOOP_H

#include "device/device.h"

#define LOOP_TRAPPED 86 /* exit status after an access of the program to elements, which is told */

/* With the kernels of this processor; one at a time. Delays follow from `seed`; 0: every kernel is
 * late, not one in a few. */
const ls__device *loop_new(uint64_t seed);
void loop_free(void);        /* after the runtime that used it */
uint64_t loop_started(void); /* kernels, so far */

/* For loop_kernels.c, which is generated. */
extern const ls__kernels *loop_real;

typedef struct loop_array { /* a pointer among the arguments, at `offset`, to memory of the host */
    size_t offset, bytes;
} loop_array;

/* Ends the process where the device is apart and one of the pointers at these places, of no `copy`,
 * is to memory of the program. */
void loop_check_pointers(const char *name, const void *args, const size_t *places, int count);
void loop_start(ls_stream *stream, const char *name, void (*run)(void *args), const void *args,
                size_t bytes, const loop_array *arrays, int array_count);
void loop_kernels(ls__kernels *to);

#endif
