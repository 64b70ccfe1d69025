/* SPDX-License-Identifier: Apache-2.0 */
/* See run_file.h. */
#include "run_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#define FILE_NAME "run.json"
#define FILE_BYTES_MAX (1 << 20)
#define SAMPLES_HASHED 64 /* spread evenly over the data */

struct run_file {
    const char *program;
    cli_option *table;
    int count, noted_from;
    json_t *noted;     /* flags from `noted_from` on */
    json_t *saved;     /* of the file that was read; NULL: none */
    bool other_data;   /* the flags say already that the data differs */
    char folder[4096]; /* of that file */
};

/* ---- which flags ---------------------------------------------------------------------------- */

typedef enum rule { SAID, MODEL, QUIET, LEFT_OUT } rule;

/* A flag in none of the lists is SAID: a difference is printed. */
static const struct {
    rule rule;
    const char *flags;
} rules[] = {
    {MODEL, "|model|layers|dim|heads|experts|experts-per-token|capacity|vocab|wide|hidden|classes|"
            "patch|positions|norm-eps|exact-shape|kv-heads|head-dim|rope-base|"
            "rope-factor|rope-low|rope-high|rope-positions|tied|mask-token|cls-token|sep-token|"},
    /* the schedule and the optimizer are compared when the state is loaded (resumed.c) */
    {QUIET,
     "|steps|lr|lr-schedule|min-lr|lr-schedule-steps|warmup|momentum|beta2|weight-decay|decay|"
     "optim|seed|every|eval-every|eval-windows|feed|init-std|"},
    {LEFT_OUT,
     "|mesh|sequence|schedule|micro-batches|cut|replicas|plan|profile|chunks|vertical-sync|"
     "recompute|padded|bucket-bytes|top-k|init|export|save|resume|log|tensorboard|log-losses|"
     "server|log-replay|replay|workers|device|backend|"},
};
#define OF_DATA                                                                                    \
    "|data|held-out|tokenizer|format|context|mask-share|crop-padding|flip|normalise|seed|"
#define PATHS "|data|held-out|tokenizer|"
#define KEPT "|seed|momentum|beta2|weight-decay|" /* come with the state, whatever is given */
#define OF_STATE "|optim|"
#define OF_TEXT "|tokenizer|context|format|" /* needed to write text, beside the model */

static bool is_in(const char *list, const char *flag)
{
    char item[80];
    (void)snprintf(item, sizeof item, "|%s|", flag);
    return strstr(list, item) != NULL;
}

static rule rule_of(const cli_option *o)
{
    if (o->name == NULL || o->kind > CLI_CHOICE) {
        return LEFT_OUT;
    }
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (is_in(rules[i].flags, o->name)) {
            return rules[i].rule;
        }
    }
    return SAID;
}

/* ---- values --------------------------------------------------------------------------------- */

/* A path is saved from the root, because the next run may start in another folder. */
static json_t *text_value(const cli_option *o)
{
    char path[PATH_MAX];
    const char *text = *(const char *const *)o->value;
    if (text == NULL) {
        return json_null();
    }
    return json_string(is_in(PATHS, o->name) && realpath(text, path) != NULL ? path : text);
}

static json_t *value_of(const cli_option *o)
{
    switch (o->kind) {
    case CLI_COUNT:
        return json_integer(*(const int64_t *)o->value);
    case CLI_NUMBER:
        return json_real(*(const double *)o->value);
    case CLI_SWITCH:
        return json_boolean(*(const bool *)o->value);
    default:
        return text_value(o);
    }
}

/* False: the file is damaged. The text stays the file's. */
static bool take_flag(const cli_option *o, const json_t *value)
{
    const double number = json_number_value(value);
    const bool fits = number >= o->low && number <= o->high;
    const char *text = json_string_value(value);
    switch (o->kind) {
    case CLI_COUNT:
        *(int64_t *)o->value = json_integer_value(value);
        return json_is_integer(value) && fits;
    case CLI_NUMBER:
        *(double *)o->value = number;
        return json_is_number(value) && fits;
    case CLI_SWITCH:
        *(bool *)o->value = json_is_true(value);
        return json_is_boolean(value);
    default:
        *(const char **)o->value = text;
        return json_is_null(value) ||
               (text != NULL && (o->kind != CLI_CHOICE || cli_choice(o->choices, text) >= 0));
    }
}

