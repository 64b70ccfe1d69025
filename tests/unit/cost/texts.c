/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters and processors as texts: what they mean, and what is refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/env_posix.h"
#include "base/text.h"
#include "cost/cluster.h"
#include "cost/processor.h"
#include "cost/units.h"
#include "says.h"

static ls_status parse(const char *text, ls__cluster *out)
{
    return ls__cluster_parse("--cluster", text, strlen(text), out);
}

static ls__cluster cluster_of(const char *text)
{
    ls__cluster c;
    CHECK_OK(parse(text, &c));
    return c;
}

TEST(a_cluster_is_levels_from_the_innermost_on)
{
    const ls__cluster c = cluster_of("8:200gbyte,4:25gbit@5us");
    CHECK_INT(c.levels, 2);
    CHECK_INT(c.devices, 32);
    CHECK(c.level[0].count == 8 && c.level[0].bandwidth == 200e9 && c.level[0].latency == 0.0);
    CHECK(c.level[1].count == 4 && c.level[1].bandwidth == 25e9 / 8);
    CHECK_NEAR(c.level[1].latency, 5e-6, 1e-20);
}

/* The second number of a level: at 2 GB/s a core moves what four ranks share of 25 Gbit/s. */
TEST(a_core_may_move_what_a_link_carries)
{
    const ls__cluster c = cluster_of("4:200gbyte/20gbyte,2:25gbit@5us/2gbyte");
    CHECK(c.level[0].core == 20e9 && c.level[1].core == 2e9);
    CHECK(c.level[1].bandwidth == 25e9 / 8 && cluster_of("8:1gbit").level[0].core == 0.0);
    ls__arena arena;
    ls__traffic t;
    ls__arena_init(&arena, ls__env_posix(), 4096);
    CHECK(ls__traffic_init(&t, &c, 8, &arena));
    ls__traffic_add(&t, 0, 4);
    const ls__sim_route alone = ls__traffic_route(&t, 2e9, 1);
    CHECK(alone.cores == 1.0 && alone.moved == 2e9);
    CHECK_NEAR(ls__traffic_seconds(&t, 2e9, 0), 1.0, 1e-12);
    ls__traffic_add(&t, 1, 5);
    const ls__sim_route two = ls__traffic_route(&t, 2e9, 1);
    CHECK_NEAR(two.cores, 25e9 / 16 / 2e9, 1e-12);
    CHECK(two.moved == 25e9 / 16);
    ls__arena_fini(&arena);
}

TEST(a_file_of_a_cluster_has_lines_and_comments)
{
    const ls__cluster c = cluster_of("# 4 hosts, 8 devices each\n\n  8:200gbyte  # within\r\n"
                                     "4:25gbyte@5us\n# 3:1gbit, the former network");
    CHECK_INT(c.levels, 2);
    CHECK_INT(c.devices, 32);
    CHECK_NEAR(c.level[1].latency, 5e-6, 1e-20);
}

TEST(ranks_use_the_links_of_the_lowest_level_that_they_share)
{
    const ls__cluster c = cluster_of("2:8gbyte,2:4gbyte,2:1gbyte");
    CHECK_INT(ls__cluster_level_of(&c, 0, 1), 0);
    CHECK_INT(ls__cluster_level_of(&c, 1, 2), 1);
    CHECK_INT(ls__cluster_level_of(&c, 3, 4), 2);
    CHECK_INT(ls__cluster_component(&c, 2), 4);
}

TEST(a_cluster_grows_at_its_highest_level)
{
    ls__cluster c = cluster_of("8:200gbyte,8:25gbyte");
    CHECK(!ls__cluster_extend(&c, 64));
    CHECK(ls__cluster_extend(&c, 65));
    CHECK(c.level[0].count == 8 && c.level[1].count == 9 && c.devices == 72);
}

/* Ranks 0 and 1 of a host send to the other one: each has half of its 4 GB/s. */
TEST(traffic_shares_the_link_of_its_host)
{
    const ls__cluster c = cluster_of("2:8gbyte,2:4gbyte@1ms");
    ls__arena arena;
    ls__traffic t;
    int count = 0;
    ls__arena_init(&arena, ls__env_posix(), 4096);
    CHECK(ls__traffic_init(&t, &c, 4, &arena));
    const ls__sim_resource *links = ls__cluster_links(&c, 4, &arena, &count);
    CHECK_INT(count, 2 * (4 + 2)); /* of ranks and of hosts, both directions */
    CHECK(links[0].rate == 8e9 && links[8].rate == 4e9);
    ls__traffic_add(&t, 0, 2);
    ls__traffic_add(&t, 1, 3);
    const ls__sim_route route = ls__traffic_route(&t, 2e9, 3);
    CHECK(route.weight == 2.0 && route.bytes == 2e9 && route.latency == 3e-3);
    CHECK(route.resource[0] == 8 && route.resource[1] == 8 + 2 + 1);
    CHECK_NEAR(ls__traffic_seconds(&t, 2e9, 3), 1.0 + 3e-3, 1e-12);
    ls__traffic_clear(&t);
    ls__traffic_add(&t, 0, 1);
    ls__traffic_add(&t, 3, 3); /* a rank sends itself nothing */
    CHECK(ls__traffic_route(&t, 2e9, 1).weight == 1.0);
    CHECK_NEAR(ls__traffic_seconds(&t, 2e9, 1), 0.25, 1e-12);
    ls__traffic_clear(&t);
    CHECK(ls__traffic_route(&t, 2e9, 1).resource[0] == LS__SIM_NONE);
    ls__arena_fini(&arena);
}

