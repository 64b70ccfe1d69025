/* SPDX-License-Identifier: Apache-2.0 */
/* A step of a job: parts that can be computed by hand, and laws that hold for every mesh. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/env_posix.h"
#include "cost/collective.h"
#include "cost/job.h"
#include "says.h"

static ls__sim_job job_of(int dp, int pp, int tp, const char *cluster)
{
    ls__sim_job job = {.use = {.model = {8, 64, 8, 256, 32}, .batch = 2, .tp = tp, .width = 4},
                       .pp = {pp, tp},
                       .dp = {dp, pp * tp},
                       .tp = {tp, 1},
                       .schedule = "1f1b",
                       .spec = {.ranks = pp, .micro_batches = 8},
                       .bucket_bytes = 1.0};
    CHECK_OK(ls__cluster_parse("test", cluster, strlen(cluster), &job.cluster));
    CHECK_OK(ls__processor_parse("test", "1gflop,1gbyte", 13, 4, &job.device));
    (void)ls__cluster_extend(&job.cluster, dp * pp * tp);
    return job;
}

/* Its ranks are overwritten by the next one. */
static ls__sim_step step_of(const ls__sim_job *job)
{
    ls__sim_step step;
    CHECK_OK(ls__simulate_job(ls__env_posix(), job, &step));
    static ls__sim_rank ranks[LS__SCHEDULE_RANKS_MAX];
    memcpy(ranks, step.rank, (size_t)job->pp.size * sizeof *ranks);
    ls__sim_step_free(&step);
    step.rank = ranks;
    return step;
}

#define FAST "64:1000gbyte"

TEST(one_rank_computes_and_steps)
{
    const ls__sim_job job = job_of(1, 1, 1, FAST);
    const ls__sim_step s = step_of(&job);
    const ls__stage_times layer = ls__gpt_layer_times(&job.use, &job.device, false),
                          first = ls__gpt_embedding_times(&job.use, &job.device),
                          last = ls__gpt_head_times(&job.use, &job.device);
    const double each = 8 * (layer.forward + layer.backward) + first.forward + first.backward +
                        last.forward + last.backward;
    CHECK_NEAR(s.compute, 8 * each, 1e-9);
    CHECK(s.bubble < 1e-9 && s.tp == 0.0 && s.dp == 0.0 && s.gather == 0.0);
    CHECK_NEAR(s.step, s.compute + s.bubble + s.optimizer, 1e-9);
    CHECK(s.dp_bytes == 0.0 && s.tp_bytes == 0.0 && s.pp_bytes == 0.0);
}

TEST(parameters_are_those_of_the_published_models)
{
    ls__gpt g;
    CHECK(ls__gpt_find("gpt2-xl", &g));
    CHECK(ls__gpt_parameters(&g) == 1557611200.0);
    CHECK(!ls__gpt_find("gpt5", &g));
}

/* Forward and backward of a layer are its matmuls and, much smaller here, its memory's time. */
TEST(a_layer_takes_the_operations_of_its_formula)
{
    ls__sim_job job = job_of(1, 1, 1, FAST);
    job.device.memory = 1e15;
    job.use.model.layers = 1;
    const ls__stage_times layer = ls__gpt_layer_times(&job.use, &job.device, false),
                          last = ls__gpt_head_times(&job.use, &job.device);
    const double seconds = layer.forward + layer.backward + last.forward + last.backward;
    CHECK_NEAR(seconds * 1e9 / ls__gpt_flops(&job.use), 1.0, 1e-6);
}

/* Ranks of tp compute an equal part and sum activations: four times a layer, and at both ends. */
TEST(tp_divides_the_computation_and_is_exposed)
{
    const ls__sim_job one = job_of(1, 1, 1, FAST), four = job_of(1, 1, 4, "4:1gbyte");
    const ls__sim_step a = step_of(&one), b = step_of(&four);
    CHECK(b.compute < a.compute / 2 && b.compute > a.compute / 4);
    const double bytes = 2 * 32 * 64 * 4, ring = 1.5 * bytes;
    CHECK_NEAR(b.tp_bytes, 8 * (8 * 4 + 2) * ring, 1e-3);
    CHECK_NEAR(b.tp, 8 * (8 * 4 + 2) * ring / 1e9, 1e-12);
    CHECK(b.dp_bytes == 0.0 && b.pp_bytes == 0.0);
}

