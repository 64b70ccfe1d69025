/* SPDX-License-Identifier: Apache-2.0 */
/* `measure tuner`: is what the library chooses the best of what it may choose? For every
 * number of ranks, transport and size the choice and all exact programs are timed in turns, in one
 * job; a cell is good when the choice takes at most 10 % longer than the best one, or no longer
 * than the two scatter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/bench.h"
#include "comm/algorithm/registry.h"
#include "comm/tune/choice.h"

#define CANDIDATES_MAX 16
#define ROUNDS 15
#define ROUNDS_LEAST 5
#define CELL_NS 3e9   /* rounds end after this, where there have been enough */
#define SAMPLE_NS 3e6 /* operations of one sample take about so long */
#define CALLS_MAX 200
#define HOPELESS 2.0 /* slower by this factor in two rounds: not timed any more */
#define WITHIN 1.10

static const int all_ranks[] = {2, 3, 4, 6, 8};
static const int64_t all_sizes[] = {1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10,
                                    1 << 20, 4 << 20, 16 << 20, 64 << 20};
enum { RANKS = sizeof all_ranks / sizeof *all_ranks, SIZES = sizeof all_sizes / sizeof *all_sizes };

typedef struct candidate {
    const char *name; /* NULL: the library's choice */
    double ns[ROUNDS];
    int rounds;
    bool out;
} candidate;

typedef struct tally {
    int cells, good;
} tally;

typedef struct job { /* inherited by the ranks; the tally lies in memory that all share */
    bool tcp;
    FILE *json;
    tally *tally;
} job;

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Exact programs that run with these buffers, and first of all the choice. */
static int find_candidates(bool tcp, candidate *out)
{
    int count = 0, found = 1;
    const ls__algorithm *const *all = ls__algorithms(&count);
    memset(out, 0, CANDIDATES_MAX * sizeof *out);
    for (int i = 0; i < count && found < CANDIDATES_MAX; i++) {
        const bool runs = !tcp || (all[i]->memories & LS__IN_MESSAGES) != 0;
        if (all[i]->operation == LS__OP_ALL_REDUCE && all[i]->exact && runs) {
            out[found++].name = all[i]->name;
        }
    }
    return found;
}

/* One sample: the longest time of a rank, the same number on all. */
static ls_status sample(void *buf, int64_t bytes, const char *algorithm, int calls, double *ns)
{
    const ls_collective_options *options =
        LS_OPTIONS(ls_collective_options, .algorithm = algorithm);
    LS_TRY(ls_barrier(ls_world(), NULL, NULL));
    const double begin = now_ns();
    for (int i = 0; i < calls; i++) {
        LS_TRY(ls_all_reduce(ls_world(), buf, buf, bytes / 4, LS_FLOAT32, LS_SUM, options, NULL));
    }
    *ns = (now_ns() - begin) / calls;
    return ls_all_reduce(ls_world(), ns, ns, 1, LS_FLOAT64, LS_MAX, NULL, NULL);
}

static double quartile(const candidate *c, int which)
{
    return ls__bench_quantile(c->ns, c->rounds, which, 4);
}

static int best_of(const candidate *c, int count)
{
    int best = 1;
    for (int i = 2; i < count; i++) {
        best = !c[i].out && quartile(&c[i], 2) < quartile(&c[best], 2) ? i : best;
    }
    return best;
}

static void drop_hopeless(candidate *c, int count)
{
    const double least = quartile(&c[best_of(c, count)], 2);
    for (int i = 1; i < count; i++) {
        c[i].out = c[i].out || quartile(&c[i], 0) > HOPELESS * least;
    }
}

static ls_status measure_cell(void *buf, int64_t bytes, candidate *c, int count)
{
    int calls[CANDIDATES_MAX];
    double spent = 0;
    for (int round = -1; round < ROUNDS; round++) { /* the first one warms up and finds `calls` */
        for (int i = 0; i < count; i++) {
            double ns = 0;
            if (c[i].out) {
                continue;
            }
            LS_TRY(sample(buf, bytes, c[i].name, round < 0 ? 2 : calls[i], &ns));
            if (round < 0) {
                calls[i] = ns * CALLS_MAX < SAMPLE_NS ? CALLS_MAX : (int)(SAMPLE_NS / ns) + 1;
                continue;
            }
            c[i].ns[c[i].rounds++] = ns;
            spent += ns * calls[i];
        }
        if (round == 1) {
            drop_hopeless(c, count);
        }
        if (round + 1 >= ROUNDS_LEAST && spent > CELL_NS) {
            break;
        }
    }
    return LS_OK;
}

