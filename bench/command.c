/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench`: starts the ranks, or joins those of a launcher, measures size after size,
 * reports. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/env.h"
#include "bench.h"
#include "job/bootstrap/detect.h"
#include "tools/cli/cli.h"
#include "tools/commands.h"

typedef struct job { /* made before the ranks are; they inherit it */
    const ls__bench_options *options;
    void *shared; /* the floor's streams: ranks times the largest size */
} job;

/* Until the first wrong result, which is an error and no row. */
static ls_status measure_all(const job *j, ls__bench_row *rows, int *measured)
{
    const ls__bench_options *options = j->options;
    const bool speaks = ls_rank() == 0;
    if (speaks) {
        ls__bench_print_header(options);
    }
    for (int i = 0; i < options->size_count; i++) {
        LS_TRY(ls__bench_measure(ls_world(), options, options->sizes[i], j->shared, &rows[i]));
        if (rows[i].wrong != 0) {
            return LS_OK;
        }
        *measured = i + 1;
        if (speaks) {
            ls__bench_print_row(options, &rows[i]);
            ls__bench_keep_json(options, rows, *measured);
        }
    }
    return LS_OK;
}

/* One rank. Returns its exit status. */
static int run_rank(void *arg)
{
    const job *j = arg;
    const ls__bench_options *options = j->options;
    ls__bench_row rows[LS__BENCH_SIZES_MAX];
    int measured = 0;
    memset(rows, 0, sizeof rows);
    LS_CHECK(ls_init(NULL));
    LS_CHECK(measure_all(j, rows, &measured));
    int failed = measured < options->size_count;
    if (ls_rank() == 0 && failed) {
        fprintf(stderr, "lockstep bench: wrong results: %lld elements of %s of %lld bytes\n",
                (long long)rows[measured].wrong, options->operation->name,
                (long long)rows[measured].bytes);
    }
    if (ls_rank() == 0 && options->json != NULL && !ls__bench_write_json(options, rows, measured)) {
        failed = 1;
    }
    LS_CHECK(ls_finalize());
    return failed;
}

/* Told before an hour of measuring, not after it. */
bool ls__bench_can_write(const char *path)
{
    if (path != NULL && !cli_can_create(path)) {
        perror("lockstep bench: --json");
        fprintf(stderr, "lockstep bench: cannot write to %s\n", path);
        return false;
    }
    return true;
}

static size_t floor_bytes(const ls__bench_options *options)
{
    int64_t largest = 0;
    for (int i = 0; i < options->size_count; i++) {
        largest = options->sizes[i] > largest ? options->sizes[i] : largest;
    }
    return ls__bench_has_floor(options) ? (size_t)largest * (size_t)options->ranks : 0;
}

/* Ranks that are taken to be on a host each have nothing but TCP between them. */
bool ls__bench_set_transport(const char *transport, int ranks)
{
    if (transport == NULL) {
        return true;
    }
    if (strcmp(transport, "shm") == 0) {
        return unsetenv("LOCKSTEP_HOSTS") == 0;
    }
    char hosts[16];
    snprintf(hosts, sizeof hosts, "%d", ranks);
    return setenv("LOCKSTEP_HOSTS", hosts, 1) == 0;
}

int ls__bench_job_size(void)
{
    ls__detected found;
    const bool joins =
        ls__detect_here(ls__env_posix(), &found) == LS_OK && strcmp(found.launcher, "none") != 0;
    const char *own =
        getenv("WORLD_SIZE"); /* of lockstep run: the ranks learn the rest by joining */
    return !joins ? 0 : found.size > 0 ? found.size : own != NULL ? atoi(own) : 1;
}

int ls__bench_start(const char *transport, const char *json, int ranks, int (*rank)(void *),
                    void *arg)
{
    if (!ls__bench_can_write(json) || !ls__bench_set_transport(transport, ranks)) {
        return 1;
    }
    if (ls__bench_job_size() > 0) {
        return rank(arg);
    }
    if (ls_spawn(rank, arg, ranks) < 0) {
        fprintf(stderr, "lockstep bench: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}

void bench_print_names(void)
{
    char names[256];
    ls__bench_operation_names(names, sizeof names);
    for (const char *at = names; *at != '\0'; at++) {
        (void)putchar(*at == ',' ? '\n' : *at);
        at += *at == ','; /* and the blank after it */
    }
    printf("\n");
    printf("ddp\ndigits\nlearn\npieces\npipeline\nreplay\nstep\nstraggler\n");
}

/* argv[0] is "bench". */
int cmd_bench(int argc, char **argv)
{
    ls__bench_options options;
    bool done = false;
    if (argc > 1 && strcmp(argv[1], "step") == 0) {
        return ls__bench_step(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "ddp") == 0) {
        return ls__bench_ddp_run(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "replay") == 0) {
        return ls__bench_replay(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "digits") == 0) {
        return ls__bench_digits(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "learn") == 0) {
        return ls__bench_learn(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "pieces") == 0) {
        return ls__bench_pieces(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "pipeline") == 0) {
        return ls__bench_pipeline(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "straggler") == 0) {
        return ls__bench_straggler(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "mesh") == 0) {
        return ls__bench_mesh(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "experts") == 0) {
        return ls__bench_experts(argc - 1, argv + 1);
    }
    const int status = ls__bench_parse(argc, argv, &options, &done);
    if (status != 0 || done) {
        return status;
    }
    const size_t bytes = floor_bytes(&options);
    job j = {.options = &options};
    if (bytes > 0) {
        j.shared = ls__bench_share(bytes);
        if (j.shared == NULL) {
            fprintf(stderr, "lockstep bench: no %zu bytes of shared memory for the floor\n", bytes);
            return 1;
        }
    }
    const int ended = ls__bench_start(options.transport, options.json, options.ranks, run_rank, &j);
    if (bytes > 0) {
        munmap(j.shared, bytes);
    }
    return ended;
}
