/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of `lockstep bench`, which this program starts as a process of its own: on this host, or as
 * two nodes on both ends of a link. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "paper.h"

enum { ARGUMENTS = 64 };
#define PORT "29871" /* in a namespace of its own */

typedef struct words { /* a command line that grows */
    const char *argv[ARGUMENTS + 1];
    int count;
} words;

static void add(words *w, const char *word)
{
    if (w->count < ARGUMENTS) {
        w->argv[w->count++] = word;
    }
}

static void add_bench(words *w, const char *self, const char *const *arguments, const char *json)
{
    add(w, self);
    add(w, "bench");
    for (; *arguments != NULL; arguments++) {
        add(w, *arguments);
    }
    add(w, "--json");
    add(w, json);
}

static const char *said_by(const char *folder, int k, char out[160])
{
    (void)snprintf(out, 160, "%s/said-%d", folder, k);
    return out;
}

/* Runs the words to their end; what they say goes to a file, see tell. */
static bool run_words(const words *w, const char *folder)
{
    char said[160];
    const int pid = paper_start(w->argv, said_by(folder, 0, said));
    return pid > 0 && paper_wait(pid) == 0;
}

static bool here(const paper *p, int ranks, const char *self, const char *const *arguments,
                 const char *folder, const char *json)
{
    char count[16];
    words w = {.count = 0};
    (void)snprintf(count, sizeof count, "%d", ranks);
    add_bench(&w, self, arguments, json);
    add(&w, "-n");
    add(&w, count);
    if (p->transport != NULL) {
        add(&w, "--transport");
        add(&w, p->transport);
    }
    return run_words(&w, folder);
}

/* A job of mpirun on this host. Ranks that wait yield the core: there may be more of them than
 * cores. */
static bool over_mpi(const paper *p, int ranks, const char *self, const char *const *arguments,
                     const char *folder, const char *json)
{
    static const char *const start[] = {
        "env",
        "LOCKSTEP_BACKEND=mpi",
        "OMPI_ALLOW_RUN_AS_ROOT=1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        "OMPI_MCA_mpi_yield_when_idle=1",
        "OMPI_MCA_orte_execute_quiet=1"}; /* -q; Open MPI 5 has none */
    static const char *const open_mpi[] = {"--oversubscribe", "--bind-to", "none"};
    char count[16];
    words w = {.count = 0};
    (void)snprintf(count, sizeof count, "%d", ranks);
    for (size_t i = 0; i < sizeof start / sizeof *start; i++) {
        add(&w, start[i]);
    }
    add(&w, p->mpi.launcher);
    for (size_t i = 0; p->mpi.open_mpi && i < sizeof open_mpi / sizeof *open_mpi; i++) {
        add(&w, open_mpi[i]);
    }
    add(&w, "-n");
    add(&w, count);
    add_bench(&w, self, arguments, json);
    return run_words(&w, folder);
}

static bool is_mpi(const paper *p)
{
    return p->transport != NULL && strcmp(p->transport, "mpi") == 0;
}

/* The k-th node, in its namespace. Around a switch all hosts share this one's cores, so nothing is
 * encrypted there. */
static int start_node(const paper *p, const paper_link *link, int k, int ranks, const char *self,
                      const char *const *arguments, const char *folder, const char *json)
{
    char space[96], nodes[16], rank[16], count[16], secret[128], unused[128], said[160];
    words w = {.count = 0};
    (void)snprintf(space, sizeof space, "--net=/run/netns/%s", link->names[k]);
    (void)snprintf(rank, sizeof rank, "%d", k);
    (void)snprintf(nodes, sizeof nodes, "%d", link->hosts);
    (void)snprintf(count, sizeof count, "%d", ranks / link->hosts);
    (void)snprintf(secret, sizeof secret, "%s/secret", folder);
    (void)snprintf(unused, sizeof unused, "%s/rows-%d.json", folder, k);
    const char *const run[] = {"nsenter",
                               space,
                               self,
                               "run",
                               "--nnodes",
                               nodes,
                               "--node-rank",
                               rank,
                               "--rendezvous",
                               "10.98.4.1:" PORT,
                               "--secret-file",
                               secret,
                               "--data-plane",
                               p->star ? "plain" : "tls",
                               "-n",
                               count};
    for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
        add(&w, run[i]);
    }
    add_bench(&w, self, arguments, k == 0 ? json : unused);
    return paper_start(w.argv, said_by(folder, k, said));
}

static bool over_link(const paper *p, int ranks, const char *self, const char *const *arguments,
                      const char *folder, const char *json)
{
    paper_link link;
    char secret[128];
    (void)snprintf(secret, sizeof secret, "%s/secret", folder);
    const char *const make_secret[] = {self, "secret", secret, NULL};
    if (paper_run(make_secret) != 0 ||
        !(p->star ? paper_star_make(&link, p->link, ranks) : paper_link_make(&link, p->link))) {
        return false;
    }
    int nodes[PAPER_HOSTS_MAX];
    bool good = true;
    for (int k = link.hosts - 1; k >= 0; k--) {
        nodes[k] = start_node(p, &link, k, ranks, self, arguments, folder, json);
    }
    for (int k = 0; k < link.hosts; k++) {
        good = nodes[k] > 0 && paper_wait(nodes[k]) == 0 && good;
    }
    paper_link_remove(&link);
    return good;
}

/* ---- what a measurement says ----------------------------------------------------------------- */

