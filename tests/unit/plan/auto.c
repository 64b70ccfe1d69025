/* SPDX-License-Identifier: Apache-2.0 */
/* The search for mesh, cuts, schedule and all else beside one that simulates every plan. */
#include "plan/auto.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/mixtral.h>

#include "drawn.h"
#include "plan/plan.h"
#include "plan/tables.h"
#include "says.h"
#include "scratch.h"

#define JOBS 6      /* draws; with TEST_LONG ten times as many */
#define REGRET 1.05 /* a search's step over the best: cuts follow from a formula */
#define LAYERS 4

static ls__auto_ask ask_of(const char *cluster, const char *device, double memory)
{
    ls__auto_ask ask = {.job = {.use = {.model = {LAYERS, 64, 4, 128, 32, 0, 0, true}, .width = 4},
                                .bucket_bytes = 1e5},
                        .batch = 8,
                        .memory_bytes = memory,
                        .contexts = true};
    CHECK_OK(ls__cluster_parse("test", cluster, strlen(cluster), &ask.job.cluster));
    CHECK_OK(ls__processor_parse("test", device, strlen(device), 4, &ask.job.device));
    ask.ranks = ask.job.cluster.devices;
    return ask;
}

/* ---- every plan ------------------------------------------------------------------------------ */

typedef struct exhaustive {
    const ls__auto_ask *ask;
    double best;
    int plans;
} exhaustive;

static double memory_of(const ls__sim_step *s, int ranks)
{
    double most = 0.0;
    for (int r = 0; r < ranks; r++) {
        most = fmax(most, s->rank[r].parameters + s->rank[r].gradients + s->rank[r].optimizer +
                              s->rank[r].activations);
    }
    return most;
}

static void simulate(exhaustive *e, const ls__sim_job *job)
{
    ls__sim_step step;
    const double limit = e->ask->memory_bytes;
    e->plans++;
    if (ls__simulate_job(ls__env_posix(), job, &step) < 0) {
        return;
    }
    if (limit == 0.0 || memory_of(&step, job->pp.size) <= limit) {
        e->best = fmin(e->best, step.step);
    }
    ls__sim_step_free(&step);
}

/* First layers of the stages after the `known`: all that ascend, the last may have the head alone,
 * and the first the embedding. */
static void every_cut(exhaustive *e, ls__sim_job *job, int *first, int known)
{
    if (known == job->pp.size) {
        job->first_layer = first;
        simulate(e, job);
        return;
    }
    const int before = known > 1 ? first[known - 1] + 1 : 0;
    for (int layer = before; layer <= LAYERS; layer++) {
        first[known] = layer;
        every_cut(e, job, first, known + 1);
    }
}

static void every_memory(exhaustive *e, ls__sim_job *job, bool even)
{
    int first[8] = {0};
    const bool gpipe = strcmp(job->schedule, "gpipe") == 0;
    const bool alike = job->pp.size == 1 && job->tp.size == 1 && job->ep.size == 1;
    const int most = job->dp.size * job->ep.size * job->cp.size == 1 ? 0 : alike ? 3 : 2;
    for (int choice = 0; choice < 8; choice++) {
        job->zero = choice % 4;
        job->use.recompute = choice > 3 && !gpipe;
        job->spec.recompute = choice > 3 && gpipe;
        job->first_layer = NULL;
        if (job->zero > most) {
            continue;
        }
        if (even) {
            simulate(e, job);
        } else {
            every_cut(e, job, first, 1);
        }
    }
}

static void every_schedule(exhaustive *e, ls__sim_job *job)
{
    const int m = job->spec.micro_batches, pp = job->pp.size;
    static const struct {
        const char *name;
        int chunks, warm_up;
    } all[] = {
        {"1f1b", 0, 1}, {"1f1b", 0, 2}, {"zb-h1", 0, 0}, {"gpipe", 0, 0}, {"interleaved", 2, 0}};
    for (int k = 0; k < (pp > 1 ? 5 : 1); k++) {
        job->schedule = all[k].name;
        job->spec = (ls__schedule_spec){
            .ranks = pp, .micro_batches = m, .chunks = all[k].chunks, .warm_up = all[k].warm_up};
        if (all[k].chunks == 0 || (m % pp == 0 && 2 * pp <= LAYERS)) {
            every_memory(e, job, all[k].chunks > 0);
        }
    }
}