TEST(clusters_that_are_none_are_refused_with_the_level_that_is_wrong)
{
    static const char *const bad[] = {"8",
                                      "8:",
                                      ":25gbyte",
                                      "0:25gbyte",
                                      "-1:25gbyte",
                                      "8:1e16",
                                      "8:25parsec",
                                      "8:0gbyte",
                                      "8:-1gbyte",
                                      "8:nangbyte",
                                      "8:25gbyte@",
                                      "8:25gbyte/",
                                      "8:25gbyte/0gbyte",
                                      "8:25gbyte/2gbyte@5us",
                                      "8:/2gbyte",
                                      "8:25gbyte@5",
                                      "8:25gbyte@-1us",
                                      "8:25gbyte,",
                                      ",8:25gbyte",
                                      "8:25gbyte,,2:1gbit",
                                      "8 8:1gbit",
                                      "8:1gbit@1us@1us",
                                      "99999999999999999999:1gbit",
                                      "8:1e400gbit",
                                      "8:1gbit@2000s",
                                      "eight:1gbit"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ls__cluster c;
        if (parse(bad[i], &c) != LS_ERR_FORMAT) {
            test_fail(__FILE__, __LINE__, "\"%s\" is accepted", bad[i]);
        }
        CHECK_SAYS(ls_error_message(),
                   "%s: \"%.*s\" is not a level; give count:bandwidth with a bandwidth in gbit "
                   "or gbyte a second and, if there are, @latency and /bytes a second of a core, "
                   "such as 8:25gbyte@5us or 2:1gbit@50us/4gbyte");
    }
}

TEST(clusters_have_limits)
{
    ls__cluster c;
    CHECK_STATUS(parse("2:1gbit,2:1gbit,2:1gbit,2:1gbit,2:1gbit", &c), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(),
               "%s: at most %d levels and %d devices in all are possible; leave some out");
    CHECK_STATUS(parse("65536:1gbit,2:1gbit", &c), LS_ERR_LIMIT);
    CHECK_STATUS(parse("# nothing\n", &c), LS_ERR_FORMAT);
    CHECK_SAYS(ls_error_message(), "%s: it has no level; give one or more, such as 8:25gbyte");
    CHECK_OK(parse("65536:1gbit", &c));
}

/* ---- processors ------------------------------------------------------------------------------ */

static ls_status parse_speed(const char *text, ls__processor *out)
{
    return ls__processor_parse("--device", text, strlen(text), 2, out);
}

/* 2 m n k operations, or 2 (mk + kn + mn) bytes: the longer one. */
TEST(a_matmul_takes_the_time_of_the_roofline)
{
    ls__processor p;
    CHECK_OK(parse_speed("1tflop,1gbyte", &p));
    CHECK_NEAR(ls__processor_matmul(&p, 10000, 10000, 10000), 2.0, 1e-12);
    CHECK_NEAR(ls__processor_matmul(&p, 1000, 1000, 10), 2 * 1.02e6 / 1e9, 1e-12);
    CHECK_NEAR(ls__processor_bytes(&p, 5e8), 0.5, 1e-12);
}

/* Half of the roofline at 1e9, all of it at 1e12: three quarters at the geometric mean. */
TEST(what_was_measured_is_exact_and_counts_for_its_neighbours)
{
    ls__processor p;
    CHECK_OK(parse_speed("1tflop, 1tbyte\nmatmul 10000 10000 10000 2s # best\n\n"
                         "matmul 1000 1000 1000 4ms",
                         &p));
    CHECK_INT(p.matmul.count, 2);
    CHECK_NEAR(ls__processor_matmul(&p, 1000, 1000, 1000), 4e-3, 0.0);
    CHECK_NEAR(ls__processor_matmul(&p, 10000, 10000, 10000), 2.0, 0.0);
    const double n = pow(10.0, 10.5) / 1e6; /* m n k between the two */
    CHECK_NEAR(ls__processor_matmul(&p, 1000, 1000, (int64_t)n), 2e6 * n / 1e12 / 0.75, 1e-4);
    CHECK_NEAR(ls__processor_matmul(&p, 100, 100, 1000), 2e7 / 1e12 / 0.5, 1e-12);
    CHECK_NEAR(ls__processor_matmul(&p, 100000, 10000, 10000), 20.0, 1e-12);
}

