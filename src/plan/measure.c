/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring the parts of a module (ls_profile_write). A repetition runs a whole micro-batch part by
 * part: every part takes the results of earlier ones as leaves, as a stage takes what it received,
 * and its backward begins with the gradients of the later parts' leaves. So every part computes
 * with true values, and with caches as warm as a stage of its own would leave them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/memory.h>
#include <lockstep/ops.h>

#include "autograd/param.h"
#include "base/error.h"
#include "base/options.h"
#include "base/runtime.h"
#include "nn/module.h"
#include "nn/parts.h"
#include "plan/profile.h"

#define REPEATS_MIN 3
#define REPEATS_MAX 25

enum { FORWARD, INPUT, WEIGHT, PHASES };

typedef struct part {
    ls_stage_edges edges; /* of the part alone */
    ls_tensor *in[LS_PART_FROM_MAX], *leaf[LS_PART_FROM_MAX], *out;
    bool channels_last[LS_PART_FROM_MAX]; /* of in; its leaf has the order of memory */
    double seconds[PHASES][REPEATS_MAX];
} part;

typedef struct measure {
    const ls__env *env;
    ls_module *net;
    ls_tensor *const *inputs;
    int input_count;
    ls_tensor *target, *loss;
    ls_profile_options set;
    part *parts;
    int count;
    ls_param *params;
    int param_count;
    ls__profile *profile;
} measure;

static double seconds_now(const measure *m)
{
    return (double)m->env->now_ns(m->env) * 1e-9;
}

/* ---- a micro-batch --------------------------------------------------------------------------- */

/* A leaf is row-major, so the part takes a view of it where the value is channels-last. */
static ls_status take_leaf(part *p, int i, ls_tensor *value)
{
    p->leaf[i] = ls__part_elements(value, &p->channels_last[i]);
    if (ls_requires_grad(value)) {
        p->leaf[i] = ls_set_requires_grad(p->leaf[i], true);
    }
    p->in[i] = ls__part_value(p->leaf[i], p->channels_last[i]);
    return ls_tensor_status(p->in[i]);
}

/* Finds the inputs of a part: an input of the module, or a leaf with the numbers of an earlier
 * part. */
static ls_status take_inputs(measure *m, part *p)
{
    for (int i = 0; i < p->edges.in_count; i++) {
        const int from = p->edges.in[i];
        if (from < 0 && -1 - from >= m->input_count) {
            return ls__fail(LS_ERR_INVALID,
                            "ls_profile_write: the model takes input %d, and %d are given; give "
                            "all, or NULL for one that it may lack",
                            -1 - from, m->input_count);
        }
        p->leaf[i] = p->in[i] = from < 0 ? m->inputs[-1 - from] : NULL;
        LS_TRY(from < 0 ? LS_OK : take_leaf(p, i, m->parts[from].out));
    }
    return LS_OK;
}

static ls_status compute_loss(measure *m, ls_tensor *output)
{
    m->loss = m->set.loss != NULL ? m->set.loss(m->set.arg, output, m->target)
                                  : ls_cross_entropy(output, m->target, NULL);
    return ls_tensor_status(m->loss);
}

static int64_t allocated(void)
{
    ls_memory_stats stats = {.size = sizeof stats};
    return ls_memory_get_stats(&stats) == LS_OK ? (int64_t)stats.allocated : 0;
}

static int64_t bytes_of(const ls_tensor *t)
{
    return ls_numel(t) * (int64_t)ls_dtype_size(ls_dtype_of(t));
}

static ls_status run_part_forward(measure *m, int i, int repeat)
{
    part *p = &m->parts[i];
    ls__profile_part *found = &m->profile->parts[i];
    const int64_t before = allocated();
    LS_TRY(take_inputs(m, p));
    const double begin = seconds_now(m);
    LS_TRY(
        ls_module_run_stage(m->net, i, 1, p->in, p->edges.in_count, &p->out, p->edges.out_count));
    if (i == m->count - 1) {
        LS_TRY(compute_loss(m, p->out));
    }
    p->seconds[FORWARD][repeat] = seconds_now(m) - begin;
    found->kept_bytes = allocated() - before;
    if (p->out != NULL) {
        found->output_bytes = bytes_of(p->out);
        found->gradient_bytes = ls_requires_grad(p->out) ? found->output_bytes : 0;
    }
    return LS_OK;
}

/* The sum of the gradients of part i's result over the parts that take it; NULL: none has one. */
static ls_tensor *gradient_of(measure *m, int i)
{
    ls_tensor *sum = NULL;
    for (int later = i + 1; later < m->count; later++) {
        const part *p = &m->parts[later];
        for (int k = 0; k < p->edges.in_count; k++) {
            ls_tensor *grad =
                p->edges.in[k] == i && ls_requires_grad(p->leaf[k]) ? ls_grad(p->leaf[k]) : NULL;
            if (grad != NULL) {
                grad = ls__part_value(grad, p->channels_last[k]);
                sum = sum == NULL ? grad : ls_add(sum, grad);
            }
        }
    }
    return sum;
}

