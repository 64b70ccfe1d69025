/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep data`: prepares data sets. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "tools/cli/cli.h"
#include "tools/cli/live.h"
#include "tools/data.h"

/* ---- the command line ---------------------------------------------------------------------- */

static tokens_job job;
static int64_t threads;

static const cli_option options[] = {
    {"tokenizer", CLI_TEXT, &job.tokenizer, .value_name = "PATH",
     .help =
         "\"bytes\"; a tokenizer.json; or a folder that holds one, or vocab.json and merges.txt"},
    {"out", CLI_TEXT, &job.folder, .value_name = "DIR",
     .help = "folder of the shards, made if it is missing. Existing shards are an error, unless "
             "--force is given: then the new ones replace them once all of these are complete"},
    {"held-out", CLI_NUMBER, &job.held_out, .low = 0, .high = 0.5, .value_name = "SHARE",
     .help = "share at the end of each file that goes to separate shards for evaluation: "
             "DIR/tokens_train_000000.bin and DIR/tokens_val_000000.bin; 0: none"},
    {"begin", CLI_TEXT, &job.begin, .value_name = "TOKEN",
     .fallback = "<|endoftext|>, if there is one", .help = "token before each file; none: nothing"},
    {"shard-tokens", CLI_COUNT, &job.shard_tokens, .low = 1, .high = SHARD_TOKENS_MAX,
     .help = "tokens of a full shard", .fallback = "100 million"},
    {"threads", CLI_COUNT, &threads, .low = 1, .high = 256, .letter = 'j',
     .fallback = "as many as cores", .help = "threads that encode"},
    {"force", CLI_SWITCH, &job.force, .help = "replace the shards in DIR"},
};

static const cli_command command = {
    .name = "lockstep data tokens",
    .about = "Writes the tokens of text files as shards that llm.c reads.",
    .operands = "TEXT ... --tokenizer PATH --out DIR",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more =
        "TEXT is a file, or a folder, of which all files are read, also in its subfolders. The\n"
        "shards are DIR/tokens_000000.bin and so on, the same for any number of threads.\n"};

/* ---- making them --------------------------------------------------------------------------- */

#define BAR_CELLS 30

typedef struct bar {
    const ls__env *env;
    uint64_t begun;
    live line;
} bar;

/* Called a few times a second while the shards are written: a bar, and the rate since the
 * beginning. */
static void show(void *arg, int64_t done, int64_t all, int64_t tokens)
{
    bar *b = arg;
    const double seconds = (double)(b->env->now_ns(b->env) - b->begun) / 1e9;
    const double share = all > 0 ? (double)done / (double)all : 1.0;
    char cells[BAR_CELLS + 1] = "";
    for (int i = 0; i < BAR_CELLS; i++) {
        cells[i] = i < (int)(share * BAR_CELLS) ? '#' : '.';
    }
    live_show(&b->line, false, "[%s] %3d %%, %.1f of %.1f MB, %.2f M tokens, %.1f MB/s", cells,
              (int)(100.0 * share), (double)done / 1e6, (double)all / 1e6, (double)tokens / 1e6,
              (double)done / 1e6 / seconds);
}

/* Checks that the required options are there. Returns 0 or the exit status. */
static int check(void)
{
    if (job.text_count == 0) {
        return cli_wrong(&command, "the text is missing; name files or folders");
    }
    if (job.tokenizer == NULL || job.folder == NULL || job.folder[0] == '\0') {
        return cli_wrong(&command, "%s is missing",
                         job.tokenizer == NULL ? "--tokenizer" : "--out");
    }
    return 0;
}

/* Converts one part of the texts and prints the result. Returns an exit status. */
static int make_part(tokens_part part, const char *name)
{
    tokens_made made;
    const uint64_t begun = job.env->now_ns(job.env);
    bar b = {.env = job.env, .begun = begun};
    live_start(&b.line, stderr);
    b.line.shown = (double)begun / 1e9; /* short work shows no progress */
    job.part = part;
    job.progress = show;
    job.arg = &b;
    const ls_status status = tokens_make(&job, &made);
    live_end(&b.line);
    if (status < 0) {
        fprintf(stderr, "lockstep: %s\n", ls_error_message());
        return 1;
    }
    printf("%s%lld bytes of %d file%s: %lld tokens in %d shard%s, %s (%.2f s)\n", name,
           (long long)made.bytes, made.files, made.files == 1 ? "" : "s", (long long)made.tokens,
           made.shards, made.shards == 1 ? "" : "s", job.folder,
           (double)(job.env->now_ns(job.env) - begun) / 1e9);
    return 0;
}

/* With --held-out the texts are read twice, once for each part. */
static int cmd_tokens(int argc, char **argv)
{
    job = (tokens_job){.env = ls__env_posix(), .shard_tokens = 100000000};
    threads = job.env->cores(job.env);
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    job.texts = argv + first;
    job.text_count = argc - first;
    job.threads = (int)threads;
    const int status = check();
    if (status != 0) {
        return status;
    }
    if (job.held_out == 0.0) {
        return make_part(TOKENS_ALL, "");
    }
    const int train = make_part(TOKENS_TRAIN, "train: ");
    return train != 0 ? train : make_part(TOKENS_VAL, "val: ");
}

/* `lockstep data`: tokens is its only subcommand. */
int cmd_data(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "tokens") == 0) {
        return cmd_tokens(argc - 1, argv + 1);
    }
    if (argc > 1 && strncmp(argv[1], "--help", 6) == 0) {
        return cmd_tokens(argc, argv);
    }
    return argc > 1 ? cli_wrong(&command, "there is no \"%s\"; give tokens", argv[1])
                    : cli_wrong(&command, "the form is missing; give lockstep data tokens");
}
