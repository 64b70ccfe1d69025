/* Whether all ranks train with the same configuration: the seed, and the settings of samplers,
 * loaders and optimizers (base/config.h). They are compared once, when the first synchronised
 * backward begins: by then all of them exist, and no optimizer has stepped on a wrong mean. Only
 * where the group is the whole world: the ranks of a smaller one may well have other samplers than
 * the rest. */
#include "reduce/config_check.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"

typedef struct own_config { /* sent as it is */
    uint64_t seed;
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
                    "reducer \"%s\": rank 0 has seed %llu and rank %d has seed %llu; give every "
                    "rank the same (ls_init, ls_manual_seed): random numbers are drawn for each "
                    "sample of the global batch, so ranks differ by themselves",
                    r->name, (unsigned long long)all[0].seed, rank,
                    (unsigned long long)all[rank].seed);
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
        "reducer \"%s\": the ranks are set up differently: rank 0 made %.*s%s, rank %d "
        "made %.*s%s; make the same samplers, loaders and optimizers on every rank, in the same "
        "order",
        r->name, LS__CONFIG_TEXT, ours->text, site, rank, LS__CONFIG_TEXT, theirs->text, other);
}

/* Entries are compared as text, in the order in which they were made. */
static ls_status compare(const ls_reducer *r, const own_config *all)
{
    for (int rank = 1; rank < r->size; rank++) {
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

/* Does nothing once it has succeeded, nor in a group that is smaller than the world. */
ls_status ls__config_check(ls_reducer *r)
{
    const ls__env *env = r->runtime->env;
    size_t bytes = 0;
    if (r->config_checked || r->size != r->runtime->world_size) {
        return LS_OK;
    }
    if (!ls__bytes_of(r->size, sizeof(own_config), &bytes)) {
        return ls__fail(LS_ERR_LIMIT, "reducer \"%s\": too many ranks to compare", r->name);
    }
    own_config *all = env->allocate(env, bytes);
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory to compare settings", r->name);
    }
    const own_config own = {.seed = r->runtime->seed, .config = r->runtime->config};
    ls_status status =
        ls_all_gather(r->group, &own, all, sizeof own, LS_UINT8,
                      LS_OPTIONS(ls_collective_options, .tag = "settings of all ranks"), NULL);
    if (status == LS_OK) {
        status = compare(r, all);
    }
    env->release(env, all, bytes);
    r->config_checked = status == LS_OK;
    return status;
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
static ls_status name_change(const ls_reducer *r, const ls__config *all)
{
    char ours[32], theirs[32];
    for (int rank = 1; rank < r->size; rank++) {
        const char *name = first_change(&all[0], &all[rank]);
        name = name != NULL ? name : first_change(&all[rank], &all[0]);
        if (name != NULL) {
            return ls__fail(
                LS_ERR_MISMATCH,
                "reducer \"%s\": the ranks train with different settings: %s is %s on "
                "rank 0 and %s on rank %d; set the same on every rank in every step, or "
                "the replicas drift apart",
                r->name, name, put_value(ls__config_value(&all[0], name), ours),
                put_value(ls__config_value(&all[rank], name), theirs), rank);
        }
    }
    return ls__fail(LS_ERR_MISMATCH,
                    "reducer \"%s\": the ranks had different settings (learning rate, clipping or "
                    "type of products) in this step; set the same on every rank in every step",
                    r->name);
}

ls_status ls__config_name_change(const ls_reducer *r)
{
    const ls__env *env = r->runtime->env;
    size_t bytes = 0;
    if (!ls__bytes_of(r->size, sizeof(ls__config), &bytes)) {
        return ls__fail(LS_ERR_LIMIT, "reducer \"%s\": too many ranks to compare", r->name);
    }
    ls__config *all = env->allocate(env, bytes);
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory to compare settings", r->name);
    }
    const ls__config own = r->runtime->config;
    ls_status status =
        ls_all_gather(r->group, &own, all, sizeof own, LS_UINT8,
                      LS_OPTIONS(ls_collective_options, .tag = "settings that differ"), NULL);
    if (status == LS_OK) {
        status = name_change(r, all);
    }
    env->release(env, all, bytes);
    return status;
}
