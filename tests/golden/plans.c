/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with plans of pipelines. */
#include <stdio.h>

#include "golden.h"

static ls_tensor *pass_on(ls_module *m, ls_tensor *const *x)
{
    (void)m;
    return x[0];
}

static const char *text_file(const char *text)
{
    return golden_file("plan.json", text, strlen(text));
}

static ls_module *three_layers(void)
{
    ls_module *layers[] = {ls_linear_new(2, 2, NULL), ls_linear_new(2, 2, NULL),
                           ls_linear_new(2, 2, NULL)};
    return ls_sequential_new(layers, 3);
}

/* A plan for three parts. */
#define PLAN(version, parts, workers, schedule, micro_batches, stages)                             \
    "{\"format\": \"lockstep plan\", \"version\": " version                                        \
    ", \"model\": \"net\", \"parts\": [" parts "], \"workers\": " workers                          \
    ", \"schedule\": \"" schedule "\", \"micro_batches\": " micro_batches ", \"stages\": [" stages \
    "]}"
#define STAGE(first, replicas) "{\"first\": \"" first "\", \"replicas\": " replicas "}"
#define PARTS "\"0\", \"1\", \"2\""

static void show_plan(const char *what, const char *text)
{
    ls_plan *plan = NULL;
    golden_show(what, ls_plan_read(text_file(text), &plan));
}

GOLDEN(files_that_are_no_plans)
{
    ls_plan *plan = NULL;
    SHOW(ls_plan_read("/no/such/plan", &plan));
    SHOW(ls_plan_read(NULL, &plan));
    show_plan("an empty file", "");
    show_plan("another format", "{\"format\": \"lockstep profile\"}");
    show_plan("a later version", PLAN("3", PARTS, "2", "1f1b", "8", STAGE("0", "2")));
    show_plan("no version", "{\"format\": \"lockstep plan\"}");
    show_plan("a part with a space", PLAN("1", "\"a b\"", "2", "1f1b", "8", STAGE("a b", "2")));
    show_plan("a part twice", PLAN("1", "\"0\", \"0\"", "2", "1f1b", "8", STAGE("0", "2")));
    show_plan("a number as a part", PLAN("1", "0", "2", "1f1b", "8", STAGE("0", "2")));
    show_plan("no stages", PLAN("1", PARTS, "2", "1f1b", "8", ""));
    show_plan("replicas as text", PLAN("1", PARTS, "2", "1f1b", "8", STAGE("0", "\"2\"")));
    show_plan("a first part of no stage",
              PLAN("1", PARTS, "2", "1f1b", "8", STAGE("0", "1") ", " STAGE("3", "1")));
    show_plan("stages in another order",
              PLAN("1", PARTS, "3", "1f1b", "8",
                   STAGE("0", "1") ", " STAGE("2", "1") ", " STAGE("1", "1")));
    show_plan("workers that are not the replicas",
              PLAN("1", PARTS, "4", "1f1b", "8", STAGE("0", "2") ", " STAGE("2", "1")));
    show_plan("fewer micro-batches than replicas",
              PLAN("1", PARTS, "4", "1f1b", "2", STAGE("0", "3") ", " STAGE("2", "1")));
    show_plan("an unknown schedule", PLAN("1", PARTS, "2", "2f2b", "8", STAGE("0", "2")));
}

/* A plan of version 2 for two stages of two ranks. */
#define MESH(shape, mesh, workers, more)                                                           \
    "{\"format\": \"lockstep plan\", \"version\": 2, \"model\": \"gpt\", \"shape\": " shape        \
    ", \"mesh\": " mesh ", \"workers\": " workers ", \"parts\": [" PARTS                           \
    "], \"schedule\": \"1f1b\", \"micro_batches\": 8, " more                                       \
    "\"stages\": [" STAGE("0", "1") ", " STAGE("2", "1") "]}"
#define SHAPE "{\"layers\": 1, \"dim\": 64}"

GOLDEN(plans_with_a_mesh_that_are_refused)
{
    show_plan("no mesh", MESH(SHAPE, "null", "4", ""));
    show_plan("a mesh without sizes", MESH(SHAPE, "\"pp,dp\"", "4", ""));
    show_plan("workers that are not the mesh", MESH(SHAPE, "\"pp=2,dp=2\"", "2", ""));
    show_plan("stages that are not the mesh", MESH(SHAPE, "\"dp=4\"", "4", ""));
    show_plan("no shape", MESH("{}", "\"pp=2,dp=2\"", "4", ""));
    show_plan("a size as text", MESH("{\"layers\": \"1\"}", "\"pp=2,dp=2\"", "4", ""));
    show_plan("zero 4", MESH(SHAPE, "\"pp=2,dp=2\"", "4", "\"zero\": 4, "));
    show_plan("a number as words", MESH(SHAPE, "\"pp=2,dp=2\"", "4", "\"tensor_plan\": 1, "));
    show_plan("a number as a switch", MESH(SHAPE, "\"pp=2,dp=2\"", "4", "\"recompute\": 1, "));
}

