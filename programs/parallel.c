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

/* The name of an axis at *at, which moves behind its size; its length, 0 at the end of the list. */
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

bool parallel_has_pipeline(const trainer_options *o)
{
    return o->plan != NULL || (o->mesh != NULL && has_axis(o->mesh, "pp"));
}

/* Other axes are ls_mesh_new's, but the trainer has no use for them. */
static void check_axes(const char *mesh)
{
    const char *at = mesh, *name;
    for (int length = next_axis(&at, &name); length > 0; length = next_axis(&at, &name)) {
        if (!is_axis(name, length, "pp") && !is_axis(name, length, "dp") &&
            !is_axis(name, length, "tp") && !is_axis(name, length, "cp")) {
            give_up(
                EXIT_USAGE,
                "--mesh is \"%s\"; training has the axes dp, replicas with other data, pp, the "
                "stages of a pipeline, tp, parts of each layer, and cp, parts of each sequence, "
                "and none that is called \"%.*s\"",
                mesh, length, name);
        }
    }
    if (has_axis(mesh, "pp") && (has_axis(mesh, "tp") || has_axis(mesh, "cp"))) {
        give_up(EXIT_USAGE,
                "--mesh is \"%s\"; stages of a pipeline (pp) cannot be divided by tp or cp in this "
                "version; leave one of them out",
                mesh);
    }
}

/* Parts of layers or of sequences: ranks that work on the same samples. */
static bool divides_model(const trainer_options *o)
{
    return o->mesh != NULL && (has_axis(o->mesh, "tp") || has_axis(o->mesh, "cp"));
}

bool parallel_is_whole(const trainer_options *o)
{
    return !parallel_has_pipeline(o) && !divides_model(o);
}

static void check_divided(const trainer_options *o)
{
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
}

static bool is_asynchronous(const trainer_options *o)
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
    if (is_asynchronous(o) && o->clip > 0.0) {
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
        give_up(EXIT_USAGE, "--plan says what --%s would; leave one of them out", given);
    }
}

void parallel_read_plan(trainer_options *o)
{
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
    o->mesh = "pp=*";
    o->schedule = ls_plan_schedule(o->followed);
    o->cut = ls_plan_cut(o->followed);
    o->replicas = ls_plan_replicas(o->followed);
    o->micro_batches = o->micro_batches > 0 ? o->micro_batches : ls_plan_micro_batches(o->followed);
    say_other_step(o);
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
    if (!parallel_has_pipeline(o)) {
        check_without_pipeline(o);
        return;
    }
    o->schedule = o->schedule != NULL ? o->schedule : "1f1b";
    check_pipeline(o);
    o->micro_batches = o->micro_batches > 0 ? o->micro_batches : MICRO_BATCHES_DEFAULT;
    say_other_step(o);
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

/* Each rank is alone with its stages where the mesh has no axis dp. */
void parallel_open(parallel *p, const trainer_options *o)
{
    char axes[256];
    *p = (parallel){.replicas = ls_world(), .copies = ls_world(), .plan = o->followed};
    if (o->mesh == NULL) {
        return;
    }
    (void)snprintf(axes, sizeof axes, "%.240s%s", o->mesh, has_axis(o->mesh, "dp") ? "" : ",dp=1");
    if (ls_mesh_new(ls_world(), axes, &p->mesh) < 0) {
        give_up(EXIT_FAILURE, "--mesh: %s", ls_error_message());
    }
    p->replicas = ls_mesh_group(p->mesh, "dp");
    p->copies = divides_model(o) ? ls_world() : p->replicas;
    p->batch_axes = divides_model(o) ? (has_axis(o->mesh, "cp") ? "dp,cp" : "dp") : NULL;
    p->tensor = has_axis(o->mesh, "tp");
    p->context = has_axis(o->mesh, "cp");
    p->stages = parallel_has_pipeline(o) ? ls_mesh_group(p->mesh, "pp") : NULL;
    p->steps = is_asynchronous(o);
}

void parallel_close(parallel *p)
{
    if (p->copies != p->replicas && p->copies != ls_world()) {
        must(ls_group_free(p->copies));
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

void parallel_cut(parallel *p, const trainer_options *o, ls_module *net, ls_pipeline_loss_fn loss,
                  void *arg)
{
    p->numel = ls_module_numel(net);
    if (p->tensor && ls_tensor_parallel(net, LS_OPTIONS(ls_tensor_parallel_options,
                                                        .sequence = o->sequence)) < 0) {
        give_up(EXIT_FAILURE, "--mesh %s: %s", o->mesh, ls_error_message());
    }
    if (p->stages == NULL) {
        return;
    }
    const bool gpipe = strcmp(o->schedule, "gpipe") == 0;
    if (p->plan != NULL && ls_plan_check(p->plan, net) < 0) {
        give_up(EXIT_FAILURE, "--plan: %s", ls_error_message());
    }
    if (ls_pipeline_new(net, p->stages,
                        LS_OPTIONS(ls_pipeline_options, .schedule = o->schedule,
                                   .micro_batches = (int)o->micro_batches, .chunks = (int)o->chunks,
                                   .recompute = o->recompute && gpipe,
                                   .vertical_sync = o->vertical_sync, .cut = o->cut,
                                   .replicas = o->replicas, .loss = loss, .arg = arg),
                        &p->pipeline) < 0) {
        give_up(EXIT_FAILURE, "--%s %s: %s", p->plan != NULL ? "plan" : "mesh",
                p->plan != NULL ? o->plan : o->mesh, ls_error_message());
    }
    if (o->replicas != NULL) {
        must(ls_group_split(ls_world(), ls_pipeline_stage(p->pipeline), 0, "stage", &p->copies));
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

ls_status parallel_forward(const parallel *p, ls_module *net, const ls_micro_batch *micro,
                           int count, ls_tensor **outputs)
{
    if (p->pipeline != NULL) {
        return ls_pipeline_forward(p->pipeline, micro, count, outputs);
    }
    outputs[0] = parallel_whole(p, ls_forward(net, parallel_part(p, micro[0].inputs[0])));
    return ls_tensor_status(outputs[0]);
}
