/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted from the programs is what the closed forms say, and the other way round; and the
 * count of one message after the other is right where it can be seen by hand. */
#include <stdio.h>
#include <string.h>

#include "../../../../bench/dev/forms.h"
#include "comm/algorithm/registry.h"
#include "sets.h"

static void check_amount(const ls__algorithm *algorithm, int n, const char *what, double counted,
                         double form)
{
    if (counted < form - 1e-9 || counted > form + 1e-9) {
        test_fail(__FILE__, __LINE__, "%s %s of %d ranks: %s: %.4f counted, %.4f by the form",
                  ls__operation_name(algorithm->operation), algorithm->name, n, what, counted,
                  form);
    }
}

static int check_forms(const ls__algorithm *algorithm, const ls__bench_form *form, int n)
{
    ls__program_totals t;
    CHECK_OK(ls__bench_count_totals(algorithm, n, &t));
    if (n == 1) {
        CHECK_INT(t.steps, 0);
        CHECK_INT(t.messages, 0);
    }
    if (form == NULL || !ls__bench_form_holds(form, n)) {
        return 0;
    }
    check_amount(algorithm, n, "steps", t.steps, form->steps.at(n));
    check_amount(algorithm, n, "rank", t.rank, form->rank.at(n));
    check_amount(algorithm, n, "link", t.link, form->link.at(n));
    check_amount(algorithm, n, "total", t.total, form->total.at(n));
    return 1;
}

TEST(closed_forms_equal_the_count_for_1_to_16_ranks)
{
    int count = 0, checked = 0, without = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        const ls__bench_form *form = ls__bench_form_find(algorithms[a]);
        without += form == NULL && algorithms[a]->operation <= LS__OP_EXSCAN ? 1 : 0;
        for (int n = 1; n <= 16 && (algorithms[a]->memories & LS__IN_MESSAGES) != 0; n++) {
            checked += check_forms(algorithms[a], form, n);
        }
    }
    printf("# %d counts\n", checked);
    CHECK(checked > 300);
    CHECK(without <= 2); /* all_gather and broadcast one_shot: no messages, no sum */
}

TEST(totals_tell_steps_apart)
{
    ls__program_totals t;
    CHECK_OK(ls__bench_count_totals(find(LS__OP_ALL_REDUCE, "root"), 5, &t));
    CHECK_INT(t.steps, 2);
    CHECK_INT(t.messages, 8);
    for (int s = 0; s < 2; s++) {
        CHECK_NEAR(t.step[s].rank, 4, 1e-12); /* into the root, then out of it */
        CHECK_NEAR(t.step[s].total, 4, 1e-12);
    }
    CHECK_NEAR(t.wide, 0, 0);
    CHECK_OK(ls__bench_count_totals(find(LS__OP_REDUCE_SCATTER, "recursive_halving"), 8, &t));
    CHECK_INT(t.steps, 3);
    for (int s = 0; s < 3; s++) {
        CHECK_NEAR(t.step[s].rank, 0.5 / (1 << s), 1e-12); /* half of what is left */
        CHECK_NEAR(t.step[s].total, 8 * 0.5 / (1 << s), 1e-12);
    }
    CHECK_NEAR(t.wide, t.total, 1e-12);
}

TEST(a_barrier_takes_a_step_for_each_doubling)
{
    ls__program_totals t;
    CHECK_OK(ls__bench_count_totals(find(LS__OP_BARRIER, "direct"), 9, &t));
    CHECK_INT(t.steps, 4);
    CHECK_INT(t.messages, 36);
    CHECK_NEAR(t.total, 0, 0);
}

TEST_MAIN
