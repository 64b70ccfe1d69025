/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN for the fake driver: descriptors as structs, the three passes of a convolution by one loop
 * nest, in float64. It is as strict as the real one may be: descriptors must have been made and set
 * and not destroyed, sizes must follow from each other, and of the algorithms that it offers only
 * one is deterministic, of the right mathematics and of moderate memory, which is not the first;
 * the others, and a workspace that is too small, are refused when they run. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "fake.h"

enum { SUCCESS, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, INTERNAL_ERROR = 4000, FAILED = 5000 };
enum { FLOAT32 = 0, BFLOAT16 = 9, NHWC = 1, DEFAULT_MATH = 0, TENSOR_OP = 1, FMA = 3 };
enum { UNSURE, DETERMINISTIC };
enum { GOOD = 1 };               /* algorithm */
enum { NONE_GOOD = 1, NO_SIZE }; /* what the next step is asked to do, beside failing */

typedef enum kind { TENSOR = 1, FILTER, CONVOLUTION } kind;

typedef struct desc {
    kind kind;
    bool live, set;
    int type, n, c, h, w;                       /* of a filter: n outputs, c inputs of a group */
    int pad[2], stride[2], dilation[2], groups; /* of a convolution */
    int math;
} desc;

typedef struct choice {
    int algorithm, status;
    float time;
    size_t memory;
    int determinism, math, reserved[3];
} choice;

typedef struct pass { /* of a convolution; the pointers that it does not write are read */
    desc x, w, y, conv;
    void *at_x, *at_w, *at_y, *workspace;
    size_t bytes;
    int writes; /* 0: y, 1: x, 2: w */
    float alpha, beta;
} pass;

int cuMemAlloc_v2(uint64_t *memory, size_t bytes); /* the driver's */

static void *stream;
static int live, fail_status, computed;
static char last[200];

void fake_cudnn_fail_next(int status)
{
    fail_status = status;
}

int fake_cudnn_descriptors(void)
{
    return live;
}

int fake_cudnn_convolutions(void)
{
    return computed;
}

static int refuse(int status, const char *why)
{
    snprintf(last, sizeof last, "%s\nin a function of the fake", why);
    return status;
}

static int next_failure(void)
{
    if (fail_status == NO_SIZE) {
        return SUCCESS;
    }
    const int status = fail_status;
    fail_status = SUCCESS;
    return status != SUCCESS ? refuse(status, "it was asked to fail") : SUCCESS;
}

/* ---- the library ----------------------------------------------------------------------------- */

FAKE_PUBLIC size_t cudnnGetVersion(void)
{
    const char *text = getenv("FAKE_CUDNN_VERSION");
    return text != NULL ? strtoul(text, NULL, 10) : 92800;
}

FAKE_PUBLIC const char *cudnnGetErrorString(int status)
{
    return status == BAD_PARAM       ? "CUDNN_STATUS_BAD_PARAM"
           : status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
           : status == FAILED        ? "CUDNN_STATUS_EXECUTION_FAILED"
                                     : "CUDNN_STATUS_INTERNAL_ERROR";
}

FAKE_PUBLIC void cudnnGetLastErrorString(char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", last);
}

/* It takes memory of the device. */
FAKE_PUBLIC int cudnnCreate(void **handle)
{
    uint64_t memory = 0;
    *handle = &stream;
    return cuMemAlloc_v2(&memory, 4096) == SUCCESS && next_failure() == SUCCESS ? SUCCESS
                                                                                : INTERNAL_ERROR;
}