/* Something is divided; the sequence where attention and MLP are. */
static void every_placement(exhaustive *e, ls__sim_job *job)
{
    const int all = LS__GPT_ATTENTION | LS__GPT_MLP | LS__GPT_TOKENS | LS__GPT_HEAD;
    const int micro_batches = job->spec.micro_batches;
    const int mlp = ls__gpt_has_mlps(&job->use.model) ? LS__GPT_MLP : 0;
    job->use.tp = job->tp.size;
    for (int whole = 0; whole < (job->tp.size > 1 ? all : 1); whole++) {
        const bool divided = (whole & (LS__GPT_ATTENTION | mlp)) == 0;
        if (job->tp.size > 1 && mlp == 0 && (whole & LS__GPT_MLP) == 0) {
            continue; /* there is none to divide */
        }
        for (int sequence = 0; sequence <= (divided && job->tp.size > 1); sequence++) {
            job->use.whole = whole | LS__GPT_EXPERTS;
            job->use.sequence = sequence == 1;
            job->spec.micro_batches = micro_batches;
            every_schedule(e, job);
        }
    }
}

static void every_micro_batch(exhaustive *e, ls__sim_job *job)
{
    const int own = (int)e->ask->batch / (job->dp.size * job->ep.size);
    for (int batch = 1; batch <= own; batch++) {
        if (own % batch == 0) {
            job->use.batch = batch;
            job->spec.micro_batches = own / batch;
            every_placement(e, job);
        }
    }
}

/* Any order of pp and dp. 4 heads, of keys as many or 2, 8 sequences of 32 tokens; experts are 4 or
 * none. */
static void every_order(exhaustive *e, int pp, int dp, int ep, int cp, int tp)
{
    ls__sim_job job = e->ask->job;
    const int within = ep * cp * tp;
    const bool divides = 4 % tp == 0 && 8 % (dp * ep) == 0 && (cp == 1 || 32 % (2 * cp) == 0) &&
                         (ep == 1 || (job.use.model.experts > 0 && 4 % ep == 0));
    for (int inside = 0; divides && inside <= (pp > 1 && dp > 1); inside++) {
        job.pp = (ls__sim_axis){pp, inside ? within : dp * within};
        job.dp = (ls__sim_axis){dp, inside ? pp * within : within};
        job.ep = (ls__sim_axis){ep, cp * tp};
        job.cp = (ls__sim_axis){cp, tp};
        job.tp = (ls__sim_axis){tp, 1};
        job.use.ep = ep;
        job.use.cp = cp;
        every_micro_batch(e, &job);
    }
}

static exhaustive every_plan(const ls__auto_ask *ask)
{
    exhaustive e = {ask, INFINITY, 0};
    const int n = ask->ranks;
    for (int pp = 1; pp <= n; pp++) {
        for (int dp = 1; dp <= n; dp++) {
            for (int ep = 1; ep <= n; ep++) {
                for (int cp = 1; cp <= n; cp++) {
                    if (n % (pp * dp * ep * cp) == 0) {
                        every_order(&e, pp, dp, ep, cp, n / (pp * dp * ep * cp));
                    }
                }
            }
        }
    }
    return e;
}

/* ---- the search ------------------------------------------------------------------------------ */

static const char *const clusters[] = {"4:10gbyte", "2:10gbyte,2:1gbit", "2:1gbit@1ms,2:100mbit",
                                       "4:1gbit", "3:200mbit"};
static const char *const devices[] = {"1tflop,100gbyte", "50gflop,20gbyte", "10gflop,1gbyte"};

