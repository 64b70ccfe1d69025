/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles: what is measured of a model's parts, and the chain that the partitioner gets of it. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/resnet.h>

#include "base/env_posix.h"
#include "comm/runtime/init.h"
#include "plan/plan.h"
#include "plan/profile.h"
#include "says.h"
#include "scratch.h"
#include "test.h"

enum { BATCH = 2, TOKENS = 6, VOCAB = 11 };

static ls__profile *profile_of(ls_module *net, ls_tensor *const *inputs, int count,
                               ls_tensor *target, const ls_profile_options *options)
{
    ls__profile *found = NULL;
    const char *path = scratch_at("profile.json");
    CHECK_OK(ls_profile_write(net, inputs, count, target, options, path));
    CHECK_OK(ls__profile_read(ls__env_posix(), path, &found));
    CHECK_INT(found->part_count, ls_module_part_count(net));
    return found;
}

static ls_tensor *tokens(int which)
{
    int32_t x[BATCH * TOKENS];
    for (int i = 0; i < BATCH * TOKENS; i++) {
        x[i] = which == 0 ? i * 5 % VOCAB : which == 1 ? i % 3 == 0 : i % TOKENS < TOKENS - 1;
    }
    return ls_from_data(x, LS_SHAPE(BATCH, TOKENS), LS_INT32);
}

static ls_tensor *sum_of_squares(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    (void)target;
    return ls_mean(ls_mul(output, output));
}

static int64_t weight_bytes(const ls__profile *p)
{
    int64_t bytes = 0;
    for (int i = 0; i < p->part_count; i++) {
        bytes += p->parts[i].weight_bytes;
    }
    for (int k = 0; k < p->shared_count; k++) {
        bytes += p->shared[k].bytes;
    }
    return bytes;
}

/* Names, edges and parameters are the model's, and everything takes time. */
static void check_profile(const ls__profile *p, ls_module *net)
{
    for (int i = 0; i < p->part_count; i++) {
        const ls__profile_part *part = &p->parts[i];
        int from[LS_PART_FROM_MAX];
        CHECK_STR(part->name, ls_module_part_name(net, i));
        CHECK_INT(part->from_count, ls_module_part_from(net, i, from));
        CHECK(memcmp(from, part->from, (size_t)part->from_count * sizeof *from) == 0);
        CHECK(part->forward > 0.0 && part->output_bytes > 0);
    }
    CHECK_INT(weight_bytes(p), ls_module_numel(net) * 4);
    CHECK_INT(p->batch, BATCH);
    CHECK(p->repeats >= 3 && p->threads >= 1 && p->cores >= 1 && p->cpu[0] != '\0');
}

TEST(a_tied_embedding_is_shared_by_the_first_and_the_last_part)
{
    scratch_begin();
    CHECK_OK(ls_init(NULL));
    ls_module *net = ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .layers = 3, .heads = 2, .dim = 16,
                                            .context = TOKENS, .vocab = VOCAB, .dropout = 0.2));
    ls_tensor *x = tokens(0);
    ls__profile *p =
        profile_of(net, &x, 1, tokens(0), LS_OPTIONS(ls_profile_options, .seconds = 0.01));
    check_profile(p, net);
    CHECK_STR(p->model, "gpt2");
    CHECK_INT(p->shared_count, 1);
    CHECK_INT(p->shared[0].bytes, VOCAB * 16 * 4);
    for (int i = 0; i < p->part_count; i++) {
        CHECK(p->shared[0].used_by[i] == (i == 0 || i == p->part_count - 1));
    }
    /* Blocks are alike; a block keeps more than its result. */
    CHECK_INT(p->parts[1].output_bytes, BATCH * TOKENS * 16 * 4);
    CHECK_INT(p->parts[1].gradient_bytes, p->parts[1].output_bytes);
    CHECK_INT(p->parts[1].kept_bytes, p->parts[2].kept_bytes);
    CHECK(p->parts[1].kept_bytes > 4 * p->parts[1].output_bytes);
    CHECK(p->parts[1].input > 0.0 && p->parts[1].weight > 0.0);
    ls__profile_free(p);
    CHECK(ls_grad(ls_module_param(net, "transformer.wte.weight")) == NULL);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    scratch_end();
}

TEST(a_mask_that_every_block_takes_crosses_all_cuts_and_has_no_gradient)
{
    scratch_begin();
    CHECK_OK(ls_init(NULL));
    ls_module *net = ls_bert_new(LS_OPTIONS(ls_bert_options, .layers = 3, .heads = 2, .dim = 16,
                                            .wide = 64, .context = TOKENS, .vocab = VOCAB));
    ls_tensor *in[3] = {tokens(0), tokens(1), tokens(2)};
    ls__chain chain;
    ls__profile *p = profile_of(
        net, in, 3, NULL,
        LS_OPTIONS(ls_profile_options, .model = "a bert", .seconds = 0.01, .loss = sum_of_squares));
    check_profile(p, net);
    CHECK_STR(p->model, "a bert");
    CHECK_OK(ls__profile_chain(p, &chain));
    const double hidden = BATCH * TOKENS * 16 * 4;
    for (int i = 1; i < p->part_count - 2; i++) {
        CHECK(chain.backward[i] == hidden);
        CHECK(chain.forward[i] >= hidden);
    }
    ls__profile_free(p);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    scratch_end();
}