GOLDEN(a_plan_for_other_sizes)
{
    ls_plan *plan = NULL;
    ls_plan_settings settings = {.size = 3};
    MUST(ls_plan_read(text_file(MESH(SHAPE, "\"pp=2,dp=2\"", "4", "")), &plan));
    SHOW(ls_plan_check_model(plan, "gpt2", NULL, 0));
    SHOW(ls_plan_check_model(plan, "gpt", (ls_plan_size[]){{"layers", 2}}, 1));
    SHOW(ls_plan_check_model(plan, NULL, NULL, 0));
    SHOW(ls_plan_get_settings(plan, &settings));
    SHOW(ls_plan_get_settings(NULL, &settings));
    ls_plan_free(plan);
}

GOLDEN(a_plan_for_another_model)
{
    ls_plan *plan = NULL;
    MUST(ls_plan_read(text_file(PLAN("1", "\"0\", \"1\"", "2", "1f1b", "8", STAGE("0", "2"))),
                      &plan));
    SHOW(ls_plan_check(plan, three_layers()));
    SHOW(ls_plan_check(plan, NULL));
    ls_plan_free(plan);
    MUST(ls_plan_read(
        text_file(PLAN("1", "\"0\", \"a\", \"2\"", "2", "1f1b", "8", STAGE("0", "2"))), &plan));
    SHOW(ls_plan_check(plan, three_layers()));
    ls_plan_free(plan);
}

static ls_tensor *second_input(ls_module *m, ls_tensor *const *x)
{
    (void)m;
    return ls_add(x[0], x[1]);
}

static ls_tensor *add_nothing(ls_module *m, ls_tensor *x)
{
    (void)m;
    return x;
}

static void declare_two_inputs(ls_module *m, ls_parts *parts)
{
    (void)m;
    ls_parts_add(parts,
                 &LS_PART(.name = "add", .run = second_input, .uses = "",
                          .from = (int[]){LS_PART_INPUT(0), LS_PART_INPUT(1)}, .from_count = 2));
}

/* Part i uses parameters i and i + 1: each is shared by another pair. */
static void declare_pairs(ls_module *m, ls_parts *parts)
{
    (void)m;
    for (int i = 0; i < 70; i++) {
        char name[16], uses[32];
        snprintf(name, sizeof name, "p%d", i);
        snprintf(uses, sizeof uses, "w%d w%d", i, i + 1);
        ls_parts_add(parts, &LS_PART(.name = name, .run = pass_on, .uses = uses));
    }
}

GOLDEN(profiles_that_are_refused)
{
    static const ls_module_class two =
        LS_MODULE_CLASS(.name = "two", .forward = add_nothing, .parts = declare_two_inputs);
    static const ls_module_class pairs =
        LS_MODULE_CLASS(.name = "pairs", .forward = add_nothing, .parts = declare_pairs);
    ls_module *net = ls_linear_new(2, 2, NULL), *many = ls_module_new(sizeof *many, &pairs);
    ls_tensor *x = ls_ones(LS_SHAPE(1, 2), LS_FLOAT32);
    ls_tensor *y = ls_from_data((int32_t[]){1}, LS_SHAPE(1), LS_INT32);
    SHOW(ls_profile_write(NULL, &x, 1, y, NULL, "profile.json"));
    SHOW(ls_profile_write(net, &x, 0, y, NULL, "profile.json"));
    SHOW(ls_profile_write(ls_module_new(sizeof *net, &two), &x, 1, y, NULL, "profile.json"));
    for (int i = 0; i < 71; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        ls_module_add_param(many, name, ls_ones(LS_SHAPE(1), LS_FLOAT32));
    }
    SHOW(ls_profile_write(many, &x, 1, y, NULL, "profile.json"));
    SHOW(ls_profile_write(net, &x, 1, y, LS_OPTIONS(ls_profile_options, .seconds = 0.0),
                          "/no/such/folder/profile.json"));
}

static ls_status read_good(void)
{
    ls_plan *plan = NULL;
    const ls_status status = ls_plan_read(
        text_file(PLAN("1", PARTS, "2", "1f1b", "8", STAGE("0", "1") ", " STAGE("2", "1"))), &plan);
    ls_plan_free(plan);
    return status;
}

GOLDEN_BARE(memory_for_a_plan)
{
    golden_fail_each(GOLDEN_MEMORY, read_good);
    golden_fail_each(GOLDEN_MALLOC, read_good);
}