TEST(the_best_plan_is_within_5_percent_of_every_plan)
{
    const int jobs = getenv("TEST_LONG") != NULL ? 10 * JOBS : JOBS;
    int possible = 0;
    for (int i = 0; i < jobs; i++) {
        ls__auto_result found;
        draw_sample(i);
        const double memory = draw(2) * (1e6 + 1e5 * draw(60));
        ls__auto_ask ask = ask_of(clusters[draw(5)], devices[draw(3)], memory);
        ask.job.use.model.experts = draw(2) * 4;
        ask.job.use.model.top_k = 2;
        if (i % 3 == 1) { /* a Llama, with experts a Mixtral */
            ask.job.use.model.llama = true;
            ask.job.use.model.kv_heads = 2;
            ask.job.use.model.mlp = 176;
        }
        const exhaustive all = every_plan(&ask);
        const ls_status status = ls__auto_find(ls__env_posix(), &ask, &found);
        CHECK((status == LS_OK) == (all.best < INFINITY));
        CHECK(found.plans == all.plans);
        if (status == LS_OK) {
            const ls__auto_plan *best = &found.mesh[0].best;
            if (best->step > REGRET * all.best || best->step < all.best * (1 - 1e-9)) {
                test_fail(__FILE__, __LINE__, "job %d: found %g s, the best is %g s", i, best->step,
                          all.best);
            }
            CHECK(memory == 0.0 || best->memory <= memory);
            possible++;
        }
        ls__auto_free(&found);
    }
    CHECK(possible > 0);
}

/* Each choice beside what it says of itself: the plan's own job takes its step. */
TEST(the_best_plan_of_each_mesh_is_what_its_job_takes)
{
    ls__auto_result found;
    ls__sim_step step;
    const ls__auto_ask ask = ask_of("2:10gbyte,2:1gbit", "50gflop,20gbyte", 0.0);
    CHECK_OK(ls__auto_find(ls__env_posix(), &ask, &found));
    /* Of one axis 4, of two axes with 2 ranks each 6, and pp within dp. */
    CHECK_INT(found.meshes, 11);
    for (int i = 0; i < found.meshes; i++) {
        const ls__auto_plan *p = &found.mesh[i].best;
        const ls__sim_job job = ls__auto_job(&ask, p);
        CHECK(found.mesh[i].exists && (i == 0 || p->step >= found.mesh[i - 1].best.step));
        CHECK(p->micro_batches * p->batch * p->dp.size == ask.batch);
        CHECK_OK(ls__simulate_job(ls__env_posix(), &job, &step));
        CHECK(step.step == p->step);
        const double sum = p->compute + p->tp_seconds + p->cp_seconds + p->ep_seconds +
                           p->pp_seconds + p->bubble + p->dp_seconds + p->optimizer + p->gather;
        CHECK_NEAR(sum / p->step, 1.0, 1e-12);
        ls__sim_step_free(&step);
    }
    ls__auto_free(&found);
}

/* Training refuses zero where two stages have one table. */
TEST(stages_that_share_an_embedding_have_no_zero)
{
    ls__auto_result own, shared;
    ls__auto_ask ask = ask_of("4:1gbit", "50gflop,20gbyte", 0.0);
    ask.pp = ask.dp = 2;
    ask.cp = ask.tp = 1;
    CHECK_OK(ls__auto_find(ls__env_posix(), &ask, &own));
    ask.job.use.model.untied = false;
    CHECK_OK(ls__auto_find(ls__env_posix(), &ask, &shared));
    CHECK_INT(own.choices, 3 * shared.choices);
    CHECK(shared.mesh[0].best.zero == 0 && shared.mesh[1].best.zero == 0);
    ls__auto_free(&own);
    ls__auto_free(&shared);
}

