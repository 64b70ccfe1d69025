/* Whether all ranks train with the same configuration: the seed, and the settings of samplers,
 * loaders and optimizers (base/config.h). They are compared once, when the first synchronised
 * backward, or the first call of a pipeline, begins: by then all of them exist, and no optimizer
 * has stepped on a wrong mean. Replicas compare only in a group in which all of its ranks agree
 * (Note [Agreement], base/runtime.h); the stages of a pipeline train one model in any case. */
#include "reduce/config_check.h"

#include <stdio.h>
#include <string.h>

#include "base/runtime.h"
#include "comm/api/control.h"
#include "comm/core/group.h"
#include "comm/core/round_robin.h"

typedef struct own_config { /* sent as it is */
    uint64_t seed, agreement;
    bool trains;
    ls__config config;
} own_config;

static int rank_of(const ls__config_peers *p, int rank)
{
    return ls__round_robin_at(p->group, 0)->member[rank].world_rank;
}

/* Writes " at train.c:31", or nothing when the place is not known. */
static void put_site(const ls__config_entry *entry, char *out, size_t bytes)
{
    out[0] = '\0';
    if (entry->file[0] != '\0') {
        (void)snprintf(out, bytes, " at %.*s:%d", LS__CONFIG_FILE, entry->file, (int)entry->line);
    }
}

/* Returns the error for a rank whose seed differs from rank 0's. */
static ls_status name_seeds(const ls__config_peers *p, const own_config *all, int rank)
{
    return ls__fail(LS_ERR_MISMATCH,
                    "%s: rank %d has seed %llu and rank %d has seed %llu; give every "
                    "rank the same (ls_init, ls_manual_seed): random numbers are drawn for each "
                    "sample of the global batch, so ranks differ by themselves",
                    p->name, rank_of(p, 0), (unsigned long long)all[0].seed, rank_of(p, rank),
                    (unsigned long long)all[rank].seed);
}

/* Returns the error for the first sampler, loader or optimizer in which `rank` differs from `lead`:
 * their entries number i and k; a rank may also have made fewer of them. */
static ls_status name_entry(const ls__config_peers *p, const own_config *all, int lead, int i,
                            int rank, int k)
{
    static const ls__config_entry none = {.text = "nothing of the kind"};
    const ls__config *first = &all[lead].config, *second = &all[rank].config;
    const ls__config_entry *ours = i < first->count ? &first->entry[i] : &none;
    const ls__config_entry *theirs = k < second->count ? &second->entry[k] : &none;
    char site[80], other[80];
    put_site(ours, site, sizeof site);
    put_site(theirs, other, sizeof other);
    return ls__fail(
        LS_ERR_MISMATCH,
        "%s: the ranks are set up differently: rank %d made %.*s%s, rank %d "
        "made %.*s%s; make the same samplers, loaders and optimizers on every rank, in the same "
        "order",
        p->name, rank_of(p, lead), LS__CONFIG_TEXT, ours->text, site, rank_of(p, rank),
        LS__CONFIG_TEXT, theirs->text, other);
}

static bool all_agree_here(const ls__config_peers *p, const own_config *all, int size)
{
    bool agree = true;
    for (int rank = 0; rank < size; rank++) {
        agree = agree && (p->stages || all[rank].agreement == p->agreement);
    }
    return agree;
}

/* Stages have different parameters. */
static bool is_same(const ls__config_peers *p, const ls__config_entry *a, const ls__config_entry *b)
{
    if (!p->stages) {
        return strncmp(a->text, b->text, LS__CONFIG_TEXT) == 0;
    }
    return a->own == b->own && memcmp(a->text, b->text, (size_t)a->own) == 0 &&
           strcmp(a->text + a->own_end, b->text + b->own_end) == 0;
}

/* Entries are compared in the order in which they were made. A stage may lack some of the entries
 * of `lead`, which has the most: one without parameters has no optimizer, one between the first and
 * the last no data. */
static ls_status compare_entries(const ls__config_peers *p, const own_config *all, int lead,
                                 int rank)
{
    const ls__config *a = &all[lead].config, *b = &all[rank].config;
    int i = 0, k = 0;
    while (k < b->count && i < a->count) {
        const bool same = is_same(p, &a->entry[i], &b->entry[k]);
        if (!same && (!p->stages || a->count - i <= b->count - k)) {
            return name_entry(p, all, lead, i, rank, k);
        }
        k += same;
        i++;
    }
    const bool rest = k < b->count || (i < a->count && !p->stages);
    return rest ? name_entry(p, all, lead, i, rank, k) : LS_OK;
}

