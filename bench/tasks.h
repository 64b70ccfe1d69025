/* SPDX-License-Identifier: Apache-2.0 */
/* Data that are part of the command and can be learnt in seconds: digits of 8 x 8 pixels, and
 * a novel. A task is a network with such data, a part of which is held out. */
#ifndef LS_BENCH_TASKS_H
#define LS_BENCH_TASKS_H

#include <lockstep/lockstep.h>

enum { LS__DIGITS_MAX = 2000, LS__DIGITS_SIDE = 8, LS__DIGITS_PIXELS = 64 };

typedef struct ls__digits {
    int count[2]; /* to train on; held out */
    float pixels[2][LS__DIGITS_MAX][LS__DIGITS_PIXELS];
    int32_t label[2][LS__DIGITS_MAX];
} ls__digits;

/* free(); NULL without memory. */
ls__digits *ls__digits_read(void);

typedef struct ls__task {
    const char *name, *about; /* "text", "GPT 2 layers …" */
    double target;            /* the held-out loss to reach, unless another is asked for */
    ls_module *(*build)(void);
    ls_optim *(*optim)(ls_module *net);
    int64_t batch;    /* samples of a rank's step */
    int64_t held_out; /* samples of which the held-out loss is the mean */
    int64_t inputs;   /* of a sample, of a type of 4 bytes: */
    ls_dtype dtype;
    int64_t targets; /* of a sample */
    /* Writes sample k of the data to train on, or of those held out, any k >= 0. */
    void (*sample)(const void *data, bool held_out, uint64_t k, void *x, int32_t *y);
    void *(*read)(void); /* the data: free(); NULL without memory */
} ls__task;

/* NULL: there is none of that name. */
const ls__task *ls__task_find(const char *name);
/* The number of the first sample of a worker's step, for ls__task_loss. */
uint64_t ls__task_first(const ls__task *task, int64_t seed, int64_t step, int worker, int workers);
/* The mean loss of the samples held out, or of `batch` samples at random places to train on, which
 * `first` and the numbers after it choose. */
ls_tensor *ls__task_loss(const ls__task *task, const void *data, ls_module *net, bool held_out,
                         uint64_t first);

#endif