static ls_status run_part_backward(measure *m, int i, int repeat)
{
    part *p = &m->parts[i];
    ls_tensor *leaves[LS_PART_FROM_MAX], *grad = NULL;
    const bool last = i == m->count - 1;
    int leaf_count = 0;
    if (!last) {
        LS_NO_GRAD;
        grad = gradient_of(m, i);
    }
    ls_tensor *root = last ? m->loss : p->out;
    if ((!last && grad == NULL) || !ls_requires_grad(root)) {
        return LS_OK; /* nothing before it has a gradient */
    }
    for (int k = 0; k < p->edges.in_count; k++) {
        if (p->edges.in[k] >= 0 && ls_requires_grad(p->leaf[k])) {
            leaves[leaf_count++] = p->leaf[k];
        }
    }
    const double begin = seconds_now(m);
    LS_TRY(ls_backward_input_part(
        &root, last ? NULL : &grad, 1,
        LS_OPTIONS(ls_backward_part_options, .inputs = leaves, .input_count = leaf_count)));
    const double middle = seconds_now(m);
    LS_TRY(ls_backward_weight_part());
    p->seconds[INPUT][repeat] = middle - begin;
    p->seconds[WEIGHT][repeat] = seconds_now(m) - middle;
    return LS_OK;
}

static ls_status run_in_scope(measure *m, int repeat)
{
    for (int i = 0; i < m->count; i++) {
        m->parts[i].out = NULL;
        LS_TRY(run_part_forward(m, i, repeat));
    }
    for (int i = m->count - 1; i >= 0; i--) {
        LS_TRY(run_part_backward(m, i, repeat));
    }
    return LS_OK;
}

/* The gradients are written anew by the next repetition. */
static ls_status run_repeat(measure *m, int repeat)
{
    ls_scope *scope = ls_scope_enter();
    ls_status status = run_in_scope(m, repeat);
    ls_scope_leave(scope);
    for (int i = 0; i < m->param_count && status == LS_OK; i++) {
        status = ls__param_set_grad_present(m->params[i].value, false);
    }
    return status;
}

/* ---- what was found -------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *samples, int count)
{
    qsort(samples, (size_t)count, sizeof *samples, by_size);
    return count % 2 != 0 ? samples[count / 2]
                          : (samples[count / 2 - 1] + samples[count / 2]) / 2.0;
}

static ls_status repeat_measurement(measure *m)
{
    LS_TRY(run_repeat(m, 0)); /* allocates the memory kept between steps; not counted */
    const double begin = seconds_now(m);
    int count = 0;
    while (count < REPEATS_MIN ||
           (count < REPEATS_MAX && seconds_now(m) - begin < m->set.seconds)) {
        LS_TRY(run_repeat(m, count++));
    }
    m->profile->repeats = count;
    for (int i = 0; i < m->count; i++) {
        ls__profile_part *found = &m->profile->parts[i];
        found->forward = median(m->parts[i].seconds[FORWARD], count);
        found->input = median(m->parts[i].seconds[INPUT], count);
        found->weight = median(m->parts[i].seconds[WEIGHT], count);
    }
    return LS_OK;
}

static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "ls_profile_write: no memory for the profile");
}

/* The entry of the parameters that just these parts use. */
static ls__profile_shared *shared_by(ls__profile *p, const bool *used_by, const char *name)
{
    for (int k = 0; k < p->shared_count; k++) {
        if (memcmp(p->shared[k].used_by, used_by, (size_t)p->part_count) == 0) {
            return &p->shared[k];
        }
    }
    bool *copy = ls__arena_alloc(&p->arena, (size_t)p->part_count);
    if (p->shared_count == LS__SHARED_MAX || copy == NULL) {
        return NULL;
    }
    memcpy(copy, used_by, (size_t)p->part_count);
    p->shared[p->shared_count] = (ls__profile_shared){.name = name, .used_by = copy};
    return &p->shared[p->shared_count++];
}

/* uses[part][parameter]; of_part is a row in the other direction. */
static ls_status add_weights(measure *m, const bool *uses, bool *of_part)
{
    for (int k = 0; k < m->param_count; k++) {
        int users = 0, user = 0;
        for (int i = 0; i < m->count; i++) {
            of_part[i] = uses[(size_t)i * (size_t)m->param_count + (size_t)k];
            users += of_part[i];
            user = of_part[i] ? i : user;
        }
        const int64_t bytes = bytes_of(m->params[k].value);
        if (users == 1) {
            m->profile->parts[user].weight_bytes += bytes;
        } else if (users > 1) {
            ls__profile_shared *shared = shared_by(m->profile, of_part, m->params[k].name);
            if (shared == NULL) {
                return ls__fail(LS_ERR_LIMIT,
                                "ls_profile_write: more than %d groups of parts share parameters; "
                                "declare what each part uses",
                                LS__SHARED_MAX);
            }
            shared->bytes += bytes;
        }
    }
    return LS_OK;
}

