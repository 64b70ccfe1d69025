/* SPDX-License-Identifier: Apache-2.0 */
/* Figure 8 of "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep
 * Learning" (Zheng et al., OSDI 2022): how fast models that grow with the number of devices train
 * when they are divided within operators, between operators, and both, by the cost model.
 *
 *     intra   one stage: each layer on all devices (dp, tp, experts over ep)
 *     inter   a stage for each device, or for each layer where these are fewer
 *     both    any mesh of stages
 *
 * Of a GPT all meshes of powers of two are simulated (cost/job.h), with 1F1B, 16 to 256
 * micro-batches, and blocks recomputed or not. alpa_resnet.c has the network that is not one. */
#include "alpa.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/env_posix.h"
#include "base/error.h"
#include "cost/job.h"
#include "paper.h"

#define SEQUENCES 1024        /* of a step */
#define ADAFACTOR (1.0 / 3.0) /* of AdamW's state in 16 bits: the float32 parameters alone */
enum { MICRO_BATCHES_MIN = 16, MICRO_BATCHES_MAX = 256 };

static const char *const kinds[ALPA_KINDS] = {"intra", "inter", "both"};

typedef struct alpa_size {
    int devices;
    const char *name;
    ls__gpt gpt;
    alpa_resnet resnet;
} alpa_size;

/* Tables 5 to 7 of the paper. */
#define GPT(layers_, dim_, heads_)                                                                 \
    {                                                                                              \
        .layers = layers_, .dim = dim_, .heads = heads_, .vocab = 51200, .context = 1024,          \
        .untied = true                                                                             \
    }
#define MOE(layers_, dim_, experts_)                                                               \
    {                                                                                              \
        .layers = layers_, .dim = dim_, .heads = 16, .vocab = 32000, .context = 1024,              \
        .experts = experts_, .top_k = 2, .untied = true, .mlp = 8 * (dim_)                         \
    }
static const alpa_size gpts[] = {
    {1, "350M", GPT(24, 1024, 16), {0}}, {4, "1.3B", GPT(24, 2048, 32), {0}},
    {8, "2.6B", GPT(32, 2560, 32), {0}}, {16, "6.7B", GPT(32, 4096, 32), {0}},
    {32, "15B", GPT(48, 5120, 40), {0}}, {64, "39B", GPT(48, 8192, 64), {0}}};
static const alpa_size moes[] = {
    {1, "380M", MOE(8, 768, 8), {0}},    {4, "1.3B", MOE(16, 768, 16), {0}},
    {8, "2.4B", MOE(16, 1024, 16), {0}}, {16, "10B", MOE(16, 1536, 32), {0}},
    {32, "27B", MOE(16, 2048, 48), {0}}, {64, "70B", MOE(32, 2048, 64), {0}}};
static const alpa_size resnets[] = {
    {1, "250M", {0}, {50, 160, 2}},   {4, "1B", {0}, {50, 320, 2}},
    {8, "2B", {0}, {50, 448, 2}},     {16, "4B", {0}, {50, 640, 2}},
    {32, "6.8B", {0}, {50, 320, 16}}, {64, "13B", {0}, {101, 320, 16}}};
#define SIZES ((int)(sizeof gpts / sizeof *gpts))

static const struct {
    const char *name, *device;
    int width; /* bytes of an element */
    const alpa_size *sizes;
} families[] = {{"GPT", "125tflop,900gbyte", 2, gpts},
                {"MoE", "125tflop,900gbyte", 2, moes},
                {"wide ResNet", "15.7tflop,900gbyte", 4, resnets}};
#define FAMILIES ((int)(sizeof families / sizeof *families))

static const paper_column columns[] = {
    {"model", "", NULL},      {"parameters", "", "%.4g"},  {"devices", "", "%.0f"},
    {"parallel", "", NULL},   {"rate", "PFLOP/s", "%.4f"}, {"of the peak", "%", "%.1f"},
    {"memory", "GB", "%.2f"}, {"plan", "", NULL},          {"curve", "", "list"},
};

/* ---- a GPT ----------------------------------------------------------------------------------- */

typedef struct search {
    const alpa_machine *m;
    ls__sim_job job; /* what is tried */
    alpa_found *out;
    bool failed;
} search;