TEST(images_are_profiled_too)
{
    scratch_begin();
    CHECK_OK(ls_init(NULL));
    ls_module *net = ls_resnet_new(18, 5, true);
    ls_tensor *x = ls_randn(LS_SHAPE(BATCH, 3, 8, 8));
    ls__profile *p =
        profile_of(net, &x, 1, ls_from_data((int32_t[]){1, 2}, LS_SHAPE(BATCH), LS_INT32),
                   LS_OPTIONS(ls_profile_options, .seconds = 0.01));
    check_profile(p, net);
    for (int i = 0; i < p->part_count; i++) { /* also where activations are channels-last */
        CHECK(p->parts[i].weight > 0.0 && (i == 0 || p->parts[i].input > 0.0));
    }
    ls__profile_free(p);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    scratch_end();
}

/* ---- a model whose times and edges are known ------------------------------------------------- */

#define SLOW_MS 20

typedef struct skipping {
    ls_module base;
    ls_module *down, *low, *up;
} skipping;

static ls_tensor *slow(ls_module *m, ls_tensor *const *x)
{
    nanosleep(&(struct timespec){.tv_nsec = SLOW_MS * 1000000L}, NULL);
    return ls_forward(((skipping *)m)->low, x[0]);
}

static ls_tensor *join(ls_module *m, ls_tensor *const *x)
{
    return ls_forward(((skipping *)m)->up, ls_add(x[0], x[1]));
}

static ls_tensor *unused(ls_module *m, ls_tensor *x)
{
    (void)m;
    return x;
}

static void skipping_parts(ls_module *m, ls_parts *parts)
{
    const int high = ls_parts_add(parts, &LS_PART(.module = ((skipping *)m)->down));
    const int low = ls_parts_add(parts, &LS_PART(.name = "slow", .run = slow, .uses = "low"));
    ls_parts_add(parts, &LS_PART(.name = "join", .run = join, .uses = "up",
                                 .from = (int[]){low, high}, .from_count = 2));
}

static const ls_module_class skipping_class =
    LS_MODULE_CLASS(.name = "skipping", .forward = unused, .parts = skipping_parts);

TEST(times_belong_to_the_part_that_takes_them_and_edges_cross_every_cut_on_their_way)
{
    scratch_begin();
    CHECK_OK(ls_init(NULL));
    skipping *self = ls_module_new(sizeof *self, &skipping_class);
    self->down = ls_module_add(&self->base, "down", ls_linear_new(8, 6, NULL));
    self->low = ls_module_add(&self->base, "low", ls_linear_new(6, 6, NULL));
    self->up = ls_module_add(&self->base, "up", ls_linear_new(6, 4, NULL));
    ls_tensor *x = ls_randn(LS_SHAPE(BATCH, 8));
    ls__chain chain;
    ls__profile *p =
        profile_of(&self->base, &x, 1, NULL,
                   LS_OPTIONS(ls_profile_options, .seconds = 0.01, .loss = sum_of_squares));
    check_profile(p, &self->base);
    CHECK(p->repeats == 3);
    CHECK(p->parts[1].forward >= SLOW_MS * 1e-3);
    CHECK(p->parts[0].forward < p->parts[1].forward && p->parts[2].forward < p->parts[1].forward);
    CHECK(p->parts[1].input < p->parts[1].forward && p->parts[1].weight < p->parts[1].forward);
    CHECK(p->parts[0].input + p->parts[0].weight > 0.0);
    CHECK_OK(ls__profile_chain(p, &chain));
    const double edge = BATCH * 6 * 4;
    CHECK(chain.forward[0] == edge && chain.backward[0] == edge);
    CHECK(chain.forward[1] == 2 * edge && chain.backward[1] == 2 * edge);
    CHECK(chain.forward[2] == 0.0 && chain.backward[2] == 0.0);
    CHECK(chain.weights[0] == (8 * 6 + 6) * 4.0);
    ls__profile_free(p);
    ls_module_free(&self->base);
    CHECK_OK(ls_finalize());
    scratch_end();
}

/* ---- without memory -------------------------------------------------------------------------- */

static bool refuses;

static void *allocate(const ls__env *env, size_t bytes)
{
    (void)env;
    return refuses ? NULL : ls__env_posix()->allocate(ls__env_posix(), bytes);
}

TEST(without_memory_nothing_is_measured_or_written)
{
    static ls__env env;
    ls__chain chain;
    env = *ls__env_posix();
    env.allocate = allocate;
    scratch_begin();
    CHECK_OK(ls__init_with(&env, NULL));
    ls_module *net = ls_linear_new(2, 2, NULL);
    ls_tensor *x = ls_randn(LS_SHAPE(1, 2));
    ls__profile *p = ls__profile_new(&env, 1000);
    CHECK(p != NULL);
    refuses = true;
    CHECK_STATUS(ls_profile_write(net, &x, 1, NULL, NULL, scratch_at("p.json")), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), SAYS("ls_profile_write: no memory for the profile"));
    CHECK_STATUS(ls__profile_chain(p, &chain), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), SAYS("plan: no memory for %zu parts"));
    refuses = false;
    CHECK_STATUS(ls__plan_save(&env, "plan", NULL, scratch_at("p.json")), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), SAYS("%s: no memory to write it"));
    ls__profile_free(p);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    scratch_end();
}

TEST_MAIN
