/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with the parts of modules, and with pipelines, whose stages are made of them. */
#include <stdio.h>

#include "golden.h"

static ls_tensor *pass_on(ls_module *self, ls_tensor *x)
{
    (void)self;
    return x;
}
static const ls_module_class plain_class = LS_MODULE_CLASS(.name = "plain", .forward = pass_on);

static ls_module *plain(void)
{
    return ls_module_new(sizeof(ls_module), &plain_class);
}

/* ---- parts --------------------------------------------------------------------------------- */

static ls_tensor *pass_part(ls_module *self, ls_tensor *const *x)
{
    (void)self;
    return x[0];
}

static const ls_part *given; /* what the class below declares behind one good part */

static void declare_given(ls_module *m, ls_parts *parts)
{
    (void)ls_parts_add(parts, &LS_PART(.module = ls_module_child_at(m, 0)));
    for (int i = 0; i < (given->name != NULL && given->name[0] == '+' ? 1025 : 1); i++) {
        char name[16];
        ls_part part = *given;
        snprintf(name, sizeof name, "%d", i);
        part.name = part.name != NULL && part.name[0] == '+' ? name : part.name;
        (void)ls_parts_add(parts, &part);
    }
}

static const ls_module_class declaring =
    LS_MODULE_CLASS(.name = "declaring", .forward = pass_on, .parts = declare_given);

static void show_part(const char *what, const ls_part *part)
{
    ls_module *m = ls_module_new(sizeof *m, &declaring);
    (void)ls_module_add(m, "inner", plain());
    given = part;
    golden_show(what, (ls_status)ls_module_part_count(m));
}
#define SHOW_PART(...) show_part(#__VA_ARGS__, &LS_PART(__VA_ARGS__))

GOLDEN(declaring_parts)
{
    show_part("no size", &(ls_part){.name = "a"});
    SHOW_PART(.name = "a");
    SHOW_PART(.name = "a", .run = pass_part);
    SHOW_PART(.name = "inner", .run = pass_part, .uses = "");
    SHOW_PART(.module = plain());
    SHOW_PART(.name = "+", .run = pass_part, .uses = "");
    SHOW_PART(.name = "a", .run = pass_part, .uses = "", .from_count = 2);
    SHOW_PART(.name = "a", .run = pass_part, .uses = "", .from = (int[]){1}, .from_count = 1);
    ls_module *m = ls_module_new(sizeof *m, &declaring);
    (void)ls_module_add(m, "inner", plain());
    given = &LS_PART(.name = "a", .run = pass_part, .uses = "inner.deeper");
    SHOW(ls_module_keep_parts(m, (int[]){1}, 1));
}

GOLDEN(using_parts)
{
    ls_module *layers[] = {plain(), plain(), plain()};
    ls_module *net = ls_sequential_new(layers, 3);
    int first[LS_CALL_TENSORS_MAX], count = 0;
    ls_stage_edges edges;
    ls_tensor *x = ls_ones(LS_SHAPE(1, 2), LS_FLOAT32), *in[2] = {x, x}, *y = NULL;
    SHOW(ls_module_stage_edges(net, 1, 3, &edges));
    SHOW(ls_module_run_stage(net, 0, 2, in, 2, &y, 1));
    SHOW(ls_module_cut_evenly(net, 4, 0, &first[0], &count));
    SHOW(ls_module_cut_at(net, "7", first));
    SHOW(ls_module_cut_at(net, "2 1", first));
    SHOW(ls_module_keep_parts(layers[0], (int[]){0}, 1));
    SHOW(ls_module_keep_parts(net, (int[]){2, 1}, 2));
    MUST(ls_module_keep_parts(net, (int[]){1}, 1));
    SHOW(ls_module_run_stage(net, 0, 2, &x, 1, &y, 1));
    SHOW_TENSOR(ls_forward(net, x));
}

static ls_tensor *sum_part(ls_module *self, ls_tensor *const *x)
{
    (void)self;
    return ls_add(x[0], x[1]);
}

/* Each part from 70 on takes the result of one of the first 70. */
static void declare_many_edges(ls_module *m, ls_parts *parts)
{
    (void)m;
    for (int i = 0; i < 140; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        (void)ls_parts_add(parts,
                           &LS_PART(.name = name, .run = i < 70 ? pass_part : sum_part, .uses = "",
                                    .from = (int[]){i - 1, i - 70}, .from_count = i < 70 ? 1 : 2));
    }
}

GOLDEN(too_many_edges)
{
    static const ls_module_class class =
        LS_MODULE_CLASS(.name = "edges", .forward = pass_on, .parts = declare_many_edges);
    ls_stage_edges edges;
    SHOW(ls_module_stage_edges(ls_module_new(sizeof(ls_module), &class), 0, 70, &edges));
}

/* ---- pipelines ----------------------------------------------------------------------------- */

/* Two parts that say that they use one parameter, which the second one does not. */
typedef struct tying {
    ls_module base;
    ls_tensor *w;
} tying;

static ls_tensor *times_w(ls_module *m, ls_tensor *const *x)
{
    return ls_mul(x[0], ((tying *)m)->w);
}

static void tying_parts(ls_module *m, ls_parts *parts)
{
    (void)m;
    (void)ls_parts_add(parts, &LS_PART(.name = "a", .run = times_w, .uses = "w"));
    (void)ls_parts_add(parts, &LS_PART(.name = "b", .run = pass_part, .uses = "w"));
}