/* What stays whole is computed and kept on each rank, and its sum is left out. */
TEST(tp_may_leave_parts_whole)
{
    static const int sums[] = {4, 2, 2, 0}; /* of a layer */
    const double bytes = 2 * 32 * 64 * 4, ring = 1.5 * bytes, h = 64;
    ls__sim_job job = job_of(1, 1, 4, "4:1gbyte");
    const ls__sim_step all = step_of(&job);
    const double activations = all.rank[0].activations;
    for (int whole = 0; whole < 16; whole++) {
        const int attention = whole & LS__GPT_ATTENTION ? 1 : 4, mlp = whole & LS__GPT_MLP ? 1 : 4,
                  tokens = whole & LS__GPT_TOKENS ? 1 : 4, head = whole & LS__GPT_HEAD ? 1 : 4;
        const int ends = (tokens > 1) + (head > 1);
        job.use.model.untied = true;
        job.use.whole = whole;
        const ls__sim_step s = step_of(&job);
        CHECK_NEAR(s.tp_bytes, 8 * (8 * sums[whole % 4] + ends) * ring, 1e-3);
        CHECK_NEAR(s.tp, s.tp_bytes / 1e9, 1e-12);
        CHECK(whole % 4 == 0 || s.compute > 1.05 * all.compute);
        CHECK_NEAR(s.rank[0].parameters,
                   4 * (8 * ((4 * h * h + 8 * h) / attention + (8 * h * h + 5 * h) / mlp) +
                        256 * h / tokens + 256 * h / head + 32 * h + 2 * h),
                   1e-3);
        CHECK((whole & ~LS__GPT_TOKENS) == 0 || s.rank[0].activations > activations);
    }
    job.use.whole = 15;
    const ls__sim_job one = job_of(1, 1, 1, FAST);
    const ls__sim_step whole = step_of(&job);
    const double kept = whole.rank[0].activations;
    const ls__sim_step alone = step_of(&one);
    CHECK_NEAR(whole.compute, alone.compute, 1e-9);
    CHECK_NEAR(kept, alone.rank[0].activations, 0.0);
}

/* The last norm's result is gathered for a whole head, and the embedding's gradient: half a sum. */
TEST(a_sequence_is_gathered_for_a_whole_vocabulary)
{
    ls__sim_job job = job_of(1, 1, 4, "4:1gbyte");
    const double ring = 1.5 * 2 * 32 * 64 * 4;
    job.use.sequence = true;
    job.use.whole = LS__GPT_TOKENS | LS__GPT_HEAD;
    const ls__sim_step s = step_of(&job);
    CHECK_NEAR(s.tp_bytes, 8 * (8 * 4 + 1) * ring, 1e-3);
    CHECK_NEAR(s.tp, s.tp_bytes / 1e9, 1e-12);
}

TEST(dp_sums_beside_backward_and_only_its_rest_is_exposed)
{
    const ls__sim_job fast = job_of(4, 1, 1, FAST), slow = job_of(4, 1, 1, "4:1kbyte");
    const ls__sim_step a = step_of(&fast), b = step_of(&slow);
    const double bytes = ls__gpt_parameters(&fast.use.model) * 4;
    CHECK_NEAR(a.dp_bytes, 1.5 * bytes, 1e-3);
    CHECK(a.dp > 0.0 && a.dp < 1.5 * bytes / 1e12); /* the embedding comes last */
    CHECK(b.dp > 0.9 * 1.5 * bytes / 1e3 && b.dp < 1.5 * bytes / 1e3);
    CHECK_NEAR(a.compute, b.compute, 0.0);
}

/* One bucket waits for all of backward. */
TEST(small_buckets_overlap_and_one_does_not)
{
    ls__sim_job job = job_of(4, 1, 1, "4:1mbyte");
    const ls__sim_step small = step_of(&job);
    job.bucket_bytes = 1e15;
    const ls__sim_step one = step_of(&job);
    CHECK(one.dp > small.dp);
    CHECK_NEAR(one.dp, 1.5 * ls__gpt_parameters(&job.use.model) * 4 / 1e6, 1e-6);
}

TEST(the_bubble_is_that_of_the_formula_where_links_are_fast)
{
    const ls__sim_job job = job_of(1, 4, 1, FAST);
    ls__sim_step s;
    CHECK_OK(ls__simulate_job(ls__env_posix(), &job, &s));
    CHECK(s.result.bubble > 0.0);
    CHECK_NEAR(s.result.bubble, s.bubble + s.pp, 1e-12);
    CHECK_NEAR(s.step, s.compute + s.tp + s.pp + s.bubble + s.dp + s.optimizer, 1e-12);
    CHECK_NEAR(s.pp_bytes, 2 * 8 * 2 * 32 * 64 * 4, 0.0); /* of a rank with two neighbours */
    ls__sim_step_free(&s);
}

/* 2 ranks of dp in a host share its link, so a message takes as long as with half of it. */
TEST(equal_ranks_of_a_host_share_its_link)
{
    ls__sim_job shared = job_of(2, 4, 1, "2:1000gbyte,4:2mbyte");
    shared.dp.stride = 1;
    shared.pp.stride = 2;
    const ls__sim_job half = job_of(1, 4, 1, "4:1mbyte");
    const ls__sim_step a = step_of(&shared), b = step_of(&half);
    CHECK_NEAR(a.bubble, b.bubble, 1e-9);
}

