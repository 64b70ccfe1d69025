/* SPDX-License-Identifier: Apache-2.0 */
/* The lectures' parameter server beside a ring, on hosts around a switch whose cables all have the
 * same rate. Each of K workers sends its gradients of G bytes to the server (push), and gets as
 * many parameters from it (pull): K G bytes through its cable in, then K G out. A ring sends
 * 2 (K-1)/K G through each, so the server takes K^2/(K-1) times as long. A server that sends what
 * it has summed while more comes in (algorithm "root") uses both directions at once. Divided over
 * the workers (algorithm "direct": each has a K-th of the sum) it sends what the ring sends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "paper.h"

#define RATE "1gbit"
#define PARAMETERS 25557032 /* of ResNet-50 */
#define QUICK 2500000       /* with --quick */
#define CLOSE 0.1
enum { SAMPLES = 3 };

static const int workers[] = {2, 3, 4, 8};
enum { COUNTS = sizeof workers / sizeof *workers };

static const paper_column columns[] = {
    {"workers", "", "%.0f"},   {"push", "ms", "%.1f"},         {"pull", "ms", "%.1f"},
    {"at once", "ms", "%.1f"}, {"divided", "ms", "%.1f"},      {"ring", "ms", "%.1f"},
    {"floor", "ms", "%.1f"},   {"server / ring", "", "%.2f"},  {"expected", "", "%.2f"},
    {"off", "%", "%.1f"},      {"divided / ring", "", "%.2f"}, {"in", "bytes", "%.0f"},
    {"out", "bytes", "%.0f"},
};

/* The measurements for K workers: on K ranks, and one more where one is the server. */
enum { PUSH, PULL, AT_ONCE, DIVIDED, RING, PARTS };
static const struct {
    const char *operation, *algorithm;
    bool server;
} parts[PARTS] = {[PUSH] = {"gather", "direct", true},
                  [PULL] = {"broadcast", "direct", true},
                  [AT_ONCE] = {"all-reduce", "root", true},
                  [DIVIDED] = {"all-reduce", "direct", false},
                  [RING] = {"all-reduce", "ring", false}};

static int64_t gradient_bytes(const paper *p)
{
    const int64_t asked = p->options->parameters;
    return 4 * (asked > 0 ? asked : p->options->quick ? QUICK : PARAMETERS);
}

/* One row of `lockstep bench`, each rank on its own host; NULL after it printed why. */
static json_t *run(paper *p, int part, int k)
{
    char bytes[32], samples[16], what[64];
    const paper_options *o = p->options;
    const int ranks = k + parts[part].server;
    /* Of the larger buffer: the server's has a place for each rank, its own is not sent. */
    (void)snprintf(bytes, sizeof bytes, "%lld",
                   (long long)gradient_bytes(p) * (part == PUSH ? ranks : 1));
    (void)snprintf(samples, sizeof samples, "%d", o->steps > 0 ? o->steps : SAMPLES);
    (void)snprintf(what, sizeof what, "%s %s", parts[part].operation, parts[part].algorithm);
    const char *const arguments[] = {parts[part].operation,
                                     "--algorithm",
                                     parts[part].algorithm,
                                     "--sizes",
                                     bytes,
                                     "--samples",
                                     samples,
                                     "--warmup",
                                     "1",
                                     NULL};
    json_t *rows = paper_bench(p, ranks, what, arguments), *row = NULL;
    if (json_array_size(rows) == 1) {
        row = json_incref(json_array_get(rows, 0));
    }
    json_decref(rows);
    return row;
}

/* Push and pull of each sample, one after the other. */
static json_t *served_of(json_t *const rows[PARTS])
{
    const json_t *push = json_object_get(rows[PUSH], "samples_ms"),
                 *pull = json_object_get(rows[PULL], "samples_ms");
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(push); i++) {
        json_array_append_new(list, json_real(json_number_value(json_array_get(push, i)) +
                                              json_number_value(json_array_get(pull, i))));
    }
    return list;
}

