/* SPDX-License-Identifier: Apache-2.0 */
/* See parallel.h. Ranks of one column of stages read the same samples: the loader's part of the
 * data goes by the coordinate in dp. What a stage does not use of it is not computed with. */
#include "parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "trainer.h"

#define MICRO_BATCHES_DEFAULT 8

/* ---- options ------------------------------------------------------------------------------ */

/* The name of an axis at *at, which moves past its size; its length, 0 at the end of the list. */
static int next_axis(const char **at, const char **name)
{
    *name = *at;
    const int length = (int)strcspn(*at, "=,");
    *at += strcspn(*at, ",");
    *at += **at == ',';
    return length;
}

static bool is_axis(const char *name, int length, const char *axis)
{
    return (int)strlen(axis) == length && memcmp(name, axis, (size_t)length) == 0;
}

static bool has_axis(const char *mesh, const char *axis)
{
    const char *at = mesh, *name;
    for (int length = next_axis(&at, &name); length > 0; length = next_axis(&at, &name)) {
        if (is_axis(name, length, axis)) {
            return true;
        }
    }
    return false;
}

/* 0: it has none, or as many as are left. */
static int64_t size_of_axis(const char *mesh, const char *axis)
{
    const char *at = mesh, *name;
    for (int length = next_axis(&at, &name); length > 0; length = next_axis(&at, &name)) {
        if (is_axis(name, length, axis) && name[length] == '=') {
            return strtoll(name + length + 1, NULL, 10);
        }
    }
    return 0;
}

bool parallel_has_pipeline(const trainer_options *o)
{
    const bool unread = o->plan != NULL && o->followed == NULL; /* it may have one */
    return unread || (o->mesh != NULL && has_axis(o->mesh, "pp"));
}

/* Other axes are ls_mesh_new's, but the trainer has no use for them. */
static void check_axes(const char *mesh)
{
    const char *at = mesh, *name;
    for (int length = next_axis(&at, &name); length > 0; length = next_axis(&at, &name)) {
        if (!is_axis(name, length, "pp") && !is_axis(name, length, "dp") &&
            !is_axis(name, length, "tp") && !is_axis(name, length, "cp") &&
            !is_axis(name, length, "ep")) {
            give_up(
                EXIT_USAGE,
                "--mesh is \"%s\"; training has the axes dp, replicas with other data, pp, the "
                "stages of a pipeline, tp, parts of each layer, cp, parts of each sequence, and "
                "ep, experts, and none that is called \"%.*s\"",
                mesh, length, name);
        }
    }
}

static bool divides_experts(const trainer_options *o)
{
    return o->mesh != NULL && has_axis(o->mesh, "ep");
}

static void check_experts(const trainer_options *o)
{
    if (divides_experts(o) && strcmp(o->exact, "layout") == 0) {
        give_up(EXIT_USAGE, "--exact layout is for replicas of whole models, and the ranks of ep "
                            "have other experts; give --mesh dp alone");
    }
}

void parallel_check_experts(const trainer_options *o, int64_t experts)
{
    const int64_t ranks = divides_experts(o) ? size_of_axis(o->mesh, "ep") : 0;
    if (experts > 0 && ranks > 0 && experts % ranks != 0) {
        give_up(EXIT_USAGE,
                "--experts %lld cannot be divided over the %lld ranks along ep of --mesh \"%s\"; "
                "give a multiple",
                (long long)experts, (long long)ranks, o->mesh);
    }
}

/* Parts of layers or of sequences: ranks that work on the same samples. */
static bool divides_model(const trainer_options *o)
{
    return o->mesh != NULL && (has_axis(o->mesh, "tp") || has_axis(o->mesh, "cp"));
}

bool parallel_is_whole(const trainer_options *o)
{
    return !parallel_has_pipeline(o) && !divides_model(o) && !divides_experts(o);
}

static void check_divided(const trainer_options *o)
{
    if (o->tensor_plan != NULL && (o->mesh == NULL || !has_axis(o->mesh, "tp"))) {
        give_up(EXIT_USAGE, "--tensor-plan says how the ranks of an axis tp share the layers; give "
                            "--mesh one, as in --mesh tp=2");
    }
    if (o->sequence && (o->mesh == NULL || !has_axis(o->mesh, "tp"))) {
        give_up(EXIT_USAGE, "--sequence divides what lies between the layers over the ranks of an "
                            "axis tp; give --mesh one, as in --mesh dp=2,tp=2");
    }
    if (divides_model(o) && strcmp(o->exact, "layout") == 0) {
        give_up(EXIT_USAGE, "--exact layout is for replicas of whole models; give --mesh dp alone");
    }
    if (divides_model(o) && strcmp(o->feed, "scatter") == 0) {
        give_up(EXIT_USAGE,
                "--feed scatter gives every rank other samples, and the ranks of tp and "
                "cp need the same; give --feed split");
    }
}

