/* SPDX-License-Identifier: Apache-2.0 */
/* The wide ResNet of Alpa's figure as a chain of operators with costs by formula, for Alpa's own
 * program (plan/inter.h). The planner has no convolutions; what is assumed here:
 *
 *     block     convolutions 1x1 (f), 3x3 (width f, stride), 1x1 (4 f), and one 1x1 (4 f) beside
 *               them where the shape changes; a norm and an activation function after each
 *     compute   a convolution is a matmul of pixels x channels; norm and activation function read
 *               and write its result twice; backward takes twice as long as forward, and forward
 *               runs again
 *     stage     n = d c devices: images are divided over d, channels over c
 *     channels  the result of the 3x3 is summed over c, an all-reduce, that of the last gathered;
 *               in backward the same
 *     images    gradients are summed over d, once a step, beside nothing
 *     cut       a micro-batch's activations over one link between hosts (within one: a device's),
 *               there and back
 *     memory    parameters, gradients and AdamW's state, 16 bytes a parameter; the input of each
 *               block for each micro-batch that the stage holds, and all of one block */
#include "alpa.h"

#include <math.h>

#include "base/env_posix.h"
#include "base/text.h"
#include "cost/collective.h"
#include "plan/inter.h"

enum { PARTS_MAX = 40, CLASSES = 1024, SIDE = 224, CONVOLUTIONS = 4, HOST = 8, SHAPES_MAX = 8 };
#define STATE_BYTES 16.0
#define FLOAT 4.0

typedef struct convolution {
    int64_t pixels, out, in; /* of an image; the channels, and the inputs of one */
} convolution;

typedef struct part {
    convolution list[CONVOLUTIONS];
    int count;
    double parameters, input, made; /* elements: of an image what comes in, and all results */
    double summed, gathered;        /* … those that ranks with other channels exchange */
} part;

typedef struct chain {
    const alpa_machine *m;
    part part[PARTS_MAX];
    int parts, micro_batches;
    int shape[SHAPES_MAX]; /* devices of a submesh */
} chain;

/* ---- the network ----------------------------------------------------------------------------- */

static void add_convolution(part *p, int64_t side, int64_t in, int64_t out, int64_t kernel)
{
    p->list[p->count++] = (convolution){side * side, out, in * kernel * kernel};
    p->parameters += (double)(in * kernel * kernel * out + 2 * out);
    p->made += (double)(side * side * out);
}

static part block_of(int64_t side, int64_t in, int64_t f, int64_t width, int64_t stride)
{
    const int64_t small = side / stride;
    part p = {.input = (double)(side * side * in),
              .summed = (double)(small * small * f * width),
              .gathered = (double)(small * small * 4 * f)};
    add_convolution(&p, side, in, f, 1);
    add_convolution(&p, small, f, width * f, 3);
    add_convolution(&p, small, width * f, 4 * f, 1);
    if (in != 4 * f || stride > 1) {
        add_convolution(&p, small, in, 4 * f, 1);
    }
    return p;
}

/* The stem, the blocks, and the classifier. */
static void make(const alpa_resnet *net, chain *c)
{
    const int blocks[4] = {3, 4, net->layers == 101 ? 23 : 6, 3};
    int64_t side = SIDE / 4, in = net->channels;
    c->part[0] = (part){.input = 3.0 * SIDE * SIDE};
    add_convolution(&c->part[0], SIDE / 2, 3, in, 7);
    c->parts = 1;
    for (int i = 0; i < 4; i++) {
        const int64_t f = (int64_t)net->channels << i;
        for (int k = 0; k < blocks[i]; k++) {
            const int64_t stride = i > 0 && k == 0 ? 2 : 1;
            c->part[c->parts++] = block_of(side, in, f, net->width, stride);
            side /= stride;
            in = 4 * f;
        }
    }
    c->part[c->parts] = (part){.input = (double)(side * side * in)};
    add_convolution(&c->part[c->parts], 1, in, CLASSES, 1);
    c->part[c->parts].parameters -= CLASSES; /* a bias instead of a norm's two */
    c->parts++;
}

double alpa_resnet_parameters(const alpa_resnet *net)
{
    chain c = {.parts = 0};
    double sum = 0.0;
    make(net, &c);
    for (int i = 0; i < c.parts; i++) {
        sum += c.part[i].parameters;
    }
    return sum;
}

double alpa_resnet_flops(const alpa_resnet *net)
{
    chain c = {.parts = 0};
    double sum = 0.0;
    make(net, &c);
    for (int i = 0; i < c.parts; i++) {
        for (int k = 0; k < c.part[i].count; k++) {
            const convolution *v = &c.part[i].list[k];
            sum += 6.0 * (double)v->pixels * (double)v->out * (double)v->in;
        }
    }
    return sum;
}

/* ---- a stage --------------------------------------------------------------------------------- */

/* Seconds for a byte that each of n ranks sends to the next one, `stride` from each other. */
static double byte_of(const alpa_machine *m, int n, int stride)
{
    const double within = m->cluster.level[0].bandwidth, between = m->cluster.level[1].bandwidth;
    return n * stride <= HOST ? 1.0 / within : fmin(stride, HOST) / between;
}

static double all_reduce(const alpa_machine *m, int n, int stride, double bytes)
{
    return n > 1 ? ls__collective_seconds(ls__collective_all_reduce(n, false), 0.0,
                                          byte_of(m, n, stride), bytes)
                 : 0.0;
}

