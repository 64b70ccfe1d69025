/* SPDX-License-Identifier: Apache-2.0 */
/* --tensor-search: how the ranks of a mesh share the matrices of the model, on a micro-batch of its
 * training data, with its loss; prints it and ends the program. `lockstep plan tensor` is this. */
#include "trainer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "tp=4 8:200gbyte 312tflop,2039gbyte": mesh, cluster and device, of which the last may be left
 * out. */
static void read_spec(char *spec, ls_tensor_plan_options *options)
{
    char *rest = NULL;
    const char *mesh = strtok_r(spec, " ", &rest), *cluster = strtok_r(NULL, " ", &rest);
    const char *device = cluster != NULL ? strtok_r(NULL, "", &rest) : NULL;
    options->mesh = mesh != NULL ? mesh : "";
    options->cluster = cluster != NULL ? cluster : options->cluster;
    options->device = device != NULL ? device : options->device;
}

static const char *axis_at(const char *mesh, int a, char *out, size_t bytes)
{
    for (; a > 0; a--) {
        mesh += strcspn(mesh, ",");
        mesh += *mesh == ',';
    }
    (void)snprintf(out, bytes, "%.*s", (int)strcspn(mesh, "=,"), mesh);
    return out[0] != '\0' ? out : NULL;
}

static void print_axis(const ls_tensor_plan *plan, const char *axis)
{
    const char *words = ls_tensor_plan_words(plan, axis);
    if (ls_tensor_plan_data(plan, axis)) {
        (void)printf("%s: other samples on each rank (data parallelism)\n", axis);
    } else if (words[0] == '\0') {
        (void)printf("%s: all ranks do the same; the model is not divided\n", axis);
    } else {
        (void)printf("%s%s: %s\n", axis,
                     ls_tensor_plan_sequence(plan, axis) ? " with --sequence" : "", words);
    }
}

static void print_parameters(const trainer *t, const ls_tensor_plan *plan, const char *mesh)
{
    char name[32];
    const int count = ls_module_param_count(t->task.net);
    ls_param *params = calloc((size_t)count + 1, sizeof *params);
    if (params == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    (void)ls_module_params(t->task.net, params, count);
    for (int i = 0; i < count; i++) {
        (void)printf("%-32s", params[i].name);
        for (int a = 0; axis_at(mesh, a, name, sizeof name) != NULL; a++) {
            (void)printf("  %s %-12s", name,
                         ls_placement_name(ls_tensor_plan_placement(plan, i, name)));
        }
        (void)printf("\n");
    }
    free(params);
}

void trainer_search(trainer *t)
{
    ls_batch batch = {.size = sizeof batch};
    const trainer_options *s = t->set;
    char spec[512], axis[32];
    ls_tensor_plan *plan = NULL;
    ls_tensor_plan_options options =
        *LS_OPTIONS(ls_tensor_plan_options, .loss = t->task.loss, .arg = t->task.arg);
    if (ls_world_size() > 1 || s->mesh != NULL || s->accum > 1 || trainer_in_bf16(t)) {
        give_up(EXIT_USAGE, "--tensor-search looks at a float32 model and one micro-batch in one "
                            "process; leave -n, --mesh, --plan, --accum and --dtype out");
    }
    (void)snprintf(spec, sizeof spec, "%s", s->tensor_search);
    read_spec(spec, &options);
    trainer_next_batch(t, &batch);
    if (ls_tensor_plan_find(t->task.net, &batch.x, 1, batch.y, &options, &plan) < 0) {
        give_up(EXIT_FAILURE, "--tensor-search: %s", ls_error_message());
    }
    print_parameters(t, plan, options.mesh);
    for (int a = 0; axis_at(options.mesh, a, axis, sizeof axis) != NULL; a++) {
        print_axis(plan, axis);
    }
    (void)printf("a step of %lld samples: %.3f ms, of which %.3f ms compute; the least with any "
                 "placements: %.3f ms\n",
                 (long long)s->batch, 1e3 * ls_tensor_plan_seconds(plan),
                 1e3 * ls_tensor_plan_work_seconds(plan), 1e3 * ls_tensor_plan_any_seconds(plan));
    ls_tensor_plan_free(plan);
    exit(cli_end(EXIT_SUCCESS));
}