static void check_axis(const trainer_options *o, const ls_module *net, const char *divided_by,
                       const char *axis, const char *parts)
{
    if (o->mesh != NULL && has_axis(o->mesh, axis) && strstr(divided_by, axis) == NULL) {
        give_up(EXIT_USAGE,
                "--mesh is \"%s\"; the %s of a model %s cannot be divided by %s in this version; "
                "leave %s out, and give more replicas (dp) or stages (pp)",
                o->mesh, parts, net->cls->name, axis, axis);
    }
}

void parallel_check_model(const trainer_options *o, const ls_module *net, const char *divided_by)
{
    divided_by = divided_by != NULL ? divided_by : "";
    check_axis(o, net, divided_by, "tp", "layers");
    check_axis(o, net, divided_by, "cp", "inputs");
    check_axis(o, net, divided_by, "ep", "experts");
}

bool parallel_steps_within(const trainer_options *o)
{
    return parallel_has_pipeline(o) && o->schedule != NULL &&
           strncmp(o->schedule, "pipedream", 9) == 0;
}

static void check_without_pipeline(const trainer_options *o)
{
    const char *given = o->schedule != NULL    ? "schedule"
                        : o->micro_batches > 0 ? "micro-batches"
                        : o->cut != NULL       ? "cut"
                        : o->chunks > 0        ? "chunks"
                        : o->replicas != NULL  ? "replicas"
                        : o->vertical_sync     ? "vertical-sync"
                                               : NULL;
    if (given != NULL) {
        give_up(EXIT_USAGE, "--%s is for a pipeline: give --mesh an axis pp, as in --mesh pp=4%s",
                given, o->micro_batches > 0 ? ", or say it with --accum" : "");
    }
}

static void check_pipeline(const trainer_options *o)
{
    if (o->accum != 1) {
        give_up(EXIT_USAGE, "--accum is for steps without a pipeline; give --micro-batches %lld",
                (long long)o->accum);
    }
    if (strcmp(o->exact, "layout") == 0) {
        give_up(EXIT_USAGE,
                "--exact layout is for replicas of whole models; a pipeline computes the "
                "bits of --accum on one rank without it");
    }
    if (strcmp(o->feed, "scatter") == 0) {
        give_up(EXIT_USAGE, "--feed scatter gives every rank other samples, and the stages of a "
                            "pipeline need the same; give --feed split");
    }
    if (o->replicas != NULL && (divides_model(o) || divides_experts(o))) {
        give_up(EXIT_USAGE,
                "--replicas %s gives stages different numbers of ranks, and --mesh \"%s\" the same "
                "parts of layers, sequences or experts to each stage; leave one of them out",
                o->replicas, o->mesh);
    }
    if (parallel_steps_within(o) && o->clip > 0.0) {
        give_up(EXIT_USAGE,
                "--schedule %s steps each stage before the others' gradients are known, so their "
                "norm cannot be limited; give --clip 0, or --schedule 1f1b",
                o->schedule);
    }
}

/* One process accumulates as many micro-batches as a pipeline has in a step, so run.json calls both
 * "accum". */
void parallel_resume_step(trainer_options *o, int64_t accum_given)
{
    o->accum_so_far = o->described ? o->accum : 0;
    if (parallel_has_pipeline(o) && o->accum != accum_given) {
        o->micro_batches = o->micro_batches == 0 && o->plan == NULL ? o->accum : o->micro_batches;
        o->accum = accum_given;
    }
}

static void say_other_step(const trainer_options *o)
{
    if (o->accum_so_far > 0 && o->accum_so_far != o->micro_batches && cli_speaks_first()) {
        (void)fprintf(stderr,
                      "%s: a step of the run so far had %lld micro-batches; it goes on with %lld\n",
                      o->resume, (long long)o->accum_so_far, (long long)o->micro_batches);
    }
}