static void claim(paper *p, int k, json_t *const rows[PARTS], double expected)
{
    char left[64];
    json_t *servers = served_of(rows);
    (void)snprintf(left, sizeof left, "a server for %d workers", k);
    paper_claim_add(p, &(paper_claim){.text = "a server takes K^2/(K-1) times as long as a ring, "
                                              "less a tenth at most",
                                      .left = left,
                                      .right = "a ring",
                                      .left_turns = servers,
                                      .right_turns = json_object_get(rows[RING], "samples_ms"),
                                      .above = true,
                                      .factor = (1.0 - CLOSE) * expected});
    json_decref(servers);
}

static void add(paper *p, json_t *table, int k, json_t *const rows[PARTS])
{
    double ms[PARTS];
    for (int i = 0; i < PARTS; i++) {
        ms[i] = paper_number(rows[i], "time_ms");
    }
    const double server = ms[PUSH] + ms[PULL], expected = (double)k * k / (k - 1),
                 bits_a_ms = atof(p->link) * (strstr(p->link, "gbit") != NULL ? 1e6 : 1e3);
    paper_row(table, "[i, f, f, f, f, f, f, f, f, f, f, f, f]", k, ms[PUSH], ms[PULL], ms[AT_ONCE],
              ms[DIVIDED], ms[RING], 16.0 * (k - 1) / k * (double)gradient_bytes(p) / bits_a_ms,
              server / ms[RING], expected, 100.0 * (server / ms[RING] / expected - 1.0),
              ms[DIVIDED] / ms[RING], paper_number(rows[PUSH], "received_bytes"),
              paper_number(rows[PULL], "sent_bytes"));
    claim(p, k, rows, expected);
}

static bool measure(paper *p, json_t *table, int k)
{
    json_t *rows[PARTS] = {NULL};
    bool good = true;
    for (int i = 0; i < PARTS && good; i++) {
        rows[i] = run(p, i, k);
        good = rows[i] != NULL;
    }
    if (good) {
        add(p, table, k, rows);
    }
    for (int i = 0; i < PARTS; i++) {
        json_decref(rows[i]);
    }
    return good;
}

static void add_notes(paper *p, const char *rate)
{
    paper_note(
        p,
        "push: each worker sends its gradients to the server (in); pull: the server "
        "sends each the parameters (out). at once: an all-reduce via the server, which sends while "
        "it receives (--algorithm root). divided: each worker is the server of its share "
        "(--algorithm direct). server / ring is that of push and pull, one after the "
        "other; K^2/(K-1) is expected.");
    paper_note(p,
               "Each host is a network namespace of this machine with a cable to a switch that "
               "carries %s/s each way (`tc tbf` at both ends). Data are not encrypted, since all "
               "hosts share the cores of this machine: where ring is far above its floor, which "
               "the rate sets, the cores are the limit, and not the cables.",
               rate);
}

bool paper_server(paper *p)
{
    paper over = *p;
    char title[128];
    const int asked = p->options->workers;
    if (p->link == NULL && (p->transport != NULL || !paper_can_link())) {
        paper_note(p, "SKIP: a star of hosts needs --link, and for it root, ip, tc and nsenter.");
        return true;
    }
    over.link = p->link != NULL ? p->link : RATE;
    over.star = true;
    (void)snprintf(title, sizeof title, "Gradients of %lld bytes, hosts around a switch, %s/s",
                   (long long)gradient_bytes(p), over.link);
    json_t *table = paper_table(p, title, columns, (int)(sizeof columns / sizeof *columns));
    for (int i = 0; i < (asked > 0 ? 1 : COUNTS); i++) {
        if (!measure(&over, table, asked > 0 ? asked : workers[i])) {
            return false;
        }
    }
    add_notes(p, over.link);
    return true;
}