/* Replicas are compared with the first, stages with the one that made the most. */
static int find_lead(const ls__config_peers *p, const own_config *all, int size)
{
    int lead = 0;
    for (int rank = 1; rank < size && p->stages; rank++) {
        lead = all[rank].config.count > all[lead].config.count ? rank : lead;
    }
    return lead;
}

/* Of a stage whose table is full nobody knows what it made beyond. */
static ls_status compare(const ls__config_peers *p, const own_config *all, int size)
{
    const int lead = find_lead(p, all, size);
    const bool known = !p->stages || all[lead].config.count < LS__CONFIG_ENTRIES_MAX;
    for (int rank = 0; rank < size && all_agree_here(p, all, size); rank++) {
        if (all[rank].seed != all[0].seed) {
            return name_seeds(p, all, rank);
        }
        LS_TRY(known ? compare_entries(p, all, lead, rank) : LS_OK);
    }
    return LS_OK;
}

/* Brings the configurations of all ranks together, for `judge` to compare. */
static ls_status gather(const ls__config_peers *p, const char *tag,
                        ls_status (*judge)(const ls__config_peers *p, const own_config *all,
                                           int size))
{
    const ls_runtime *runtime = p->group->comm->runtime;
    const ls__env *env = runtime->env;
    const int size = ls_group_size(p->group);
    const size_t bytes = (size_t)size * sizeof(own_config);
    own_config *all = env->allocate(env, bytes);
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to compare settings", p->name);
    }
    const own_config own = {.seed = runtime->seed,
                            .agreement =
                                atomic_load_explicit(&runtime->agreement, memory_order_relaxed),
                            .trains = p->trains,
                            .config = runtime->config};
    ls_status status = ls__control_all_gather(p->group, &own, all, sizeof own, LS_UINT8,
                                              LS_OPTIONS(ls_collective_options, .tag = tag));
    if (status == LS_OK) {
        status = judge(p, all, size);
    }
    env->release(env, all, bytes);
    return status;
}

ls_status ls__config_check(const ls__config_peers *p)
{
    return gather(p, "settings of all ranks", compare);
}

/* ---- settings that may change in the run -------------------------------------------------- */

/* "0.001", or that the rank never set it. */
static const char *put_value(const double *value, char out[32])
{
    (void)snprintf(out, 32, value != NULL ? "%.9g" : "not set", value != NULL ? *value : 0.0);
    return out;
}

/* The first setting of one rank that the other has otherwise, or, of replicas, has not. */
static const char *first_change(const ls__config_peers *p, const ls__config *of,
                                const ls__config *in)
{
    for (int i = 0; i < of->changes; i++) {
        const double *value = ls__config_value(in, of->change[i].name);
        if (value == NULL ? !p->stages : memcmp(value, &of->change[i].value, sizeof *value) != 0) {
            return of->change[i].name;
        }
    }
    return NULL;
}

static ls_status name_change(const ls__config_peers *p, const own_config *all, int size)
{
    char ours[32], theirs[32];
    int first = 0;
    while (first < size - 1 && !all[first].trains) {
        first++;
    }
    for (int rank = first + 1; rank < size; rank++) {
        const ls__config *low = &all[first].config, *high = &all[rank].config;
        const char *name = all[rank].trains ? first_change(p, low, high) : NULL;
        name = name != NULL || !all[rank].trains ? name : first_change(p, high, low);
        if (name != NULL) {
            return ls__fail(
                LS_ERR_MISMATCH,
                "%s: the ranks train with different settings: %s is %s on "
                "rank %d and %s on rank %d; do the same on every rank in every step, or "
                "%s",
                p->name, name, put_value(ls__config_value(low, name), ours), rank_of(p, first),
                put_value(ls__config_value(high, name), theirs), rank_of(p, rank),
                p->stages ? "the stages do not train one model" : "the replicas drift apart");
        }
    }
    return LS_OK;
}

/* Every rank finds the same pair. A replica whose settings were others in the step has them alike
 * again; stages may lack some, so their hashes can differ without a difference. */
ls_status ls__config_name_change(const ls__config_peers *p)
{
    LS_TRY(gather(p, "settings that differ", name_change));
    return p->stages ? LS_OK
                     : ls__fail(LS_ERR_MISMATCH,
                                "%s: the ranks had different settings (learning rate, clipping or "
                                "type of products) in this step; set the same on every rank in "
                                "every step",
                                p->name);
}
