/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of replicas that differ, and of a round under way. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "rows.h"
#include "says.h"
#include "scratch.h"
#include "test.h"

enum { ALL = OUT * IN + OUT, EVERY = 4, BATCHES = 16 };

static const ls_outer_options *diloco(void)
{
    static ls_outer_options o;
    o = *LS_OPTIONS(ls_outer_options, .lr = 0.7, .momentum = 0.9, .nesterov = true);
    return &o;
}

/* Where every test of a job writes; the name is rank 0's. */
static const char *folder(void)
{
    static char path[256];
    if (ls_rank() == 0) {
        scratch_begin();
        (void)snprintf(path, sizeof path, "%s", scratch_at("checkpoints"));
    }
    CHECK_OK(ls_broadcast(ls_world(), path, sizeof path, LS_UINT8, 0, NULL, NULL));
    return path;
}

static void leave_folder(void)
{
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 0) {
        scratch_end();
    }
}

typedef struct run {
    ls_module *net;
    ls_optim *optim;
} run;

static run begin(void)
{
    run r = {.net = ls_ddp_new(ls_linear_new(IN, OUT, NULL), ls_world(), NULL)};
    CHECK_OK(ls_module_status(r.net));
    r.optim = ls_adamw_new(r.net, LS_OPTIONS(ls_adamw_options, .lr = 0.05));
    CHECK_OK(ls_ddp_set_local(r.net, true));
    CHECK_OK(ls_ddp_set_sync(r.net, false));
    CHECK_OK(ls_ddp_average(r.net, LS_OPTIONS(ls_ddp_average_options, .outer = diloco())));
    return r;
}

static void end(const run *r)
{
    ls_optim_free(r->optim);
    ls_module_free(r->net);
}

static void train(const run *r, int from, int to)
{
    for (int batch = from; batch < to; batch++) {
        (void)backward_of(r->net, batch, false);
        CHECK_OK(ls_optim_step(r->optim));
        ls_optim_zero_grad(r->optim);
        if ((batch + 1) % EVERY == 0) {
            CHECK_OK(ls_ddp_average(r->net, LS_OPTIONS(ls_ddp_average_options, .outer = diloco())));
        }
    }
}

static void values_of(const run *r, float out[ALL])
{
    ls_param p[2];
    CHECK_INT(ls_module_params(r->net, p, 2), 2);
    memcpy(out, elements_of(p[0].value), OUT * IN * sizeof *out);
    memcpy(out + OUT * IN, elements_of(p[1].value), OUT * sizeof *out);
}

static ls_checkpoint_item item_of(ls_checkpoint_item item, ls_replicas replicas)
{
    item.replicas = replicas;
    return item;
}

/* The mean for anybody, and each rank's own after it, which wins when both are loaded. */
static void items_of(const run *r, ls_checkpoint_item out[3])
{
    out[0] = item_of((ls_checkpoint_item)LS_ITEM("model", ls_ddp_module(r->net)), LS_REPLICAS_MEAN);
    out[1] = item_of((ls_checkpoint_item)LS_ITEM("model", r->net), LS_REPLICAS_EACH);
    out[2] = item_of((ls_checkpoint_item)LS_ITEM("optim", r->optim), LS_REPLICAS_EACH);
}

static ls_checkpoint *open_at(const char *path, const char *ignore)
{
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_checkpoint_new(path, ls_world(),
                               LS_OPTIONS(ls_checkpoint_options, .ignore = ignore), &c));
    return c;
}

/* A run that ends after `cut` batches, in the middle of a round or between two, and one that goes
 * on from its checkpoint, have the bits of one run. */
static void resume_after(int cut)
{
    float whole[ALL], resumed[ALL];
    int64_t step = -1;
    ls_checkpoint_item items[3];
    const char *path = folder();
    run r = begin();
    train(&r, 0, BATCHES);
    values_of(&r, whole);
    end(&r);

    r = begin();
    train(&r, 0, cut);
    items_of(&r, items);
    ls_checkpoint *c = open_at(path, NULL);
    CHECK_OK(ls_checkpoint_save(c, cut, items, 3));
    CHECK_OK(ls_checkpoint_free(c));
    end(&r);

    r = begin();
    items_of(&r, items);
    c = open_at(path, NULL);
    CHECK_OK(ls_checkpoint_load(c, items, 3, &step));
    CHECK_INT(step, cut);
    train(&r, cut, BATCHES);
    values_of(&r, resumed);
    CHECK(memcmp(whole, resumed, sizeof whole) == 0);
    CHECK_OK(ls_checkpoint_free(c));
    end(&r);
    leave_folder();
}

DIST_TESTS(a_round_of_, _ranks_goes_on_from_a_checkpoint_within_it, 1, 2, 3, 4, 5, 6, 7, 8)
{
    resume_after(2 * EVERY + 3);
}

