/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep info --comm`: what a step of a GPT sends along each axis of a mesh, from the table of
 * conversions (placement/redistribute.h) and the shapes of the model.
 * `lockstep info --memory`: what a block keeps for backward, by the formulas of Korthikanti et al.
 * 2022 (section 4, 16-bit activations), and by this version's own (float32). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/compression.h>

#include "base/axes.h"
#include "commands.h"
#include "cost/gpt.h"
#include "dist/axes.h"
#include "placement/redistribute.h"
#include "tensor/placement.h"

#define WIDTH 4 /* bytes of an element: the trainers compute in float32 */

typedef struct table {
    const parallel_question *q;
    int64_t total[LS__AXES_MAX]; /* bytes of a step by axis: tp, cp, ep, dp */
} table;

enum { TP, CP, EP, DP };
static const char *const axis_names[] = {"tp", "cp", "ep", "dp"};

static const char *name_of(ls__move move)
{
    static const char *const names[] = {
        [LS__MOVE_NONE] = "",
        [LS__MOVE_NOTHING] = "-",
        [LS__MOVE_FIRST] = "-",
        [LS__MOVE_SLICE] = "slice",
        [LS__MOVE_PAD] = "zeros",
        [LS__MOVE_ALL_REDUCE] = "all-reduce",
        [LS__MOVE_ALL_GATHER] = "all-gather",
        [LS__MOVE_REDUCE_SCATTER] = "reduce-scatter",
        [LS__MOVE_ALL_TO_ALL] = "all-to-all",
    };
    return names[move];
}

static int size_of(const parallel_question *q, int axis)
{
    const int sizes[] = {q->tp, q->cp, q->ep, q->dp};
    return sizes[axis];
}

/* Of its column, in which "reduce-scatter, again" is the longest. */
static int backward_width(const parallel_question *q)
{
    return q->regather ? 21 : 14;
}

static void print_row(table *t, int axis, const char *what, const char *forward,
                      const char *backward, int64_t times, int64_t bytes)
{
    if (size_of(t->q, axis) == 1 || times == 0) {
        return;
    }
    t->total[axis] += times * bytes;
    printf("%-4s %-28s %-14s %-*s %5lld %14lld\n", axis_names[axis], what, forward,
           backward_width(t->q), backward, (long long)times, (long long)bytes);
}

/* A conversion of `elements` along tp; `again`: gathered once more in backward. */
static void print_conversion(table *t, const char *what, int from, int to, int64_t elements,
                             int64_t times, bool again)
{
    const ls__move there = ls__move_of(from, to);
    const ls__move back = ls__move_of(ls__place_dual(to), ls__place_dual(from));
    const int n = t->q->tp;
    char backward[40];
    (void)snprintf(backward, sizeof backward, "%s%s", name_of(back), again ? ", again" : "");
    print_row(t, TP, what, name_of(there), backward, times,
              ls__move_bytes(there, n, elements * WIDTH) +
                  ls__move_bytes(back, n, elements * WIDTH) +
                  (again ? ls__move_bytes(there, n, elements * WIDTH) : 0));
}

static bool has_experts(const parallel_question *q)
{
    return strcmp(q->model, "moe") == 0;
}

/* Blocks with experts: 1, 3, … */
static int64_t expert_blocks(const parallel_question *q)
{
    return has_experts(q) ? q->layers / 2 : 0;
}

/* Parameters on a rank, but those of experts. */
static int64_t parameters(const parallel_question *q)
{
    const int64_t h = q->dim, t = q->tp;
    const int64_t block = (12 * h * h + 7 * h) / t + 6 * h;    /* column biases are divided */
    const int64_t gate = q->experts * h - (8 * h * h + 5 * h); /* in place of the MLP */
    return q->layers * block + expert_blocks(q) * gate + 2 * q->vocab * h / t + q->context * h +
           2 * h;
}

/* Rows of h numbers that a rank sends to experts of others: with `padded` exactly, else at most. */
static int64_t rows_of(const parallel_question *q)
{
    const int64_t choices = q->top_k * q->batch * q->context, own = q->experts / q->ep;
    const double share = (double)choices * q->capacity / (double)q->experts;
    const int64_t places = (int64_t)ceil(share * (1.0 - 1e-12)); /* as ls_moe_new rounds it */
    const int64_t all = (q->experts - own) * places;
    return q->padded || (q->capacity > 0.0 && all < choices) ? all : choices;
}

/* Experts and their axis, and the gradients: those of experts are complete along ep. */
static void print_experts(table *t)
{
    const parallel_question *q = t->q;
    const int64_t h = q->dim, blocks = expert_blocks(q);
    const int64_t exchange = 2 * rows_of(q) * h * WIDTH; /* rows there; backward, gradients back */
    const char *most = q->padded ? "" : ", most";
    char there[40], back[40];
    (void)snprintf(there, sizeof there, "rows to experts%s", most);
    (void)snprintf(back, sizeof back, "rows back%s", most);
    print_row(t, EP, there, "all-to-all", "all-to-all", blocks, exchange);
    print_row(t, EP, back, "all-to-all", "all-to-all", blocks, exchange);
    print_row(t, EP, "gradients but experts'", "", "all-reduce", 1,
              ls__move_bytes(LS__MOVE_ALL_REDUCE, q->dp * q->ep, parameters(q) * WIDTH));
    print_row(t, DP, "gradients of experts", "", "all-reduce", blocks,
              ls__move_bytes(LS__MOVE_ALL_REDUCE, q->dp,
                             q->experts / q->ep * (8 * h * h + 5 * h) * WIDTH));
}

/* ---- between replicas ----------------------------------------------------------------------- */

/* Elements that PowerSGD sends of the matrices [a,b] of a GPT, and of what stays whole. */
static double factors_of(const parallel_question *q, double rank, double min)
{
    const double h = (double)q->dim, layers = (double)q->layers, tables = q->vocab > 0 ? 2.0 : 0.0;
    const struct {
        double a, b, times;
    } matrices[] = {{3.0 * h, h, layers},
                    {h, h, layers},
                    {4.0 * h, h, 2.0 * layers},
                    {(double)q->vocab, h, tables},
                    {(double)q->context, h, 1.0}};
    double sent = (double)parameters(q);
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        const double a = matrices[i].a, b = matrices[i].b, least = a < b ? a : b;
        const double factors = (rank < least ? rank : least) * (a + b);
        sent += a * b > min * factors ? matrices[i].times * (factors - a * b) : 0.0;
    }
    return sent;
}

/* docs/guide/compression.md has the formulas. */
static double hook_bytes(const ls_comm_hook *hook, const parallel_question *q)
{
    const double d = (double)parameters(q), n = (double)(q->dp * q->cp), share = (n - 1.0) / n;
    double density = 0.0, min = 0.0;
    int rank = 0;
    if (strcmp(hook->name, "powersgd") == 0) {
        (void)sscanf(hook->about, "rank=%d, start=%*d, min=%lf", &rank, &min);
        return 2.0 * WIDTH * factors_of(q, rank, min) * share;
    }
    if (sscanf(hook->about, "density=%lf", &density) == 1) {
        return 8.0 * density * d * (strcmp(hook->name, "top_k") == 0 ? n - 1.0 : share);
    }
    return d * share *
           (strcmp(hook->name, "int8") == 0      ? 2.0
            : strcmp(hook->name, "one_bit") == 0 ? 0.25
                                                 : 4.0);
}

static void print_replicas(table *t, const ls_comm_hook *hook)
{
    const parallel_question *q = t->q;
    const int n = q->dp * q->cp;
    const int64_t bytes = parameters(q) * WIDTH;
    const int64_t part = ls__move_bytes(LS__MOVE_ALL_GATHER, n, bytes);
    if (hook->before != NULL) {
        print_row(t, DP, "gradients", "", hook->name, 1, (int64_t)hook_bytes(hook, q));
    } else if (q->zero <= 0) {
        print_row(t, DP, "gradients", "", "all-reduce", 1,
                  ls__move_bytes(LS__MOVE_ALL_REDUCE, n, bytes));
    } else {
        print_row(t, DP, "gradients", "", "reduce-scatter", 1, part);
        print_row(t, DP, "parameters", q->zero > 2 ? "all-gather" : "", "all-gather", 1,
                  q->zero > 2 ? 2 * part : part);
    }
}

static void print_comm(table *t, const ls_comm_hook *hook)
{
    const parallel_question *q = t->q;
    const int s0 = LS__PLACED_SHARDED + 1;
    const int between = q->sequence ? s0 : LS__PLACED_INVARIANT;
    const int64_t rows = q->batch * q->context / q->cp, n = rows * q->dim;
    const int64_t kv_heads = q->kv_heads > q->tp ? q->kv_heads / q->tp : 1; /* fewer are shared */
    const int64_t kv = q->batch * (q->context / q->cp) * (q->dim / q->heads * kv_heads);
    printf("%-4s %-28s %-14s %-*s %5s %14s\n", "axis", "what", "forward", backward_width(q),
           "backward", "times", "bytes each");
    print_conversion(t, "token embedding", LS__PLACED_PARTIAL, between, n, q->vocab > 0, false);
    print_conversion(t, "into attention", between, LS__PLACED_REPLICATED, n, q->layers,
                     q->regather);
    print_conversion(t, "out of attention", LS__PLACED_PARTIAL, between, n, q->layers, false);
    print_conversion(t, "into the MLP", between, LS__PLACED_REPLICATED, n, q->layers, q->regather);
    print_conversion(t, "out of the MLP", LS__PLACED_PARTIAL, between, n, q->layers, false);
    print_conversion(t, "into the head", between, LS__PLACED_REPLICATED, n, q->vocab > 0, false);
    print_row(t, TP, "loss: maxima, sums, targets", "all-reduce", "-", q->vocab > 0 ? 3 : 0,
              ls__move_bytes(LS__MOVE_ALL_REDUCE, q->tp, rows * WIDTH));
    print_row(t, CP, "keys and values", "ring", "", q->layers, (q->cp - 1) * 2 * kv * WIDTH);
    print_row(t, CP, "keys, values, their gradients", "", "ring", q->layers,
              (q->cp - 1) * 4 * kv * WIDTH);
    if (has_experts(q)) {
        print_experts(t);
    }
    if (q->ep == 1) {
        print_replicas(t, hook);
    }
    for (int a = TP; a <= DP; a++) {
        if (size_of(q, a) > 1) {
            printf("%-4s %-*s %14lld\n", axis_names[a], 50 + backward_width(q),
                   "a micro-batch, sent by each rank", (long long)t->total[a]);
        }
    }
}

/* ---- memory -------------------------------------------------------------------------------- */

static void print_bytes(const char *what, const char *formula, double bytes)
{
    printf("%-34s %-36s %10.*f MB %14.0f\n", what, formula, bytes < 1e7 ? 3 : 0, bytes / 1e6,
           bytes);
}

static void print_memory(const parallel_question *q)
{
    const double s = (double)q->context, b = (double)q->batch, h = (double)q->dim;
    const double a = (double)q->heads, t = q->tp, sbh = s * b * h, scores = 5.0 * a * s / h;
    printf("%-34s %-36s %13s %14s\n", "kept by a layer", "formula", "", "bytes");
    print_bytes("16 bits, one rank", "sbh (34 + 5as/h)", sbh * (34.0 + scores));
    print_bytes("16 bits, tp", "sbh (10 + 24/t + 5as/ht)", sbh * (10.0 + 24.0 / t + scores / t));
    print_bytes("16 bits, tp, sequence", "sbh/t (34 + 5as/h)", sbh / t * (34.0 + scores));
    print_bytes("16 bits, selective recomputation", "34 sbh/t", 34.0 * sbh / t);
    print_bytes("16 bits, full recomputation", "2 sbh", 2.0 * sbh);
    ls__gpt_use u = {.model = {.dim = q->dim, .heads = q->heads, .context = q->context},
                     .batch = q->batch,
                     .tp = 1,
                     .width = WIDTH};
    print_bytes("here, one rank", "64 sbh + 4 bas + 16 bs + 512", ls__gpt_layer_kept(&u, false));
    u.tp = q->tp;
    print_bytes("here, tp", "4 sbh (4 + 12/t) + 4 bas/t + 16 bs", ls__gpt_layer_kept(&u, false));
    u.sequence = true;
    print_bytes("here, tp, sequence", "4 sbh (2 + 14/t) + 4 bas/t", ls__gpt_layer_kept(&u, false));
    print_bytes("here, gathered again", "64 sbh/t + 4 bas/t",
                64.0 * sbh / t + (4.0 * a + 16.0) * b * s / t + 512.0);
}

/* ---- the question -------------------------------------------------------------------------- */

/* Sizes of the axes that count here. False after a message. */
static bool read_mesh(const char *text, parallel_question *q)
{
    ls__axes axes;
    q->tp = q->cp = q->ep = q->dp = 1;
    if (text == NULL) {
        return true;
    }
    if (ls__axes_parse(text, 0, &axes) < 0) {
        fprintf(stderr, "lockstep info: %s\n", ls_error_message());
        return false;
    }
    for (int a = 0; a < axes.count; a++) {
        int *const size[] = {&q->tp, &q->cp, &q->ep, &q->dp};
        int k = TP;
        while (k <= DP && strcmp(axes.axis[a].name, axis_names[k]) != 0) {
            k++;
        }
        if (k > DP) {
            fprintf(stderr,
                    "lockstep info: axis \"%s\" of --mesh is not counted here; give tp, cp, ep and "
                    "dp\n",
                    axes.axis[a].name);
            return false;
        }
        *size[k] = axes.axis[a].size;
    }
    return true;
}

/* Checks that the mesh divides the model. Ranks may share heads of keys and values, if there are
 * fewer. */
static bool check(const parallel_question *q)
{
    const bool shared = q->tp % q->kv_heads == 0;
    const struct {
        const char *what;
        int64_t size;
        int ranks;
    } sizes[] = {{"--heads", q->heads, q->tp},
                 {"--kv-heads", q->kv_heads, shared ? 1 : q->tp},
                 {"--vocab", q->vocab, q->tp},
                 {"--dim", q->dim, (int)q->heads},
                 {"--experts", q->experts, q->ep},
                 {"--context", q->context,
                  (q->sequence ? q->tp : 1) * (q->cp > 1 ? 2 * q->cp : 1)}}; /* zigzag order */
    if (has_experts(q) ? q->tp > 1 || q->cp > 1 : q->ep > 1) {
        fprintf(stderr, "lockstep info: experts are counted along ep and dp, which --model moe "
                        "has; give --mesh ep and dp for it, tp, cp and dp for gpt\n");
        return false;
    }
    if (has_experts(q) && (q->zero > 0 || q->hook != NULL)) {
        fprintf(stderr, "lockstep info: what --zero and --hook send is counted for gpt; leave them "
                        "out with --model moe\n");
        return false;
    }
    if (q->top_k > q->experts || (q->padded && q->capacity == 0.0)) {
        fprintf(stderr,
                "lockstep info: --top-k %lld of --experts %lld, --capacity %g; give at most all, "
                "and with --padded a capacity\n",
                (long long)q->top_k, (long long)q->experts, q->capacity);
        return false;
    }
    if (q->sequence && q->tp == 1) {
        fprintf(stderr, "lockstep info: --sequence divides activations over the ranks along tp, "
                        "and --mesh has none; give it tp\n");
        return false;
    }
    if (q->regather && !q->sequence) {
        fprintf(stderr, "lockstep info: --regather is about inputs that --sequence gathers; give "
                        "both\n");
        return false;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].size % sizes[i].ranks != 0) {
            fprintf(stderr, "lockstep info: %s %lld is not divisible by %d; give a multiple\n",
                    sizes[i].what, (long long)sizes[i].size, sizes[i].ranks);
            return false;
        }
    }
    return true;
}

/* As lockstep train refuses it. False after a message. */
static bool read_hook(const parallel_question *q, ls_comm_hook *hook)
{
    if (q->hook == NULL) {
        return true;
    }
    if (ls_comm_hook_parse(q->hook, hook) < 0) {
        fprintf(stderr, "lockstep info: --hook: %s\n", ls_error_message());
        return false;
    }
    if (hook->before != NULL && (q->zero > 0 || q->tp > 1 || q->cp > 1)) {
        fprintf(stderr,
                "lockstep info: --hook %s: hooks are for replicas of whole models; give "
                "--mesh dp=N alone, without --zero\n",
                q->hook);
        return false;
    }
    return true;
}

int print_parallel(const char *mesh, bool memory, parallel_question *q)
{
    ls_comm_hook hook = {.size = sizeof hook};
    q->kv_heads = q->kv_heads > 0 ? q->kv_heads : q->heads;
    if (!read_mesh(mesh, q) || !check(q) || !read_hook(q, &hook)) {
        return 2;
    }
    printf("GPT of %lld layers, dim %lld, %lld heads, vocabulary %lld; %lld x %lld tokens; ",
           (long long)q->layers, (long long)q->dim, (long long)q->heads, (long long)q->vocab,
           (long long)q->batch, (long long)q->context);
    if (has_experts(q)) {
        printf("%lld experts, %lld for a token; ep=%d, dp=%d\n\n", (long long)q->experts,
               (long long)q->top_k, q->ep, q->dp);
    } else {
        printf("tp=%d, cp=%d, dp=%d%s%s\n\n", q->tp, q->cp, q->dp, q->sequence ? ", sequence" : "",
               q->regather ? ", gathered again" : "");
    }
    if (memory) {
        print_memory(q);
    } else {
        print_comm(&(table){.q = q}, &hook);
    }
    if (hook.free != NULL) {
        hook.free(hook.state);
    }
    return 0;
}
