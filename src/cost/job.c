/* SPDX-License-Identifier: Apache-2.0 */
/* From a job to a simulation (simulate.h), and its result as parts of a step (job.h). */
#include "cost/job_build.h"

#include <math.h>
#include <string.h>

#include "base/error.h"

ls_status ls__job_no_memory(const ls__job_building *b)
{
    return ls__fail(LS_ERR_MEMORY, "schedule %s: no memory to simulate it", b->s->name);
}

/* ---- the result ------------------------------------------------------------------------------ */

/* Bytes that the stages keep of all micro-batches are counted as int64_t. */
static ls_status check_kept(const ls__job_building *b, double kept)
{
    return kept * b->s->stages * b->s->micro_batches < 0x1p62
               ? LS_OK
               : ls__fail(
                     LS_ERR_LIMIT,
                     "a stage keeps %.3g bytes of a micro-batch, more than can be counted; give "
                     "a smaller batch, context or model",
                     kept);
}

static ls_status measure_memory(ls__job_building *b)
{
    const ls__gpt_use *u = &b->job->use;
    const size_t ranks = (size_t)b->s->ranks, stages = (size_t)b->s->stages;
    ls__schedule_peak *peaks = ls__arena_alloc(b->arena, ranks * sizeof *peaks);
    ls__stage_sizes *sizes = ls__arena_alloc(b->arena, stages * sizeof *sizes);
    b->out->rank = ls__arena_alloc(b->arena, ranks * sizeof *b->out->rank);
    if (peaks == NULL || sizes == NULL || b->out->rank == NULL) {
        return ls__job_no_memory(b);
    }
    for (int i = 0; i < b->s->stages; i++) {
        const int first = ls__job_first_layer(b, i);
        double kept = i == b->s->stages - 1 ? ls__gpt_head_kept(u) : 0.0;
        for (int k = first; k < first + ls__job_layers(b, i); k++) {
            kept += ls__gpt_layer_kept(u, ls__gpt_has_experts(&u->model, k));
        }
        LS_TRY(check_kept(b, kept + ls__job_boundary_bytes(b)));
        sizes[i] = (ls__stage_sizes){.activations = (int64_t)kept,
                                     .input = (int64_t)ls__job_boundary_bytes(b)};
    }
    LS_TRY(ls__schedule_peaks(b->s, sizes, peaks));
    for (int r = 0; r < b->s->ranks; r++) {
        const ls__state_bytes state = ls__job_state(b, r);
        b->out->rank[r] =
            (ls__sim_rank){state.parameters, state.gradients, state.optimizer,
                           (double)(peaks[r].activations + peaks[r].inputs + peaks[r].received) +
                               ls__gpt_layer_again(u, u->model.experts > 0)};
    }
    return LS_OK;
}

static int busiest_rank(const ls__job_building *b)
{
    int most = 0;
    for (int r = 1; r < b->s->ranks; r++) {
        most = b->out->result.busy[r] > b->out->result.busy[most] ? r : most;
    }
    return most;
}

/* Divides the time in which a rank computes into its parts, in proportion to their times alone. */
static void divide_busy(const ls__job_building *b, int rank, double busy, double *part)
{
    double sum[LS__JOB_PARTS] = {0}, all = 0.0;
    for (int i = 0; i < b->s->rank[rank].count; i++) {
        const ls__action *a = &b->s->rank[rank].list[i];
        for (int k = 0; k < LS__JOB_PARTS; k++) {
            sum[k] += ls__action_time(a, &b->part[k][a->stage]);
        }
        all += ls__action_time(a, &b->out->times[a->stage]);
    }
    for (int k = 0; k < LS__JOB_PARTS; k++) {
        part[k] = all > 0.0 ? busy * (sum[k] / all) : 0.0;
    }
}

/* Divides a step into its parts. `free`: the makespan where messages of the pipeline take no time.
 * The parts of computation are those of the rank that computes longest. */
static void divide_step(ls__job_building *b, double free)
{
    ls__sim_step *out = b->out;
    double part[LS__JOB_PARTS];
    const int most = busiest_rank(b);
    const double busy = out->result.busy[most];
    divide_busy(b, most, busy, part);
    out->compute = part[LS__JOB_COMPUTE];
    out->tp = part[LS__JOB_TP];
    out->cp = part[LS__JOB_CP];
    out->ep = part[LS__JOB_EP];
    out->optimizer += part[LS__JOB_STEP];
    out->pp = fmin(fmax(0.0, out->result.makespan - free), out->result.makespan - busy);
    out->bubble = out->result.makespan - busy - out->pp;
}

/* Measures the parts that come after the sums of gradients, the optimizer and the gathers. All
 * ranks of a host have them at the same time. */