static char reason[512];

const char *paper_reason(void)
{
    return reason;
}

void paper_set_reason(const char *why)
{
    (void)snprintf(reason, sizeof reason, "%s", why);
}

/* The first line that is not empty, of printable characters. */
static void keep_reason(const char *line)
{
    if (reason[0] == '\0' && strcspn(line, "\n") > 0) {
        (void)snprintf(reason, sizeof reason, "%.*s", (int)strcspn(line, "\n"), line);
        for (char *at = reason; *at != '\0'; at++) {
            *at = (unsigned char)*at < ' ' ? ' ' : *at;
        }
    }
}

/* Prints what the processes said: of nodes behind a link, which say much, only after a failure. */
static void tell(const char *folder, bool failed, bool linked)
{
    char path[160], line[1024];
    for (int k = 0; (failed || !linked) && k < PAPER_HOSTS_MAX; k++) {
        FILE *file = fopen(said_by(folder, k, path), "re");
        for (bool first = true; file != NULL && fgets(line, sizeof line, file) != NULL;
             first = false) {
            fprintf(stderr, first && failed ? "\n%s" : "%s", line);
            if (failed) {
                keep_reason(line);
            }
        }
        if (file != NULL) {
            (void)fclose(file);
        }
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Those of a measurement that a signal ended are of the turns before it, if there are any. */
static json_t *read_rows(const char *path, bool whole)
{
    json_error_t error;
    json_t *rows = json_load_file(path, 0, &error); /* in a folder made here */
    if (rows == NULL && whole) {
        fprintf(stderr, "lockstep paper: the rows of lockstep bench cannot be read: %s\n",
                error.text);
    }
    return rows;
}

/* Measures into a folder; the rows. */
static json_t *measure(paper *p, int ranks, const char *const *arguments, const char *self,
                       const char *folder)
{
    char json[128];
    (void)snprintf(json, sizeof json, "%s/rows.json", folder);
    const paper_watch watch = paper_watch_begin();
    const bool measured = p->link != NULL ? over_link(p, ranks, self, arguments, folder, json)
                          : is_mpi(p)     ? over_mpi(p, ranks, self, arguments, folder, json)
                                          : here(p, ranks, self, arguments, folder, json);
    const double seconds = paper_watch_end(&watch, p->result);
    json_t *rows = measured || paper_stopped() ? read_rows(json, measured) : NULL;
    fprintf(stderr,
            measured          ? " %lld s\n"
            : paper_stopped() ? " interrupted after %lld s\n"
                              : " failed after %lld s\n",
            (long long)seconds);
    if (paper_stopped() && rows == NULL) {
        fprintf(stderr, "lockstep paper: it was in its first turn, of which nothing is kept\n");
    }
    tell(folder, !measured && !paper_stopped(), p->link != NULL);
    return rows;
}

json_t *paper_bench(paper *p, int ranks, const char *what, const char *const *arguments)
{
    char self[512] = "", folder[] = "/tmp/lockstep-paper-XXXXXX", medium[64];
    if (paper_stopped()) {
        paper_set_incomplete(p->result, "interrupted");
        return NULL;
    }
    if (p->options->out != NULL) {
        paper_keep(p->result, p->options->out);
    }
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || mkdtemp(folder) == NULL) {
        perror("lockstep paper");
        return NULL;
    }
    fprintf(stderr, "%s: %s, %d ranks, %s …", p->experiment->name, what, ranks,
            paper_medium(p, medium));
    json_t *rows = measure(p, ranks, arguments, self, folder);
    if (paper_stopped()) {
        paper_set_incomplete(p->result, "interrupted");
    }
    const char *const clean[] = {"rm", "-rf", folder, NULL};
    (void)paper_finish(clean);
    return rows;
}

static bool has(const json_t *row, const char *key, const char *value)
{
    char number[32];
    const json_t *found = json_object_get(row, key);
    (void)snprintf(number, sizeof number, "%.9g", json_number_value(found));
    return strcmp(json_is_number(found) ? number : paper_text(row, key), value) == 0;
}

const json_t *paper_find(const json_t *rows, const char *key, const char *value, ...)
{
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        bool fits = has(row, key, value);
        va_list more;
        va_start(more, value);
        for (const char *k = va_arg(more, const char *); k != NULL && fits;
             k = va_arg(more, const char *)) {
            fits = has(row, k, va_arg(more, const char *));
        }
        va_end(more);
        if (fits) {
            return row;
        }
    }
    return NULL;
}

double paper_number(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

double paper_mean(const json_t *row, const char *key)
{
    return paper_number(json_object_get(row, key), "mean_ms");
}

double paper_deviation(const json_t *row, const char *key)
{
    return paper_number(json_object_get(row, key), "deviation_ms");
}

const char *paper_text(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text != NULL ? text : "";
}

json_t *paper_turns(const json_t *row, const char *part)
{
    const json_t *samples = json_object_get(json_object_get(row, "samples_ms"), part);
    const size_t turns = (size_t)paper_number(row, "rounds");
    const size_t each = turns > 0 ? json_array_size(samples) / turns : 0;
    json_t *list = json_array();
    for (size_t t = 0; t < turns && each > 0; t++) {
        double sum = 0.0;
        for (size_t s = 0; s < each; s++) {
            sum += json_number_value(json_array_get(samples, t * each + s));
        }
        json_array_append_new(list, json_real(sum / (double)each));
    }
    return list;
}