FAKE_PUBLIC int cudnnSetStream(void *handle, void *to)
{
    stream = to;
    return handle == &stream ? SUCCESS : refuse(BAD_PARAM, "no handle");
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static int make(void **out, kind as)
{
    desc *d = calloc(1, sizeof *d);
    *d = (desc){.kind = as, .live = true, .groups = 1};
    *out = d;
    live++;
    return SUCCESS;
}

static desc *checked(void *of, kind as)
{
    desc *d = of;
    return d != NULL && d->live && d->kind == as ? d : NULL;
}

/* Its memory stays, so that a later use is seen. */
static int destroy(void *of, kind as)
{
    desc *d = checked(of, as);
    if (d == NULL) {
        return refuse(BAD_PARAM, "a descriptor is destroyed that is none");
    }
    d->live = false;
    live--;
    return SUCCESS;
}

FAKE_PUBLIC int cudnnCreateTensorDescriptor(void **out)
{
    return make(out, TENSOR);
}

FAKE_PUBLIC int cudnnDestroyTensorDescriptor(void *of)
{
    return destroy(of, TENSOR);
}

FAKE_PUBLIC int cudnnCreateFilterDescriptor(void **out)
{
    return make(out, FILTER);
}

FAKE_PUBLIC int cudnnDestroyFilterDescriptor(void *of)
{
    return destroy(of, FILTER);
}

FAKE_PUBLIC int cudnnCreateConvolutionDescriptor(void **out)
{
    return make(out, CONVOLUTION);
}

FAKE_PUBLIC int cudnnDestroyConvolutionDescriptor(void *of)
{
    return destroy(of, CONVOLUTION);
}

static int set_sizes(desc *d, int format, int type, const int sizes[4])
{
    if (d == NULL || format != NHWC || (type != FLOAT32 && type != BFLOAT16) || sizes[0] < 1 ||
        sizes[1] < 1 || sizes[2] < 1 || sizes[3] < 1) {
        return refuse(BAD_PARAM, "a tensor's format, type or sizes");
    }
    d->type = type;
    d->n = sizes[0], d->c = sizes[1], d->h = sizes[2], d->w = sizes[3];
    d->set = true;
    return SUCCESS;
}

FAKE_PUBLIC int cudnnSetTensor4dDescriptor(void *of, int format, int type, int n, int c, int h,
                                           int w)
{
    return set_sizes(checked(of, TENSOR), format, type, (int[]){n, c, h, w});
}

FAKE_PUBLIC int cudnnSetFilter4dDescriptor(void *of, int type, int format, int k, int c, int h,
                                           int w)
{
    return set_sizes(checked(of, FILTER), format, type, (int[]){k, c, h, w});
}

FAKE_PUBLIC int cudnnSetConvolution2dDescriptor(void *of, int pad_h, int pad_w, int stride_h,
                                                int stride_w, int dilation_h, int dilation_w,
                                                int mode, int type)
{
    desc *d = checked(of, CONVOLUTION);
    if (d == NULL || mode != 1 || type != FLOAT32) {
        return refuse(BAD_PARAM, "a convolution's mode or type");
    }
    d->pad[0] = pad_h, d->pad[1] = pad_w;
    d->stride[0] = stride_h, d->stride[1] = stride_w;
    d->dilation[0] = dilation_h, d->dilation[1] = dilation_w;
    d->set = true;
    return SUCCESS;
}

FAKE_PUBLIC int cudnnSetConvolutionGroupCount(void *of, int groups)
{
    desc *d = checked(of, CONVOLUTION);
    if (d == NULL || groups < 1) {
        return refuse(BAD_PARAM, "groups");
    }
    d->groups = groups;
    return SUCCESS;
}

FAKE_PUBLIC int cudnnSetConvolutionMathType(void *of, int math)
{
    desc *d = checked(of, CONVOLUTION);
    if (d == NULL || (math != DEFAULT_MATH && math != TENSOR_OP && math != FMA)) {
        return refuse(BAD_PARAM, "a convolution's mathematics");
    }
    d->math = math;
    return SUCCESS;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static int outs_of(const desc *conv, int axis, int size, int kernel)
{
    return (size + 2 * conv->pad[axis] - conv->dilation[axis] * (kernel - 1) - 1) /
               conv->stride[axis] +
           1;
}

static bool fits(const pass *p)
{
    const desc *x = &p->x, *w = &p->w, *y = &p->y, *conv = &p->conv;
    return x->type == w->type && w->type == y->type && x->n == y->n && w->n == y->c &&
           x->c == w->c * conv->groups && w->n % conv->groups == 0 &&
           y->h == outs_of(conv, 0, x->h, w->h) && y->w == outs_of(conv, 1, x->w, w->w);
}

/* The pass of these descriptors, in the order of a function that writes y, x or w. */
static int describe(pass *out, int writes, void *in, void *with, void *conv, void *result)
{
    void *const x = writes == 1 ? result : in;
    void *const w = writes == 0 ? with : writes == 1 ? in : result;
    void *const y = writes == 0 ? result : with;
    const desc *of_x = checked(x, TENSOR), *of_w = checked(w, FILTER), *of_y = checked(y, TENSOR);
    const desc *of_conv = checked(conv, CONVOLUTION);
    if (of_x == NULL || of_w == NULL || of_y == NULL || of_conv == NULL || !of_x->set ||
        !of_w->set || !of_y->set || !of_conv->set) {
        return refuse(BAD_PARAM, "a descriptor that is none, or is not set");
    }
    *out = (pass){.x = *of_x, .w = *of_w, .y = *of_y, .conv = *of_conv, .writes = writes};
    return fits(out) ? SUCCESS : refuse(BAD_PARAM, "sizes do not follow from each other");
}

static size_t workspace_of(const pass *p)
{
    return (size_t)(p->w.n * 8 + p->writes * 24 + 40);
}

static int choose(int writes, void *in, void *with, void *conv, void *result, int asked, int *found,
                  choice *out)
{
    pass p;
    const int status = describe(&p, writes, in, with, conv, result);
    const int failed = next_failure();
    *found = 0;
    if (status != SUCCESS || failed > NONE_GOOD) {
        return status != SUCCESS ? status : failed;
    }
    const int right = p.x.type == FLOAT32 ? FMA : TENSOR_OP;
    const choice all[] = {{3, SUCCESS, 1.0f, 0, UNSURE, right, {0}},
                          {2, SUCCESS, 2.0f, (size_t)1 << 40, DETERMINISTIC, right, {0}},
                          {4, NOT_SUPPORTED, -1.0f, 0, DETERMINISTIC, right, {0}},
                          {5, SUCCESS, 3.0f, 0, DETERMINISTIC, DEFAULT_MATH, {0}},
                          {GOOD, SUCCESS, 4.0f, workspace_of(&p), DETERMINISTIC, right, {0}}};
    for (int i = 0; i < 5 && *found < asked; i++) {
        const bool good = all[i].algorithm == GOOD;
        if (good ? failed != NONE_GOOD : all[i].math == right || p.x.type == FLOAT32) {
            out[(*found)++] = all[i];
        }
    }
    return SUCCESS;
}

static double element(const void *x, int type, int64_t i)
{
    return type == FLOAT32 ? (double)((const float *)x)[i]
                           : (double)ls__bfloat16_widen(((const uint16_t *)x)[i]);
}

static double *widened(const void *x, int type, int64_t count)
{
    double *out = malloc((size_t)count * sizeof *out);
    for (int64_t i = 0; i < count; i++) {
        out[i] = element(x, type, i);
    }
    return out;
}

static int64_t count_of(const desc *d)
{
    return (int64_t)d->n * d->c * d->h * d->w;
}

/* y, x and w of one output pixel and one tap: of each output the channels of its group. */
static void run_tap(const pass *p, const double *x, double *w, double *y, int tap, double *sum)
{
    const int outs = p->w.n / p->conv.groups, taps = p->w.h * p->w.w;
    for (int o = 0; o < p->w.n; o++) {
        const double *of_x = x + o / outs * p->w.c;
        double *of_w = w + (o * taps + tap) * (int64_t)p->w.c;
        for (int c = 0; c < p->w.c; c++) {
            if (p->writes == 0) {
                y[o] += of_x[c] * of_w[c];
            } else if (p->writes == 1) {
                sum[o / outs * p->w.c + c] += y[o] * of_w[c];
            } else {
                of_w[c] += of_x[c] * y[o];
            }
        }
    }
}

static void run_loops(const pass *p, double *x, double *w, double *y)
{
    const desc *conv = &p->conv;
    for (int64_t pixel = 0; pixel < (int64_t)p->y.n * p->y.h * p->y.w; pixel++) {
        const int j = (int)(pixel % p->y.w), i = (int)(pixel / p->y.w % p->y.h);
        const int64_t n = pixel / p->y.w / p->y.h;
        for (int tap = 0; tap < p->w.h * p->w.w; tap++) {
            const int row = i * conv->stride[0] - conv->pad[0] + tap / p->w.w * conv->dilation[0];
            const int column =
                j * conv->stride[1] - conv->pad[1] + tap % p->w.w * conv->dilation[1];
            if (row >= 0 && row < p->x.h && column >= 0 && column < p->x.w) {
                double *at = x + ((n * p->x.h + row) * p->x.w + column) * p->x.c;
                run_tap(p, at, w, y + pixel * p->y.c, tap, at);
            }
        }
    }
}

static void write_result(const pass *p, void *out, const desc *d, const double *sums)
{
    for (int64_t i = 0; i < count_of(d); i++) {
        double value = (double)p->alpha * sums[i];
        value += p->beta != 0.0f ? (double)p->beta * element(out, d->type, i) : 0.0;
        if (d->type == FLOAT32) {
            ((float *)out)[i] = (float)value;
        } else {
            ((uint16_t *)out)[i] = ls__bfloat16_round((float)value);
        }
    }
}

static void run(void *args)
{
    const pass *p = args;
    const desc *of[] = {&p->y, &p->x, &p->w};
    void *const at[] = {p->at_y, p->at_x, p->at_w};
    double *sums[3];
    for (int i = 0; i < 3; i++) {
        sums[i] = i == p->writes ? calloc((size_t)count_of(of[i]), sizeof *sums[i])
                                 : widened(at[i], of[i]->type, count_of(of[i]));
    }
    memset(p->workspace, 0xff, p->bytes);
    run_loops(p, sums[1], sums[2], sums[0]);
    write_result(p, at[p->writes], of[p->writes], sums[p->writes]);
    for (int i = 0; i < 3; i++) {
        free(sums[i]);
    }
}

static int start(pass *p, int status, int algorithm, const void *alpha, const void *beta)
{
    const int failed = next_failure();
    const int right = p->x.type == FLOAT32 ? FMA : TENSOR_OP;
    if (status != SUCCESS || failed != SUCCESS) {
        return status != SUCCESS ? status : failed;
    }
    if (p->bytes < workspace_of(p) || p->workspace == NULL) {
        return refuse(BAD_PARAM, "the workspace is too small");
    }
    if (algorithm != GOOD || p->conv.math != right) {
        return refuse(FAILED, "an algorithm that nobody should choose");
    }
    if (((uintptr_t)p->at_x | (uintptr_t)p->at_w | (uintptr_t)p->at_y) % 16 != 0) {
        return refuse(BAD_PARAM, "a place that 16 does not divide");
    }
    p->bytes = workspace_of(p);
    p->alpha = *(const float *)alpha;
    p->beta = *(const float *)beta;
    computed++;
    fake_cuda_enqueue(stream, run, p, sizeof *p);
    return SUCCESS;
}

static int measure(int writes, void *in, void *with, void *conv, void *result, int algorithm,
                   size_t *bytes)
{
    pass p;
    const int status = describe(&p, writes, in, with, conv, result);
    *bytes = status == SUCCESS && algorithm == GOOD ? workspace_of(&p) : 0;
    if (fail_status == NO_SIZE) {
        fail_status = SUCCESS;
        return refuse(NOT_SUPPORTED, "it was asked to fail");
    }
    return status;
}

/* ---- the functions of each pass -------------------------------------------------------------- */

#define PASS(name, of_algorithm, of_size, writes)                                                  \
    FAKE_PUBLIC int of_algorithm(void *handle, void *in, void *with, void *conv, void *out,        \
                                 int asked, int *found, choice *choices)                           \
    {                                                                                              \
        (void)handle;                                                                              \
        return choose(writes, in, with, conv, out, asked, found, choices);                         \
    }                                                                                              \
    FAKE_PUBLIC int of_size(void *handle, void *in, void *with, void *conv, void *out,             \
                            int algorithm, size_t *bytes)                                          \
    {                                                                                              \
        (void)handle;                                                                              \
        return measure(writes, in, with, conv, out, algorithm, bytes);                             \
    }                                                                                              \
    FAKE_PUBLIC int name(void *handle, const void *alpha, void *of_in, void *in, void *of_with,    \
                         void *with, void *conv, int algorithm, void *workspace, size_t bytes,     \
                         const void *beta, void *of_out, void *out)                                \
    {                                                                                              \
        pass p = {0};                                                                              \
        const int status = describe(&p, writes, of_in, of_with, conv, of_out);                     \
        (void)handle;                                                                              \
        p.at_x = writes == 1 ? out : in;                                                           \
        p.at_w = writes == 0 ? with : writes == 1 ? in : out;                                      \
        p.at_y = writes == 0 ? out : with;                                                         \
        p.workspace = workspace;                                                                   \
        p.bytes = bytes;                                                                           \
        return start(&p, status, algorithm, alpha, beta);                                          \
    }

PASS(cudnnConvolutionForward, cudnnGetConvolutionForwardAlgorithm_v7,
     cudnnGetConvolutionForwardWorkspaceSize, 0)
PASS(cudnnConvolutionBackwardData, cudnnGetConvolutionBackwardDataAlgorithm_v7,
     cudnnGetConvolutionBackwardDataWorkspaceSize, 1)
#ifndef FAKE_HALF
PASS(cudnnConvolutionBackwardFilter, cudnnGetConvolutionBackwardFilterAlgorithm_v7,
     cudnnGetConvolutionBackwardFilterWorkspaceSize, 2)
#endif
