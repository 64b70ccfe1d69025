/* SPDX-License-Identifier: Apache-2.0 */
/* The generators' tables: verified, equal to the sequential twin, in the order of the papers, with
 * the memory that the papers' formulas give; and the specs that they refuse. */
#include "base/env_posix.h"
#include "base/text.h"
#include "cost/simulate.h"
#include "execute.h"
#include "says.h"
#include "tables.h"

static void check_peaks(ls__schedule *s)
{
    ls__schedule_peak peaks[LS__SCHEDULE_RANKS_MAX];
    CHECK_OK(ls__schedule_peaks(s, NULL, peaks));
    for (int r = 0; r < s->ranks; r++) {
        ls__schedule_peak formula;
        ls__schedule_closed_peak(s, r, &formula);
        if (peaks[r].activations != formula.activations || peaks[r].inputs != formula.inputs ||
            peaks[r].stashed != formula.stashed) {
            test_fail(__FILE__, __LINE__,
                      "%s P=%d M=%d rank %d: activations %lld, inputs %lld, stashed %lld, by the "
                      "formulas %lld, %lld, %lld",
                      s->name, s->ranks, s->micro_batches, r, (long long)peaks[r].activations,
                      (long long)peaks[r].inputs, (long long)peaks[r].stashed,
                      (long long)formula.activations, (long long)formula.inputs,
                      (long long)formula.stashed);
        }
    }
}

static void check_table(const char *name, const ls__schedule_spec *spec)
{
    const char *why = NULL;
    ls__schedule *s = table_of(name, spec); /* verified */
    if (!executes_as_twin(s, &why)) {
        test_fail(__FILE__, __LINE__, "%s P=%d M=%d: %s", name, spec->ranks, spec->micro_batches,
                  why);
    }
    check_peaks(s);
    ls__schedule_free(s);
}

TEST(tables_of_all_sizes_execute_as_their_twin_with_the_memory_of_the_formulas)
{
    for (int p = 1; p <= 8; p++) {
        for (int m = 1; m <= 20; m++) {
            for (int recompute = 0; recompute < 2; recompute++) {
                ls__schedule_spec spec = {.ranks = p, .micro_batches = m, .recompute = recompute};
                check_table("naive", &spec);
                check_table("gpipe", &spec);
                check_table("1f1b", &spec);
                check_table("zb-h1", &spec);
                check_table("pipedream", &spec);
                spec.vertical_sync = true;
                check_table("pipedream", &spec);
                spec.vertical_sync = false;
                for (spec.warm_up = 2; spec.warm_up <= 4; spec.warm_up++) {
                    check_table("1f1b", &spec);
                }
            }
        }
    }
}

static void check_peaks_of(const char *name, const ls__schedule_spec *spec)
{
    ls__schedule *s = table_of(name, spec); /* verified */
    check_peaks(s);
    ls__schedule_free(s);
}

/* More micro-batches than are executed above. */
TEST(peaks_of_up_to_64_micro_batches_are_those_of_the_formulas)
{
    for (int p = 2; p <= 8; p++) {
        for (int m = 21; m <= 64; m++) {
            for (int recompute = 0; recompute < 2; recompute++) {
                ls__schedule_spec spec = {.ranks = p, .micro_batches = m, .recompute = recompute};
                check_peaks_of("naive", &spec);
                check_peaks_of("gpipe", &spec);
                check_peaks_of("1f1b", &spec);
                check_peaks_of("zb-h1", &spec);
                check_peaks_of("pipedream", &spec);
                spec.chunks = 1 + m / p % 4;
                spec.micro_batches = m / p * p;
                check_peaks_of("interleaved", &spec);
                spec.chunks = 0;
                check_peaks_of("pipedream-2bw", &spec);
            }
        }
    }
}