static ls_status find_weights(measure *m)
{
    const size_t parts = (size_t)m->count, params = (size_t)m->param_count;
    bool *uses = calloc(parts * (params + 1), sizeof *uses), *of_part = calloc(parts, 1);
    ls_status status = uses != NULL && of_part != NULL ? LS_OK : no_memory();
    for (int i = 0; i < m->count && status == LS_OK; i++) {
        status = ls__part_uses(m->net, i, m->params, m->param_count, &uses[(size_t)i * params]);
    }
    if (status == LS_OK) {
        status = add_weights(m, uses, of_part);
    }
    free(of_part);
    free(uses);
    return status;
}

/* ---- the call -------------------------------------------------------------------------------- */

static const char *copy_text(ls__profile *p, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = ls__arena_alloc(&p->arena, bytes);
    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

static ls_status describe_machine(measure *m, const ls_runtime *runtime)
{
    char cpu[256];
    ls__profile *p = m->profile;
    ls__processor_name(m->env, cpu, sizeof cpu);
    p->cpu = copy_text(p, cpu);
    p->model = copy_text(p, m->set.model != NULL ? m->set.model : m->net->cls->name);
    p->cores = m->env->cores(m->env);
    p->threads = runtime->threads;
    const ls_tensor *first = m->input_count > 0 ? m->inputs[0] : NULL;
    p->batch = first != NULL && ls_ndim(first) > 0 ? ls_size(first, 0) : 1;
    return p->cpu != NULL && p->model != NULL ? LS_OK : no_memory();
}

static ls_status describe_parts(measure *m)
{
    ls__profile *p = m->profile;
    for (int i = 0; i < m->count; i++) {
        ls__profile_part *at = &p->parts[i];
        at->name = copy_text(p, ls_module_part_name(m->net, i));
        if (at->name == NULL) {
            return no_memory();
        }
        at->from_count = ls_module_part_from(m->net, i, at->from);
        LS_TRY(at->from_count < 0 ? (ls_status)at->from_count : LS_OK);
        LS_TRY(ls_module_stage_edges(m->net, i, 1, &m->parts[i].edges));
    }
    return LS_OK;
}

static ls_status measure_all(measure *m, const ls_runtime *runtime, const char *path)
{
    m->parts = calloc((size_t)m->count, sizeof *m->parts);
    m->params = calloc((size_t)m->param_count + 1, sizeof *m->params);
    m->profile = ls__profile_new(m->env, m->count);
    if (m->parts == NULL || m->params == NULL || m->profile == NULL) {
        return no_memory();
    }
    (void)ls_module_params(m->net, m->params, m->param_count);
    LS_TRY(describe_machine(m, runtime));
    LS_TRY(describe_parts(m));
    LS_TRY(find_weights(m));
    LS_TRY(repeat_measurement(m));
    return ls__profile_save(m->env, m->profile, path);
}

static ls_status check_write_call(ls_module *net, ls_tensor *const *inputs, int input_count,
                                  const char *path)
{
    if (net == NULL || path == NULL || (inputs == NULL && input_count > 0)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_profile_write: the module, its inputs or the path is NULL; give all "
                        "three");
    }
    if (input_count < 1 || input_count > LS_CALL_TENSORS_MAX) {
        return ls__fail(LS_ERR_INVALID, "ls_profile_write: %d inputs; give 1 to %d", input_count,
                        LS_CALL_TENSORS_MAX);
    }
    return ls_module_status(net);
}

ls_status ls_profile_write(ls_module *net, ls_tensor *const *inputs, int input_count,
                           ls_tensor *target, const ls_profile_options *options, const char *path)
{
    LS__OPTIONS(ls_profile_options, set, options);
    const ls_runtime *runtime = ls__runtime_get("ls_profile_write");
    if (runtime == NULL) {
        return ls__self.status;
    }
    LS_TRY(check_write_call(net, inputs, input_count, path));
    measure m = {.env = runtime->env,
                 .net = net,
                 .inputs = inputs,
                 .input_count = input_count,
                 .target = target,
                 .set = set,
                 .count = ls_module_part_count(net)};
    if (m.count < 0) {
        return (ls_status)m.count;
    }
    m.param_count = ls_module_param_count(net);
    const ls_status status = measure_all(&m, runtime, path);
    ls__profile_free(m.profile);
    free(m.params);
    free(m.parts);
    return status;
}
