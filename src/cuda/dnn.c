/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by the functions for them of cuDNN 9: one call computes a pass. The header marks
 * them deprecated in favour of graphs of operations, which take some forty calls for the same pass
 * and pay where several operations become one kernel. They stay in all of cuDNN 9, and nothing
 * outside of this file knows which of the two it is.
 *
 * Images are NHWC here and there. Weights are [O,C,h,w], and cuDNN's kernels for NHWC want
 * [O,h,w,C]: they are reordered on the way, and their gradient is reordered back. A float32 result
 * of bfloat16 operands is rounded to bfloat16 before it is widened, since cuDNN writes the type
 * that it reads. The workspace:
 *
 *     [ cuDNN's own | weights [O,h,w,C] | the result before it is reordered or widened ]
 *
 * An algorithm is chosen when a shape is first seen, by cuDNN's model of their times, so nothing is
 * timed and no memory is taken. Only deterministic ones are, so that a run repeats to the bit, and
 * for float32 only those without TF32 (see blas.c). A captured step meets its shapes before it is
 * captured; one that it does not know then is left to kernels of our own, since cuDNN may load code
 * for it. */
#include "cuda/dnn.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/capture.h"
#include "cuda/driver.h"
#include "cuda/plans.h"

#define VERSION_MIN 90000
#define NOT_SUPPORTED 3                 /* thousands of a status */
#define WORKSPACE_MAX ((size_t)1 << 30) /* an FFT of large images asks for tens of GiB */
#define CHOICES_MAX 8                   /* as many algorithms as a pass has, at most */
#define PIECE 256                       /* of the workspace */
#define ALIGNMENT 16                    /* of operands: kernels read as many bytes at once */

/* Numbers of the library's own headers. */
typedef enum format { NHWC = 1 } format;
typedef enum type { FLOAT32 = 0, BFLOAT16 = 9 } type;
typedef enum math { TENSOR_OP_MATH = 1, FMA_MATH = 3 } math;
enum { DETERMINISTIC = 1, CROSS_CORRELATION = 1 };

typedef struct choice { /* cudnnConvolution{Fwd,BwdData,BwdFilter}AlgoPerf_t */
    int algorithm, status;
    float time;
    size_t memory;
    int determinism, math, reserved[3];
} choice;

#define CHOOSING                                                                                   \
    (void *handle, void *in, void *with, void *conv, void *out, int asked, int *found,             \
     choice *choices)
#define MEASURING                                                                                  \
    (void *handle, void *in, void *with, void *conv, void *out, int algorithm, size_t *bytes)
#define COMPUTING                                                                                  \
    (void *handle, const void *alpha, void *of_in, const void *in, void *of_with,                  \
     const void *with, void *conv, int algorithm, void *workspace, size_t bytes, const void *beta, \
     void *of_out, void *out)

/* X(result, symbol, arguments); an int is a status, 0: it worked. */
#define FUNCTIONS(X)                                                                               \
    X(size_t, cudnnGetVersion, (void))                                                             \
    X(const char *, cudnnGetErrorString, (int status))                                             \
    X(void, cudnnGetLastErrorString, (char *text, size_t bytes))                                   \
    X(int, cudnnCreate, (void **handle))                                                           \
    X(int, cudnnSetStream, (void *handle, void *stream))                                           \
    X(int, cudnnCreateTensorDescriptor, (void **desc))                                             \
    X(int, cudnnDestroyTensorDescriptor, (void *desc))                                             \
    X(int, cudnnSetTensor4dDescriptor,                                                             \
      (void *desc, format format, type type, int n, int c, int h, int w))                          \
    X(int, cudnnCreateFilterDescriptor, (void **desc))                                             \
    X(int, cudnnDestroyFilterDescriptor, (void *desc))                                             \
    X(int, cudnnSetFilter4dDescriptor,                                                             \
      (void *desc, type type, format format, int k, int c, int h, int w))                          \
    X(int, cudnnCreateConvolutionDescriptor, (void **desc))                                        \
    X(int, cudnnDestroyConvolutionDescriptor, (void *desc))                                        \
    X(int, cudnnSetConvolution2dDescriptor,                                                        \
      (void *desc, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h,               \
       int dilation_w, int mode, type type))                                                       \
    X(int, cudnnSetConvolutionGroupCount, (void *desc, int groups))                                \
    X(int, cudnnSetConvolutionMathType, (void *desc, math math))                                   \
    X(int, cudnnGetConvolutionForwardAlgorithm_v7, CHOOSING)                                       \
    X(int, cudnnGetConvolutionBackwardDataAlgorithm_v7, CHOOSING)                                  \
    X(int, cudnnGetConvolutionBackwardFilterAlgorithm_v7, CHOOSING)                                \
    X(int, cudnnGetConvolutionForwardWorkspaceSize, MEASURING)                                     \
    X(int, cudnnGetConvolutionBackwardDataWorkspaceSize, MEASURING)                                \
    X(int, cudnnGetConvolutionBackwardFilterWorkspaceSize, MEASURING)                              \
    X(int, cudnnConvolutionForward, COMPUTING)                                                     \
    X(int, cudnnConvolutionBackwardData, COMPUTING)                                                \
    X(int, cudnnConvolutionBackwardFilter, COMPUTING)

static struct {
#define X(result, name, arguments) result(*name) arguments;
    FUNCTIONS(X)
#undef X
} dnn;

/* The tensors of a convolution, and which of them each pass reads, first and second, and writes. */
enum { OF_X, OF_W, OF_Y, TENSORS };
static const int roles[][TENSORS] = {[LS__CONV2D_FORWARD] = {OF_X, OF_W, OF_Y},
                                     [LS__CONV2D_BACKWARD_X] = {OF_W, OF_Y, OF_X},
                                     [LS__CONV2D_BACKWARD_W] = {OF_X, OF_Y, OF_W}};

typedef struct key { /* all that a choice depends on; compared as bytes */
    ls__conv2d of;
    int64_t pass, half;
} key;

typedef struct plan {
    key of;
    bool used, computes; /* used and not computes: kernels of our own do */
    void *desc[TENSORS], *conv;
    int algorithm;
    size_t workspace; /* cuDNN's own */
} plan;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of everything below */
static enum { UNTRIED, READY, ABSENT } library;
static void *handle, *on_stream;
static plan plans[LS__CUDA_PLANS];
static int plan_count;
static const ls__cuda_plans known = {plans, sizeof *plans, sizeof(key), offsetof(plan, of),
                                     offsetof(plan, used)};

/* ---- loading --------------------------------------------------------------------------------- */

/* cuDNN's words for a status, and the first line of what it says of its last failure. */
static const char *words_of(int status, char *out, size_t bytes)
{
    char last[160] = "";
    dnn.cudnnGetLastErrorString(last, sizeof last);
    last[strcspn(last, "\n")] = '\0';
    snprintf(out, bytes, "%s%s%s", dnn.cudnnGetErrorString(status), last[0] != '\0' ? ": " : "",
             last);
    return out;
}

static bool load(char *why, size_t bytes)
{
    static const char *const symbols[] = {
#define X(result, name, arguments) #name,
        FUNCTIONS(X)
#undef X
            NULL};
    void *table[sizeof symbols / sizeof *symbols - 1];
    const char *given = getenv("LOCKSTEP_CUDNN");
    const char *const names[] = {given != NULL && given[0] != '\0' ? given : "libcudnn.so.9", NULL};
    if (!ls__cuda_library(names, symbols, table, why, bytes)) {
        return false;
    }
    _Static_assert(sizeof table == sizeof dnn, "a pointer for each function");
    memcpy(&dnn, table, sizeof table);
    const size_t version = dnn.cudnnGetVersion();
    if (version < VERSION_MIN) {
        snprintf(why, bytes, "it has version %zu, and 9.0 (%d) or later is needed", version,
                 VERSION_MIN);
        return false;
    }
    const int status = dnn.cudnnCreate(&handle);
    if (status != 0) {
        char words[240];
        snprintf(why, bytes, "cudnnCreate: %s", words_of(status, words, sizeof words));
    }
    return status == 0;
}

static void load_or_note(void)
{
    const char *given = getenv("LOCKSTEP_CUDNN");
    char why[300];
    if (given != NULL && strcmp(given, "0") == 0) {
        library = ABSENT;
    } else if (load(why, sizeof why)) {
        library = READY;
    } else {
        library = ABSENT;
        ls__cuda_note("convolutions are computed without cuDNN, more slowly: %s; install cuDNN 9 "
                      "(the wheel nvidia-cudnn-cu13), give the path of libcudnn.so.9 in "
                      "LOCKSTEP_CUDNN, or 0 there to do without",
                      why);
    }
}

/* A handle takes memory of the device, which a capture forbids. */
static bool is_ready(void)
{
    if (library == UNTRIED && !ls__cuda_capturing()) {
        load_or_note();
    }
    return library == READY;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void note_refusal(const key *of, const char *what, const char *why)
{
    const ls__conv2d *c = &of->of;
    ls__cuda_note("kernels of its own, which are slower, compute a convolution of "
                  "[%lld,%lld,%lld,%lld] with %lld outputs, since cuDNN does not: %s: %s",
                  (long long)c->batch, (long long)c->in, (long long)c->height, (long long)c->width,
                  (long long)c->out, what, why);
}

/* True: go on. */
static bool works(const plan *made, int status, const char *what)
{
    char words[240];
    if (status != 0) {
        note_refusal(&made->of, what, words_of(status, words, sizeof words));
    }
    return status == 0;
}

static bool describe_image(plan *made, int which, int64_t channels, int64_t height, int64_t width)
{
    return works(made, dnn.cudnnCreateTensorDescriptor(&made->desc[which]),
                 "cudnnCreateTensorDescriptor") &&
           works(made,
                 dnn.cudnnSetTensor4dDescriptor(
                     made->desc[which], NHWC, made->of.half ? BFLOAT16 : FLOAT32,
                     (int)made->of.of.batch, (int)channels, (int)height, (int)width),
                 "cudnnSetTensor4dDescriptor");
}

static bool describe_weights(plan *made)
{
    const ls__conv2d *c = &made->of.of;
    return works(made, dnn.cudnnCreateFilterDescriptor(&made->desc[OF_W]),
                 "cudnnCreateFilterDescriptor") &&
           works(made,
                 dnn.cudnnSetFilter4dDescriptor(
                     made->desc[OF_W], made->of.half ? BFLOAT16 : FLOAT32, NHWC, (int)c->out,
                     (int)(c->in / c->groups), (int)c->kernel[0], (int)c->kernel[1]),
                 "cudnnSetFilter4dDescriptor");
}

static bool describe_convolution(plan *made)
{
    const ls__conv2d *c = &made->of.of;
    return works(made, dnn.cudnnCreateConvolutionDescriptor(&made->conv),
                 "cudnnCreateConvolutionDescriptor") &&
           works(made,
                 dnn.cudnnSetConvolution2dDescriptor(
                     made->conv, (int)c->padding[0], (int)c->padding[1], (int)c->stride[0],
                     (int)c->stride[1], (int)c->dilation[0], (int)c->dilation[1], CROSS_CORRELATION,
                     FLOAT32),
                 "cudnnSetConvolution2dDescriptor") &&
           works(made, dnn.cudnnSetConvolutionGroupCount(made->conv, (int)c->groups),
                 "cudnnSetConvolutionGroupCount") &&
           works(made,
                 dnn.cudnnSetConvolutionMathType(made->conv,
                                                 made->of.half ? TENSOR_OP_MATH : FMA_MATH),
                 "cudnnSetConvolutionMathType");
}

static bool describe(plan *made)
{
    const ls__conv2d *c = &made->of.of;
    return describe_image(made, OF_X, c->in, c->height, c->width) &&
           describe_image(made, OF_Y, c->out, c->out_height, c->out_width) &&
           describe_weights(made) && describe_convolution(made);
}

static bool suits(const choice *found, bool half)
{
    return found->status == 0 && found->determinism == DETERMINISTIC &&
           found->memory <= WORKSPACE_MAX && (half || found->math == FMA_MATH);
}

/* cuDNN sorts them by the time that it expects. */
static bool choose(plan *made)
{
    static const char choosing[] = "choosing an algorithm";
    int(*const choosers[]) CHOOSING = {dnn.cudnnGetConvolutionForwardAlgorithm_v7,
                                       dnn.cudnnGetConvolutionBackwardDataAlgorithm_v7,
                                       dnn.cudnnGetConvolutionBackwardFilterAlgorithm_v7};
    int(*const measurers[]) MEASURING = {dnn.cudnnGetConvolutionForwardWorkspaceSize,
                                         dnn.cudnnGetConvolutionBackwardDataWorkspaceSize,
                                         dnn.cudnnGetConvolutionBackwardFilterWorkspaceSize};
    const int *role = roles[made->of.pass];
    void *const in = made->desc[role[0]], *const with = made->desc[role[1]];
    void *const out = made->desc[role[2]];
    choice found[CHOICES_MAX];
    int count = 0, at = 0;
    if (!works(
            made,
            choosers[made->of.pass](handle, in, with, made->conv, out, CHOICES_MAX, &count, found),
            choosing)) {
        return false;
    }
    while (at < count && !suits(&found[at], made->of.half != 0)) {
        at++;
    }
    if (at == count) {
        note_refusal(&made->of, choosing,
                     "none is deterministic and has less than 1 GiB of workspace");
        return false;
    }
    made->algorithm = found[at].algorithm;
    return works(made, dnn.cudnnSetConvolutionMathType(made->conv, (math)found[at].math),
                 "cudnnSetConvolutionMathType") &&
           works(made,
                 measurers[made->of.pass](handle, in, with, made->conv, out, made->algorithm,
                                          &made->workspace),
                 "the size of its workspace");
}

static void drop_descriptors(plan *p)
{
    int (*const destroyers[])(void *) = {
        [OF_X] = dnn.cudnnDestroyTensorDescriptor,
        [OF_W] = dnn.cudnnDestroyFilterDescriptor,
        [OF_Y] = dnn.cudnnDestroyTensorDescriptor,
    };
    for (int i = 0; i < TENSORS; i++) {
        if (p->desc[i] != NULL) {
            (void)destroyers[i](p->desc[i]);
        }
        p->desc[i] = NULL;
    }
    if (p->conv != NULL) {
        (void)dnn.cudnnDestroyConvolutionDescriptor(p->conv);
    }
    p->conv = NULL;
    p->computes = false;
}

/* All go when there are many: a model has a few hundred shapes at most. */
static plan *make_plan(const key *wanted)
{
    if (plan_count == LS__CUDA_PLANS_USED_MAX) {
        for (int i = 0; i < LS__CUDA_PLANS; i++) {
            drop_descriptors(&plans[i]);
            plans[i].used = false;
        }
        plan_count = 0;
    }
    plan *made = ls__cuda_plan_place(&known, wanted);
    *made = (plan){.of = *wanted, .used = true};
    plan_count++;
    made->computes = describe(made) && choose(made);
    if (!made->computes) {
        drop_descriptors(made);
    }
    return made;
}

static int64_t elements_of(const ls__conv2d *c, int which)
{
    const int64_t counts[] = {
        [OF_X] = c->batch * c->height * c->width * c->in,
        [OF_W] = c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1],
        [OF_Y] = c->batch * c->out_height * c->out_width * c->out,
    };
    return counts[which];
}

/* Whether cuDNN's descriptors can say it: they count in 32 bits, and y has the size that follows
 * from x, which it need not have in a transposed convolution. */
static bool is_describable(const ls__conv2d *c, const ls__conv2d_data *d)
{
    const uintptr_t places =
        (uintptr_t)d->x | (uintptr_t)d->w | (uintptr_t)d->dy | (uintptr_t)d->out;
    bool good = places % ALIGNMENT == 0;
    for (int i = 0; i < 2; i++) {
        const int64_t size = i == 0 ? c->height : c->width;
        const int64_t outs = i == 0 ? c->out_height : c->out_width;
        const int64_t window = c->dilation[i] * (c->kernel[i] - 1) + 1;
        good = good && outs == (size + 2 * c->padding[i] - window) / c->stride[i] + 1;
    }
    for (int i = 0; i < TENSORS; i++) {
        good = good && elements_of(c, i) <= INT32_MAX;
    }
    return good;
}

/* NULL: kernels of our own compute it. */
static plan *plan_of(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    ls__cuda_enter();
    if (!is_describable(c, d) || !is_ready()) {
        return NULL;
    }
    const key wanted = {*c, pass, d->half};
    plan *found = ls__cuda_plan_place(&known, &wanted);
    if (!found->used && ls__cuda_capturing()) {
        return NULL;
    }
    found = found->used ? found : make_plan(&wanted);
    return found->computes ? found : NULL;
}

/* ---- memory of a pass ------------------------------------------------------------------------ */

static bool has_two_orders(const ls__conv2d *c)
{
    return c->in > c->groups && c->kernel[0] * c->kernel[1] > 1;
}

/* The tensor that is given or wanted in another order or type than cuDNN's. */
static bool reorders_weights(const plan *p)
{
    return p->of.pass != LS__CONV2D_BACKWARD_W && has_two_orders(&p->of.of);
}

static bool rewrites_result(const plan *p, const ls__conv2d_data *d)
{
    return (d->half && !d->half_out) ||
           (p->of.pass == LS__CONV2D_BACKWARD_W && has_two_orders(&p->of.of));
}

static size_t in_pieces(size_t bytes)
{
    return (bytes + PIECE - 1) / PIECE * PIECE;
}

static size_t bytes_of(const plan *p, int which)
{
    const size_t element = p->of.half ? sizeof(ls__bfloat16) : sizeof(float);
    return in_pieces((size_t)elements_of(&p->of.of, which) * element);
}

size_t ls__cuda_dnn_workspace(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    size_t bytes = 0;
    pthread_mutex_lock(&lock);
    const plan *p = plan_of(c, pass, d);
    if (p != NULL) {
        bytes = in_pieces(p->workspace) + (reorders_weights(p) ? bytes_of(p, OF_W) : 0) +
                (rewrites_result(p, d) ? bytes_of(p, roles[pass][2]) : 0);
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

static void reorder(struct cuda_conv_reorder_args k, ls_stream *stream)
{
    ls__cuda_launch(CUDA_conv_reorder, per_element(k.count * k.rows * k.columns), &k, stream);
}

/* [O,C,h w] -> [O,h w,C] */
static const void *reordered_weights(const plan *p, void *to, const void *w, ls_stream *stream)
{
    const ls__conv2d *c = &p->of.of;
    reorder((struct cuda_conv_reorder_args){.out = to,
                                            .in = w,
                                            .half_out = p->of.half != 0,
                                            .half_in = p->of.half != 0,
                                            .count = c->out,
                                            .rows = c->in / c->groups,
                                            .columns = c->kernel[0] * c->kernel[1]},
            stream);
    return to;
}

/* Weights [O,h w,C] -> [O,C,h w], and images as they are; of cuDNN's type to that of d->out. */
static void rewrite_result(const plan *p, const void *from, const ls__conv2d_data *d,
                           ls_stream *stream)
{
    const ls__conv2d *c = &p->of.of;
    struct cuda_conv_reorder_args k = {.out = d->out,
                                       .in = from,
                                       .half_out = d->half_out,
                                       .half_in = d->half,
                                       .count = elements_of(c, roles[p->of.pass][2]),
                                       .rows = 1,
                                       .columns = 1,
                                       .beta = d->beta};
    if (p->of.pass == LS__CONV2D_BACKWARD_W && has_two_orders(c)) {
        k.count = c->out;
        k.rows = c->kernel[0] * c->kernel[1];
        k.columns = c->in / c->groups;
    }
    reorder(k, stream);
}

/* Of a result of bfloat16 the sum with the bias is a second rounding, as in other frameworks. */
static void add_bias_and_relu(const plan *p, const ls__conv2d_data *d, ls_stream *stream)
{
    const ls__conv2d *c = &p->of.of;
    const struct cuda_finish_product_args k = {.c = d->out,
                                               .half = d->half_out,
                                               .bias = d->b,
                                               .activates = d->relu,
                                               .op = LS__UNARY_RELU,
                                               .m = c->batch * c->out_height * c->out_width,
                                               .n = c->out,
                                               .ldc = c->out};
    if (p->of.pass == LS__CONV2D_FORWARD && (d->b != NULL || d->relu)) {
        ls__cuda_launch(CUDA_finish_product, per_element(k.m * k.n), &k, stream);
    }
}

static int compute(const plan *p, const void *const in[], void *out, float beta, void *workspace)
{
    int(*const computers[])
        COMPUTING = {dnn.cudnnConvolutionForward, dnn.cudnnConvolutionBackwardData,
                     dnn.cudnnConvolutionBackwardFilter};
    const int *role = roles[p->of.pass];
    const float one = 1.0f;
    return computers[p->of.pass](handle, &one, p->desc[role[0]], in[role[0]], p->desc[role[1]],
                                 in[role[1]], p->conv, p->algorithm, workspace, p->workspace, &beta,
                                 p->desc[role[2]], out);
}

static int set_stream(ls_stream *stream)
{
    const int status = on_stream == stream ? 0 : dnn.cudnnSetStream(handle, (void *)stream);
    on_stream = status == 0 ? stream : on_stream;
    return status;
}

/* What cuDNN turns out not to support is left to kernels of our own; false: to them. */
static bool has_ended(plan *p, int status)
{
    static const char *const names[] = {"cudnnConvolutionForward", "cudnnConvolutionBackwardData",
                                        "cudnnConvolutionBackwardFilter"};
    char words[240];
    if (status / 1000 == NOT_SUPPORTED) {
        (void)works(p, status, names[p->of.pass]);
        drop_descriptors(p);
        return false;
    }
    if (status != 0) {
        ls__cuda_fail(names[p->of.pass], words_of(status, words, sizeof words));
    }
    return true;
}

static bool convolve(plan *p, const ls__conv2d_data *d, ls_stream *stream)
{
    char *own = d->workspace, *weights = own + in_pieces(p->workspace);
    const void *in[] = {[OF_X] = d->x, [OF_W] = d->w, [OF_Y] = d->dy};
    void *out = d->out;
    if (reorders_weights(p)) {
        in[OF_W] = reordered_weights(p, weights, d->w, stream);
    }
    const bool rewrites = rewrites_result(p, d);
    if (rewrites) {
        out = weights + (reorders_weights(p) ? bytes_of(p, OF_W) : 0);
    }
    const int status = set_stream(stream);
    if (!has_ended(p, status != 0 ? status : compute(p, in, out, rewrites ? 0.0f : d->beta, own))) {
        return false;
    }
    if (rewrites) {
        rewrite_result(p, out, d, stream);
    }
    add_bias_and_relu(p, d, stream);
    return true;
}

bool ls__cuda_dnn_conv2d(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                         ls_stream *stream)
{
    pthread_mutex_lock(&lock);
    plan *p = plan_of(c, pass, d);
    const bool done = p != NULL && convolve(p, d, stream);
    pthread_mutex_unlock(&lock);
    return done;
}