TEST(tables_that_need_multiples_execute_as_their_twin_with_the_memory_of_the_formulas)
{
    for (int p = 1; p <= 6; p++) {
        for (int times = 1; times <= 5; times++) {
            for (int more = 1; more <= 4; more++) {
                const ls__schedule_spec chunks = {
                    .ranks = p, .micro_batches = times * p, .chunks = more};
                const ls__schedule_spec two_versions = {
                    .ranks = p, .micro_batches = times * (p + more), .per_step = p + more};
                check_table("interleaved", &chunks);
                check_table("pipedream-2bw", &two_versions);
            }
        }
    }
}

/* Also in random order of sizes: replicas before, behind and between single ranks. */
TEST(tables_with_replicas_execute_as_their_twin_with_the_memory_of_the_formulas)
{
    static const char *const all[] = {"2",   "2,1",   "1,2",   "3,2",   "2,2",     "1,3,2",
                                      "8,1", "1,8",   "5,3",   "3,5",   "2,1,1",   "1,1,2",
                                      "4,3", "3,1,4", "1,6,1", "7,2,1", "2,2,2,2", "1,2,3,4"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        for (int m = 8; m <= 26; m++) {
            for (int recompute = 0; recompute < 2; recompute++) {
                ls__schedule_spec spec = {
                    .replicas = all[i], .micro_batches = m, .recompute = recompute};
                check_table("gpipe", &spec);
                check_table("1f1b", &spec);
                spec.warm_up = 2;
                check_table("1f1b", &spec);
            }
        }
    }
}

/* NOAM of PipeDream's section 3.2 at the first stage; one replica each is no replicas. */
TEST(replicas_of_one_are_none_and_the_first_stage_runs_noam_micro_batches)
{
    const ls__schedule_spec ones = {.replicas = "1,1,1", .micro_batches = 4},
                            plain = {.ranks = 3, .micro_batches = 4},
                            uneven = {.replicas = "3,1", .ranks = 4, .micro_batches = 12};
    ls__schedule *a = table_of("pipedream", &ones), *b = table_of("pipedream", &plain);
    CHECK_STR(ls__schedule_print(a), ls__schedule_print(b));
    ls__schedule_free(a);
    ls__schedule_free(b);
    ls__schedule_peak peaks[4];
    a = table_of("1f1b", &uneven);
    CHECK_OK(ls__schedule_peaks(a, NULL, peaks));
    CHECK_INT(peaks[0].activations, 2); /* ceil(4 / 3) */
    CHECK_INT(peaks[2].activations, 2);
    CHECK_INT(peaks[3].activations, 1);
    ls__schedule_free(a);
}

/* What a rank computes, without messages and versions. */
static void check_order(const char *name, ls__schedule_spec spec, int rank, const char *want)
{
    char got[1024], action[LS__ACTION_BYTES];
    ls__text text = {got, sizeof got};
    ls__schedule *s = table_of(name, &spec);
    for (int i = 0; i < s->rank[rank].count; i++) {
        const ls__action *a = &s->rank[rank].list[i];
        if (a->kind <= LS__WEIGHT_PART) {
            ls__text_add(&text, "%s%s", text.at > got ? " " : "", ls__action_print(a, action));
        }
    }
    CHECK_STR(got, want);
    ls__schedule_free(s);
}

/* The figures of the papers: GPipe's 2c with ascending backwards, PipeDream's 4, Megatron-LM's 4,
 * ZB's 2. */
TEST(computations_stand_in_the_order_of_the_papers)
{
    const ls__schedule_spec three = {.ranks = 3, .micro_batches = 4};
    check_order("naive", three, 1, "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3");
    check_order("gpipe", three, 1, "1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3");
    check_order("1f1b", three, 0, "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3");
    check_order("1f1b", three, 2, "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3");
    check_order("zb-h1", three, 0, "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3");
    check_order("zb-h1", three, 2, "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3");
    check_order("interleaved", (ls__schedule_spec){.ranks = 2, .micro_batches = 4}, 0,
                "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3");
    check_order("gpipe", (ls__schedule_spec){.ranks = 1, .micro_batches = 2, .recompute = true}, 0,
                "0F0 0F1 0R0 0B0 0R1 0B1");
    /* PipeDream's figure 8. */
    check_order("1f1b", (ls__schedule_spec){.replicas = "2,1", .micro_batches = 6}, 1,
                "0F1 0F3 0B1 0F5 0B3 0B5");
    check_order("1f1b", (ls__schedule_spec){.replicas = "2,1", .micro_batches = 6}, 2,
                "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3 1F4 1B4 1F5 1B5");
}