TEST(a_mesh_whose_inner_axis_leaves_the_host_is_slower)
{
    ls__sim_job inner = job_of(4, 1, 2, "2:100mbyte,4:1mbyte"), outer = inner;
    outer.tp.stride = 4;
    outer.dp.stride = 1;
    CHECK(step_of(&outer).tp > 10 * step_of(&inner).tp);
}

/* 8 micro-batches whose messages take longer than their computation: the schedule has the bubble
 * that it has with free links, and what the links add has a row of its own. */
TEST(waiting_for_messages_is_no_bubble)
{
    const ls__sim_job fast = job_of(1, 4, 1, FAST), slow = job_of(1, 4, 1, "4:100kbyte");
    const ls__sim_step a = step_of(&fast), b = step_of(&slow);
    CHECK_NEAR(a.bubble, b.bubble, 1e-12);
    CHECK_NEAR(a.compute, b.compute, 1e-12);
    CHECK(a.pp < 1e-5 && b.pp > 1.0);
}

TEST(sequences_that_ranks_share_go_around_a_ring_beside_attention)
{
    ls__sim_job job = job_of(1, 1, 1, "4:1kbyte"), fast = job_of(1, 1, 1, FAST);
    job.cp = fast.cp = (ls__sim_axis){4, 1};
    job.use.cp = fast.use.cp = 4;
    const ls__sim_step slow = step_of(&job), hidden = step_of(&fast);
    const double bytes = 2.0 * 2 * 32 * 64 / 4 * 4; /* keys and values of a rank's positions */
    CHECK_NEAR(slow.cp_bytes, 8 * 8 * 9 * bytes, 1e-6);
    CHECK(slow.cp > 0.9 * slow.cp_bytes / 1e3 && slow.cp < slow.cp_bytes / 1e3);
    CHECK(hidden.cp == 0.0);
    CHECK_NEAR(hidden.dp_bytes, 1.5 * 4 * ls__gpt_parameters(&fast.use.model), 1e-3);
    const ls__sim_job one = job_of(1, 1, 1, FAST);
    CHECK(hidden.compute < step_of(&one).compute / 3.0);
}

/* Every second layer has experts, whose gradients are not summed over ep. */
/* Of a layer of 32 tokens on the last of two ranks. Forward packs keys and values (4 elements of a
 * token's dim are read or written), copies the queries twice (4) and halves of keys and values (2),
 * adds up two results (7) and gives them (3). */
TEST(a_ring_copies_what_it_computes_with)
{
    ls__sim_job job = job_of(1, 1, 1, FAST);
    const ls__processor *d = &job.device;
    job.use.cp = 2;
    const ls__stage_times layer = ls__gpt_layer_times(&job.use, d, false);
    const double attention = ls__gpt_attention_time(&job.use, d);
    const double products =
        ls__processor_matmul(d, 32, 192, 64) + ls__processor_matmul(d, 32, 64, 64) +
        ls__processor_matmul(d, 32, 256, 64) + ls__processor_matmul(d, 32, 64, 256);
    const double token = ls__processor_bytes(d, 32 * 64 * 4);
    CHECK_NEAR(layer.forward, products + attention + (18 + 20) * token, 1e-12);
    CHECK_NEAR(layer.input, products + 2 * attention + (24 + 34) * token, 1e-12);
    CHECK_NEAR(attention, 2 * ls__processor_attention(d, 32 * 8, 16, 8), 1e-15);
}

TEST(experts_exchange_rows_and_keep_their_gradients)
{
    ls__sim_job job = job_of(1, 1, 1, "4:1gbyte");
    job.ep = (ls__sim_axis){4, 1};
    job.use.ep = 4;
    job.use.model.experts = 8;
    job.use.model.top_k = 2;
    const ls__sim_step s = step_of(&job);
    const double rows = 2 * 32 * 64 * 2 * 4;
    CHECK_NEAR(s.ep_bytes, 8 * 4 * 4 * 0.75 * rows, 1e-3);
    CHECK_NEAR(s.ep, s.ep_bytes / 1e9, 1e-12);
    const ls__gpt *g = &job.use.model;
    const double expert = 4.0 * 8 * ls__gpt_expert_parameters(g);
    CHECK_NEAR(s.dp_bytes, 1.5 * 4 * (ls__gpt_parameters(g) - expert), 1e-3);
    CHECK_NEAR(s.rank[0].parameters, 4 * (ls__gpt_parameters(g) - expert * 3 / 4), 1e-3);
    CHECK_NEAR(expert, 4.0 * 8 * (8.0 * 64 * 64 + 5 * 64), 0.0);
    job.use.model.experts = 0;
    CHECK(step_of(&job).ep == 0.0);
}