/* The plan says these. */
static void check_plan(const trainer_options *o)
{
    const char *given = o->mesh != NULL       ? "mesh"
                        : o->schedule != NULL ? "schedule"
                        : o->cut != NULL      ? "cut"
                        : o->replicas != NULL ? "replicas"
                        : o->chunks > 0       ? "chunks"
                                              : NULL;
    if (given != NULL) {
        give_up(EXIT_USAGE, "--plan and --%s set the same; leave one of them out", given);
    }
}

/* A plan with a mesh says the whole step. */
static void follow_settings(trainer_options *o, const ls_plan_settings *s)
{
    static const char *const said[] = {"batch",    "accum",     "micro-batches", "zero",
                                       "sequence", "recompute", "tensor-plan"};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        if (is_given(said[i], o->words)) {
            give_up(EXIT_USAGE, "--plan and --%s set the same; leave one of them out", said[i]);
        }
    }
    o->mesh = s->mesh;
    o->batch = s->batch > 0 ? s->batch : o->batch;
    o->zero = s->zero;
    o->recompute = s->recompute;
    o->sequence = s->sequence;
    o->tensor_plan = s->tensor_plan;
    o->chunks = s->chunks;
    o->ahead = s->warm_up;
    run_file_set(o->run, "batch", o->batch);
    run_file_set(o->run, "zero", o->zero);
    check_axes(o->mesh);
    check_divided(o);
    check_experts(o);
}

/* Micro-batches are those of the pipeline; without one, those of the rank. */
static void follow_step(trainer_options *o)
{
    if (!parallel_has_pipeline(o)) {
        o->accum = ls_plan_micro_batches(o->followed);
        run_file_set(o->run, "accum", o->accum);
        return;
    }
    o->schedule = ls_plan_schedule(o->followed);
    o->cut = ls_plan_cut(o->followed);
    o->micro_batches = o->micro_batches > 0 ? o->micro_batches : ls_plan_micro_batches(o->followed);
    say_other_step(o);
}

void parallel_check_plan(const trainer_options *o, const char *model, const ls_plan_size *sizes,
                         int count)
{
    if (o->followed != NULL && ls_plan_check_model(o->followed, model, sizes, count) < 0) {
        give_up(EXIT_FAILURE, "--plan: %s", ls_error_message());
    }
}

void parallel_read_plan(trainer_options *o)
{
    ls_plan_settings settings = {.size = sizeof settings};
    if (o->plan == NULL) {
        return;
    }
    if (ls_plan_read(o->plan, &o->followed) < 0) {
        give_up(EXIT_FAILURE, "--plan: %s", ls_error_message());
    }
    if (ls_plan_workers(o->followed) != ls_world_size()) {
        give_up(EXIT_FAILURE,
                "--plan \"%s\" is for %d ranks, and this job has %d; start it with -n %d", o->plan,
                ls_plan_workers(o->followed), ls_world_size(), ls_plan_workers(o->followed));
    }
    must(ls_plan_get_settings(o->followed, &settings));
    if (settings.mesh != NULL) {
        follow_settings(o, &settings);
    } else {
        o->mesh = "pp=*";
        o->replicas = ls_plan_replicas(o->followed);
    }
    follow_step(o);
}

void parallel_complete(trainer_options *o)
{
    if (o->plan != NULL) {
        check_plan(o);
        check_pipeline(o);
        return;
    }
    if (o->mesh != NULL) {
        check_axes(o->mesh);
    }
    check_divided(o);
    check_experts(o);
    if (!parallel_has_pipeline(o)) {
        check_without_pipeline(o);
        return;
    }
    o->schedule = o->schedule != NULL ? o->schedule : "1f1b";
    check_pipeline(o);
    o->micro_batches = o->micro_batches > 0 ? o->micro_batches : MICRO_BATCHES_DEFAULT;
    say_other_step(o);
    o->replays_stages = o->replayed != NULL && parallel_steps_within(o);
    if (o->replays_stages) { /* in one process, which reads as many micro-batches */
        o->accum = o->micro_batches;
        o->mesh = NULL;
    }
}

bool parallel_recompute(const trainer_options *o, bool has_blocks)
{
    const bool stages =
        parallel_has_pipeline(o) && o->schedule != NULL && strcmp(o->schedule, "gpipe") == 0;
    if (o->recompute && !has_blocks && !stages) {
        give_up(EXIT_USAGE,
                "--recompute is for models of transformer blocks, which this is not, and "
                "for the stages of --schedule gpipe");
    }
    return o->recompute && !stages;
}