static void set_mesh(ls__sim_job *job, int pp, int ep, int dp, int tp)
{
    job->pp = (ls__sim_axis){pp, ep * dp * tp};
    job->ep = (ls__sim_axis){ep, dp * tp};
    job->dp = (ls__sim_axis){dp, tp};
    job->tp = (ls__sim_axis){tp, 1};
    job->use.tp = tp;
    job->use.ep = ep;
    job->spec.ranks = pp;
}

static double memory_of(const search *s, const ls__sim_step *step)
{
    const double optimizer = s->job.use.model.experts > 0 ? ADAFACTOR : 1.0;
    double most = 0.0;
    for (int r = 0; r < s->job.pp.size; r++) {
        const ls__sim_rank *k = &step->rank[r];
        most = fmax(most, k->parameters + k->gradients + optimizer * k->optimizer + k->activations);
    }
    return most;
}

static void describe(const ls__sim_job *j, char out[ALPA_PLAN_BYTES])
{
    char experts[16] = "";
    if (j->use.model.experts > 0) {
        (void)snprintf(experts, sizeof experts, "ep=%d,", j->ep.size);
    }
    (void)snprintf(out, ALPA_PLAN_BYTES, "pp=%d,%sdp=%d,tp=%d, %d x %d%s", j->pp.size, experts,
                   j->dp.size, j->tp.size, j->spec.micro_batches, (int)j->use.batch,
                   j->use.recompute ? ", recomputed" : "");
}

/* A stage computes at least its share of the layers for each micro-batch. */
static bool may_be_best(search *s)
{
    ls__sim_parts parts;
    const ls__sim_job *j = &s->job;
    const int64_t layers = j->use.model.layers, mixed = ls__gpt_mixed(&j->use.model, 0, layers);
    const int64_t count[2] = {layers - mixed, mixed};
    double seconds = 0.0;
    s->failed = s->failed || ls__sim_parts_of(ls__env_posix(), j, &parts) < 0;
    for (int k = 0; k < 2 && !s->failed; k++) {
        const ls__stage_times *t = &parts.layer[k].times;
        seconds += (double)count[k] * (t->forward + t->backward);
    }
    return !s->failed && seconds / j->pp.size * j->spec.micro_batches < s->out->step;
}

static void try(search *s)
{
    ls__sim_step step;
    if (!may_be_best(s)) {
        return;
    }
    if (ls__simulate_job(ls__env_posix(), &s->job, &step) < 0) {
        s->failed = true;
        return;
    }
    const double memory = memory_of(s, &step);
    if (memory <= ALPA_MEMORY && step.step < s->out->step) {
        s->out->step = step.step;
        s->out->memory = memory;
        describe(&s->job, s->out->plan);
    }
    ls__sim_step_free(&step);
}

static void try_mesh(search *s, int pp, int ep, int dp, int tp)
{
    const ls__gpt *g = &s->job.use.model;
    if (pp > g->layers || g->heads % tp != 0 || (ep > 1 && g->experts % ep != 0) ||
        (g->experts == 0 && ep > 1)) {
        return;
    }
    set_mesh(&s->job, pp, ep, dp, tp);
    for (int m = MICRO_BATCHES_MAX; m >= MICRO_BATCHES_MIN; m /= 2) {
        s->job.spec.micro_batches = m;
        s->job.use.batch = SEQUENCES / ((int64_t)m * ep * dp);
        for (int recompute = 0; recompute <= 1 && s->job.use.batch > 0; recompute++) {
            s->job.use.recompute = recompute == 1;
            try(s);
        }
    }
}

static void try_stages(search *s, int pp)
{
    const int rest = s->m->devices / pp;
    for (int tp = 1; tp <= rest; tp *= 2) {
        for (int ep = 1; ep <= rest / tp; ep *= 2) {
            try_mesh(s, pp, ep, rest / tp / ep, tp);
        }
    }
}

