/* SPDX-License-Identifier: Apache-2.0 */
/* The search of auto.h. */
#include "plan/auto.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "plan/auto_cuts.h"
#include "plan/tables.h"

#define CHUNK_BYTES ((size_t)64 << 10)
#define MOVES_MAX 100 /* moved cuts, for each start */

typedef struct schedule_choice {
    const char *name;
    int chunks, warm_up;
} schedule_choice;

static const schedule_choice schedules[] = {
    {"1f1b", 0, 1}, {"1f1b", 0, 2}, {"zb-h1", 0, 0}, {"gpipe", 0, 0}, {"interleaved", 2, 0}};
#define SCHEDULES ((int)(sizeof schedules / sizeof *schedules))
#define STARTS (4 * SCHEDULES)

typedef struct search {
    const ls__env *env;
    const ls__auto_ask *ask;
    ls__auto_result *out;
    ls__auto_mesh *mesh; /* whose plans are tried */
    /* The best plans of this mesh, for each schedule, with recomputation and without, with the cuts
     * of both kinds (try_plan). Another one may be best after their cuts were moved. */
    ls__auto_plan start[STARTS];
    bool started[STARTS];
    double least;       /* the shortest step of this mesh */
    ls__auto_cuts cuts; /* of the micro-batch and the placement that are tried */
    ls__plan_tables tables;
    int moves;
    bool no_memory;
} search;

/* ---- what can be trained --------------------------------------------------------------------- */

/* Where parameters and activations are along tp. What is divided is divided as in Megatron-LM, by
 * columns and rows, and the rest is whole on each rank; ls_tensor_plan_find has no other choices
 * for a GPT. Here all layers have the same, so that stages may be cut anywhere. Bits of a choice
 * are those of ls__gpt_use.whole, and one for the sequence. */
#define SEQUENCE (1 << LS__GPT_DIVISIONS)
#define PLACEMENTS (2 * SEQUENCE)

/* Ranks have whole heads of keys and values, or share one (ls_tensor_parallel: column(heads=N)). */
static bool divides_heads(const ls__gpt *g, int tp)
{
    const int64_t keys = ls__gpt_kv_heads(g);
    return g->heads % tp == 0 && (keys % tp == 0 || tp % keys == 0);
}

/* False: a size does not allow the choice. One that divides nothing is none. Where all layers have
 * experts there is no MLP to divide. */
static bool place(const ls__auto_ask *ask, ls__auto_plan *p, int choice)
{
    const ls__gpt *g = &ask->job.use.model;
    const int tp = p->tp.size, mlp = ls__gpt_has_mlps(g) ? LS__GPT_MLP : 0;
    const bool divides[] = {divides_heads(g, tp), mlp != 0 && ls__gpt_mlp(g) % tp == 0,
                            g->vocab % tp == 0, g->vocab % tp == 0};
    bool possible = tp > 1 ? (choice & (SEQUENCE - 1)) != SEQUENCE - 1 : choice == 0;
    p->whole = choice & (SEQUENCE - 1);
    p->sequence = (choice & SEQUENCE) != 0;
    for (int i = 0; i < LS__GPT_DIVISIONS; i++) {
        possible = possible && (tp == 1 || p->whole >> i & 1 || divides[i]);
    }
    const bool alike = !(p->whole & LS__GPT_TOKENS) == !(p->whole & LS__GPT_HEAD);
    return possible && (g->untied || alike) &&
           (!p->sequence ||
            ((p->whole & (LS__GPT_ATTENTION | mlp)) == 0 && g->context % (tp * p->cp.size) == 0));
}

/* Ranks with other samples. */
static int replicas(const ls__auto_plan *p)
{
    return p->dp.size * p->ep.size;
}

/* A rank of cp has two chunks of a sequence (lockstep/context.h). */
static bool divides_context(const ls__auto_ask *ask, int cp)
{
    return cp == 1 || (ask->contexts && ask->job.use.model.context % (2 * (int64_t)cp) == 0);
}

static bool divides_experts(const ls__auto_ask *ask, int ep)
{
    const ls__gpt *g = &ask->job.use.model;
    return ep == 1 || (ls__gpt_mixed(g, 0, g->layers) > 0 && g->experts % ep == 0);
}