/* "--heads 2", "no --tokenizer" */
static const char *flag_text(const char *flag, const json_t *value, char *out, size_t bytes)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(10));
    const bool absent = json_is_null(value) || json_is_false(value);
    if (absent || json_is_true(value)) {
        (void)snprintf(out, bytes, "%s--%s", absent ? "no " : "", flag);
    } else {
        (void)snprintf(out, bytes, "--%s %s", flag,
                       json_is_string(value) ? json_string_value(value) : text);
    }
    free(text);
    return out;
}

/* ---- reading -------------------------------------------------------------------------------- */

run_file *run_file_new(const cli_command *command)
{
    run_file *run = calloc(1, sizeof *run);
    cli_option *table = calloc((size_t)command->count + 1, sizeof *table);
    if (run == NULL || table == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    memcpy(table, command->options, (size_t)command->count * sizeof *table);
    run->table = table;
    run->program = command->name;
    run->count = command->count;
    run->noted_from = command->count;
    return run;
}

void run_file_free(run_file *run)
{
    if (run != NULL) {
        json_decref(run->noted);
        json_decref(run->saved);
        free(run->table);
        free(run);
    }
}

static json_t *load(const char *path)
{
    json_error_t error;
    static char text[FILE_BYTES_MAX];
    FILE *file = cli_open(path, "r");
    if (file == NULL && (errno == ENOENT || errno == ENOTDIR)) {
        return NULL;
    }
    if (file == NULL) {
        give_up(EXIT_FAILURE, "\"%s\" cannot be read: %s", path, strerror(errno));
    }
    json_t *root = json_loadb(text, fread(text, 1, sizeof text, file), 0, &error);
    (void)fclose(file);
    if (!json_is_object(json_object_get(root, "flags"))) {
        give_up(EXIT_FAILURE,
                "\"%s\" is damaged: %s; without it the flags of the run must be given again", path,
                root == NULL ? error.text : "it has no object \"flags\"");
    }
    return root;
}

/* A GPT has an embedding for each position of a window, unless it came with its own number of them.
 * An LSTM has none, and a BERT of the published size 512. */
static bool has_context(const run_file *run)
{
    const json_t *flags = json_object_get(run->saved, "flags");
    const char *model = json_string_value(json_object_get(flags, "model"));
    return json_integer_value(json_object_get(flags, "positions")) == 0 &&
           (model == NULL || (strcmp(model, "lstm") != 0 && strcmp(model, "bert-base") != 0));
}

static bool is_of_model(const run_file *run, const cli_option *o)
{
    return rule_of(o) == MODEL || (strcmp(o->name, "context") == 0 && has_context(run));
}

/* The flag is on the command line: which of the two holds, or neither. */
static void compare(run_file *run, const cli_option *o, const json_t *saved)
{
    char there[1200], here[1200];
    json_t *now = value_of(o);
    if (!json_equal(saved, now)) {
        (void)flag_text(o->name, saved, there, sizeof there);
        (void)flag_text(o->name, now, here, sizeof here);
        if (is_in(OF_STATE, o->name)) {
            give_up(
                EXIT_USAGE,
                "%s contradicts the checkpoints in \"%s\", whose optimizer state is that of %s; "
                "leave the flag out",
                here, run->folder, there);
        }
        if (is_of_model(run, o)) {
            give_up(
                EXIT_USAGE,
                "%s contradicts the checkpoints in \"%s\", whose model has %s; leave the flag out",
                here, run->folder, there);
        }
        if (rule_of(o) == SAID && cli_speaks_first()) {
            (void)fprintf(stderr, "%s: the run so far had %s; it goes on with %s\n", run->folder,
                          there, here);
        }
        run->other_data |= is_in(OF_DATA, o->name);
    }
    json_decref(now);
}

static void take_over(run_file *run, const cli_option *o, const json_t *saved)
{
    char text[1200];
    if (!take_flag(o, saved)) {
        give_up(EXIT_FAILURE, "\"%s/" FILE_NAME "\" has %s, which %s does not take", run->folder,
                flag_text(o->name, saved, text, sizeof text), run->program);
    }
}

/* People name the newest checkpoint itself. run.json lies beside it. */
static void refuse_single(const char *folder, const char *flag)
{
    char above[4096], manifest[5000];
    (void)snprintf(above, sizeof above, "%s", folder);
    (void)snprintf(manifest, sizeof manifest, "%.4096s/manifest.json", folder);
    for (size_t n = strlen(above); n > 1 && above[n - 1] == '/'; n--) {
        above[n - 1] = '\0';
    }
    char *slash = strrchr(above, '/');
    const char *name = slash != NULL ? slash + 1 : above;
    if (strncmp(name, "step-", strlen("step-")) != 0 || access(manifest, F_OK) != 0) {
        return;
    }
    if (slash == NULL) {
        (void)snprintf(above, sizeof above, ".");
    } else {
        *slash = '\0';
    }
    give_up(EXIT_USAGE,
            "\"%s\" is a single checkpoint; give --%s the folder above it, \"%s\", of which the "
            "newest checkpoint is loaded",
            folder, flag, above);
}

/* A setting may have two flags, as --experts-per-token and --top-k. */
static bool is_given_by_any(const run_file *run, const cli_option *o, char *const *argv)
{
    for (int i = 0; i < run->count; i++) {
        const cli_option *other = &run->table[i];
        if (other->value == o->value && other->name != NULL && is_given(other->name, argv)) {
            return true;
        }
    }
    return false;
}

bool run_file_read(run_file *run, const char *folder, bool model, char **argv)
{
    char path[5000];
    refuse_single(folder, model ? "checkpoint" : "resume");
    (void)snprintf(run->folder, sizeof run->folder, "%s", folder);
    (void)snprintf(path, sizeof path, "%s/" FILE_NAME, run->folder);
    run->saved = load(path);
    if (run->saved == NULL) {
        return false;
    }
    const char *program = json_string_value(json_object_get(run->saved, "program"));
    if (!model && (program == NULL || strcmp(program, run->program) != 0)) {
        give_up(EXIT_USAGE, "the checkpoints in \"%s\" are of %s, and this is %s", folder,
                program != NULL ? program : "another program", run->program);
    }
    const json_t *flags = json_object_get(run->saved, "flags");
    for (int i = 0; i < run->count; i++) {
        const cli_option *o = &run->table[i];
        const rule at = rule_of(o);
        const json_t *saved = at != LEFT_OUT ? json_object_get(flags, o->name) : NULL;
        if (saved == NULL || (model && at != MODEL && !is_in(OF_TEXT, o->name))) {
            continue;
        }
        if (is_given_by_any(run, o, argv)) {
            compare(run, o, saved);
        } else {
            take_over(run, o, saved);
        }
    }
    return true;
}

const char *run_file_text(const run_file *run, const char *flag)
{
    return json_string_value(json_object_get(json_object_get(run->saved, "flags"), flag));
}

/* ---- writing -------------------------------------------------------------------------------- */

static bool add_flags(const run_file *run, json_t *flags, int from, int end)
{
    bool good = flags != NULL;
    for (int i = from; good && i < end; i++) {
        const cli_option *o = &run->table[i];
        good = rule_of(o) == LEFT_OUT || json_object_set_new(flags, o->name, value_of(o)) == 0;
    }
    return good;
}

void run_file_note(run_file *run, int from)
{
    const json_t *saved = json_object_get(run->saved, "flags");
    run->noted_from = from;
    run->noted = json_object();
    bool good = add_flags(run, run->noted, from, run->count);
    for (int i = from; good && i < run->count; i++) {
        const char *name = run->table[i].name;
        json_t *kept = name != NULL && is_in(KEPT, name) ? json_object_get(saved, name) : NULL;
        good = kept == NULL || json_object_set(run->noted, name, kept) == 0;
    }
    if (!good) {
        give_up(EXIT_FAILURE, "no memory");
    }
}

void run_file_set(run_file *run, const char *flag, int64_t value)
{
    if (json_object_set_new(run->noted, flag, json_integer(value)) != 0) {
        give_up(EXIT_FAILURE, "no memory");
    }
}

static json_t *all_flags(const run_file *run)
{
    json_t *flags = json_object();
    if (!add_flags(run, flags, 0, run->noted_from) ||
        (run->noted != NULL && json_object_update(flags, run->noted) != 0)) {
        give_up(EXIT_FAILURE, "no memory");
    }
    return flags;
}

/* FNV-1a of some samples, so that another text of the same length is noticed. */
static json_t *hash_of(ls_dataset *data)
{
    uint64_t hash = 0xcbf29ce484222325u;
    size_t x_bytes = ls_dtype_size(data->x_dtype), y_bytes = ls_dtype_size(data->y_dtype);
    for (int d = 0; d < data->x_shape.ndim; d++) {
        x_bytes *= (size_t)data->x_shape.dim[d];
    }
    for (int d = 0; d < data->y_shape.ndim; d++) {
        y_bytes *= (size_t)data->y_shape.dim[d];
    }
    uint8_t *sample = malloc(x_bytes + y_bytes + 1);
    if (sample == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    const int64_t count = data->count < SAMPLES_HASHED ? data->count : SAMPLES_HASHED;
    for (int64_t i = 0; i < count; i++) {
        must(data->get(data, i * (data->count / count), sample, sample + x_bytes));
        for (size_t k = 0; k < x_bytes + y_bytes; k++) {
            hash = (hash ^ sample[k]) * 0x100000001b3u;
        }
    }
    free(sample);
    return json_integer((json_int_t)(hash >> 1)); /* without the sign */
}

static json_t *data_value(ls_dataset *data)
{
    return json_pack("{s:I, s:o}", "samples", (json_int_t)data->count, "hash", hash_of(data));
}

void run_file_compare_data(const run_file *run, ls_dataset *data)
{
    const json_t *saved = json_object_get(run->saved, "data");
    json_t *now = saved != NULL && !run->other_data ? data_value(data) : NULL;
    if (now != NULL && !json_equal(saved, now)) {
        (void)fprintf(
            stderr,
            "%s: the data is not that of the run so far (%lld samples then, %lld now; %d of "
            "them were compared)\n",
            run->folder, json_integer_value(json_object_get(saved, "samples")),
            (long long)data->count, SAMPLES_HASHED);
    }
    json_decref(now);
}

void run_file_write(const run_file *run, const char *folder, ls_dataset *data)
{
    char path[5000], temporary[5100];
    (void)snprintf(path, sizeof path, "%.4096s/" FILE_NAME, folder);
    (void)snprintf(temporary, sizeof temporary, "%s.%d.part", path, (int)getpid());
    json_t *root = json_pack("{s:s, s:o, s:o}", "program", run->program, "flags", all_flags(run),
                             "data", data_value(data));
    (void)unlink(temporary); /* of a process that died */
    FILE *file = root != NULL ? fopen(temporary, "wxb") : NULL;
    const bool written = file != NULL && json_dumpf(root, file, JSON_INDENT(1)) == 0 &&
                         fflush(file) == 0 && fsync(fileno(file)) == 0;
    if ((file != NULL && fclose(file) != 0) || !written || rename(temporary, path) != 0) {
        const int error = errno;
        (void)unlink(temporary);
        give_up(EXIT_FAILURE, "\"%s\" cannot be written: %s", path, strerror(error));
    }
    json_decref(root);
}