/* Forward, forward again and backward of a micro-batch. */
static double compute_of(const alpa_machine *m, const part *p, int64_t images, int channels)
{
    double seconds = 0.0;
    for (int k = 0; k < p->count; k++) {
        const convolution *v = &p->list[k];
        const int64_t out = (v->out + channels - 1) / channels;
        seconds +=
            ls__processor_matmul(&m->device, images * v->pixels, out, v->in) +
            ls__processor_bytes(&m->device, 4.0 * FLOAT * (double)(images * v->pixels * out));
    }
    return 4.0 * seconds;
}

/* Of devices that divide images over d and channels over c. */
static ls__inter_cost cost_with(const chain *c, int first, int end, int d, int channels)
{
    const int64_t images = ALPA_IMAGES / ((int64_t)c->micro_batches * d);
    double parameters = 0.0, most = 0.0, seconds = 0.0;
    ls__inter_cost out = {.fixed = 0.0};
    for (int i = first; i < end; i++) {
        const part *p = &c->part[i];
        const double exchanged = (p->summed + p->gathered / 2.0) * FLOAT * (double)images;
        seconds +=
            compute_of(c->m, p, images, channels) + 3.0 * all_reduce(c->m, channels, 1, exchanged);
        parameters += p->parameters / channels;
        out.kept += p->input * FLOAT * (double)images;
        most = fmax(most, 2.0 * p->made / channels * FLOAT * (double)images);
    }
    const double once = all_reduce(c->m, d, channels, FLOAT * parameters) +
                        ls__processor_bytes(&c->m->device, LS__OPTIMIZER_BYTES * parameters);
    out.seconds = out.every = seconds + once / c->micro_batches;
    out.fixed = STATE_BYTES * parameters + most;
    return out;
}

/* The fastest that has room for one micro-batch. */
static void cost_of(void *arg, int first, int end, int shape, ls__inter_cost *out)
{
    const chain *c = arg;
    const int n = c->shape[shape];
    *out = (ls__inter_cost){.seconds = INFINITY, .every = INFINITY};
    for (int channels = 1; channels <= n; channels *= 2) {
        const int d = n / channels;
        if (ALPA_IMAGES / c->micro_batches % d == 0) {
            const ls__inter_cost one = cost_with(c, first, end, d, channels);
            if (one.fixed + one.kept <= ALPA_MEMORY && one.seconds < out->seconds) {
                *out = one;
            }
        }
    }
}

/* ---- the search ------------------------------------------------------------------------------ */

static void describe(const chain *c, const ls__inter_spec *spec, const ls__inter_plan *plan,
                     alpa_found *out)
{
    ls__text text = {out->plan, ALPA_PLAN_BYTES};
    out->step = plan->seconds;
    out->memory = 0.0;
    ls__text_add(&text, "parts x devices");
    for (int i = 0; i < plan->stages; i++) {
        const int end = i + 1 < plan->stages ? plan->first[i + 1] : c->parts;
        ls__inter_cost cost;
        cost_of(spec->arg, plan->first[i], end, plan->shape[i], &cost);
        const int held = ls__inter_held(spec, c->shape[plan->shape[i]], plan->stages - 1 - i, 0);
        out->memory = fmax(out->memory, cost.fixed + held * cost.kept);
        ls__text_add(&text, " %dx%d", end - plan->first[i], c->shape[plan->shape[i]]);
    }
    ls__text_add(&text, ", %d x %d", c->micro_batches, ALPA_IMAGES / c->micro_batches);
}

/* Both directions. */
static void measure_cuts(const chain *c, double *cut)
{
    const alpa_machine *m = c->m;
    const double bandwidth = m->cluster.level[m->devices > HOST ? 1 : 0].bandwidth;
    const double images = ALPA_IMAGES / (double)c->micro_batches;
    for (int i = 0; i + 1 < c->parts; i++) {
        cut[i] = 2.0 * c->part[i + 1].input * FLOAT * images / bandwidth;
    }
}

/* Of submeshes of the first devices, twice as many, and so on up to `most` of them. */
static bool try(chain *c, int devices, int first, int most, int stages, alpa_found *out)
{
    static const int micro_batches[] = {16, 24, 32, 48, 64};
    double cut[PARTS_MAX];
    ls__inter_plan plan;
    ls__inter_spec spec = {.parts = c->parts,
                           .devices = devices,
                           .shape = c->shape,
                           .stages = stages,
                           .may_leave = true,
                           .cut = cut,
                           .memory_bytes = ALPA_MEMORY,
                           .live = LS__LIVE_STAGES,
                           .warm_up = 1,
                           .cost = cost_of,
                           .arg = c};
    for (int n = first; n <= most; n *= 2) {
        c->shape[spec.shapes++] = n;
    }
    for (size_t k = 0; k < sizeof micro_batches / sizeof *micro_batches; k++) {
        spec.micro_batches = c->micro_batches = micro_batches[k];
        measure_cuts(c, cut);
        const ls_status status = ls__inter_find(ls__env_posix(), &spec, &plan);
        if (status == LS_ERR_MEMORY) {
            return false;
        }
        if (status == LS_OK && plan.seconds < out->step) {
            describe(c, &spec, &plan, out);
        }
    }
    return true;
}

/* Between operators each device has a stage; both: submeshes of at least an eighth of all. */
bool alpa_resnet_find(const alpa_resnet *net, const alpa_machine *m, alpa_kind kind,
                      alpa_found *out)
{
    chain c = {.m = m};
    const int n = m->devices, unit = n > 8 ? n / 8 : 1;
    bool good = true;
    *out = (alpa_found){.step = INFINITY};
    make(net, &c);
    if (kind != ALPA_INTER) {
        good = try(&c, n, kind == ALPA_INTRA ? n : unit, n, kind == ALPA_INTRA ? 1 : 0, out);
    }
    if (kind != ALPA_INTRA && good) {
        good = try(&c, n < c.parts ? n : c.parts, 1, 1, 0, out);
    }
    return good;
}