/* What `lockstep train` divides in this version. */
static bool can_run(const ls__auto_ask *ask, const ls__auto_plan *mesh)
{
    ls__auto_plan p = *mesh;
    bool divides = false;
    for (int choice = 0; choice < PLACEMENTS && !divides; choice++) {
        divides = place(ask, &p, choice);
    }
    return divides && p.pp.size <= ask->job.use.model.layers + 2 &&
           p.pp.size <= LS__SCHEDULE_RANKS_MAX && ask->batch % replicas(&p) == 0 &&
           divides_context(ask, p.cp.size) && divides_experts(ask, p.ep.size);
}

/* Training divides over the ranks that sum a gradient; 3 only where all of them have the same
 * parameters, and nothing where stages share an embedding: its gradients are added over the stages,
 * which have other parts of the averages. */
static int zero_most(const ls__auto_ask *ask, const ls__auto_plan *p)
{
    const bool is_shared = p->pp.size > 1 && !ask->job.use.model.untied;
    const bool alike = p->pp.size == 1 && p->tp.size == 1 && p->ep.size == 1;
    return replicas(p) * p->cp.size == 1 || is_shared ? 0 : alike ? 3 : 2;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

ls__sim_job ls__auto_job(const ls__auto_ask *ask, const ls__auto_plan *p)
{
    ls__sim_job job = ask->job;
    const bool whole_stages = strcmp(p->schedule, "gpipe") == 0;
    job.use.tp = p->tp.size;
    job.use.cp = p->cp.size;
    job.use.ep = p->ep.size;
    job.use.whole = p->whole | LS__GPT_EXPERTS;
    job.use.sequence = p->sequence;
    job.use.batch = p->batch;
    job.use.recompute = p->recompute && !whole_stages;
    job.pp = p->pp;
    job.dp = p->dp;
    job.ep = p->ep;
    job.cp = p->cp;
    job.tp = p->tp;
    job.schedule = p->schedule;
    job.spec = (ls__schedule_spec){.ranks = p->pp.size,
                                   .micro_batches = p->micro_batches,
                                   .chunks = p->chunks,
                                   .warm_up = p->warm_up,
                                   .recompute = p->recompute && whole_stages};
    job.first_layer = p->stages == p->pp.size ? p->first_layer : NULL;
    job.zero = p->zero;
    return job;
}

/* ---- simulation of a plan -------------------------------------------------------------------- */

/* The memory of the rank that has most. */
static double memory_of(const ls__sim_step *step, int ranks)
{
    double most = 0.0;
    for (int r = 0; r < ranks; r++) {
        const ls__sim_rank *rank = &step->rank[r];
        most = fmax(most, rank->parameters + rank->gradients + rank->optimizer + rank->activations);
    }
    return most;
}

static void set_parts(ls__auto_plan *p, const ls__sim_step *step)
{
    p->compute = step->compute;
    p->tp_seconds = step->tp;
    p->cp_seconds = step->cp;
    p->ep_seconds = step->ep;
    p->pp_seconds = step->pp;
    p->bubble = step->bubble;
    p->dp_seconds = step->dp;
    p->optimizer = step->optimizer;
    p->gather = step->gather;
    p->pp_bytes = step->pp_bytes;
    p->tp_bytes = step->tp_bytes;
    p->cp_bytes = step->cp_bytes;
    p->ep_bytes = step->ep_bytes;
    p->dp_bytes = step->dp_bytes;
}

/* Simulates the plan if it may take no longer than `longest`; 0: in any case, and with the parts of
 * its step. False: it takes longer, does not exist or does not fit. */
static bool simulate_plan(search *s, ls__auto_plan *p, double longest)
{
    ls__sim_step step;
    ls__sim_job job = ls__auto_job(s->ask, p);
    ls_status status = ls__plan_tables_get(&s->tables, job.schedule, &job.spec, &job.table);
    job.longest = longest;
    status = status < 0 ? status : ls__simulate_job(s->env, &job, &step);
    s->no_memory = s->no_memory || status == LS_ERR_MEMORY;
    if (status < 0) {
        return false;
    }
    p->step = step.step;
    const bool is_simulated = step.step < INFINITY;
    if (is_simulated) {
        s->out->simulated++;
        p->memory = memory_of(&step, p->pp.size);
        set_parts(p, &step);
    }
    ls__sim_step_free(&step);
    return is_simulated && (s->ask->memory_bytes <= 0.0 || p->memory <= s->ask->memory_bytes);
}

/* Of equally fast plans the one that needs less memory. */
static bool is_better(const ls__auto_plan *a, const ls__auto_plan *b)
{
    const double nearly = LS__AUTO_NEARLY * b->step;
    return a->step < b->step - nearly || (a->step <= b->step + nearly && a->memory < b->memory);
}

/* Moves a cut by some layers. False: a stage would have no part. */
static bool move_cut(const search *s, ls__auto_plan *p, int stage, int by)
{
    const int64_t layers = s->ask->job.use.model.layers;
    const int64_t least = stage > 1 ? p->first_layer[stage - 1] + 1 : 0;
    const int64_t most = stage + 1 < p->stages ? p->first_layer[stage + 1] - 1 : layers;
    p->first_layer[stage] += by;
    return p->first_layer[stage] >= least && p->first_layer[stage] <= most;
}

/* Whether the plan takes less time. */
static bool is_shorter(search *s, ls__auto_plan *p, double longest)
{
    return ls__auto_cuts_least(&s->cuts, p) < longest && simulate_plan(s, p, longest) &&
           p->step < longest;
}

/* Moves a cut by `by` layers if that makes the simulated step shorter. Returns whether it did. */
static bool try_move(search *s, ls__auto_plan *p, int stage, int by)
{
    ls__auto_plan other = *p;
    if (s->moves >= MOVES_MAX || !move_cut(s, &other, stage, by)) {
        return false;
    }
    s->moves++;
    const bool better = is_shorter(s, &other, p->step * (1.0 - LS__AUTO_NEARLY));
    if (better) {
        *p = other;
    }
    return better;
}

/* The formula of the cuts knows neither messages that wait for each other nor reductions that are
 * hidden, so each cut is moved as long as that makes the simulated step shorter. */
static void refine_cuts(search *s, ls__auto_plan *p)
{
    const int layers = (int)s->ask->job.use.model.layers;
    bool better = p->stages == p->pp.size;
    while (better) {
        better = false;
        for (int stage = 1; stage < p->stages; stage++) {
            for (int by = 1; by <= layers; by *= 2) {
                better = try_move(s, p, stage, by) || better;
                better = try_move(s, p, stage, -by) || better;
            }
        }
    }
}

/* `stage`: the seconds that the longest stage computes for a micro-batch. */
static void try_cuts(search *s, ls__auto_plan *p, int start, double stage)
{
    ls__auto_plan *best = &s->start[start];
    const double shortest = s->started[start] ? best->step : INFINITY;
    if (stage * p->micro_batches <= shortest &&
        simulate_plan(s, p, shortest * (1.0 + LS__AUTO_NEARLY)) &&
        (!s->started[start] || is_better(p, best))) {
        *best = *p;
        s->started[start] = true;
        s->least = fmin(s->least, p->step);
    }
}

static bool is_same(const ls__auto_plan *a, const ls__auto_plan *b)
{
    return a->batch == b->batch && a->whole == b->whole && a->sequence == b->sequence &&
           a->zero == b->zero && a->stages == b->stages &&
           memcmp(a->first_layer, b->first_layer, sizeof a->first_layer) == 0;
}

/* Neither moved cuts nor others make it the best plan of its mesh. */
static bool is_hopeless(search *s, const ls__auto_plan *p)
{
    ls__auto_cuts_forget(&s->cuts);
    return !ls__auto_cuts_may_take(&s->cuts, p, s->least);
}

static void conclude_start(search *s, int i)
{
    ls__auto_mesh *m = s->mesh;
    ls__auto_plan *p = &s->start[i];
    if (!is_hopeless(s, p)) {
        s->moves = 0;
        refine_cuts(s, p);
        s->least = fmin(s->least, p->step);
        if (!m->exists || is_better(p, &m->best)) {
            m->best = *p;
            m->exists = true;
        }
    }
}

/* With the cuts of both kinds a schedule may have the same plan twice. */
static void conclude_mesh(search *s)
{
    for (int i = 0; i < STARTS; i += 2) {
        const bool twice =
            s->started[i] && s->started[i + 1] && is_same(&s->start[i], &s->start[i + 1]);
        for (int k = i; k < i + 2; k++) {
            if (s->started[k] && (k == i || !twice)) {
                conclude_start(s, k);
            }
            s->started[k] = false;
        }
    }
    if (s->mesh->exists) {
        (void)simulate_plan(s, &s->mesh->best, 0.0);
    }
    ls__plan_tables_free(&s->tables);
}

/* Tries both kinds of cuts: for messages that take time, and for messages that are hidden. */
static void try_plan(search *s, ls__auto_plan *p, int schedule)
{
    const int start = 4 * schedule + (p->recompute ? 2 : 0);
    ls__auto_plan other = *p;
    double longest = 0.0;
    if (!ls__auto_cuts_may_take(&s->cuts, p, s->least)) {
        return;
    }
    if (p->stages != p->pp.size || p->stages == 1) {
        try_cuts(s, p, start, longest);
        return;
    }
    if (!ls__auto_cuts_find(&s->cuts, p, false, &longest)) {
        return;
    }
    try_cuts(s, p, start, longest);
    if (ls__auto_cuts_find(&s->cuts, &other, true, &longest)) {
        try_cuts(s, &other, start + 1, longest);
    }
}

/* ---- the space ------------------------------------------------------------------------------- */

/* C(n, k) */
static double binomial(int n, int k)
{
    double ways = 1.0;
    for (int i = 1; i <= k; i++) {
        ways = ways * (n - k + i) / i;
    }
    return ways;
}

static void try_memory(search *s, ls__auto_plan *p, int schedule, double cuts)
{
    for (int recompute = 0; recompute <= 1; recompute++) {
        for (p->zero = 0; p->zero <= zero_most(s->ask, p); p->zero++) {
            p->recompute = recompute == 1;
            s->mesh->choices++;
            s->mesh->plans += cuts;
            try_plan(s, p, schedule);
        }
    }
}

static void try_schedules(search *s, ls__auto_plan *p)
{
    const int parts = (int)s->ask->job.use.model.layers + 2, pp = p->pp.size;
    for (int k = 0; k < (pp > 1 ? SCHEDULES : 1); k++) {
        p->schedule = schedules[k].name;
        p->chunks = schedules[k].chunks;
        p->warm_up = schedules[k].warm_up;
        p->stages = pp * (p->chunks > 0 ? p->chunks : 1);
        if (p->chunks == 0 ||
            (p->micro_batches % pp == 0 && p->stages <= s->ask->job.use.model.layers)) {
            try_memory(s, p, k, p->chunks > 0 ? 1.0 : binomial(parts - 1, pp - 1));
        }
    }
}

static void try_mesh(search *s)
{
    const ls__auto_plan axes = s->mesh->best;
    s->least = INFINITY;
    const int64_t own = s->ask->batch / replicas(&axes);
    for (int64_t micro = 1; micro <= own; micro++) {
        for (int choice = 0; choice < PLACEMENTS && own % micro == 0; choice++) {
            ls__auto_plan p = axes;
            p.batch = micro;
            ls__auto_cuts_forget(&s->cuts);
            if (place(s->ask, &p, choice) && own / micro <= LS__SCHEDULE_MICRO_BATCHES_MAX) {
                p.micro_batches = (int)(own / micro);
                try_schedules(s, &p);
            }
        }
    }
}

static bool is_asked(int asked, ls__sim_axis axis)
{
    return asked == 0 || asked == axis.size;
}

static ls_status add_mesh(search *s, const ls__auto_plan *p)
{
    const ls__auto_ask *ask = s->ask;
    if (!is_asked(ask->pp, p->pp) || !is_asked(ask->dp, p->dp) || !is_asked(ask->ep, p->ep) ||
        !is_asked(ask->cp, p->cp) || !is_asked(ask->tp, p->tp) || !can_run(ask, p)) {
        return LS_OK;
    }
    if (s->out->meshes == LS__AUTO_MESHES_MAX) {
        return ls__fail(LS_ERR_LIMIT, "plan: %d ranks have more than %d meshes; give --mesh",
                        ask->ranks, LS__AUTO_MESHES_MAX);
    }
    s->out->mesh[s->out->meshes++] = (ls__auto_mesh){.best = *p};
    return LS_OK;
}

/* The innermost axes are those that wait longest for messages: tp, then cp, then ep. */
static ls_status add_orders(search *s, int pp, int dp, int ep, int cp)
{
    const int tp = s->ask->ranks / (pp * dp * ep * cp), within = ep * cp * tp;
    ls__auto_plan p = {.pp = {pp, dp * within},
                       .dp = {dp, within},
                       .ep = {ep, cp * tp},
                       .cp = {cp, tp},
                       .tp = {tp, 1}};
    LS_TRY(add_mesh(s, &p));
    p.pp.stride = within;
    p.dp.stride = pp * within;
    return pp > 1 && dp > 1 ? add_mesh(s, &p) : LS_OK;
}

static ls_status list_within(search *s, int pp, int dp)
{
    const int ranks = s->ask->ranks / pp / dp;
    for (int ep = 1; ep <= ranks; ep++) {
        for (int cp = 1; ranks % ep == 0 && cp <= ranks / ep; cp++) {
            LS_TRY(ranks / ep % cp == 0 ? add_orders(s, pp, dp, ep, cp) : LS_OK);
        }
    }
    return LS_OK;
}

static ls_status list_meshes(search *s)
{
    const int ranks = s->ask->ranks;
    for (int pp = 1; pp <= ranks; pp++) {
        for (int dp = 1; ranks % pp == 0 && dp <= ranks / pp; dp++) {
            LS_TRY(ranks / pp % dp == 0 ? list_within(s, pp, dp) : LS_OK);
        }
    }
    return s->out->meshes > 0
               ? LS_OK
               : ls__fail(
                     LS_ERR_INVALID,
                     "plan: no mesh of %d ranks trains this model with a batch of %lld: dp and ep "
                     "divide the batch, ep the experts, twice cp the context, tp the heads, the "
                     "width of the MLP or the vocabulary, and pp is at most the number of layers "
                     "and 2; give another --batch, or fewer ranks",
                     ranks, (long long)s->ask->batch);
}

static ls_status allocate_search(search *s)
{
    const size_t layers = (size_t)s->ask->job.use.model.layers;
    s->out->mesh = ls__arena_alloc(&s->out->arena, LS__AUTO_MESHES_MAX * sizeof *s->out->mesh);
    s->cuts.cut = ls__arena_alloc(&s->out->arena, (layers + 1) * sizeof *s->cuts.cut);
    return s->out->mesh != NULL && s->cuts.cut != NULL
               ? LS_OK
               : ls__fail(LS_ERR_MEMORY, "plan: no memory to find it");
}

static int compare_meshes(const void *a, const void *b)
{
    const ls__auto_mesh *x = a, *y = b;
    if (!x->exists || !y->exists) {
        return y->exists - x->exists;
    }
    return (x->best.step > y->best.step) - (x->best.step < y->best.step);
}

static ls_status find_plan(search *s)
{
    ls__auto_result *out = s->out;
    LS_TRY(allocate_search(s));
    LS_TRY(list_meshes(s));
    for (int i = 0; i < out->meshes && !s->no_memory && !s->cuts.no_memory; i++) {
        s->mesh = &out->mesh[i];
        try_mesh(s);
        conclude_mesh(s);
        out->choices += s->mesh->choices;
        out->plans += s->mesh->plans;
    }
    if (s->no_memory || s->cuts.no_memory) {
        return ls__fail(LS_ERR_MEMORY, "plan: no memory to find it");
    }
    qsort(out->mesh, (size_t)out->meshes, sizeof *out->mesh, compare_meshes);
    return out->mesh[0].exists
               ? LS_OK
               : ls__fail(LS_ERR_LIMIT,
                          "plan: no plan of %d ranks fits into %.0f bytes of each; give more "
                          "memory, more ranks, or a smaller --batch",
                          s->ask->ranks, s->ask->memory_bytes);
}

ls_status ls__auto_find(const ls__env *env, const ls__auto_ask *ask, ls__auto_result *out)
{
    search s = {.env = env,
                .ask = ask,
                .out = out,
                .cuts = {.env = env, .ask = ask},
                .tables = {.env = env}};
    *out = (ls__auto_result){.meshes = 0};
    ls__arena_init(&out->arena, env, CHUNK_BYTES);
    return find_plan(&s);
}

void ls__auto_free(ls__auto_result *result)
{
    ls__arena_fini(&result->arena);
}

/* ---- text ------------------------------------------------------------------------------------ */

char *ls__auto_mesh_text(const ls__auto_plan *p, char out[LS__AUTO_MESH_BYTES])
{
    const bool pp_inside = p->pp.stride < p->dp.stride;
    const struct {
        const char *name;
        int size;
    } axes[] = {{pp_inside ? "dp" : "pp", pp_inside ? p->dp.size : p->pp.size},
                {pp_inside ? "pp" : "dp", pp_inside ? p->pp.size : p->dp.size},
                {"ep", p->ep.size},
                {"cp", p->cp.size},
                {"tp", p->tp.size}};
    ls__text text = {out, LS__AUTO_MESH_BYTES};
    const char *between = "";
    out[0] = '\0';
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        if (axes[i].size > 1) {
            ls__text_add(&text, "%s%s=%d", between, axes[i].name, axes[i].size);
            between = ",";
        }
    }
    if (out[0] == '\0') {
        ls__text_add(&text, "dp=1");
    }
    return out;
}