DIST_TESTS(a_run_of_, _ranks_goes_on_from_a_checkpoint_between_rounds, 1, 2, 3, 8)
{
    resume_after(2 * EVERY);
}

/* What is saved is the mean of the ranks; they keep their own. */
DIST_TEST(the_mean_of_replicas_is_what_any_number_of_ranks_loads, 3)
{
    float all[3 * ALL], mine[ALL], after[ALL];
    int64_t step = -1;
    const char *path = folder();
    run r = begin();
    train(&r, 0, EVERY - 1);
    values_of(&r, mine);
    CHECK_OK(ls_all_gather(ls_world(), mine, all, ALL, LS_FLOAT32, NULL, NULL));
    ls_checkpoint_item items[3];
    items_of(&r, items);
    ls_checkpoint *c = open_at(path, "ranks.");
    CHECK_OK(ls_checkpoint_save(c, 3, items, 3));
    values_of(&r, after);
    CHECK(memcmp(mine, after, sizeof mine) == 0);
    CHECK_OK(ls_checkpoint_load(c, items, 1, &step)); /* without each rank's */
    values_of(&r, after);
    for (int i = 0; i < ALL; i++) {
        const double want =
            ((double)all[i] + (double)all[ALL + i] + (double)all[2 * ALL + i]) / 3.0;
        CHECK_NEAR(after[i], want, 1e-7 * fmax(1.0, fabs(want)));
    }
    CHECK_OK(ls_checkpoint_free(c));
    end(&r);
    leave_folder();
}

DIST_TEST(replicas_that_differ_are_refused_unless_it_is_said_what_is_saved, 2)
{
    const char *path = folder();
    run r = begin();
    train(&r, 0, 1);
    ls_checkpoint *c = open_at(path, NULL);
    ls_checkpoint_item item = LS_ITEM("model", ls_ddp_module(r.net));
    CHECK_STATUS(ls_checkpoint_save(c, 1, &item, 1), LS_ERR_MISMATCH);
    item.replicas = (ls_replicas)7;
    CHECK_STATUS(ls_checkpoint_save(c, 1, &item, 1), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "checkpoint: the item \"%.80s\" has replicas %d; give "
                                   "LS_REPLICAS_EQUAL, _EACH or _MEAN");
    item.replicas = LS_REPLICAS_EACH;
    CHECK_OK(ls_checkpoint_save(c, 1, &item, 1));
    static char prefix[4200];
    memset(prefix, 'p', sizeof prefix - 1);
    ls_checkpoint_item longer = item;
    longer.prefix = prefix;
    CHECK_STATUS(ls_checkpoint_save(c, 1, &longer, 1), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "checkpoint: the prefix \"%.80s\" is longer than %d bytes");
    item.replicas = LS_REPLICAS_EQUAL;
    int64_t step;
    CHECK_STATUS(ls_checkpoint_load(c, &item, 1, &step), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "model.weight");
    CHECK_OK(ls_checkpoint_free(c));
    end(&r);
    leave_folder();
}

DIST_TEST(equal_replicas_keep_their_bits_in_the_mean, 7)
{
    float before[ALL], after[ALL];
    int64_t step;
    const char *path = folder();
    run r = begin();
    ls_checkpoint_item item =
        item_of((ls_checkpoint_item)LS_ITEM("model", ls_ddp_module(r.net)), LS_REPLICAS_MEAN);
    ls_checkpoint *c = open_at(path, NULL);
    values_of(&r, before);
    CHECK_OK(ls_checkpoint_save(c, 1, &item, 1));
    train(&r, 0, 1);
    CHECK_OK(ls_checkpoint_load(c, &item, 1, &step));
    values_of(&r, after);
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_OK(ls_checkpoint_free(c));
    end(&r);
    leave_folder();
}

/* ---- the log --------------------------------------------------------------------------------- */

DIST_TEST(a_log_that_cannot_be_written_fails_on_all_ranks, 2)
{
    run r = begin();
    train(&r, 0, 1);
    CHECK(ls_ddp_average(r.net, LS_OPTIONS(ls_ddp_average_options, .log = "/dev/full")) < 0);
    CHECK_CONTAINS(ls_error_message(), "/dev/full");
    end(&r);
}

DIST_TEST(another_log_than_before_is_refused, 1)
{
    run r = begin();
    scratch_begin();
    CHECK_OK(ls_ddp_average(r.net, LS_OPTIONS(ls_ddp_average_options, .log = scratch_at("a"))));
    CHECK(ls_ddp_average(r.net, LS_OPTIONS(ls_ddp_average_options, .log = scratch_at("b"))) < 0);
    CHECK_SAYS(ls_error_message(), "ls_ddp_average: the log is \"%.200s\", and was \"%.200s\"; "
                                   "give the same in all calls");
    scratch_end();
    end(&r);
}

TEST_MAIN
