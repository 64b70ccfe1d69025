/* SPDX-License-Identifier: Apache-2.0 */
/* The lectures' trade-off between operators and within them (Zheng et al. 2022, "Alpa", section 2):
 * four ranks on hosts around a switch train a GPT. Its layers one after the other (pp=4) send
 * activations at three cuts and wait for each other; parts of each layer (tp=4) wait for no other
 * part and sum activations four times a layer; both (pp=2,tp=2) lie between.
 *
 * `lockstep bench mesh` runs the three with layers that sleep, and says what src/cost predicts. In
 * shared memory messages take next to no time, so what a step takes there beyond its computation is
 * idle time; what it takes longer over the link is communication that nothing hides. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "paper.h"

#define RATE "1gbit"
enum { RANKS = 4, ROUNDS = 5, ROUNDS_MAX = 100 };

enum { BETWEEN, MIXED, WITHIN, MESHES };
static const struct {
    const char *name, *mesh;
} meshes[MESHES] = {[BETWEEN] = {"between operators", "pp=4,tp=1"},
                    [MIXED] = {"both", "pp=2,tp=2"},
                    [WITHIN] = {"within operators", "pp=1,tp=4"}};

static const paper_column columns[] = {
    {"parallelism", "", NULL},
    {"mesh", "", NULL},
    {"compute", "ms", "%.1f"},
    {"idle", "ms", "%.1f"},
    {"predicted idle", "ms", "%.1f"},
    {"sent", "bytes", "%.0f"},
    {"predicted sent", "bytes", "%.0f"},
    {"communication", "ms", "%.1f"},
    {"predicted communication", "ms", "%.1f"},
    {"step", "ms", "%.1f"},
    {"predicted step", "ms", "%.1f"},
    {"off", "%", "%.1f"},
};

/* The rows of all meshes on one medium; NULL after it printed why. */
static json_t *run(paper *p, const char *rate)
{
    char list[64], rounds[16];
    (void)snprintf(list, sizeof list, "%s/%s/%s", meshes[BETWEEN].mesh, meshes[MIXED].mesh,
                   meshes[WITHIN].mesh);
    (void)snprintf(rounds, sizeof rounds, "%d", p->options->steps > 0 ? p->options->steps : ROUNDS);
    const char *const arguments[] = {"mesh", "--meshes", list,   "--link",
                                     rate,   "--rounds", rounds, NULL};
    return paper_bench(p, RANKS, "mesh", arguments);
}

/* The time of each step beyond its computation on the medium without cost. */
static json_t *idle_of(const json_t *row)
{
    json_t *list = json_array();
    const json_t *rounds = json_object_get(row, "round_ms");
    for (size_t i = 0; i < json_array_size(rounds); i++) {
        const double idle =
            json_number_value(json_array_get(rounds, i)) - paper_number(row, "work_ms");
        json_array_append_new(list, json_real(idle > 1e-3 ? idle : 1e-3));
    }
    return list;
}

static json_t *number_if(const json_t *row, double value)
{
    return row != NULL ? json_real(value) : json_null();
}

/* `linked` NULL: there is no link. */
static void add(json_t *table, int mesh, const json_t *here, const json_t *linked)
{
    const json_t *other = linked != NULL ? linked : here;
    const double step = paper_number(here, "step_ms"), over = paper_number(linked, "step_ms"),
                 work = paper_number(here, "work_ms"),
                 predicted = paper_number(other, "predicted_ms");
    paper_row(table, "[s, s, f, f, f, o, f, o, f, o, f, o]", meshes[mesh].name, meshes[mesh].mesh,
              work, step - work, paper_number(other, "bubble_ms"),
              number_if(linked, paper_number(linked, "sent_bytes")),
              paper_number(other, "predicted_bytes"), number_if(linked, over - step),
              paper_number(other, "tp_ms"), number_if(linked, over), predicted,
              number_if(linked, 100.0 * (over / predicted - 1.0)));
}

/* Of bytes, which are counted, or of idle times. */
static void claim(paper *p, bool counted, const char *left, const char *right, json_t *lefts,
                  json_t *rights)
{
    static const char idles[] = "division between operators idles more than division within them",
                      sends[] = "division between operators communicates less than division within "
                                "them";
    paper_claim_add(p, &(paper_claim){.text = counted ? sends : idles,
                                      .left = left,
                                      .right = right,
                                      .left_turns = lefts,
                                      .right_turns = rights,
                                      .above = false,
                                      .factor = 1.0,
                                      .counted = counted});
    json_decref(lefts);
    json_decref(rights);
}

static void claim_all(paper *p, const json_t *const here[MESHES],
                      const json_t *const linked[MESHES])
{
    claim(p, false, "idle time with tp=4", "with pp=2,tp=2", idle_of(here[WITHIN]),
          idle_of(here[MIXED]));
    claim(p, false, "idle time with pp=2,tp=2", "with pp=4", idle_of(here[MIXED]),
          idle_of(here[BETWEEN]));
    if (linked[BETWEEN] != NULL) {
        claim(p, true, "bytes sent with pp=4", "with pp=2,tp=2",
              json_pack("[f]", paper_number(linked[BETWEEN], "sent_bytes")),
              json_pack("[f]", paper_number(linked[MIXED], "sent_bytes")));
        claim(p, true, "bytes sent with pp=2,tp=2", "with tp=4",
              json_pack("[f]", paper_number(linked[MIXED], "sent_bytes")),
              json_pack("[f]", paper_number(linked[WITHIN], "sent_bytes")));
    }
}

static void add_all(paper *p, const char *rate, const json_t *here, const json_t *linked)
{
    char title[160];
    const json_t *found[MESHES], *over[MESHES];
    (void)snprintf(title, sizeof title,
                   "A step of a GPT on %d hosts around a switch, %s/s; layers "
                   "sleep",
                   RANKS, rate);
    json_t *table = paper_table(p, title, columns, (int)(sizeof columns / sizeof *columns));
    for (int i = 0; i < MESHES; i++) {
        found[i] = paper_find(here, "mesh", meshes[i].mesh, NULL);
        over[i] = paper_find(linked, "mesh", meshes[i].mesh, NULL);
        add(table, i, found[i], over[i]);
    }
    claim_all(p, found, over);
    paper_note(p,
               "compute: what the rank sleeps that has most to do, as a device of 20 GFLOP/s "
               "would. idle: what a step takes beyond that in shared memory. communication: what "
               "it takes longer over the link. sent: by the rank that sends most. Predicted: "
               "`lockstep sim` without the sum of gradients and the optimizer; its idle time is "
               "that over the link, and communication of stages that others hide is none.");
}

bool paper_tradeoff(paper *p)
{
    paper free_of_charge = *p, over = *p;
    const bool asked = p->link != NULL, links = p->transport == NULL && (asked || paper_can_link());
    free_of_charge.transport = "shm";
    free_of_charge.link = NULL;
    over.link = asked ? p->link : RATE;
    over.star = true;
    json_t *here = run(&free_of_charge, over.link), *linked = NULL;
    if (here != NULL && links) {
        linked = run(&over, over.link);
    }
    const bool good = here != NULL && (linked != NULL || !links);
    if (good) {
        add_all(p, over.link, here, linked);
    }
    if (good && !links) {
        paper_note(p, "SKIP: hosts around a switch need root, ip, tc and nsenter; steps over the "
                      "link are predicted only.");
    }
    json_decref(here);
    json_decref(linked);
    return good;
}