/* ---- groups ------------------------------------------------------------------------------- */

static bool is_divided(const parallel *p, const char *axis)
{
    return ls_mesh_has(p->mesh, axis) && ls_mesh_size(p->mesh, axis) > 1;
}

/* As the library refuses it, in words of the command. */
static void check_zero(const parallel *p, const trainer_options *o)
{
    const char *axis = is_divided(p, "tp") ? "tp" : is_divided(p, "ep") ? "ep" : NULL;
    if ((o->zero > 2 || o->shard_group > 0) && axis != NULL) {
        give_up(EXIT_FAILURE,
                "%s with an axis %s of --mesh: all ranks gather in one order, and those along %s "
                "have other parameters; give --zero 1 or 2 without --shard-group",
                o->zero > 2 ? "--zero 3" : "--shard-group", axis, axis);
    }
    if (o->zero > 2 && p->stages != NULL) {
        give_up(EXIT_FAILURE,
                "--zero 3 with a pipeline: a stage would gather its parameters for each "
                "micro-batch, in an order that differs from rank to rank; give --zero 2");
    }
}

/* Those of these axes that the mesh has, "dp,ep". */
static const char *axes_of(const parallel *p, const char *axes, char *out)
{
    const char *at = axes, *name;
    *out = '\0';
    for (int length = next_axis(&at, &name); length > 0; length = next_axis(&at, &name)) {
        char axis[8];
        const size_t used = strlen(out);
        (void)snprintf(axis, sizeof axis, "%.*s", length, name);
        if (ls_mesh_has(p->mesh, axis)) {
            (void)snprintf(out + used, AXES_BYTES - used, "%s%s", used > 0 ? "," : "", axis);
        }
    }
    return out;
}

/* The ranks that differ from this one along these axes at most: it alone where the mesh has none of
 * them. */
static ls_group *group_over(const parallel *p, const char *axes)
{
    char present[AXES_BYTES];
    ls_group *group = NULL;
    must(*axes_of(p, axes, present) != '\0'
             ? ls_mesh_group_new(p->mesh, present, &group)
             : ls_group_split(ls_world(), ls_rank(), 0, "alone", &group));
    return group;
}

void parallel_open(parallel *p, const trainer_options *o)
{
    *p = (parallel){
        .replicas = ls_world(), .losses = ls_world(), .copies = ls_world(), .plan = o->followed};
    if (o->mesh == NULL) {
        return;
    }
    if (ls_mesh_new(ls_world(), o->mesh, &p->mesh) < 0) {
        give_up(EXIT_FAILURE, "--mesh: %s", ls_error_message());
    }
    p->experts = divides_experts(o);
    p->tensor = has_axis(o->mesh, "tp");
    p->context = has_axis(o->mesh, "cp");
    p->replicas = group_over(p, "dp,ep");
    p->losses = group_over(p, "dp,ep,cp");
    p->copies = group_over(p, "dp,ep,cp,tp");
    p->parts = group_over(p, "ep,tp");
    p->batch_axes = divides_model(o) ? axes_of(p, "dp,ep,cp", p->axes) : NULL;
    p->stages = parallel_has_pipeline(o) ? ls_mesh_group(p->mesh, "pp") : NULL;
    p->steps = parallel_steps_within(o);
    check_zero(p, o);
}

ls_group *parallel_copies(const parallel *p)
{
    return p->alike != NULL ? p->alike : p->copies;
}

bool parallel_is_first_copy(const parallel *p)
{
    static const char *const axes[] = {"dp", "cp"};
    bool first = p->mesh != NULL || ls_group_rank(p->copies) == 0;
    for (int i = 0; p->mesh != NULL && i < 2; i++) {
        first =
            first && (!ls_mesh_has(p->mesh, axes[i]) || ls_mesh_coordinate(p->mesh, axes[i]) == 0);
    }
    return first;
}

int parallel_place(const parallel *p)
{
    static const char *const axes[] = {"ep", "tp"};
    int place = p->pipeline != NULL ? ls_pipeline_stage(p->pipeline) : 0;
    for (int i = 0; p->mesh != NULL && i < 2; i++) {
        if (ls_mesh_has(p->mesh, axes[i])) {
            place = place * ls_mesh_size(p->mesh, axes[i]) + ls_mesh_coordinate(p->mesh, axes[i]);
        }
    }
    return place;
}