/* Where the choice is not worse than 10 %, or than the two scatter. */
static bool is_good(const candidate *choice, const candidate *best)
{
    const double mine = quartile(choice, 2), least = quartile(best, 2);
    const double scatter = quartile(best, 3) - quartile(best, 1);
    const double own = quartile(choice, 3) - quartile(choice, 1);
    return mine <= WITHIN * least || mine - least <= (scatter > own ? scatter : own);
}

static void report(const job *j, int64_t bytes, const candidate *c, int count)
{
    const int best = best_of(c, count);
    const double mine = quartile(&c[0], 2), least = quartile(&c[best], 2);
    const bool good = is_good(&c[0], &c[best]);
    const char *chosen = ls__tuning_name(ls_world(), LS__OP_ALL_REDUCE, bytes);
    j->tally->cells++;
    j->tally->good += good;
    printf("%5d  %-4s %10lld  %-20s %11.1f  %-20s %11.1f  %6.2f  %s\n", ls_world_size(),
           j->tcp ? "tcp" : "shm", (long long)bytes, chosen, mine / 1e3, c[best].name, least / 1e3,
           mine / least, good ? "yes" : "no");
    fflush(stdout);
    if (j->json != NULL) {
        fprintf(j->json,
                "%s  {\"ranks\": %d, \"transport\": \"%s\", \"bytes\": %lld, \"chosen\": \"%s\", "
                "\"chosen_us\": %.2f, \"best\": \"%s\", \"best_us\": %.2f, \"good\": %s}",
                j->tally->cells > 1 ? ",\n" : "", ls_world_size(), j->tcp ? "tcp" : "shm",
                (long long)bytes, chosen, mine / 1e3, c[best].name, least / 1e3,
                good ? "true" : "false");
        fflush(j->json);
    }
}

static ls_status measure_job(const job *j)
{
    candidate c[CANDIDATES_MAX];
    void *buf = NULL;
    LS_TRY(ls_group_alloc(ls_world(), (size_t)all_sizes[SIZES - 1], &buf));
    for (int s = 0; s < SIZES; s++) {
        const int count = find_candidates(j->tcp, c);
        LS_TRY(measure_cell(buf, all_sizes[s], c, count));
        if (ls_rank() == 0) {
            report(j, all_sizes[s], c, count);
        }
    }
    return ls_group_dealloc(ls_world(), buf);
}

static int run_rank(void *arg)
{
    LS_CHECK(ls_init(NULL));
    LS_CHECK(measure_job(arg));
    LS_CHECK(ls_finalize());
    return 0;
}

static int measure_all(job *j)
{
    printf("%5s  %-4s %10s  %-20s %11s  %-20s %11s  %6s  %s\n", "ranks", "over", "bytes", "chosen",
           "us", "best", "us", "ratio", "within 10 % or the spread");
    for (int t = 0; t < 2; t++) {
        j->tcp = t == 1;
        for (int r = 0; r < RANKS; r++) {
            if ((j->tcp ? setenv("LOCKSTEP_HOSTS", "64", 1) : unsetenv("LOCKSTEP_HOSTS")) != 0 ||
                ls_spawn(run_rank, j, all_ranks[r]) < 0) {
                fprintf(stderr, "measure tuner: %s\n", ls_error_message());
                return 1;
            }
        }
    }
    printf("%d of %d cells (%.0f %%)\n", j->tally->good, j->tally->cells,
           100.0 * j->tally->good / j->tally->cells);
    return 0;
}

int ls__bench_tuner(int argc, char **argv)
{
    job j = {.tally = ls__bench_share(sizeof *j.tally)};
    if (argc != 0 && (argc != 2 || strcmp(argv[0], "--json") != 0)) {
        fprintf(stderr, "measure tuner: takes nothing, or --json FILE; not \"%s\"\n", argv[0]);
        return 2;
    }
    if (argc == 2 && (j.json = fopen(argv[1], "w")) == NULL) {
        perror("measure tuner: --json");
        return 1;
    }
    if (j.tally == NULL) {
        fprintf(stderr, "measure tuner: no memory\n");
        return 1;
    }
    if (j.json != NULL) {
        fprintf(j.json, "[\n");
        fflush(j.json);
    }
    const int status = measure_all(&j);
    if (j.json != NULL) {
        fprintf(j.json, "\n]\n");
        fclose(j.json);
    }
    return status;
}