static void measure_end(ls__job_building *b)
{
    ls__sim_step *out = b->out;
    for (int r = 0; r < b->s->ranks && b->s->delay == 0; r++) {
        out->optimizer = fmax(out->optimizer, ls__job_optimizer(b, r) * ls__job_crowding(b));
        out->gather = fmax(out->gather, ls__job_gather(b, r));
    }
}

/* Of what all ranks with other data have, and of experts. */
static double sent_for_gradients(const ls__job_building *b, int rank)
{
    const ls__job_parameters all = ls__job_rank_parameters(b, rank);
    const int dense = ls__job_size(b->job, LS__ALONG_DATA),
              expert = ls__job_size(b->job, LS__ALONG_EXPERTS);
    const double halves = b->job->zero == 3 ? 3.0 : 2.0;
    return halves * b->job->use.width *
           (all.dense * ls__collective_half(dense).sent +
            all.expert * ls__collective_half(expert).sent);
}

static void count_bytes(ls__job_building *b)
{
    const double times = b->s->micro_batches;
    ls__sim_step *out = b->out;
    for (int r = 0; r < b->s->ranks; r++) {
        double messages = 0.0, layers = 0.0, mixed = 0.0, ends = 0.0; /* layers: of both kinds */
        for (int i = 0; i < b->s->stages; i++) {
            if (b->s->rank_of[i] != r) {
                continue;
            }
            messages += (i + 1 < b->s->stages) + (i > 0);
            layers += ls__job_layers(b, i);
            ends += i == 0 ? b->tp_ends[0] : 0.0;
            ends += i == b->s->stages - 1 ? b->tp_ends[1] : 0.0;
            mixed += (double)ls__gpt_mixed(&b->job->use.model, ls__job_first_layer(b, i),
                                           ls__job_first_layer(b, i + 1));
        }
        out->dp_bytes = fmax(out->dp_bytes, sent_for_gradients(b, r));
        const double sums = (layers - mixed) * b->tp_bytes[0] + mixed * b->tp_bytes[1];
        out->tp_bytes = fmax(out->tp_bytes, times * (sums + ends));
        out->cp_bytes = fmax(out->cp_bytes, times * layers * b->cp_bytes);
        out->ep_bytes = fmax(out->ep_bytes, times * mixed * b->ep_bytes);
        out->pp_bytes = fmax(out->pp_bytes, times * messages * ls__job_boundary_bytes(b));
    }
    out->pp_bytes = b->s->ranks > 1 ? out->pp_bytes : 0.0;
    out->flops =
        times * ls__job_size(b->job, LS__ALONG_DP | LS__ALONG_EP) * ls__gpt_flops(&b->job->use);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static bool is_endless(const ls__sim_job *job)
{
    return strncmp(job->schedule, "pipedream", 9) == 0;
}

static ls_status check_job(const ls__sim_job *job)
{
    const int chunks = job->spec.chunks > 0                        ? job->spec.chunks
                       : strcmp(job->schedule, "interleaved") == 0 ? 2
                                                                   : 1;
    const int64_t stages = (int64_t)chunks * job->pp.size;
    if (is_endless(job) && ls__job_size(job, LS__ALONG_DATA) > 1) {
        return ls__fail(LS_ERR_INVALID,
                        "schedule %s is not simulated with %d ranks of different data: their "
                        "gradients are summed at the end of a step, and it has none; give dp, cp "
                        "and ep the size 1, or a schedule with a flush, such as 1f1b",
                        job->schedule, ls__job_size(job, LS__ALONG_DATA));
    }
    if (job->first_layer == NULL && job->use.model.layers < stages) {
        return ls__fail(LS_ERR_INVALID,
                        "%lld layers are fewer than %lld stages; give fewer ranks along pp, or "
                        "more layers",
                        (long long)job->use.model.layers, (long long)stages);
    }
    return LS_OK;
}

static ls_status build_job(ls__job_building *b)
{
    const int ranks = ls__sim_job_ranks(b->job);
    const bool enough = ls__traffic_init(&b->traffic, &b->job->cluster, ranks, b->arena);
    b->resources = ls__cluster_links(&b->job->cluster, ranks, b->arena, &b->resource_count);
    b->links = b->resource_count;
    if (!enough || b->resources == NULL) {
        return ls__job_no_memory(b);
    }
    ls__job_measure_layers(b);
    LS_TRY(ls__job_make_times(b));
    LS_TRY(ls__job_has_processors(b->job) ? ls__job_make_processors(b) : LS_OK);
    LS_TRY(ls__job_make_routes(b));
    return ls__job_make_reductions(b);
}

static ls__sim_spec spec_of(const ls__job_building *b)
{
    return (ls__sim_spec){.times = b->out->times,
                          .activation = b->activation,
                          .gradient = b->gradient,
                          .resources = b->resources,
                          .resource_count = b->resource_count,
                          .processor = b->processor,
                          .sharing = b->sharing,
                          .reductions = b->out->reductions,
                          .reduction_count = b->reduction_count,
                          .records = b->job->records};
}

/* The same computations, whose messages take no time. */
static ls_status simulate_free(ls__job_building *b, double *makespan)
{
    ls__sim_result result;
    ls__sim_spec spec = spec_of(b);
    spec.activation = spec.gradient = NULL;
    spec.reductions = NULL;
    spec.reduction_count = 0;
    spec.records = false;
    LS_TRY(ls__simulate(b->s, &spec, &result));
    *makespan = result.makespan;
    return LS_OK;
}

/* Whether the step takes longer than is of interest even if nothing were shared; the sums of both
 * simulations are rounded differently. */
static ls_status check_longest(ls__job_building *b, const ls__sim_spec *spec, double end,
                               bool *too_long)
{
    double alone = 0.0;
    if (b->job->longest > 0.0 && b->job->longest < INFINITY) {
        LS_TRY(ls__simulate_alone(b->s, spec, &alone));
    }
    *too_long = b->job->longest > 0.0 && (alone + end) * (1.0 - 1e-9) > b->job->longest;
    return LS_OK;
}

/* The parts of the step, and what is sent in it. */
static ls_status explain_step(ls__job_building *b)
{
    double free = b->out->result.makespan;
    LS_TRY(b->s->ranks > 1 ? simulate_free(b, &free) : LS_OK);
    divide_step(b, free);
    count_bytes(b);
    return LS_OK;
}

static ls_status simulate_built(ls__job_building *b)
{
    ls__sim_step *out = b->out;
    bool too_long;
    LS_TRY(build_job(b));
    measure_end(b);
    const ls__sim_spec spec = spec_of(b);
    const double end = out->optimizer + out->gather;
    LS_TRY(check_longest(b, &spec, end, &too_long));
    if (too_long) {
        out->step = INFINITY;
        return LS_OK;
    }
    LS_TRY(ls__simulate(b->s, &spec, &out->result));
    LS_TRY(measure_memory(b));
    out->dp = fmax(0.0, out->result.reduced - out->result.makespan);
    out->step = out->result.makespan + out->dp + end;
    return b->job->longest > 0.0 ? LS_OK : explain_step(b);
}

static ls_status simulate_one(const ls__env *env, const ls__sim_job *job, ls__sim_step *out)
{
    *out = (ls__sim_step){.schedule = job->table, .borrowed = job->table != NULL};
    if (out->borrowed) {
        out->before = ls__arena_mark_get(&job->table->arena);
    } else {
        LS_TRY(ls__schedule_new(env, job->schedule, &job->spec, &out->schedule));
    }
    ls__job_building b = {
        .job = job, .env = env, .out = out, .s = out->schedule, .arena = &out->schedule->arena};
    const ls_status status = simulate_built(&b);
    if (status < 0) {
        ls__sim_step_free(out);
    }
    return status;
}

/* The steady state: the time of 2M micro-batches minus that of M, part by part. Bytes and memory
 * are those of one step. */
static ls_status simulate_endless(const ls__env *env, const ls__sim_job *job, ls__sim_step *out)
{
    ls__sim_job twice = *job;
    ls__sim_step longer;
    twice.spec.micro_batches *= 2;
    twice.records = false;
    twice.table = NULL;
    LS_TRY(simulate_one(env, &twice, &longer));
    ls__sim_step_free(&longer);
    LS_TRY(simulate_one(env, job, out));
    out->step = longer.step - out->step;
    out->compute = longer.compute - out->compute;
    out->tp = longer.tp - out->tp;
    out->optimizer = longer.optimizer - out->optimizer;
    out->pp = fmax(0.0, longer.pp - out->pp);
    out->bubble = fmax(0.0, out->step - out->compute - out->tp - out->optimizer - out->pp);
    return LS_OK;
}

ls_status ls__simulate_job(const ls__env *env, const ls__sim_job *job, ls__sim_step *out)
{
    *out = (ls__sim_step){.step = 0.0};
    LS_TRY(check_job(job));
    return is_endless(job) ? simulate_endless(env, job, out) : simulate_one(env, job, out);
}

void ls__sim_step_free(ls__sim_step *step)
{
    if (step->borrowed) {
        ls__arena_rewind(&step->schedule->arena, step->before);
    } else {
        ls__schedule_free(step->schedule);
    }
    step->schedule = NULL;
    step->borrowed = false;
}