void parallel_close(parallel *p)
{
    if (p->mesh != NULL) {
        must(p->alike != NULL ? ls_group_free(p->alike) : LS_OK);
        must(ls_group_free(p->parts));
        must(ls_group_free(p->copies));
        must(ls_group_free(p->losses));
        must(ls_group_free(p->replicas));
    }
    must(ls_mesh_free(p->mesh));
    ls_plan_free(p->plan);
    free(p->elsewhere);
}

/* ---- the cut ------------------------------------------------------------------------------ */

/* The names of a module's parameters, each with its end, and an empty one. */
static char *names_of(ls_module *net, size_t *bytes)
{
    const int count = ls_module_param_count(net);
    ls_param *params = calloc((size_t)count + 1, sizeof *params);
    char *names = NULL;
    FILE *text = open_memstream(&names, bytes);
    if (params == NULL || text == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    (void)ls_module_params(net, params, count);
    for (int i = 0; i < count; i++) {
        (void)fwrite(params[i].name, 1, strlen(params[i].name) + 1, text);
    }
    (void)fputc('\0', text);
    free(params);
    if (fclose(text) != 0) {
        give_up(EXIT_FAILURE, "no memory");
    }
    return names;
}

static bool has_name(const char *names, const char *name)
{
    for (const char *at = names; *at != '\0'; at += strlen(at) + 1) {
        if (strcmp(at, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether a rank before `rank` has the parameter as well. */
static bool is_of_earlier(const ls_bytes *all, int rank, const char *name)
{
    for (int r = 0; r < rank; r++) {
        if (has_name(all[r].data, name)) {
            return true;
        }
    }
    return false;
}

/* A tied embedding, for example, which stages of several ranks have; NULL: there is none. */
static const char *shared_name(const ls_bytes *all, int ranks)
{
    for (int r = 1; r < ranks; r++) {
        for (const char *at = all[r].data; *at != '\0'; at += strlen(at) + 1) {
            if (is_of_earlier(all, r, at)) {
                return at;
            }
        }
    }
    return NULL;
}

/* All ranks of the stages find the same reason. */
static void check_steps(const trainer_options *o, const ls_bytes *all, int ranks)
{
    const char *shared = shared_name(all, ranks);
    for (int r = 0; r < ranks; r++) {
        if (*(const char *)all[r].data == '\0') {
            give_up(EXIT_FAILURE,
                    "--schedule %s steps each stage by itself, and that of rank %d in pp has no "
                    "parameters; give another --cut, or --schedule 1f1b",
                    o->schedule, r);
        }
    }
    if (shared != NULL) {
        give_up(EXIT_FAILURE,
                "--schedule %s steps each stage by itself, and \"%s\" belongs to two; give "
                "--schedule 1f1b",
                o->schedule, shared);
    }
}

static void find_shared(parallel *p, const trainer_options *o, ls_module *net)
{
    const int ranks = ls_group_size(p->stages), rank = ls_group_rank(p->stages);
    size_t bytes = 0;
    ls_bytes *all = NULL;
    p->elsewhere = names_of(net, &bytes);
    must(ls_all_gather_bytes(p->stages, p->elsewhere, bytes,
                             LS_OPTIONS(ls_collective_options, .tag = "names"), &all));
    if (p->steps) {
        check_steps(o, all, ranks);
    }
    char *to = p->elsewhere;
    for (const char *at = all[rank].data; *at != '\0'; at += strlen(at) + 1) {
        to = is_of_earlier(all, rank, at) ? stpcpy(to, at) + 1 : to;
    }
    *to = '\0';
    ls_bytes_free(all);
}

/* The parameters of all stages, one that several have once. */
static void count_parameters(parallel *p, ls_module *net)
{
    const int64_t mine = ls_module_numel(net);
    int64_t ends[2] = {-mine, mine};
    must(ls_all_reduce(p->stages, ends, ends, 2, LS_INT64, LS_MAX,
                       LS_OPTIONS(ls_collective_options, .tag = "parameters"), NULL));
    p->smallest = -ends[0];
    p->largest = ends[1];
}

static ls_tensor *loss_of_parts(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    return parallel_loss(output, target);
}

void parallel_cut(parallel *p, const trainer_options *o, ls_module *net, ls_pipeline_loss_fn loss,
                  void *arg)
{
    p->numel = ls_module_numel(net);
    if (p->tensor &&
        ls_tensor_parallel(net, LS_OPTIONS(ls_tensor_parallel_options, .plan = o->tensor_plan,
                                           .sequence = o->sequence)) < 0) {
        give_up(EXIT_FAILURE, "--mesh %s: %s", o->mesh, ls_error_message());
    }
    if (p->experts && ls_expert_parallel(net) < 0) {
        give_up(EXIT_FAILURE, "--mesh %s: %s", o->mesh, ls_error_message());
    }
    if (p->plan != NULL && ls_plan_check(p->plan, net) < 0) {
        give_up(EXIT_FAILURE, "--plan: %s", ls_error_message());
    }
    if (p->stages == NULL) {
        return;
    }
    const bool gpipe = strcmp(o->schedule, "gpipe") == 0;
    if (ls_pipeline_new(
            net, p->stages,
            LS_OPTIONS(ls_pipeline_options, .schedule = o->schedule,
                       .micro_batches = (int)o->micro_batches, .chunks = (int)o->chunks,
                       .warm_up = (int)o->ahead, .recompute = o->recompute && gpipe,
                       .vertical_sync = o->vertical_sync, .cut = o->cut, .replicas = o->replicas,
                       .loss = loss != NULL ? loss : loss_of_parts, .arg = arg,
                       .log =
                           ls_group_rank(p->copies) == 0 && p->command != NULL ? o->replay : NULL,
                       .command = p->command),
            &p->pipeline) < 0) {
        give_up(EXIT_FAILURE, "--%s %s: %s", p->plan != NULL ? "plan" : "mesh",
                p->plan != NULL ? o->plan : o->mesh, ls_error_message());
    }
    if (o->replicas != NULL) {
        must(ls_group_split(ls_world(), ls_pipeline_stage(p->pipeline), 0, "stage", &p->alike));
    }
    find_shared(p, o, net);
    count_parameters(p, net);
}

/* ---- parts of sequences and of classes ---------------------------------------------------- */

ls_tensor *parallel_part(const parallel *p, ls_tensor *x)
{
    return p->context ? ls_context_shard(x, 1, "cp") : x;
}

/* The head's classes, if it is divided, and the positions, if sequences are. */
ls_tensor *parallel_whole(const parallel *p, ls_tensor *logits)
{
    if (p->tensor && ls_placement_of(logits, "tp") == LS_SHARDED(ls_ndim(logits) - 1)) {
        logits = ls_redistribute(logits, "tp", LS_SHARDED(-1), LS_REPLICATED);
    }
    return p->context ? ls_context_gather(logits, 1, "cp") : logits;
}

ls_tensor *parallel_loss(ls_tensor *logits, ls_tensor *target)
{
    return ls_tensor_parallel_cross_entropy(logits, target, NULL);
}

/* ---- clipping and forwards ---------------------------------------------------------------- */

static bool counts_elsewhere(void *arg, const char *name, const ls_tensor *value)
{
    (void)value;
    return has_name(((const parallel *)arg)->elsewhere, name);
}

ls_clip_grad_norm_options parallel_clip_options(parallel *p)
{
    ls_clip_grad_norm_options options = *LS_OPTIONS(ls_clip_grad_norm_options, .group = p->stages);
    if (p->stages != NULL) {
        options.replicated = counts_elsewhere;
        options.arg = p;
    }
    return options;
}

/* Twice the ranks: a third of the time is the pipeline's filling and draining. */
int parallel_forward_count(const parallel *p)
{
    return p->pipeline != NULL ? 2 * ls_group_size(p->stages) : 1;
}

static ls_status forward_parts(const parallel *p, ls_module *net, const ls_micro_batch *micro,
                               int count, ls_tensor **outputs)
{
    if (p->pipeline != NULL) {
        return ls_pipeline_forward(p->pipeline, micro, count, outputs);
    }
    outputs[0] = ls_forward(net, micro[0].inputs[0]);
    return LS_OK;
}

ls_status parallel_forward(const parallel *p, ls_module *net, ls_micro_batch *micro, int count,
                           ls_tensor **outputs)
{
    for (int m = 0; m < count; m++) {
        micro[m].inputs[0] = parallel_part(p, micro[m].inputs[0]);
    }
    LS_TRY(forward_parts(p, net, micro, count, outputs));
    for (int m = 0; m < count; m++) {
        outputs[m] = outputs[m] != NULL ? parallel_whole(p, outputs[m]) : NULL;
        LS_TRY(outputs[m] != NULL ? ls_tensor_status(outputs[m]) : LS_OK);
    }
    return LS_OK;
}