/* A send stands behind its computation, its receive where the peer's list ended then. */
TEST(a_table_of_two_ranks_is_this_one)
{
    const ls__schedule_spec spec = {.ranks = 2, .micro_batches = 3};
    ls__schedule *s = table_of("pipedream", &spec);
    CHECK_STR(
        ls__schedule_print(s),
        "schedule pipedream\nranks 2\nstages 2\nmicro-batches 3\nper-step 1\n"
        "delay by-stage\nrecompute no\nplacement 0 1\n"
        "rank 0: 0F0 0SEND_F0>1 0F1 0SEND_F1>1 0RECV_B0<1 0B0 0REDUCE 0STASH@0 0STEP@1\n"
        "rank 0: 0F2 0SEND_F2>1 0RECV_B1<1 0LOAD@0 0B1 0REDUCE 0STASH@1 0STEP@2 0LOAD@1\n"
        "rank 0: 0RECV_B2<1 0B2 0REDUCE 0STEP@3\n"
        "rank 1: 1RECV_F0<0 1F0 1RECV_F1<0 1B0 1SEND_B0>0 1REDUCE 1STEP@1 1F1 1B1 1RECV_F2<0\n"
        "rank 1: 1SEND_B1>0 1REDUCE 1STEP@2 1F2 1B2 1SEND_B2>0 1REDUCE 1STEP@3\n");
    ls__schedule_free(s);
}

TEST(peaks_add_the_sizes_of_the_stages)
{
    const ls__stage_sizes sizes[] = {{10, 1, 1000}, {20, 2, 2000}, {40, 4, 4000}, {80, 8, 8000}};
    ls__schedule_peak peaks[4];
    const ls__schedule_spec two = {.ranks = 2, .micro_batches = 4},
                            four = {.ranks = 4, .micro_batches = 9};
    ls__schedule *s = table_of("interleaved", &two);
    CHECK_OK(ls__schedule_peaks(s, sizes, peaks));
    CHECK_INT(peaks[0].activations, 3 * 10 + 2 * 40); /* 0F0 0F1 2F0 2F1 0F2 */
    CHECK_INT(peaks[1].activations, 2 * 20 + 80);
    ls__schedule_free(s);
    s = table_of("pipedream", &four);
    CHECK_OK(ls__schedule_peaks(s, sizes, peaks));
    CHECK_INT(peaks[0].stashed, 3 * 1000);
    CHECK_INT(peaks[2].stashed, 4000);
    CHECK_INT(peaks[3].stashed, 0);
    CHECK_INT(peaks[1].activations, 3 * 20);
    CHECK_INT(peaks[0].received, 0);
    CHECK_INT(peaks[1].received, 2);
    CHECK_INT(peaks[3].received, 8);
    ls__schedule_free(s);
}

