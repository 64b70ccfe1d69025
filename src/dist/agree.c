/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing the facts of all ranks of a group. See agree.h.
 *
 * A rank's facts are listed twice where ranks differ: first into a hash and a size, then into text,
 * which is padded to the longest one, because all_gather wants equal parts. A fact lies there as
 * its five fields, each with its terminating zero; an empty name ends the list. */
#include "dist/agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/runtime.h"
#include "base/text.h"
#include "comm/api/control.h"
#include "comm/core/group.h"
#include "comm/core/round_robin.h"

#define SHOWN_MAX 300 /* characters of a value in a message */
#define SIDE_TEXT 700 /* both sides fit into it */

struct ls__facts {
    uint64_t hash;
    size_t bytes;
    char *text; /* NULL: they are only hashed and counted */
};

/* Terminating zeros are hashed too, so that "ab","c" and "a","bc" differ. */
static void put(ls__facts *to, const char *text, bool compared)
{
    const size_t bytes = strlen(text) + 1;
    to->hash = compared ? ls__hash_bytes(to->hash, text, bytes) : to->hash;
    if (to->text != NULL) {
        memcpy(to->text + to->bytes, text, bytes);
    }
    to->bytes += bytes;
}

void ls__facts_add(ls__facts *to, const ls__fact *fact)
{
    LS_ASSERT(fact->name[0] != '\0');
    put(to, fact->name, true);
    put(to, fact->value, true);
    put(to, fact->own != NULL ? fact->own : "", true);
    put(to, fact->note != NULL ? fact->note : "", false);
    put(to, fact->remedy, false);
}

void ls__facts_text(ls__facts *to, const char *name, const char *value, const char *remedy)
{
    ls__facts_add(to, &(ls__fact){.name = name, .value = value, .remedy = remedy});
}

/* With as many digits as tell it from its neighbours. */
void ls__facts_number(ls__facts *to, const char *name, double value, const char *remedy)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%.9g", value);
    if (strtod(text, NULL) != value) {
        (void)snprintf(text, sizeof text, "%.17g", value);
    }
    ls__facts_text(to, name, text, remedy);
}

void ls__facts_hash(ls__facts *to, const char *name, uint64_t hash, const char *remedy)
{
    char text[32];
    (void)snprintf(text, sizeof text, "hash %016llx", (unsigned long long)hash);
    ls__facts_text(to, name, text, remedy);
}

/* ---- the first difference ----------------------------------------------------------------- */

typedef struct table {
    const ls__agree_peers *peers;
    char *text; /* [size][longest]: the facts of all ranks */
    size_t longest;
    int size;
} table;

static char *list_of(const table *t, int rank)
{
    return t->text + (size_t)rank * t->longest;
}

/* Returns where the next fact begins; NULL at the end of the list. */
static const char *read_fact(const char *at, ls__fact *out)
{
    const char **const field[] = {&out->name, &out->value, &out->own, &out->note, &out->remedy};
    if (*at == '\0') {
        return NULL;
    }
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
        *field[i] = at;
        at += strlen(at) + 1;
    }
    return at;
}

/* Whether two names are alike but for the number at their end: "optimizer group 2". */
static bool is_kind(const char *a, const char *b)
{
    size_t bytes = strlen(a);
    while (bytes > 0 && a[bytes - 1] >= '0' && a[bytes - 1] <= '9') {
        bytes--;
    }
    return bytes > 0 && a[bytes - 1] == ' ' && a[bytes] != '\0'
               ? strncmp(a, b, bytes) == 0 && strspn(b + bytes, "0123456789") == strlen(b + bytes)
               : strcmp(a, b) == 0;
}

static int count_kind(const table *t, int rank, const char *name)
{
    ls__fact fact;
    int count = 0;
    for (const char *at = list_of(t, rank); (at = read_fact(at, &fact)) != NULL;) {
        count += is_kind(name, fact.name);
    }
    return count;
}

