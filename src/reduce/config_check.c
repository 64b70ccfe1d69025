/* Whether all ranks train with the same configuration: the seed, and the settings of samplers,
 * loaders and optimizers (base/config.h). They are compared once, when the first synchronised
 * backward begins: by then all of them exist, and no optimizer has stepped on a wrong mean. Only in
 * a group in which all of its ranks agree (Note [Agreement], base/runtime.h). */
#include "reduce/config_check.h"
#include "comm/api/control.h"

#include <stdio.h>
#include <string.h>

#include "reduce/domain.h"

typedef struct own_config { /* sent as it is */
    uint64_t seed, agreement;
    ls__config config;
} own_config;

/* Writes " at train.c:31", or nothing when the place is not known. */
static void put_site(const ls__config_entry *entry, char *out, size_t bytes)
{
    out[0] = '\0';
    if (entry->file[0] != '\0') {
        (void)snprintf(out, bytes, " at %.*s:%d", LS__CONFIG_FILE, entry->file, (int)entry->line);
    }
}

/* Returns the error for a rank whose seed differs from rank 0's. */
static ls_status name_seeds(const ls_reducer *r, const own_config *all, int rank)
{
    return ls__fail(LS_ERR_MISMATCH,
                    "reducer \"%s\": rank %d has seed %llu and rank %d has seed %llu; give every "
                    "rank the same (ls_init, ls_manual_seed): random numbers are drawn for each "
                    "sample of the global batch, so ranks differ by themselves",
                    r->name, ls__reducer_rank(r, 0), (unsigned long long)all[0].seed,
                    ls__reducer_rank(r, rank), (unsigned long long)all[rank].seed);
}

/* Returns the error for the first sampler, loader or optimizer that differs; a rank may also have
 * made fewer of them. */
static ls_status name_entry(const ls_reducer *r, const own_config *all, int rank, int i)
{
    static const ls__config_entry none = {.text = "nothing of the kind"};
    const ls__config_entry *ours = i < all[0].config.count ? &all[0].config.entry[i] : &none;
    const ls__config_entry *theirs =
        i < all[rank].config.count ? &all[rank].config.entry[i] : &none;
    char site[80], other[80];
    put_site(ours, site, sizeof site);
    put_site(theirs, other, sizeof other);
    return ls__fail(
        LS_ERR_MISMATCH,
        "reducer \"%s\": the ranks are set up differently: rank %d made %.*s%s, rank %d "
        "made %.*s%s; make the same samplers, loaders and optimizers on every rank, in the same "
        "order",
        r->name, ls__reducer_rank(r, 0), LS__CONFIG_TEXT, ours->text, site,
        ls__reducer_rank(r, rank), LS__CONFIG_TEXT, theirs->text, other);
}

static bool all_agree_here(const ls_reducer *r, const own_config *all)
{
    bool agree = true;
    for (int rank = 0; rank < r->size; rank++) {
        agree = agree && all[rank].agreement == r->agreement;
    }
    return agree;
}

/* Entries are compared as text, in the order in which they were made. */
static ls_status compare(const ls_reducer *r, const own_config *all)
{
    for (int rank = 1; rank < r->size && all_agree_here(r, all); rank++) {
        if (all[rank].seed != all[0].seed) {
            return name_seeds(r, all, rank);
        }
        for (int i = 0; i < LS__CONFIG_ENTRIES_MAX; i++) {
            const bool either = i < all[0].config.count || i < all[rank].config.count;
            const bool both = i < all[0].config.count && i < all[rank].config.count;
            if (either &&
                (!both || strncmp(all[0].config.entry[i].text, all[rank].config.entry[i].text,
                                  LS__CONFIG_TEXT) != 0)) {
                return name_entry(r, all, rank, i);
            }
        }
    }
    return LS_OK;
}

/* Brings the configurations of all ranks together, for `judge` to compare. */
static ls_status gather(const ls_reducer *r, const char *tag,
                        ls_status (*judge)(const ls_reducer *r, const own_config *all))
{
    const ls__env *env = r->runtime->env;
    const size_t bytes = (size_t)r->size * sizeof(own_config);
    own_config *all = env->allocate(env, bytes);
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory to compare settings", r->name);
    }
    const own_config own = {.seed = r->runtime->seed,
                            .agreement =
                                atomic_load_explicit(&r->runtime->agreement, memory_order_relaxed),
                            .config = r->runtime->config};
    ls_status status = ls__control_all_gather(r->group, &own, all, sizeof own, LS_UINT8,
                                              LS_OPTIONS(ls_collective_options, .tag = tag));
    if (status == LS_OK) {
        status = judge(r, all);
    }
    env->release(env, all, bytes);
    return status;
}

/* Does nothing once it has succeeded. */
ls_status ls__config_check(ls_reducer *r)
{
    if (r->config_checked) {
        return LS_OK;
    }
    LS_TRY(gather(r, "settings of all ranks", compare));
    r->config_checked = true;
    return LS_OK;
}

/* ---- settings that may change in the run -------------------------------------------------- */

/* "0.001", or that the rank never set it. */
static const char *put_value(const double *value, char out[32])
{
    (void)snprintf(out, 32, value != NULL ? "%.9g" : "not set", value != NULL ? *value : 0.0);
    return out;
}

/* The first setting of one rank that the other has otherwise, or has not. */
static const char *first_change(const ls__config *of, const ls__config *in)
{
    for (int i = 0; i < of->changes; i++) {
        const double *value = ls__config_value(in, of->change[i].name);
        if (value == NULL || memcmp(value, &of->change[i].value, sizeof *value) != 0) {
            return of->change[i].name;
        }
    }
    return NULL;
}

/* Every rank finds the same pair. */
static ls_status name_change(const ls_reducer *r, const own_config *all)
{
    char ours[32], theirs[32];
    for (int rank = 1; rank < r->size; rank++) {
        const ls__config *low = &all[0].config, *high = &all[rank].config;
        const char *name = first_change(low, high);
        name = name != NULL ? name : first_change(high, low);
        if (name != NULL) {
            return ls__fail(
                LS_ERR_MISMATCH,
                "reducer \"%s\": the ranks train with different settings: %s is %s on "
                "rank %d and %s on rank %d; set the same on every rank in every step, or "
                "the replicas drift apart",
                r->name, name, put_value(ls__config_value(low, name), ours), ls__reducer_rank(r, 0),
                put_value(ls__config_value(high, name), theirs), ls__reducer_rank(r, rank));
        }
    }
    return ls__fail(LS_ERR_MISMATCH,
                    "reducer \"%s\": the ranks had different settings (learning rate, clipping or "
                    "type of products) in this step; set the same on every rank in every step",
                    r->name);
}

ls_status ls__config_name_change(const ls_reducer *r)
{
    return gather(r, "settings that differ", name_change);
}