/* Twice through the layers, each gather beside the computation of the layer before it. */
TEST(zero_3_gathers_in_forward_and_in_backward)
{
    ls__sim_job job = job_of(4, 1, 1, "4:1mbyte");
    const double count = ls__gpt_parameters(&job.use.model);
    job.zero = 3;
    const ls__sim_step slow = step_of(&job);
    CHECK(slow.gather > 0.9 * 2 * 0.75 * 4 * count / 1e6 &&
          slow.gather < 2 * 0.75 * 4 * count / 1e6);
    CHECK_NEAR(slow.dp_bytes, 2.25 * 4 * count, 1e-3);
    job = job_of(4, 1, 1, FAST);
    job.zero = 3;
    job.spec.micro_batches = 1;
    job.device.memory = 1e15; /* a rank copies its own part */
    const ls__sim_step fast = step_of(&job);
    CHECK(fast.gather > 0.0 && fast.gather < 0.02 * 2 * 0.75 * 4 * count / 1e9);
    CHECK(fast.rank[0].parameters <
          4 * count / 4 + 2 * 4 * ls__gpt_layer_parameters(&job.use.model) + 1);
}

/* In the steady state the stage that has most to do works all the time, and steps in it. */
TEST(pipedream_takes_the_time_of_its_slowest_stage)
{
    for (int k = 0; k < 2; k++) {
        ls__sim_job job = job_of(1, 4, 1, FAST);
        job.schedule = k == 0 ? "pipedream" : "pipedream-2bw";
        const ls__sim_step s = step_of(&job);
        job.schedule = "1f1b";
        const ls__sim_step flush = step_of(&job);
        CHECK_NEAR(s.step, s.compute + s.optimizer, 1e-6);
        CHECK_NEAR(s.compute, flush.compute, 1e-9);
        const double most = (k == 0 ? 8 : 2) * flush.optimizer; /* another stage's, perhaps */
        CHECK(s.optimizer > 0.9 * most && s.optimizer < most + 1e-9);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

TEST(zero_divides_what_a_rank_keeps_and_gathers_the_parameters)
{
    ls__sim_job job = job_of(4, 1, 1, "4:1mbyte");
    const double count = ls__gpt_parameters(&job.use.model);
    job.spec.micro_batches = 1;
    for (int zero = 0; zero <= 2; zero++) {
        job.zero = zero;
        const ls__sim_step s = step_of(&job);
        CHECK_NEAR(s.rank[0].parameters, 4 * count, 1e-6);
        CHECK_NEAR(s.rank[0].gradients, 4 * count / (zero > 1 ? 4 : 1), 1e-6);
        CHECK_NEAR(s.rank[0].optimizer, 8 * count / (zero > 0 ? 4 : 1), 1e-6);
        CHECK_NEAR(s.gather, zero > 0 ? 0.75 * 4 * count / 1e6 : 0.0, 1e-6);
    }
    CHECK(ls__state_bytes_of(100, 4, 3, 4).parameters == 100.0);
    CHECK(ls__state_bytes_of(100, 2, 0, 4).optimizer == 1200.0);
}

/* Gradients add up whole; with 3 the parameters of the first backward stay. What is sent is the
 * same for any number of micro-batches: two gathers of a step. */
TEST(zero_divides_the_optimizer_alone_where_micro_batches_add_up)
{
    ls__sim_job job = job_of(4, 1, 1, "4:1mbyte");
    const double count = ls__gpt_parameters(&job.use.model);
    job.zero = 3;
    job.spec.micro_batches = 1;
    const double sent = step_of(&job).dp_bytes, gather = step_of(&job).gather;
    for (job.zero = 1; job.zero <= 3; job.zero++) {
        job.spec.micro_batches = 2;
        const ls__sim_step s = step_of(&job);
        CHECK_NEAR(s.rank[0].parameters, 4 * count, 1e-6);
        CHECK_NEAR(s.rank[0].gradients, 4 * count, 1e-6);
        CHECK_NEAR(s.rank[0].optimizer, 8 * count / 4, 1e-6);
    }
    job.zero = 3;
    CHECK(step_of(&job).dp_bytes == sent);
    CHECK_NEAR(step_of(&job).gather, gather, 1e-9);
}

TEST(more_bytes_than_can_be_counted_are_refused)
{
    ls__sim_step step;
    ls__sim_job job = job_of(1, 1, 1, FAST);
    job.use.model.dim = job.use.model.context = job.use.batch = 1 << 20;
    CHECK_STATUS(ls__simulate_job(ls__env_posix(), &job, &step), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(),
               SAYS("a stage keeps %.3g bytes of a micro-batch, more than can be counted; give a "
                    "smaller batch, context or model"));
}

TEST(the_first_stage_holds_as_many_micro_batches_as_there_are_stages)
{
    ls__sim_job job = job_of(1, 4, 1, FAST);
    const double layer = ls__gpt_layer_kept(&job.use, false);
    const ls__sim_step plain = step_of(&job);
    CHECK_NEAR(plain.rank[0].activations, 4 * 2 * layer, 8);
    job.schedule = "gpipe";
    const ls__sim_step all = step_of(&job);
    CHECK_NEAR(all.rank[0].activations, 8 * 2 * layer, 16);
    job.spec.recompute = true;
    CHECK(step_of(&job).rank[0].activations < 2 * 2 * layer);
    CHECK(step_of(&job).compute > 1.2 * all.compute);
}

/* Embeddings are on the first stage, and on the last one as the head. */
TEST(parameters_of_the_ranks_are_those_of_the_model_with_the_head_once_more)
{
    const ls__sim_job job = job_of(1, 4, 1, FAST);
    const ls__sim_step s = step_of(&job);
    double sum = 0.0;
    for (int r = 0; r < 4; r++) {
        sum += s.rank[r].parameters;
    }
    CHECK_NEAR(sum, 4 * (ls__gpt_parameters(&job.use.model) + 256 * 64), 1e-3);
}

/* ---- sizes and errors ------------------------------------------------------------------------ */

TEST(every_schedule_adds_up_on_every_mesh)
{
    static const char *const names[] = {"naive", "gpipe", "1f1b", "interleaved", "zb-h1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (int mesh = 0; mesh < 27; mesh++) {
            ls__sim_job job = job_of(1 << mesh % 3, 1 << mesh / 3 % 3, 1 << mesh / 9,
                                     "4:1gbyte@1us,4:100mbyte@10us");
            job.schedule = names[i];
            job.zero = mesh % 3;
            job.cores = mesh % 2 ? 2.0 : 0.0;
            job.use.sequence = mesh % 5 == 0;
            const ls__sim_step s = step_of(&job);
            CHECK(isfinite(s.step) && s.compute > 0.0 && s.bubble > -1e-9 && s.dp >= 0.0);
            CHECK((s.tp > 0.0) == (job.tp.size > 1));
            CHECK((s.dp_bytes > 0.0) == (job.dp.size > 1));
            CHECK((s.pp_bytes > 0.0) == (job.pp.size > 1));
        }
    }
}

/* The stages that an even division makes, given as such; and others, whose longest is longer. */
TEST(stages_have_the_layers_that_are_given)
{
    ls__sim_job job = job_of(2, 4, 1, FAST);
    static const int even[] = {0, 2, 4, 6}, uneven[] = {0, 0, 1, 8};
    const ls__sim_step a = step_of(&job);
    job.first_layer = even;
    const ls__sim_step b = step_of(&job);
    CHECK(a.step == b.step && a.dp_bytes == b.dp_bytes);
    job.first_layer = uneven;
    const ls__sim_step c = step_of(&job);
    CHECK(c.compute > 3.0 * a.compute);
    CHECK_NEAR(c.rank[2].parameters, 7.0 * 4.0 * ls__gpt_layer_parameters(&job.use.model), 1e-6);
    CHECK(c.rank[0].parameters == 4.0 * (256 + 32) * 64 && c.rank[3].parameters == 4.0 * 258 * 64);
}

/* A forward more for each layer, and of a layer its input only, and all of one. */
TEST(recomputed_blocks_take_longer_and_keep_less)
{
    ls__sim_job job = job_of(1, 1, 1, FAST);
    const ls__sim_step whole = step_of(&job);
    const double forward = ls__gpt_layer_times(&job.use, &job.device, false).forward;
    const double kept = ls__gpt_layer_kept(&job.use, false),
                 activations = whole.rank[0].activations;
    job.use.recompute = true;
    const ls__sim_step again = step_of(&job);
    CHECK_NEAR(again.compute - whole.compute, 8 * 8 * forward, 1e-9);
    CHECK(ls__gpt_layer_again(&job.use, false) == kept);
    CHECK_NEAR(activations - again.rank[0].activations,
               7 * kept - 8 * ls__gpt_layer_kept(&job.use, false), 1.0);
}

/* The all-reduces of a layer's forward as well as those of its backward; at both ends nothing. */
TEST(recomputed_blocks_sum_over_tp_once_more)
{
    ls__sim_job job = job_of(1, 1, 4, "4:1gbyte");
    const double bytes = 2 * 32 * 64 * 4, ring = 1.5 * bytes;
    job.use.recompute = true;
    const ls__sim_step s = step_of(&job);
    CHECK_NEAR(s.tp_bytes, 8 * (8 * 6 + 2) * ring, 1e-3);
    CHECK_NEAR(s.tp, 8 * (8 * 6 + 2) * ring / 1e9, 1e-12);
}

/* Its embedding and its head are two tables, which no two stages add. */
TEST(a_head_of_its_own_is_counted_and_not_summed)
{
    ls__sim_job job = job_of(1, 2, 1, "2:1gbyte");
    const ls__sim_step tied = step_of(&job);
    const double parameters = ls__gpt_parameters(&job.use.model);
    CHECK(tied.dp > 0.0);
    job.use.model.untied = true;
    const ls__sim_step untied = step_of(&job);
    CHECK(ls__gpt_parameters(&job.use.model) == parameters + 256 * 64);
    CHECK(untied.dp == 0.0 && untied.rank[1].parameters == tied.rank[1].parameters);
}

/* What parts take makes up the whole. */
TEST(parts_of_a_job_add_up_to_one_rank)
{
    const ls__sim_job job = job_of(1, 1, 1, FAST);
    ls__sim_parts p;
    const ls__sim_step step = step_of(&job);
    CHECK_OK(ls__sim_parts_of(ls__env_posix(), &job, &p));
    const ls__stage_times layer = p.layer[0].times;
    const double each = 8 * (layer.forward + layer.backward) + p.embedding.forward +
                        p.embedding.backward + p.head.forward + p.head.backward;
    CHECK_NEAR(step.compute, 8 * each, 1e-9);
    CHECK(step.rank[0].parameters ==
          4.0 * (8 * p.layer[0].parameters + p.embedding_parameters + p.head_parameters - p.tied));
    CHECK(p.cut == 0.0 && p.sum == 0.0 && p.ranks == 1);
}

/* Of 8 layers 4 have experts, of which a rank has a quarter. */
TEST(parts_with_experts_add_up_to_one_rank)
{
    ls__sim_parts p;
    ls__sim_job job = job_of(1, 1, 1, "4:1gbyte");
    job.ep = (ls__sim_axis){4, 1};
    job.use.ep = 4;
    job.use.model.experts = 8;
    job.use.model.top_k = 2;
    job.bucket_bytes = 1e15;
    const ls__sim_step step = step_of(&job);
    CHECK_OK(ls__sim_parts_of(ls__env_posix(), &job, &p));
    const ls__stage_times plain = p.layer[0].times, mixed = p.layer[1].times;
    const double each = 4 * (plain.forward + plain.backward + mixed.forward + mixed.backward) +
                        p.embedding.forward + p.embedding.backward + p.head.forward +
                        p.head.backward;
    CHECK_NEAR(step.compute + step.ep, 8 * each, 1e-9);
    const double dense = 4 * (p.layer[0].parameters + p.layer[1].parameters) +
                         p.embedding_parameters + p.head_parameters - p.tied;
    CHECK_NEAR(step.rank[0].parameters, 4.0 * (dense + 4 * p.layer[1].expert_parameters), 1e-6);
    CHECK(p.ranks == 4 && p.expert_ranks == 1 && p.expert_sum == 0.0 && p.layer[0].kept > 0.0);
    CHECK_NEAR(step.dp, dense * p.sum, 1e-9);
    CHECK(p.layer[1].kept > p.layer[0].kept);
    CHECK(ls__gpt_mixed(&job.use.model, 0, 8) == 4 && ls__gpt_mixed(&job.use.model, 1, 2) == 1 &&
          ls__gpt_mixed(&job.use.model, 2, 3) == 0);
}

/* ls_tensor_parallel divides attention and MLPs, and each rank computes all of its experts: they
 * are summed nowhere, and where sequences are divided these are gathered before and after. */
TEST(experts_that_are_whole_along_tp_are_not_summed)
{
    ls__sim_job job = job_of(1, 1, 4, "4:1gbyte");
    const double ring = 1.5 * 2 * 32 * 64 * 4;
    job.use.model.experts = 8;
    job.use.model.top_k = 2;
    const ls__sim_step divided = step_of(&job);
    const double parameters = divided.rank[0].parameters;
    job.use.whole = LS__GPT_EXPERTS;
    const ls__sim_step whole = step_of(&job);
    CHECK_NEAR(divided.tp_bytes, 8 * (8 * 4 + 2) * ring, 1e-3);
    CHECK_NEAR(whole.tp_bytes, 8 * (4 * 4 + 4 * 2 + 2) * ring, 1e-3);
    CHECK(whole.compute > 1.5 * divided.compute);
    CHECK_NEAR(whole.rank[0].parameters - parameters,
               4 * 4 * 8 * 0.75 * ls__gpt_expert_parameters(&job.use.model), 1e-3);
    job.use.sequence = true;
    CHECK_NEAR(step_of(&job).tp_bytes, 8 * (4 * 4 + 4 * 3 + 2) * ring, 1e-3);
}

TEST(ranks_that_share_cores_compute_longer)
{
    ls__sim_job job = job_of(8, 1, 1, "8:1000gbyte");
    const double enough = step_of(&job).compute;
    const double optimizer = step_of(&job).optimizer;
    job.cores = 2.0;
    CHECK_NEAR(step_of(&job).compute / enough, 4.0, 1e-4); /* sums need the cores a little */
    CHECK_NEAR(step_of(&job).optimizer / optimizer, 4.0, 1e-9);
    job.cores = 8.0;
    CHECK_NEAR(step_of(&job).compute / enough, 1.0, 1e-4);
    CHECK_NEAR(step_of(&job).optimizer, optimizer, 0.0);
}

/* A gather within a host is work of its cores, and one between hosts is not. */
TEST(ranks_that_share_cores_gather_parameters_with_them)
{
    ls__sim_job job = job_of(8, 1, 1, "8:1mbyte"), apart = job_of(8, 1, 1, "1:1gbyte,8:1mbyte");
    job.zero = apart.zero = 1;
    const double alone = step_of(&job).gather;
    job.cores = apart.cores = 2.0;
    CHECK_NEAR(step_of(&job).gather / alone, 4.0, 1e-9);
    job.cluster.level[0].bandwidth = 1e15; /* its memory is slower */
    const double bytes = 0.875 * 4 * ls__gpt_parameters(&job.use.model);
    const double copied = 4 * ls__processor_bytes(&job.device, 2 * bytes);
    CHECK_NEAR(step_of(&job).gather / copied, 1.0, 1e-9);
    const double own = 4 * ls__processor_bytes(&job.device, 4 * bytes / 7); /* there and back */
    job.zero = 3; /* in forward and in backward, beside nothing */
    CHECK_NEAR(step_of(&job).gather / (2 * (copied + own)), 1.0, 1e-9);
    CHECK_NEAR(step_of(&apart).gather, alone, 1e-9);
}

/* Each sum over tp waits once, with the time of a core that two ranks share. */
TEST(ranks_that_share_cores_lose_time_when_they_wait)
{
    ls__sim_job job = job_of(1, 1, 4, "4:1gbyte");
    job.cores = 2.0;
    const double sums = step_of(&job).tp;
    job.device.wait = 1e-3;
    CHECK_NEAR(step_of(&job).tp - sums, 2e-3 * 8 * (8 * 4 + 2), 1e-9);
    job.cores = 4.0;
    const double enough = step_of(&job).tp;
    job.device.wait = 0.0;
    CHECK_NEAR(step_of(&job).tp, enough, 0.0);
}

/* In a ring of four ranks three messages, in backward one more; over a cut one in each direction,
 * of which a micro-batch after the other waits. Between hosts links have a latency of their own. */
TEST(messages_within_a_host_take_their_time)
{
    ls__sim_job ring = job_of(1, 1, 1, "4:1000gbyte"), cut = job_of(1, 2, 1, "2:1000gbyte");
    ring.cp = (ls__sim_axis){4, 1};
    ring.use.cp = 4;
    cut.spec.micro_batches = 1;
    const double rounds = step_of(&ring).cp, steps = step_of(&cut).step;
    ring.device.message = cut.device.message = 1e-3;
    CHECK_NEAR(step_of(&ring).cp - rounds, 1e-3 * 8 * 8 * (3 + 4), 1e-9);
    CHECK_NEAR(step_of(&cut).step - steps, 2e-3, 1e-9);
    CHECK_OK(ls__cluster_parse("test", "1:1000gbyte,2:1000gbyte", 23, &cut.cluster));
    CHECK_NEAR(step_of(&cut).step, steps, 1e-9);
}

/* Sums within a host are work of its cores: they take what they take, times what shares the cores,
 * and hide nowhere. Between hosts links do it. */
TEST(ranks_that_share_cores_sum_their_gradients_with_them)
{
    ls__sim_job job = job_of(8, 1, 1, "8:1mbyte");
    const double bytes = 1.75 * 4 * ls__gpt_parameters(&job.use.model);
    job.cores = 2.0;
    const ls__sim_step s = step_of(&job);
    job.cluster.level[0].bandwidth = 1e15;
    const double alone = step_of(&job).step;
    CHECK_NEAR((s.step - alone) / (4 * bytes / 1e6), 1.0, 0.01);
    job = job_of(8, 1, 1, "1:1gbyte,8:1mbyte");
    const double apart = step_of(&job).step;
    job.cores = 1.0;
    CHECK_NEAR(step_of(&job).step, apart, 1e-9);
}

/* Between hosts a core may move what the link carries: the computation beside it takes longer by
 * the time that this needs (7 of 8 layers have some), and where a core is slower than the link, all
 * that is sent takes its time. */
TEST(a_core_that_moves_messages_computes_less)
{
    ls__sim_job job = job_of(2, 1, 1, "1:1000gbyte,2:1gbyte");
    const double bytes = 4 * ls__gpt_parameters(&job.use.model), last = 4 * (256 + 32) * 64.0;
    job.cores = 1.0;
    const ls__sim_step link = step_of(&job);
    job.cluster.level[1].core = 4e9;
    const ls__sim_step fast = step_of(&job);
    CHECK_NEAR((fast.step - link.step) / ((bytes - last) / 4e9), 0.94, 0.07);
    job.cluster.level[1].core = 1e8;
    const ls__sim_step slow = step_of(&job);
    CHECK_NEAR((slow.step - link.step + link.dp) / (bytes / 1e8), 1.0, 0.01);
    CHECK(slow.dp > last / 1e8 && slow.compute > link.compute);
    job.cores = 0.0; /* one for each rank */
    CHECK_NEAR(step_of(&job).step, slow.step, 1e-9);
}

/* Messages between stages, the sum of a tied embedding and those of gradients. */
TEST(a_core_moves_messages_of_every_axis)
{
    ls__sim_job job = job_of(2, 4, 2, "4:1gbyte,4:100mbyte");
    const ls__sim_step links = step_of(&job);
    job.cluster.level[0].core = job.cluster.level[1].core = 1e8;
    const ls__sim_step cores = step_of(&job);
    CHECK(cores.step > links.step && cores.tp > 5 * links.tp);
    CHECK(cores.dp_bytes == links.dp_bytes && cores.pp_bytes == links.pp_bytes);
}

/* Narayanan et al. 2021, table 1, the largest row. */
TEST(a_job_of_3072_ranks_is_simulated_as_64)
{
    ls__sim_job job = job_of(6, 64, 8, "8:300gbyte,8:200gbyte");
    job.use.model = (ls__gpt){128, 25600, 160, 51200, 2048, .untied = false};
    job.use.batch = 1;
    job.use.width = 2;
    job.spec.micro_batches = 512;
    job.device.flops = 312e12;
    job.device.memory = 2039e9;
    const ls__sim_step s = step_of(&job);
    CHECK_NEAR(ls__gpt_parameters(&job.use.model) / 1008e9, 1.0, 1e-3);
    CHECK(s.flops / 3072 / s.step < 312e12);
    CHECK(s.flops / 3072 / s.step > 150e12);
}

TEST(what_cannot_be_simulated_is_refused)
{
    ls__sim_job job = job_of(1, 16, 1, FAST);
    ls__sim_step s;
    CHECK_STATUS(ls__simulate_job(ls__env_posix(), &job, &s), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "%lld layers are fewer than %lld stages; give fewer ranks along "
                                   "pp, or more layers");
    job = job_of(2, 4, 1, FAST);
    job.schedule = "pipedream";
    CHECK_STATUS(ls__simulate_job(ls__env_posix(), &job, &s), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "schedule %s is not simulated with %d ranks of different data: their gradients are "
               "summed at the end of a step, and it has none; give dp, cp and ep the size 1, or a "
               "schedule with a flush, such as 1f1b");
}

/* ---- a search -------------------------------------------------------------------------------- */

/* One table for jobs with other cuts; what takes too long is not simulated. */
TEST(a_borrowed_table_and_a_longest_step_change_no_result)
{
    static const int early[] = {0, 1, 4, 6}, even[] = {0, 2, 4, 6};
    ls__schedule *table = NULL;
    ls__sim_job job = job_of(2, 4, 2, "4:1gbyte,8:1gbit");
    CHECK_OK(ls__schedule_new(ls__env_posix(), job.schedule, &job.spec, &table));
    for (int i = 0; i < 4; i++) {
        job.table = NULL;
        job.longest = 0.0;
        job.first_layer = i % 2 == 0 ? early : even;
        const ls__sim_step own = step_of(&job);
        const double kept = own.rank[0].activations;
        job.table = table;
        const ls__sim_step borrowed = step_of(&job);
        CHECK(borrowed.step == own.step && borrowed.bubble == own.bubble);
        CHECK(borrowed.rank[0].activations == kept && borrowed.dp_bytes == own.dp_bytes);
        job.longest = own.step;
        CHECK(step_of(&job).step == own.step);
        CHECK(step_of(&job).rank[0].activations == kept);
        job.longest = INFINITY;
        CHECK(step_of(&job).step == own.step);
        job.longest = 0.5 * own.step;
        ls__sim_step shorter;
        CHECK_OK(ls__simulate_job(ls__env_posix(), &job, &shorter));
        CHECK(isinf(shorter.step));
        ls__sim_step_free(&shorter);
    }
    ls__schedule_free(table);
}

/* ---- memory of the simulator ----------------------------------------------------------------- */

typedef struct poor_env {
    ls__env env; /* first, so that a pointer to it is one to this */
    int left;
} poor_env;

static void *allocate(const ls__env *env, size_t bytes)
{
    poor_env *poor = (poor_env *)(uintptr_t)env;
    return poor->left-- > 0 ? ls__env_posix()->allocate(ls__env_posix(), bytes) : NULL;
}

TEST(without_memory_there_is_an_error)
{
    ls__sim_job job = job_of(2, 8, 2, "4:1gbyte,8:1gbyte");
    job.cores = 1.0;
    job.spec.micro_batches = 256;
    job.longest = 1e9;
    ls_status status = LS_ERR_MEMORY;
    int said = 0;
    for (int left = 0; status != LS_OK; left++) {
        poor_env poor = {.env = *ls__env_posix(), .left = left};
        ls__sim_step s;
        poor.env.allocate = allocate;
        status = ls__simulate_job(&poor.env, &job, &s);
        CHECK(status == LS_OK || (status == LS_ERR_MEMORY && left < 500));
        said +=
            status != LS_OK &&
            test_count_said(ls_error_message(), SAYS("schedule %s: no memory to simulate it")) > 0;
        if (status == LS_OK) {
            ls__sim_step_free(&s);
        }
    }
    CHECK(said > 0);
}

TEST_MAIN