TEST(a_plan_that_is_written_is_read_as_it_was)
{
    ls__auto_result found;
    ls_plan *plan = NULL;
    ls_plan_settings s = {.size = sizeof s};
    ls__auto_ask ask = ask_of("4:1gbit", "50gflop,20gbyte", 0.0);
    char path[256];
    scratch_begin();
    CHECK_OK(ls_init(NULL));
    ask.pp = 2;
    ask.dp = 2;
    ask.cp = ask.tp = 1;
    CHECK_OK(ls__auto_find(ls__env_posix(), &ask, &found));
    const ls__auto_plan *best = &found.mesh[0].best;
    (void)snprintf(path, sizeof path, "%s", scratch_at("plan.json"));
    CHECK_OK(ls__auto_write(ls__env_posix(), &ask, best, "gpt", "4:1gbit", path));
    CHECK_OK(ls_plan_read(path, &plan));
    CHECK_OK(ls_plan_get_settings(plan, &s));
    char mesh[LS__AUTO_MESH_BYTES];
    CHECK_STR(s.mesh, ls__auto_mesh_text(best, mesh));
    CHECK_INT(s.batch, best->batch);
    CHECK_INT(s.zero, best->zero);
    CHECK_INT(s.warm_up, best->warm_up);
    CHECK(s.recompute == best->recompute && s.sequence == best->sequence);
    CHECK(s.tensor_plan == NULL);
    CHECK_INT(ls_plan_workers(plan), 4);
    CHECK_INT(ls_plan_stages(plan), best->stages);
    CHECK_INT(ls_plan_micro_batches(plan), best->micro_batches);
    CHECK_STR(ls_plan_schedule(plan), best->schedule);
    CHECK(fabs(ls_plan_step_seconds(plan) / best->step - 1.0) < 1e-6);
    const ls_plan_size sizes[] = {{"layers", LAYERS}, {"dim", 64}, {"experts", 3}};
    CHECK_OK(ls_plan_check_model(plan, "gpt", sizes, 3));
    CHECK_STATUS(ls_plan_check_model(plan, "gpt2", sizes, 3), LS_ERR_MISMATCH);
    const ls_plan_size other[] = {{"layers", LAYERS}, {"dim", 128}};
    CHECK_STATUS(ls_plan_check_model(plan, "gpt", other, 2), LS_ERR_MISMATCH);
    ls_plan_free(plan);
    ls__auto_free(&found);
    CHECK_OK(ls_finalize());
    scratch_end();
}

/* Parts of a sequence where its attention is divided, experts where there are some. */
TEST(cp_and_ep_are_searched_where_the_model_has_them)
{
    ls__auto_result found;
    ls__auto_ask ask = ask_of("4:10gbyte", "50gflop,20gbyte", 0.0);
    char text[LS__AUTO_MESH_BYTES];
    int with[3][2];
    for (int k = 0; k < 3; k++) {
        ask.contexts = k > 0;
        ask.job.use.model.experts = k > 1 ? 4 : 0;
        ask.job.use.model.top_k = 2;
        CHECK_OK(ls__auto_find(ls__env_posix(), &ask, &found));
        with[k][0] = with[k][1] = 0;
        for (int i = 0; i < found.meshes; i++) {
            (void)ls__auto_mesh_text(&found.mesh[i].best, text);
            with[k][0] += strstr(text, "cp=") != NULL;
            with[k][1] += strstr(text, "ep=") != NULL;
        }
        ls__auto_free(&found);
    }
    CHECK(with[0][0] == 0 && with[0][1] == 0);
    CHECK(with[1][0] == 4 && with[1][1] == 0); /* 4; 2 with each of pp, dp, tp */
    CHECK(with[2][0] == 5 && with[2][1] == 5);
}

/* A sequence is cut into 2 cp chunks; experts and samples are divided by ep. */
TEST(cp_and_ep_divide_what_training_divides)
{
    ls__auto_result found;
    ls__auto_ask ask = ask_of("8:10gbyte", "50gflop,20gbyte", 0.0);
    ask.pp = ask.dp = ask.ep = ask.tp = 1;
    ask.cp = 8;
    CHECK_OK(ls__auto_find(ls__env_posix(), &ask, &found));
    CHECK_STR(found.mesh[0].best.schedule, "1f1b");
    CHECK(found.mesh[0].best.cp_bytes > 0.0 && found.mesh[0].best.zero <= 3);
    ls__auto_free(&found);
    ask.job.use.model.context = 40; /* 8 divides it, 16 does not */
    CHECK_STATUS(ls__auto_find(ls__env_posix(), &ask, &found), LS_ERR_INVALID);
    ls__auto_free(&found);
    ask.job.use.model.context = 32;
    ask.job.use.model.experts = 12;
    ask.job.use.model.top_k = 2;
    ask.cp = 1;
    ask.ep = 8;
    CHECK_STATUS(ls__auto_find(ls__env_posix(), &ask, &found), LS_ERR_INVALID);
    ls__auto_free(&found);
    ask.job.use.model.experts = 8;
    CHECK_OK(ls__auto_find(ls__env_posix(), &ask, &found));
    CHECK(found.mesh[0].best.ep_bytes > 0.0 && found.mesh[0].best.zero <= 2);
    ls__auto_free(&found);
    ask.job.use.model.layers = 1; /* the second layer is the first one with experts */
    CHECK_STATUS(ls__auto_find(ls__env_posix(), &ask, &found), LS_ERR_INVALID);
    ls__auto_free(&found);
}