/* Two matmuls until it was measured; then a curve of its own, here of a quarter of the roofline. */
TEST(attention_has_its_own_measured_times)
{
    ls__processor p;
    CHECK_OK(parse_speed("1tflop,1tbyte,matmul 1000 1000 1000 4ms", &p));
    CHECK_NEAR(ls__processor_attention(&p, 1000, 1000, 1000), 8e-3, 0.0);
    CHECK_OK(
        parse_speed("1tflop,1tbyte,matmul 1000 1000 1000 4ms,attention 1000 1000 1000 16ms", &p));
    CHECK_NEAR(ls__processor_attention(&p, 1000, 1000, 1000), 16e-3, 0.0);
    CHECK_NEAR(ls__processor_attention(&p, 10000, 1000, 1000), 160e-3, 1e-12);
    CHECK_NEAR(ls__processor_matmul(&p, 10000, 1000, 1000), 40e-3, 1e-12);
}

TEST(messages_and_waits_take_times)
{
    ls__processor p;
    CHECK_OK(parse_speed("1tflop,1tbyte", &p));
    CHECK(p.message == 0.0 && p.wait == 0.0);
    CHECK_OK(parse_speed("1tflop,1tbyte,message 30us,wait 0.015ms", &p));
    CHECK_NEAR(p.message, 30e-6, 1e-15);
    CHECK_NEAR(p.wait, 15e-6, 1e-15);
}

/* However many rows there are: 100 keys are as efficient as was measured with few rows. */
TEST(attention_to_few_keys_is_as_efficient_as_one_of_its_rows)
{
    ls__processor p;
    CHECK_OK(parse_speed("1tflop,1000tbyte,attention 100000 1000 1000 800ms,"
                         "attention 100 100 1000 0.16ms",
                         &p));
    CHECK_NEAR(ls__processor_attention(&p, 100000, 100, 1000), 160e-3, 1e-9);
    CHECK_NEAR(ls__processor_attention(&p, 10, 1000, 1000), 80e-6, 1e-12);
}

TEST(processors_that_are_none_are_refused)
{
    static const char *const bad[] = {"fast",
                                      "312tflop,2039gbyte,",
                                      "0tflop,1gbyte",
                                      "matmul",
                                      "matmul 1 2 3",
                                      "matmul 1 2 3 4",
                                      "matmul 0 2 3 4ms",
                                      "matmul 1 2 99999999999999999999 4ms",
                                      "matmul 1 2 3 0ms",
                                      "matmul1 2 3 4ms",
                                      "matmul 1 2 3 4 5ms",
                                      "attention 1 2 3",
                                      "attention 1 2 0 4ms",
                                      "attentions 1 2 3 4ms",
                                      "wait",
                                      "wait 5",
                                      "message 5us 6us"};
    ls__processor p;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse_speed(bad[i], &p) != LS_ERR_FORMAT) {
            test_fail(__FILE__, __LINE__, "\"%s\" is accepted", bad[i]);
        }
        CHECK_SAYS(ls_error_message(),
                   "%s: \"%.*s\" is not a speed of a device; give its speed as 312tflop, its "
                   "memory's as 2039gbyte, or matmul M N K TIME or attention ROWS CONTEXT WIDTH "
                   "TIME, such as matmul 8192 6144 2048 0.92ms, or message or wait TIME");
    }
    CHECK_STATUS(parse_speed("312tflop", &p), LS_ERR_FORMAT);
    CHECK_SAYS(ls_error_message(),
               "%s: it lacks the speed of %s; give both, such as 312tflop,2039gbyte");
    static char many[8192];
    ls__text text = {many, sizeof many};
    ls__text_add(&text, "1tflop,1gbyte");
    for (int i = 0; i < 257; i++) {
        ls__text_add(&text, ",matmul 1 2 3 4ms");
    }
    CHECK_STATUS(parse_speed(many, &p), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "%s: more than %d measured times of a kind; leave some out");
}

TEST(amounts_have_units)
{
    CHECK(ls__amount_parse("8g", 2, false) == 8 * 0x1p30);
    CHECK(ls__amount_parse("8gbit", 5, true) == 1e9);
    CHECK(ls__amount_parse("8gbit", 5, false) < 0.0);
    CHECK(ls__amount_parse("8g\0x", 4, false) < 0.0);
    CHECK(ls__amount_parse("1.5KBYTE", 8, true) == 1500.0);
    CHECK_NEAR(ls__seconds_parse("2us", 3), 2e-6, 1e-20);
    CHECK(ls__flops_parse("2pflop", 6) == 2e15);
}

TEST_MAIN