static const ls_module_class tying_class =
    LS_MODULE_CLASS(.name = "tying", .forward = pass_on, .parts = tying_parts);

static ls_module *tying_new(void)
{
    tying *self = ls_module_new(sizeof *self, &tying_class);
    self->w = ls_module_add_param(&self->base, "w", ls_ones(LS_SHAPE(2), LS_FLOAT32));
    return &self->base;
}

static ls_tensor *mean_of(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    (void)target;
    return ls_mean(output);
}

GOLDEN(making_pipelines)
{
    ls_pipeline *p = NULL;
    ls_module *layers[] = {ls_linear_new(2, 2, NULL), ls_linear_new(2, 2, NULL)};
    ls_module *net = ls_sequential_new(layers, 2);
    SHOW(ls_pipeline_new(net, NULL, NULL, &p));
    SHOW(ls_pipeline_new(net, ls_world(), LS_OPTIONS(ls_pipeline_options, .schedule = "2f2b"), &p));
    SHOW(ls_pipeline_new(net, ls_world(), LS_OPTIONS(ls_pipeline_options, .schedule = NULL), &p));
    SHOW(ls_pipeline_new(net, ls_world(), LS_OPTIONS(ls_pipeline_options, .schedule = "pipedream"),
                         &p));
    SHOW(ls_pipeline_new(net, ls_world(), LS_OPTIONS(ls_pipeline_options, .cut = "1"), &p));
    MUST(ls_pipeline_new(net, ls_world(), LS_OPTIONS(ls_pipeline_options, .micro_batches = 1), &p));
    ls_micro_batch micro = {.size = 0};
    SHOW(ls_pipeline_set_optim(NULL, NULL));
    SHOW(ls_pipeline_backward(p, net, &micro, NULL));
    SHOW(ls_pipeline_backward(p, net, NULL, NULL));
    (void)ls_pipeline_free(p); /* whose group the call has aborted */
    SHOW(ls_pipeline_backward(NULL, net, &micro, NULL));
    SHOW(ls_pipeline_forward(NULL, NULL, 0, NULL));
    SHOW(ls_pipeline_stage(NULL));
    MUST(ls_pipeline_new(net, ls_world(), LS_OPTIONS(ls_pipeline_options, .schedule = "pipedream"),
                         &p));
    SHOW(ls_pipeline_backward(p, net, &micro, NULL));
    SHOW(ls_pipeline_forward(p, NULL, 0, NULL));
    (void)ls_pipeline_free(p);
}

/* Of two versions of the parameters, so with a stash. */
static ls_status use_pipeline(void)
{
    ls_pipeline *p = NULL;
    ls_module *layers[] = {ls_linear_new(2, 2, NULL), ls_linear_new(2, 2, NULL)};
    ls_module *net = ls_sequential_new(layers, 2);
    ls_optim *optim = ls_module_status(net) == LS_OK ? ls_sgd_new(net, NULL) : NULL;
    ls_status status = optim != NULL ? LS_OK : ls_module_status(net);
    if (status == LS_OK) {
        status = ls_pipeline_new(net, ls_world(),
                                 LS_OPTIONS(ls_pipeline_options, .schedule = "pipedream-2bw",
                                            .micro_batches = 3, .loss = mean_of),
                                 &p);
    }
    if (status == LS_OK && optim != NULL) {
        LS_SCOPE;
        ls_micro_batch micro[3];
        for (int m = 0; m < 3; m++) {
            micro[m] = (ls_micro_batch){.size = sizeof micro[m],
                                        .inputs = {ls_ones(LS_SHAPE(1, 2), LS_FLOAT32)}};
        }
        MUST(ls_pipeline_set_optim(p, optim));
        status = ls_pipeline_backward(p, net, micro, NULL);
    }
    (void)ls_pipeline_free(p);
    ls_optim_free(optim);
    ls_module_free(net);
    return status;
}

GOLDEN_BARE(pipelines_without_memory)
{
    golden_fail_each(GOLDEN_MEMORY, use_pipeline);
    golden_fail_each(GOLDEN_MALLOC, use_pipeline);
}

GOLDEN_RANKS(pipelines_of_other_options, 2)
{
    ls_pipeline *p = NULL;
    SHOW(ls_pipeline_new(tying_new(), ls_world(),
                         LS_OPTIONS(ls_pipeline_options, .micro_batches = 4 + ls_rank()), &p));
}

GOLDEN_RANKS(more_stages_than_parts, 3)
{
    ls_pipeline *p = NULL;
    SHOW(ls_pipeline_new(tying_new(), ls_world(), NULL, &p));
}

GOLDEN_RANKS(a_tied_parameter_without_gradient, 2)
{
    ls_pipeline *p = NULL;
    ls_module *net = tying_new();
    MUST(ls_pipeline_new(net, ls_world(),
                         LS_OPTIONS(ls_pipeline_options, .micro_batches = 1, .loss = mean_of), &p));
    ls_micro_batch micro = {.size = sizeof micro, .inputs = {ls_ones(LS_SHAPE(2), LS_FLOAT32)}};
    ls_optim *optim = ls_sgd_new(net, NULL);
    SHOW(ls_pipeline_set_optim(p, optim));
    if (ls_rank() == 1) {
        SHOW(ls_pipeline_backward(p, net, &micro, NULL));
    } else {
        (void)ls_pipeline_backward(p, net, &micro, NULL); /* in whichever call it learns of it */
    }
}