#define LAYER_WORDS "blocks.*.qkv=column(3) blocks.*.proj=row blocks.*.up=column blocks.*.down=row"

static ls__auto_plan tensor_plan_of(const ls__auto_ask *given, int64_t heads, int64_t vocab,
                                    char words[LS__AUTO_WORDS_BYTES])
{
    ls__auto_result found;
    ls__auto_ask ask = *given;
    ask.job.use.model.heads = heads;
    ask.job.use.model.vocab = vocab;
    ask.pp = ask.dp = ask.cp = 1;
    ask.tp = ask.ranks;
    CHECK_OK(ls__auto_find(ls__env_posix(), &ask, &found));
    const ls__auto_plan best = found.mesh[0].best;
    (void)ls__auto_words(ls__auto_names_of("gpt"), &ask.job.use.model, &best, words);
    ls__auto_free(&found);
    return best;
}

/* Sizes that tp does not divide stay whole, and so does what is cheaper to compute than to sum. */
TEST(tp_divides_what_pays)
{
    char words[LS__AUTO_WORDS_BYTES];
    const ls__auto_ask fast = ask_of("4:100gbyte", "10gflop,10gbyte", 0.0),
                       slow = ask_of("4:10mbyte", "10gflop,10gbyte", 0.0);
    (void)tensor_plan_of(&fast, 4, 128, words);
    CHECK_CONTAINS(words, LAYER_WORDS);
    CHECK_CONTAINS(words, "head=column");
    CHECK_INT(tensor_plan_of(&fast, 4, 127, words).whole, LS__GPT_TOKENS | LS__GPT_HEAD);
    CHECK(strstr(words, "head") == NULL && strstr(words, "tokens") == NULL);
    CHECK((tensor_plan_of(&fast, 2, 128, words).whole & 3) == LS__GPT_ATTENTION);
    CHECK_CONTAINS(words, "blocks.*.up=column blocks.*.down=row");
    CHECK_INT(tensor_plan_of(&fast, 2, 127, words).whole, 15 & ~LS__GPT_MLP);
    CHECK_STR(words, "blocks.*.up=column blocks.*.down=row");
    CHECK((tensor_plan_of(&slow, 4, 128, words).whole & 3) == 3);
    CHECK(strstr(words, "blocks") == NULL && words[0] != '\0');
}

/* ls_tensor_plan_find looks at the operators of a model, plan auto at its sizes. What is between
 * the layers both may divide or not, which takes equally long to send. */