TEST(a_stash_that_nobody_reads_is_dropped_at_once)
{
    ls__schedule_peak peak;
    ls__schedule *s = table_parsed(
        "schedule x\nranks 1\nstages 1\nmicro-batches 2\nper-step 1\nrank 0: 0F0 0B0 0REDUCE "
        "0STASH@0 0STEP@1 0F1 0B1 0REDUCE 0STASH@1 0STEP@2\n");
    CHECK_OK(ls__schedule_verify(s));
    CHECK_OK(ls__schedule_peaks(s, NULL, &peak));
    CHECK_INT(peak.stashed, 1);
    ls__schedule_free(s);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(const char *name, ls__schedule_spec spec, ls_status status, const char *says)
{
    ls__schedule *s = (ls__schedule *)(uintptr_t)1;
    CHECK_STATUS(ls__schedule_new(ls__env_posix(), name, &spec, &s), status);
    CHECK(s == NULL);
    CHECK_SAYS(ls_error_message(), says);
}

TEST(specs_that_make_no_schedule_are_refused_with_the_reason)
{
    const ls__schedule_spec good = {.ranks = 2, .micro_batches = 4};
    refused("1f2b", good, LS_ERR_NOT_FOUND,
            SAYS("there is no schedule \"%s\"; give naive, gpipe, 1f1b, interleaved, zb-h1, "
                 "pipedream or pipedream-2bw"));
    refused("interleaved", (ls__schedule_spec){.ranks = 4, .micro_batches = 6}, LS_ERR_INVALID,
            SAYS("schedule interleaved: %d micro-batches on %d ranks; give a multiple of %d, "
                 "because that many pass a stage before the rank goes on to its next one"));
    refused(
        "pipedream-2bw", (ls__schedule_spec){.ranks = 4, .micro_batches = 6, .per_step = 3},
        LS_ERR_INVALID,
        SAYS("schedule pipedream-2bw: %d micro-batches, %d a step, on %d ranks; a step needs one "
             "for each rank at least, and all steps equally many"));
    refused("gpipe", (ls__schedule_spec){.ranks = 2, .micro_batches = 4, .vertical_sync = true},
            LS_ERR_INVALID, SAYS("schedule %s: it has no %s; only %s has"));
    static const char *const malformed[] = {"", "2,,1", "2,1,", "0,1", "2 1", "257", "-1", "2;1"};
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        refused(
            "1f1b", (ls__schedule_spec){.replicas = malformed[i], .micro_batches = 4},
            LS_ERR_INVALID,
            SAYS("%s: found replicas \"%.*s\"; give the number of ranks of each stage, 1 to %d, "
                 "with commas between them, as in 2,1,1"));
    }
    refused("1f1b", (ls__schedule_spec){.replicas = "2,1", .ranks = 4, .micro_batches = 4},
            LS_ERR_INVALID,
            SAYS("%s: the replicas of %d stages are %d ranks, and there are %d; give as many "
                 "replicas as ranks"));
    refused("1f1b", (ls__schedule_spec){.replicas = "1,1", .ranks = 3, .micro_batches = 4},
            LS_ERR_INVALID, "%s: the replicas of %d stages are %d ranks, and there are %d");
    refused("gpipe", (ls__schedule_spec){.replicas = "1,3", .micro_batches = 2}, LS_ERR_INVALID,
            SAYS("%s: stage %d has %d replicas, and there are %d micro-batches; give at least one "
                 "micro-batch for each replica"));
    static const char *const others[][2] = {
        {"naive", SAYS("one rank works at a time")},
        {"interleaved", SAYS("each rank has several stages")},
        {"zb-h1", SAYS("the delay of its weight parts goes by ranks")},
        {"pipedream", SAYS("its stages would step after different micro-batches")},
        {"pipedream-2bw", SAYS("replicas would have to agree within its steps")}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const ls__schedule_spec spec = {.replicas = "2,1", .micro_batches = 6};
        refused(others[i][0], spec, LS_ERR_INVALID, others[i][1]);
        refused(others[i][0], spec, LS_ERR_INVALID,
                SAYS("%s: stages with several replicas were asked for (%.100s), and it has none, "
                     "because %s; give gpipe or 1f1b, or one rank for each stage"));
    }
    refused("gpipe", (ls__schedule_spec){.ranks = 2}, LS_ERR_INVALID,
            SAYS("%s: %d ranks, %lld stages, %d micro-batches; there must be one of each, and a "
                 "stage for every rank"));
    refused("interleaved", (ls__schedule_spec){.ranks = 128, .micro_batches = 128, .chunks = 33},
            LS_ERR_LIMIT, "%s: %d ranks, %lld stages, %d micro-batches; at most %d, %d and %d");
    refused("interleaved", (ls__schedule_spec){.ranks = 256, .micro_batches = 4, .chunks = 1 << 30},
            LS_ERR_LIMIT,
            SAYS("%s: %d ranks, %lld stages, %d micro-batches; at most %d, %d and %d are possible, "
                 "and %d forwards in all"));
}

