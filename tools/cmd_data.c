/* `lockstep data`: data sets made ready. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/suggest.h"
#include "commands.h"
#include "tools/data.h"

static const char usage[] =
    "usage: lockstep data tokens TEXT ... --tokenizer T --out DIR [--begin TOKEN]\n"
    "                            [--shard-tokens N] [-j THREADS] [--force]\n"
    "\n"
    "Writes the tokens of text files, and of all files below folders, as shards that llm.c reads:\n"
    "DIR/tokens_000000.bin and so on. The shards are the same for any number of threads.\n"
    "\n"
    "  --tokenizer T      \"bytes\"; a tokenizer.json; or a folder that holds one, or vocab.json "
    "and\n"
    "                     merges.txt\n"
    "  --out DIR          made if it is not there. Shards that are there are left alone, and "
    "nothing\n"
    "                     is written, unless --force is given: then they are replaced by the new "
    "ones\n"
    "                     when all of these are complete\n"
    "  --begin TOKEN      stands before each file; none: nothing does. Without it <|endoftext|>, "
    "if\n"
    "                     the tokenizer has it\n"
    "  --shard-tokens N   tokens of a full shard, 1 to 2147483647 (100 million)\n"
    "  -j THREADS         1 to 256 (as many as cores)\n";

static int wrong(const char *format, const char *what)
{
    fputs("lockstep data: ", stderr);
    fprintf(stderr, format, what);
    fputs("; see lockstep data --help\n", stderr);
    return 2;
}

/* ---- the bar ------------------------------------------------------------------------------- */

#define BAR_CELLS 30
#define PLAIN_NS 2000000000u

typedef struct bar {
    const ls__env *env;
    bool terminal, open; /* open: an unfinished line stands there */
    uint64_t begun, shown;
} bar;

static void show(void *arg, int64_t done, int64_t all, int64_t tokens)
{
    bar *b = arg;
    uint64_t now = b->env->now_ns(b->env);
    double seconds = (double)(now - b->begun) / 1e9;
    if (now - b->shown < (b->terminal ? PLAIN_NS / 10 : PLAIN_NS)) {
        return;
    }
    char cells[BAR_CELLS + 1] = "";
    int full = (int)((double)done / (double)all * BAR_CELLS);
    for (int i = 0; i < BAR_CELLS; i++) {
        cells[i] = i < full ? '#' : '.';
    }
    fprintf(stderr, "%s[%s] %3d %%, %.1f of %.1f MB, %.2f M tokens, %.1f MB/s%s",
            b->terminal ? "\r" : "", cells, (int)(100.0 * (double)done / (double)all),
            (double)done / 1e6, (double)all / 1e6, (double)tokens / 1e6,
            (double)done / 1e6 / seconds, b->terminal ? "  " : "\n");
    b->open = b->terminal;
    b->shown = now;
}

/* ---- the command line ---------------------------------------------------------------------- */

static int parse_number(const char *flag, const char *text, int64_t high, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 1 || value > high) {
        fprintf(stderr, "lockstep data: %s %s: give 1 to %lld; see lockstep data --help\n", flag,
                text, (long long)high);
        return 2;
    }
    *out = value;
    return 0;
}

typedef enum option { TOKENIZER, OUT, BEGIN, SHARD_TOKENS, THREADS, FORCE, OPTION_COUNT } option;

static const char *const flags[OPTION_COUNT] = {"--tokenizer",    "--out", "--begin",
                                                "--shard-tokens", "-j",    "--force"};

static int unknown_flag(const char *flag)
{
    const char *near = ls__suggest(flag, flags, OPTION_COUNT);
    if (near == NULL) {
        return wrong("unknown flag %s", flag);
    }
    fprintf(stderr, "lockstep data: unknown flag %s; did you mean %s?\n", flag, near);
    return 2;
}