TEST(along_tp_the_words_are_those_of_the_operators)
{
    static const char *const links[] = {"4:100mbyte", "4:1gbyte", "4:10gbyte"};
    static const char device[] = "1gflop,100gbyte";
    char words[LS__AUTO_WORDS_BYTES];
    CHECK_OK(ls_init(NULL));
    ls_module *net = ls_gpt_new(LS_OPTIONS(ls_gpt_options, .vocab = 256, .context = 16, .layers = 3,
                                           .heads = 8, .dim = 64));
    ls_tensor *x = ls_zeros(LS_SHAPE(1, 16), LS_INT64), *y = ls_zeros(LS_SHAPE(1, 16), LS_INT64);
    for (int i = 0; i < 3; i++) {
        ls_tensor_plan *plan = NULL;
        ls__auto_ask ask = ask_of(links[i], device, 0.0);
        ask.batch = 1;
        ask.job.use.model = (ls__gpt){3, 64, 8, 256, 16, .untied = true};
        CHECK_OK(ls_tensor_plan_find(net, &x, 1, y,
                                     LS_OPTIONS(ls_tensor_plan_options, .mesh = "tp=4",
                                                .cluster = links[i], .device = device),
                                     &plan));
        ls__auto_plan best = tensor_plan_of(&ask, 8, 256, words);
        best.sequence = false;
        (void)ls__auto_words(ls__auto_names_of("gpt"), &ask.job.use.model, &best, words);
        CHECK_STR(words, ls_tensor_plan_words(plan, "tp"));
        ls_tensor_plan_free(plan);
    }
    ls_free(x);
    ls_free(y);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

static int count_words(const char *plan)
{
    int count = 0;
    for (const char *at = plan; *at != '\0'; at += strcspn(at, " ")) {
        at += strspn(at, " ");
        count += *at != '\0';
    }
    return count;
}

static bool has_word(const char *plan, const char *word, size_t length)
{
    for (const char *at = plan; *at != '\0'; at += strcspn(at, " ")) {
        at += strspn(at, " ");
        if (strcspn(at, " ") == length && memcmp(at, word, length) == 0) {
            return true;
        }
    }
    return false;
}

/* With all divided, and the sequence, the words are those of the model's class; their order is
 * another one. */
static void check_words(ls_module *net, const char *model, const ls__gpt *g)
{
    char words[LS__AUTO_WORDS_BYTES];
    const ls__auto_plan plan = {
        .tp = {2, 1}, .sequence = true, .whole = ls__gpt_has_mlps(g) ? 0 : LS__GPT_MLP};
    CHECK_OK(ls_module_status(net));
    (void)ls__auto_words(ls__auto_names_of(model), g, &plan, words);
    CHECK(strlen(words) < LS__AUTO_WORDS_BYTES - 1);
    CHECK_INT(count_words(words), count_words(net->cls->plan));
    for (const char *at = words; *at != '\0'; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        if (!has_word(net->cls->plan, at, length)) {
            CHECK_STR(at, net->cls->plan);
        }
        at += length;
    }
    ls_module_free(net);
}

TEST(words_of_a_whole_plan_are_those_of_the_models_class)
{
    ls__gpt g = {2, 32, 4, 64, 16, .untied = true};
    CHECK_OK(ls_init(NULL));
    check_words(ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 4, .dim = 32)), "gpt",
                &g);
    g.llama = true;
    for (int kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        g.kv_heads = kv_heads;
        for (int tied = 0; tied <= 1; tied++) {
            g.untied = tied == 0;
            check_words(ls_llama_new(LS_OPTIONS(ls_llama_options, .layers = 2, .heads = 4,
                                                .kv_heads = kv_heads, .dim = 32, .hidden = 48,
                                                .vocab = 64, .tied = tied == 1)),
                        "llama", &g);
        }
        g.untied = true;
        g.experts = 4;
        check_words(ls_mixtral_new(LS_OPTIONS(ls_mixtral_options, .layers = 2, .heads = 4,
                                              .kv_heads = kv_heads, .dim = 32, .hidden = 48,
                                              .experts = 4, .vocab = 64)),
                    "mixtral", &g);
        g.experts = 0;
    }
    CHECK_OK(ls_finalize());
}

/* Experts are whole, and heads of keys are divided or shared. */
TEST(a_llama_and_a_mixtral_are_divided_along_tp_by_their_sizes)
{
    char words[LS__AUTO_WORDS_BYTES];
    ls__auto_result found;
    ls__auto_ask ask = ask_of("4:100gbyte", "10gflop,10gbyte", 0.0);
    ask.pp = ask.dp = ask.cp = 1;
    ask.tp = 4;
    ask.job.use.model = (ls__gpt){LAYERS, 64, 12, 127, 32, 0, 0, true, 96, true, 2, 6, 0};
    for (int i = 0; i < 4; i++) {
        ls__gpt *g = &ask.job.use.model;
        g->kv_heads = i == 0 ? 2 : i == 1 ? 4 : i == 2 ? 3 : 12; /* shared, divided, neither */
        g->experts = i == 3 ? 8 : 0;
        g->top_k = 2;
        CHECK_OK(ls__auto_find(ls__env_posix(), &ask, &found));
        const ls__auto_plan *best = &found.mesh[0].best;
        (void)ls__auto_words(ls__auto_names_of("llama"), g, best, words);
        CHECK_INT((best->whole & LS__GPT_ATTENTION) != 0, i == 2);
        CHECK_INT(strstr(words, "k_proj") == NULL, i == 2);
        CHECK_INT((best->whole & LS__GPT_MLP) != 0, i == 3);
        CHECK_INT(strstr(words, "mlp.") == NULL, i == 3);
        ls__auto_free(&found);
    }
}

