/* SPDX-License-Identifier: Apache-2.0 */
/* The names of state in a checkpoint. */
#include "base/text.h"

#include "says.h"

TEST(a_name_of_state_has_a_dot_between_its_parts_and_none_for_an_absent_one)
{
    char name[64];
    CHECK_OK(ls__state_name(name, sizeof name, "optim", "exp_avg", "layers.0.weight"));
    CHECK_STR(name, "optim.exp_avg.layers.0.weight");
    CHECK_OK(ls__state_name(name, sizeof name, NULL, "", "weight"));
    CHECK_STR(name, "weight");
    CHECK_OK(ls__state_name(name, sizeof name, "model", "", ""));
    CHECK_STR(name, "model");
    CHECK_OK(ls__state_name(name, sizeof name, "", "", ""));
    CHECK_STR(name, "");
}

TEST(a_name_of_state_that_does_not_fit_is_refused)
{
    char name[8];
    CHECK_OK(ls__state_name(name, sizeof name, "ab", "cd", "e"));
    CHECK_STR(name, "ab.cd.e");
    CHECK_STATUS(ls__state_name(name, sizeof name, "ab", "cd", "ef"), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "state: the name \"%.60s.%.60s\" is longer than %zu bytes");
}

TEST_MAIN