/* A stage may lack some facts of a kind, so theirs are compared with those of the stages that have
 * the most of it, under whatever number. */
static bool is_lead(const table *t, int rank, const char *name)
{
    const int own = count_kind(t, rank, name);
    for (int r = 0; r < t->size; r++) {
        if (count_kind(t, r, name) > own) {
            return false;
        }
    }
    return true;
}

static bool find(const table *t, int rank, const char *name, const char *value, ls__fact *out)
{
    for (const char *at = list_of(t, rank); (at = read_fact(at, out)) != NULL;) {
        if (value == NULL ? strcmp(out->name, name) == 0
                          : is_kind(name, out->name) && strcmp(out->value, value) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether a rank may lack the fact. */
static bool may_lack(const table *t, const ls__fact *fact)
{
    const ls__agree_peers *p = t->peers;
    return p->stages || (p->lack && fact->own[0] == '\0');
}

/* The fact of `rank` with which this one is compared; "none" where it lacks it and may not. False:
 * it is not compared there. */
static bool get(const table *t, int rank, const ls__fact *fact, ls__fact *out)
{
    if (t->peers->stages && find(t, rank, fact->name, fact->value, out)) {
        return true;
    }
    if ((!t->peers->stages || is_lead(t, rank, fact->name)) &&
        find(t, rank, fact->name, NULL, out)) {
        return true;
    }
    *out = (ls__fact){.name = fact->name, .value = "none", .own = "", .note = ""};
    return !may_lack(t, fact);
}

static bool is_same(const table *t, const ls__fact *a, const ls__fact *b)
{
    return strcmp(a->value, b->value) == 0 && (t->peers->stages || strcmp(a->own, b->own) == 0);
}

/* The lowest rank that has the fact otherwise; -1: none has. */
static int find_other(const table *t, const ls__fact *fact)
{
    ls__fact other;
    for (int rank = 0; rank < t->size; rank++) {
        if (get(t, rank, fact, &other) && !is_same(t, fact, &other)) {
            return rank;
        }
    }
    return -1;
}

/* How many ranks have the fact like this. */
static int votes_of(const table *t, const ls__fact *fact)
{
    ls__fact other;
    int votes = 0;
    for (int rank = 0; rank < t->size; rank++) {
        votes += get(t, rank, fact, &other) && is_same(t, fact, &other);
    }
    return votes;
}

/* Values that begin alike for long are shown from shortly before they differ. */
static size_t shown_from(const ls__fact *a, const ls__fact *b)
{
    size_t same = 0;
    while (a->value[same] != '\0' && a->value[same] == b->value[same]) {
        same++;
    }
    return same > SHOWN_MAX / 2 ? same - SHOWN_MAX / 4 : 0;
}

static void describe(const table *t, int rank, const ls__fact *fact, size_t from,
                     char out[SIDE_TEXT])
{
    ls__text to = {out, SIDE_TEXT};
    const int votes = votes_of(t, fact);
    ls__text_add(&to, "rank %d has %s%.*s%.200s%s",
                 ls__round_robin_at(t->peers->group, 0)->member[rank].world_rank,
                 from > 0 ? "…" : "", SHOWN_MAX, fact->value + from, fact->own, fact->note);
    if (votes > 1) {
        ls__text_add(&to, ", as %d of %d ranks", votes, t->size);
    }
}

/* Both sides say how many ranks have it like this, so the odd one shows. */
static ls_status name_difference(const table *t, int rank, const ls__fact *fact, int other_rank)
{
    char low[SIDE_TEXT], high[SIDE_TEXT];
    ls__fact other;
    (void)get(t, other_rank, fact, &other);
    const size_t from = shown_from(fact, &other);
    describe(t, rank, fact, from, rank < other_rank ? low : high);
    describe(t, other_rank, &other, from, rank < other_rank ? high : low);
    return ls__fail(LS_ERR_MISMATCH, "%s: the ranks differ in %s: %s, %s; %s", t->peers->who,
                    fact->name, low, high, fact->remedy);
}

/* Whether all ranks have these bytes of a list at the same place: lists of many thousand parameters
 * are not searched for each of them. */
static bool is_everywhere(const table *t, const char *list, const char *from, const char *end)
{
    for (int rank = 0; rank < t->size; rank++) {
        if (memcmp(list_of(t, rank) + (from - list), from, (size_t)(end - from)) != 0) {
            return false;
        }
    }
    return true;
}

/* Every rank runs this on the same table, so all of them return one message. Lists can differ
 * without a difference: in their order, or in what stages need not share. */
static ls_status judge(const table *t)
{
    ls__fact fact;
    for (int rank = 0; rank < t->size; rank++) {
        const char *list = list_of(t, rank), *end;
        for (const char *at = list; (end = read_fact(at, &fact)) != NULL; at = end) {
            const int other = is_everywhere(t, list, at, end) ? -1 : find_other(t, &fact);
            LS_TRY(other < 0 ? LS_OK : name_difference(t, rank, &fact, other));
        }
    }
    return LS_OK;
}

/* Room for lists of which the longest has `bytes`, and the empty name. */
static ls_status make_table(table *t, const ls__agree_peers *p, size_t bytes)
{
    const ls__env *env = p->group->comm->runtime->env;
    *t = (table){.peers = p, .longest = bytes + 1, .size = ls_group_size(p->group)};
    t->text = env->allocate(env, (size_t)t->size * t->longest);
    if (t->text == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to compare the ranks", p->who);
    }
    memset(t->text, 0, (size_t)t->size * t->longest);
    return LS_OK;
}

/* Judges a table that is complete, and frees it. */
static ls_status conclude(const table *t, ls_status status)
{
    const ls__env *env = t->peers->group->comm->runtime->env;
    status = status < 0 ? status : judge(t);
    env->release(env, t->text, (size_t)t->size * t->longest);
    return status;
}

/* ---- the exchange ------------------------------------------------------------------------- */

typedef struct header { /* sent as it is */
    uint64_t hash;      /* 0: this rank has nothing to compare in the group, so none compares */
    uint64_t bytes;
} header;

/* Only where hashes differ, so its cost does not matter to programs that work. */
static ls_status exchange(const ls__agree_peers *p, ls__facts_fn list, const void *arg,
                          size_t bytes)
{
    table t;
    LS_TRY(make_table(&t, p, bytes));
    char *own = list_of(&t, ls_group_rank(p->group));
    list(&(ls__facts){.text = own}, arg);
    return conclude(&t, ls__control_all_gather(
                            p->group, own, t.text, (int64_t)t.longest, LS_UINT8,
                            LS_OPTIONS(ls_collective_options, .tag = "settings that differ")));
}

/* Whether the facts must be exchanged; *bytes becomes the size of the longest list. */
static bool differ(const header *all, int size, size_t *bytes)
{
    bool any = false, none = false;
    *bytes = 0;
    for (int rank = 0; rank < size; rank++) {
        none = none || all[rank].hash == 0;
        any = any || all[rank].hash != all[0].hash;
        *bytes = all[rank].bytes > *bytes ? all[rank].bytes : *bytes;
    }
    return any && !none;
}

static ls_status agree(const ls__agree_peers *p, ls__facts_fn list, const void *arg, bool abstains)
{
    const ls__env *env = p->group->comm->runtime->env;
    const int size = ls_group_size(p->group);
    header *all = env->allocate(env, (size_t)size * sizeof *all);
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to compare the ranks", p->who);
    }
    ls__facts facts = {.hash = LS__HASH_START};
    list(&facts, arg);
    const header own = {abstains ? 0 : facts.hash, facts.bytes};
    ls_status status =
        ls__control_all_gather(p->group, &own, all, sizeof own, LS_UINT8,
                               LS_OPTIONS(ls_collective_options, .tag = "settings of all ranks"));
    size_t bytes;
    if (status == LS_OK && differ(all, size, &bytes)) {
        status = exchange(p, list, arg, bytes);
    }
    env->release(env, all, (size_t)size * sizeof *all);
    return status;
}

ls_status ls__agree(const ls__agree_peers *p, ls__facts_fn list, const void *arg)
{
    return agree(p, list, arg, false);
}

ls_status ls__agree_here(const ls__agree_peers *p, ls__facts_of_fn list, const void *arg)
{
    size_t bytes = 0;
    table t;
    for (int rank = 0; rank < ls_group_size(p->group); rank++) {
        ls__facts facts = {0};
        list(&facts, rank, arg);
        bytes = facts.bytes > bytes ? facts.bytes : bytes;
    }
    LS_TRY(make_table(&t, p, bytes));
    for (int rank = 0; rank < t.size; rank++) {
        list(&(ls__facts){.text = list_of(&t, rank)}, rank, arg);
    }
    return conclude(&t, LS_OK);
}

/* ---- settings ----------------------------------------------------------------------------- */

static bool is_shared(const ls__config_entry *entry)
{
    return entry->of.shared != NULL && entry->of.shared(entry->of.object);
}

/* Whether some entry is known to be shared: then those that are not are this rank's own. Where none
 * is, as of models that are averaged by a reducer of the program's, all are compared. */
static bool any_is_shared(void)
{
    ls__config_entry entry;
    bool any = false;
    for (int i = 0; !any && ls__config_entry_at(i, &entry); i++) {
        any = is_shared(&entry);
    }
    return any;
}

static void list_settings(ls__facts *to, const void *arg)
{
    const ls_runtime *runtime = arg;
    char text[32], name[LS__CONFIG_NAME], site[80];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)runtime->seed);
    ls__facts_add(to, &(ls__fact){.name = "the seed",
                                  .value = text,
                                  .remedy = "give every rank the same (ls_init, ls_manual_seed): "
                                            "random numbers are drawn for each sample of the "
                                            "global batch, so ranks differ by themselves"});
    ls__config_entry entry;
    const char *kind[LS__CONFIG_ENTRIES_MAX];
    int listed = 0;
    const bool some = any_is_shared();
    for (int i = 0; ls__config_entry_at(i, &entry); i++) {
        if (some && entry.of.shared != NULL && !is_shared(&entry)) {
            continue;
        }
        int number = 1;
        for (int k = 0; k < listed; k++) {
            number += strcmp(kind[k], entry.kind) == 0;
        }
        kind[listed++] = entry.kind;
        (void)snprintf(name, sizeof name, "%s %d", entry.kind, number);
        (void)snprintf(site, sizeof site, " at %s:%d", entry.file, entry.line);
        ls__facts_add(to, &(ls__fact){.name = name,
                                      .value = entry.text,
                                      .own = entry.own,
                                      .note = entry.file[0] != '\0' ? site : "",
                                      .remedy = "make the same samplers, loaders and optimizers "
                                                "on every rank, in the same order"});
    }
}

static void list_changes(ls__facts *to, const void *arg)
{
    const ls__agree_peers *p = arg;
    ls__config_change change;
    for (int i = 0; p->trains && ls__config_change_at(i, &change); i++) {
        ls__facts_number(to, change.name, change.value,
                         p->stages || p->parts
                             ? "do the same on every rank in every step, or they do not "
                               "train one model"
                             : "do the same on every rank in every step, or the replicas "
                               "drift apart");
    }
}

ls_status ls__agree_settings(const ls__agree_peers *p)
{
    const ls_runtime *runtime = p->group->comm->runtime;
    const uint64_t key = atomic_load_explicit(&runtime->agreement, memory_order_relaxed);
    ls__agree_peers peers = *p;
    peers.lack = p->parts;
    return agree(&peers, list_settings, runtime, !p->stages && !p->parts && key != p->key);
}

/* Settings are compared by their hashes first, so every rank calls this. */
ls_status ls__agree_changes(const ls__agree_peers *p)
{
    return agree(p, list_changes, p, false);
}