TEST(words_of_a_plan_are_read_as_they_were_written)
{
    ls__auto_result found;
    ls_plan *plan = NULL;
    ls_plan_settings s = {.size = sizeof s};
    char words[LS__AUTO_WORDS_BYTES], path[256];
    ls__auto_ask ask = ask_of("4:1gbit", "50gflop,20gbyte", 0.0);
    scratch_begin();
    CHECK_OK(ls_init(NULL));
    ask.tp = 4;
    ask.pp = ask.dp = ask.cp = 1;
    CHECK_OK(ls__auto_find(ls__env_posix(), &ask, &found));
    ls__auto_plan best = found.mesh[0].best;
    (void)snprintf(path, sizeof path, "%s", scratch_at("words.json"));
    best.whole = 0;
    best.sequence = true;
    for (int k = 0; k < 2; k++) {
        const char *model = k == 0 ? "gpt" : "gpt2";
        CHECK_OK(ls__auto_write(ls__env_posix(), &ask, &best, model, "4:1gbit", path));
        CHECK_OK(ls_plan_read(path, &plan));
        CHECK_OK(ls_plan_get_settings(plan, &s));
        CHECK_STR(s.tensor_plan,
                  ls__auto_words(ls__auto_names_of(model), &ask.job.use.model, &best, words));
        CHECK(strlen(words) < LS__AUTO_WORDS_BYTES - 1);
        ls_plan_free(plan);
    }
    ls__auto_free(&found);
    CHECK_OK(ls_finalize());
    scratch_end();
}

TEST(what_cannot_be_planned_is_refused)
{
    ls__auto_result found;
    ls__auto_ask ask = ask_of("4:1gbit", "50gflop,20gbyte", 1000.0);
    CHECK_STATUS(ls__auto_find(ls__env_posix(), &ask, &found), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(),
               SAYS("plan: no plan of %d ranks fits into %.0f bytes of each; give more memory, "
                    "more ranks, or a smaller --batch"));
    ls__auto_free(&found);
    ask = ask_of("7:1gbit", "50gflop,20gbyte", 0.0);
    CHECK_STATUS(ls__auto_find(ls__env_posix(), &ask, &found), LS_ERR_INVALID);
    CHECK_SAYS(
        ls_error_message(),
        SAYS("plan: no mesh of %d ranks trains this model with a batch of %lld: dp and ep divide "
             "the batch, ep the experts, twice cp the context, tp the heads, the width of the MLP "
             "or the vocabulary, and pp is at most the number of layers and 2; give another "
             "--batch, or fewer ranks"));
    ls__auto_free(&found);
}

TEST(a_table_is_made_once_until_there_are_too_many)
{
    static ls__plan_tables tables;
    ls__schedule *first = NULL, *again = NULL, *other = NULL;
    ls__schedule_spec spec = {.ranks = 2, .micro_batches = 4, .warm_up = 1};
    tables.env = ls__env_posix();
    CHECK_OK(ls__plan_tables_get(&tables, "1f1b", &spec, &first));
    CHECK_OK(ls__plan_tables_get(&tables, "1f1b", &spec, &again));
    CHECK(first == again && tables.count == 1 && tables.cells == 8);
    spec.warm_up = 2;
    CHECK_OK(ls__plan_tables_get(&tables, "1f1b", &spec, &other));
    CHECK(other != first && other->warm_up == 2 && tables.count == 2);
    for (int m = 1; m < LS__PLAN_TABLES_MAX; m++) {
        spec.micro_batches = 4 + m;
        CHECK_OK(ls__plan_tables_get(&tables, "1f1b", &spec, &other));
        CHECK_INT(other->micro_batches, 4 + m);
    }
    CHECK_INT(tables.count, 1);
    CHECK_STATUS(ls__plan_tables_get(&tables, "interleaved", &spec, &other), LS_ERR_INVALID);
    ls__plan_tables_free(&tables);
    CHECK(tables.count == 0 && tables.cells == 0);
}

TEST(without_memory_no_plan_is_found)
{
    ls__auto_result found;
    const ls__env env = env_without_memory();
    const ls__auto_ask ask = ask_of("4:1gbit", "50gflop,20gbyte", 0.0);
    CHECK_STATUS(ls__auto_find(&env, &ask, &found), LS_ERR_MEMORY);
    ls__auto_free(&found);
}

TEST_MAIN