static bool find(const ls__gpt *g, const alpa_machine *m, alpa_kind kind, alpa_found *out)
{
    search s = {.m = m,
                .out = out,
                .job = {.use = {.model = *g, .width = 2},
                        .device = m->device,
                        .cluster = m->cluster,
                        .schedule = "1f1b",
                        .bucket_bytes = 25 << 20}};
    const int layers = (int)g->layers;
    *out = (alpa_found){.step = INFINITY};
    if (kind != ALPA_INTER) {
        for (int pp = 1; pp <= (kind == ALPA_INTRA ? 1 : m->devices); pp *= 2) {
            try_stages(&s, pp);
        }
    }
    if (kind != ALPA_INTRA) {
        try_mesh(&s, m->devices < layers ? m->devices : layers, 1, 1, 1);
    }
    return !s.failed;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Floating-point operations of a step, and the parameters. */
static void measure(int family, const alpa_size *size, double *flops, double *parameters)
{
    if (families[family].width == 4) {
        *flops = ALPA_IMAGES * alpa_resnet_flops(&size->resnet);
        *parameters = alpa_resnet_parameters(&size->resnet);
        return;
    }
    *flops = ls__gpt_flops(&(ls__gpt_use){.model = size->gpt, .batch = SEQUENCES, .tp = 1});
    *parameters = ls__gpt_parameters(&size->gpt);
}

static bool add(json_t *table, int family, const alpa_size *size, const alpa_machine *m,
                alpa_kind kind)
{
    alpa_found found;
    double flops, parameters;
    char curve[64];
    const bool good = families[family].width == 4 ? alpa_resnet_find(&size->resnet, m, kind, &found)
                                                  : find(&size->gpt, m, kind, &found);
    const bool fits = isfinite(found.step);
    measure(family, size, &flops, &parameters);
    const double rate = fits ? flops / found.step : 0.0;
    (void)snprintf(curve, sizeof curve, "%s, %s", families[family].name, kinds[kind]);
    char name[64];
    (void)snprintf(name, sizeof name, "%s %s", families[family].name, size->name);
    paper_row(table, "[s, f, i, s, f, f, f, s, s]", name, parameters, m->devices, kinds[kind],
              rate * 1e-15, 100.0 * rate / m->devices / m->device.flops,
              fits ? found.memory * 1e-9 : 0.0, fits ? found.plan : "does not fit", curve);
    return good;
}

static bool add_family(paper *p, int family)
{
    char title[96];
    const char *device = families[family].device;
    (void)snprintf(title, sizeof title, "%s on 1 to 64 devices, predicted", families[family].name);
    json_t *table = paper_table(p, title, columns, (int)(sizeof columns / sizeof *columns));
    for (int i = 0; i < SIZES; i++) {
        const alpa_size *size = &families[family].sizes[i];
        alpa_machine m = {.devices = size->devices};
        if (ls__cluster_parse("cluster", ALPA_CLUSTER, strlen(ALPA_CLUSTER), &m.cluster) < 0 ||
            ls__processor_parse("device", device, strlen(device), families[family].width,
                                &m.device) < 0) {
            return false;
        }
        for (int kind = 0; kind < ALPA_KINDS; kind++) {
            if (!add(table, family, size, &m, (alpa_kind)kind)) {
                return false;
            }
        }
    }
    paper_plot_add(p, &(paper_plot){.title = families[family].name,
                                    .kind = "lines",
                                    .table = table,
                                    .x = "devices",
                                    .y = {"rate"},
                                    .says = "predicted by the cost model: without spread",
                                    .group = "curve",
                                    .x_label = "devices",
                                    .y_label = "PFLOP/s",
                                    .log = "x 2; set logscale y"});
    return true;
}

bool paper_alpa(paper *p)
{
    for (int family = 0; family < FAMILIES; family++) {
        if (!add_family(p, family)) {
            fprintf(stderr, "lockstep paper: %s\n", ls_error_message());
            return false;
        }
    }
    paper_note(p, "Predicted by the cost model of lockstep sim, nothing was measured: hosts of 8 "
                  "devices with 150 GB/s between them and 25 Gbit/s to other hosts, 16 GB each; "
                  "computation by a roofline of 125 TFLOP/s (float32: 15.7) and 900 GB/s, which "
                  "is a lower bound, so rates are upper bounds. Operations without "
                  "recomputation.");
    paper_note(p,
               "GPT and MoE: %d sequences a step, all meshes of powers of two, 1F1B, %d to %d "
               "micro-batches, stages of as many layers, recomputed or not. State of a GPT: "
               "AdamW; of MoE: Adafactor, without moments. MoE: 2 experts a token, each of "
               "which gets as many. Wide ResNet: %d images a step, blocks are recomputed, a "
               "stage divides images and channels (paper/alpa_resnet.c), a step takes the sum "
               "of its stages and cuts and M - 1 times the longest, as in section 5.2 of the "
               "paper. inter: with fewer layers than devices some devices have no stage.",
               SEQUENCES, MICRO_BATCHES_MIN, MICRO_BATCHES_MAX, ALPA_IMAGES);
    return true;
}
