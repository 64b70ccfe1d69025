/* `lockstep info --comm`: what a step of a GPT sends along each axis of a mesh, from the table of
 * conversions (placement/redistribute.h) and the shapes of the model.
 * `lockstep info --memory`: what a block keeps for backward, by the formulas of Korthikanti et al.
 * 2022 (section 4, 16-bit activations), and by this version's own (float32). */
#include <stdio.h>
#include <string.h>

#include "base/axes.h"
#include "commands.h"
#include "dist/axes.h"
#include "placement/redistribute.h"
#include "tensor/placement.h"

#define WIDTH 4 /* bytes of an element: the trainers compute in float32 */

typedef struct table {
    const parallel_question *q;
    int64_t total[LS__AXES_MAX]; /* bytes of a step by axis: tp, cp, dp */
} table;

enum { TP, CP, DP };
static const char *const axis_names[] = {"tp", "cp", "dp"};

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
    const int sizes[] = {q->tp, q->cp, q->dp};
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

/* Parameters on a rank. */
static int64_t parameters(const parallel_question *q)
{
    const int64_t h = q->dim, t = q->tp;
    const int64_t block = (12 * h * h + 7 * h) / t + 6 * h; /* column biases are divided */
    return q->layers * block + 2 * q->vocab * h / t + q->context * h + 2 * h;
}

static void print_comm(table *t)
{
    const parallel_question *q = t->q;
    const int s0 = LS__PLACED_SHARDED + 1;
    const int between = q->sequence ? s0 : LS__PLACED_INVARIANT;
    const int64_t rows = q->batch * q->context / q->cp, n = rows * q->dim;
    const int64_t kv = q->batch * (q->context / q->cp) * (q->dim / q->heads * q->kv_heads / q->tp);
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
    print_row(t, DP, "gradients", "", "all-reduce", 1,
              ls__move_bytes(LS__MOVE_ALL_REDUCE, q->dp * q->cp, parameters(q) * WIDTH));
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
    print_bytes("here, one rank", "64 sbh + 4 bas + 16 bs + 512",
                64.0 * sbh + 4.0 * b * a * s + 16.0 * b * s + 512.0);
    print_bytes("here, tp", "4 sbh (4 + 12/t) + 4 bas/t + 16 bs",
                4.0 * sbh * (4.0 + 12.0 / t) + 4.0 * b * a * s / t + 16.0 * b * s + 512.0);
    print_bytes("here, tp, sequence", "4 sbh (2 + 14/t) + 4 bas/t",
                4.0 * sbh * (2.0 + 14.0 / t) + (4.0 * a + 16.0) * b * s / t + 512.0);
    print_bytes("here, gathered again", "64 sbh/t + 4 bas/t",
                64.0 * sbh / t + (4.0 * a + 16.0) * b * s / t + 512.0);
}

/* ---- the question -------------------------------------------------------------------------- */

/* Sizes of the axes that count here. False after a message. */
static bool read_mesh(const char *text, parallel_question *q)
{
    ls__axes axes;
    q->tp = q->cp = q->dp = 1;
    if (text == NULL) {
        return true;
    }
    if (ls__axes_parse(text, 0, &axes) < 0) {
        fprintf(stderr, "lockstep info: %s\n", ls_error_message());
        return false;
    }
    for (int a = 0; a < axes.count; a++) {
        int *const size[] = {&q->tp, &q->cp, &q->dp};
        for (int k = TP; k <= DP; k++) {
            *size[k] = strcmp(axes.axis[a].name, axis_names[k]) == 0 ? axes.axis[a].size : *size[k];
        }
    }
    return true;
}

/* What a mesh cannot divide. */
static bool check(const parallel_question *q)
{
    const struct {
        const char *what;
        int64_t size;
        int ranks;
    } sizes[] = {{"--heads", q->heads, q->tp},
                 {"--kv-heads", q->kv_heads, q->tp},
                 {"--vocab", q->vocab, q->tp},
                 {"--dim", q->dim, (int)q->heads},
                 {"--context", q->context,
                  (q->sequence ? q->tp : 1) * (q->cp > 1 ? 2 * q->cp : 1)}}; /* zigzag order */
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

int print_parallel(const char *mesh, bool memory, parallel_question *q)
{
    q->kv_heads = q->kv_heads > 0 ? q->kv_heads : q->heads;
    if (!read_mesh(mesh, q) || !check(q)) {
        return 2;
    }
    printf("GPT of %lld layers, dim %lld, %lld heads, vocabulary %lld; %lld x %lld tokens; tp=%d, "
           "cp=%d, dp=%d%s%s\n\n",
           (long long)q->layers, (long long)q->dim, (long long)q->heads, (long long)q->vocab,
           (long long)q->batch, (long long)q->context, q->tp, q->cp, q->dp,
           q->sequence ? ", sequence" : "", q->regather ? ", gathered again" : "");
    if (memory) {
        print_memory(q);
    } else {
        print_comm(&(table){.q = q});
    }
    return 0;
}