/* An env whose memory ends after some allocations, or that fails one alone. */
typedef struct poor_env {
    ls__env env;
    int left;
    bool once;
} poor_env;

static void *allocate(const ls__env *env, size_t bytes)
{
    poor_env *self = (poor_env *)(uintptr_t)env;
    const int left = self->left--;
    return left > 0 || (left < 0 && self->once) ? ls__env_posix()->allocate(env, bytes) : NULL;
}

static void release(const ls__env *env, void *memory, size_t bytes)
{
    ls__env_posix()->release(env, memory, bytes);
}

static void check_no_memory(void)
{
    static const char *const sentences[] = {
        SAYS("%s: no memory for a schedule"),        SAYS("schedule %s: no memory for its table"),
        SAYS("schedule %s: no memory to verify it"), SAYS("schedule %s: no memory to measure it"),
        SAYS("schedule %s: no memory to time it"),   SAYS("schedule %s: no memory for its text"),
    };
    int said = 0;
    for (size_t i = 0; i < sizeof sentences / sizeof *sentences; i++) {
        said += test_count_said(ls_error_message(), sentences[i]);
    }
    CHECK_INT(said, 1);
}

/* Each allocation fails once. */
static void time_without_memory(ls__schedule *s, poor_env *poor)
{
    ls__sim_result cost;
    const ls__stage_times times[4] = {{1, 2, 1, 1}};
    ls_status status = LS_ERR_MEMORY;
    poor->once = true;
    for (int left = 0; status != LS_OK; left++) {
        poor->left = left;
        status = ls__simulate(s, &(ls__sim_spec){.times = times}, &cost);
        CHECK(status == LS_OK || (status == LS_ERR_MEMORY && left < 100));
    }
}

/* The table is whole, and nothing more fits. */
static void use_without_memory(ls__schedule *s)
{
    ls__sim_result cost;
    ls__schedule_peak peaks[4];
    const ls__stage_times times[4] = {{1, 2, 1, 1}};
    CHECK_STATUS(ls__schedule_verify(s), LS_ERR_MEMORY);
    check_no_memory();
    CHECK_STATUS(ls__schedule_peaks(s, NULL, peaks), LS_ERR_MEMORY);
    check_no_memory();
    CHECK_STATUS(ls__simulate(s, &(ls__sim_spec){.times = times}, &cost), LS_ERR_MEMORY);
    check_no_memory();
    CHECK_STATUS(ls__schedule_print(s), LS_ERR_MEMORY);
    check_no_memory();
}

TEST(without_memory_there_is_an_error_and_no_leak)
{
    ls__schedule *s = NULL;
    const ls__schedule_spec spec = {.ranks = 4, .micro_batches = 1024};
    ls_status status = LS_ERR_MEMORY;
    for (int left = 0; status != LS_OK; left++) {
        poor_env poor = {.env = *ls__env_posix(), .left = left};
        poor.env.allocate = allocate;
        poor.env.release = release;
        status = ls__schedule_new(&poor.env, "pipedream", &spec, &s);
        if (status == LS_OK) {
            poor.left = 0;
            use_without_memory(s);
            time_without_memory(s, &poor);
            ls__schedule_free(s);
        } else {
            CHECK(status == LS_ERR_MEMORY && s == NULL && left < 100);
            check_no_memory();
        }
    }
}

TEST_MAIN