static int take(option which, const char *value, tokens_job *job)
{
    int64_t number = 0;
    int status = 0;
    switch (which) {
    case TOKENIZER:
        job->tokenizer = value;
        return 0;
    case OUT:
        job->folder = value;
        return 0;
    case BEGIN:
        job->begin = value;
        return 0;
    case SHARD_TOKENS:
        return parse_number(flags[which], value, SHARD_TOKENS_MAX, &job->shard_tokens);
    case THREADS:
        status = parse_number(flags[which], value, 256, &number);
        job->threads = (int)number;
        return status;
    default:
        return 0;
    }
}

/* The flag of this argument, or -1; *value is what stands behind "=". */
static int find_flag(const char *text, const char **value)
{
    *value = NULL;
    for (int i = 0; i < OPTION_COUNT; i++) {
        size_t length = strlen(flags[i]);
        if (strncmp(text, flags[i], length) != 0) {
            continue;
        }
        if (text[length] == '=' && i != FORCE && i != THREADS) {
            *value = text + length + 1;
            return i;
        }
        if (text[length] == '\0') {
            return i;
        }
    }
    return -1;
}

/* Flags and texts in any order; texts[] has room for all. Returns 0 or the exit status. */
static int parse(int argc, char **argv, char **texts, tokens_job *job)
{
    bool flags_end = false;
    for (int i = 0; i < argc; i++) {
        const char *value;
        if (flags_end || argv[i][0] != '-') {
            texts[job->text_count++] = argv[i];
            continue;
        }
        if (strcmp(argv[i], "--") == 0) {
            flags_end = true;
            continue;
        }
        int flag = find_flag(argv[i], &value);
        if (flag < 0) {
            return unknown_flag(argv[i]);
        }
        if (flag == FORCE) {
            job->force = true;
            continue;
        }
        if (value == NULL && ++i >= argc) {
            return wrong("%s needs a value", flags[flag]);
        }
        int status = take((option)flag, value != NULL ? value : argv[i], job);
        if (status != 0) {
            return status;
        }
    }
    return 0;
}

static int check(const tokens_job *job)
{
    if (job->text_count == 0) {
        return wrong("tokens of what? name %s", "files or folders of text");
    }
    if (job->tokenizer == NULL || job->folder == NULL || job->folder[0] == '\0') {
        return wrong("%s is not given", job->tokenizer == NULL ? "--tokenizer" : "--out");
    }
    return 0;
}

static int make_tokens(tokens_job *job)
{
    tokens_made made;
    uint64_t begun = job->env->now_ns(job->env);
    bar b = {
        .env = job->env, .terminal = isatty(STDERR_FILENO) != 0, .begun = begun, .shown = begun};
    job->progress = show;
    job->arg = &b;
    ls_status status = tokens_make(job, &made);
    if (b.open) {
        fputs("\n", stderr);
    }
    if (status < 0) {
        fprintf(stderr, "lockstep: %s\n", ls_error_message());
        return 1;
    }
    printf("%lld bytes of %d file%s: %lld tokens in %d shard%s, %s (%.2f s)\n",
           (long long)made.bytes, made.files, made.files == 1 ? "" : "s", (long long)made.tokens,
           made.shards, made.shards == 1 ? "" : "s", job->folder,
           (double)(job->env->now_ns(job->env) - begun) / 1e9);
    return 0;
}

int cmd_data(int argc, char **argv)
{
    const ls__env *env = ls__env_posix();
    if (argc < 2) {
        fputs(usage, stderr);
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return 0;
        }
    }
    if (strcmp(argv[1], "tokens") != 0) {
        return wrong("there is no \"%s\"; there is tokens", argv[1]);
    }
    char **texts = calloc((size_t)argc, sizeof *texts);
    tokens_job job = {
        .env = env, .texts = texts, .shard_tokens = 100000000, .threads = env->cores(env)};
    int status = texts == NULL ? 1 : parse(argc - 2, argv + 2, texts, &job);
    status = status == 0 ? check(&job) : status;
    status = status == 0 ? make_tokens(&job) : status;
    free(texts);
    return status;
}
