/* SPDX-License-Identifier: Apache-2.0 */
/* The plan that a program reads: what it says is what the file says, in the form that pipelines
 * take. */
#include <string.h>

#include <lockstep/lockstep.h>

#include "scratch.h"
#include "test.h"

#define HEAD                                                                                       \
    "{\"format\": \"lockstep plan\", \"version\": 1, \"model\": \"a net\", \"parts\": [\"0\", "    \
    "\"1\", \"2\"], \"workers\": 4, \"schedule\": \"1f1b\", \"micro_batches\": 8, "

static const char *file_of(const char *text)
{
    return scratch_write("plan.json", text, strlen(text));
}

static ls_module *sequence(int count)
{
    ls_module *layers[8];
    for (int i = 0; i < count; i++) {
        layers[i] = ls_linear_new(2, 2, NULL);
    }
    return ls_sequential_new(layers, count);
}

TEST(a_plan_says_what_its_file_says)
{
    ls_plan *plan = NULL;
    scratch_begin();
    CHECK_OK(ls_init(NULL));
    CHECK_OK(
        ls_plan_read(file_of(HEAD "\"stages\": [{\"first\": \"0\", \"replicas\": 2}, {\"first\": "
                                  "\"1\", \"replicas\": 1}, {\"first\": \"2\", \"replicas\": "
                                  "1}], \"predicted\": {\"step_ms\": 1500}}"),
                     &plan));
    CHECK_STR(ls_plan_model(plan), "a net");
    CHECK_STR(ls_plan_cut(plan), "1 2");
    CHECK_STR(ls_plan_replicas(plan), "2,1,1");
    CHECK_STR(ls_plan_schedule(plan), "1f1b");
    CHECK_INT(ls_plan_workers(plan), 4);
    CHECK_INT(ls_plan_stages(plan), 3);
    CHECK_INT(ls_plan_micro_batches(plan), 8);
    CHECK(ls_plan_step_seconds(plan) == 1.5);
    ls_plan_free(plan);
    CHECK_OK(ls_finalize());
    scratch_end();
}

TEST(a_plan_of_one_stage_has_no_cut)
{
    ls_plan *plan = NULL;
    scratch_begin();
    CHECK_OK(ls_init(NULL));
    CHECK_OK(
        ls_plan_read(file_of(HEAD "\"stages\": [{\"first\": \"0\", \"replicas\": 4}]}"), &plan));
    CHECK(ls_plan_cut(plan) == NULL);
    CHECK_STR(ls_plan_replicas(plan), "4");
    CHECK(ls_plan_step_seconds(plan) < 0.0);
    ls_plan_free(plan);
    ls_plan_free(NULL);
    CHECK_OK(ls_finalize());
    scratch_end();
}

TEST(a_plan_is_checked_against_the_parts_of_a_model)
{
    ls_plan *plan = NULL;
    scratch_begin();
    CHECK_OK(ls_init(NULL));
    CHECK_OK(
        ls_plan_read(file_of(HEAD "\"stages\": [{\"first\": \"0\", \"replicas\": 4}]}"), &plan));
    for (int count = 2; count <= 4; count++) {
        ls_module *net = sequence(count);
        CHECK_STATUS(ls_plan_check(plan, net), count == 3 ? LS_OK : LS_ERR_MISMATCH);
        ls_module_free(net);
    }
    ls_plan_free(plan);
    CHECK_OK(ls_finalize());
    scratch_end();
}

TEST_MAIN
