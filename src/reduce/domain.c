/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of a reducer (docs/design.md, D8). A gradient is summed over its reduce group, a
 * domain, and divided by the number or the weights of the ranks in its batch group. Usually both
 * are the reducer's group. They differ where ranks hold different parts of a model:
 *
 *     4 ranks = 2 data parallel x 2 with one expert each      reduce group    batch group
 *     parameters that all ranks have                          0 1 2 3         0 1 2 3
 *     experts                                                 0 2 and 1 3     0 1 2 3
 *
 * The ranks of a domain issue its buckets in the same order on a duplicate of its group. Domains
 * need no common order: launching never waits for another rank.
 *
 * Note [An abort reaches one group]
 * The reducer works in duplicates of the user's groups. A poisoned loss fails these on all ranks,
 * and the user's own groups stay usable, for example to report the failure. The duplicates may have
 * another backend (ls_reducer_options.backend): gradients in memory of a GPU then go by NCCL, and
 * what the program exchanges in its groups stays on the host. */
#include "reduce/domain.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/group.h"
#include "comm/core/round_robin.h"
#include "comm/diagnose/fail.h"
#include "reduce/reducer.h"
#include "reduce/table.h"

/* Peers wait in the making of the group, and no other group exists yet that they look at. (When
 * ls_group_new fails, all ranks know.) */
static ls_status fail_given(const ls__reduce_domain *domain, ls_status status)
{
    char text[LS__MESSAGE_MAX];
    memcpy(text, ls__self.message, sizeof text);
    ls__group_fail(ls__round_robin_at(domain->given, 0), status, text);
    return ls__fail_again(status, text);
}

/* Duplicates a group; for a round-robin group each of its groups, so that buckets keep taking
 * turns. What was made is freed with the domain. */
static ls_status open_domain(ls_reducer *r, ls__reduce_domain *domain)
{
    const int turns = ls__round_robin_count(domain->given);
    domain->turns = ls__arena_alloc(&r->arena, (size_t)turns * sizeof *domain->turns);
    if (domain->turns == NULL) {
        return fail_given(domain,
                          ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for %d parameters",
                                   r->name, r->param_count));
    }
    for (; domain->turn_count < turns; domain->turn_count++) {
        LS_TRY(ls_group_create(
            ls__round_robin_at(domain->given, domain->turn_count),
            LS_OPTIONS(ls_group_options, .name = r->name, .backend = r->options.backend),
            &domain->turns[domain->turn_count]));
    }
    if (domain->given->turns == NULL) {
        domain->group = domain->turns[0];
    } else {
        const ls_status status =
            ls_group_round_robin(domain->turns, turns, r->name, &domain->group);
        if (status < 0) {
            return fail_given(domain, status);
        }
    }
    domain->rank = ls_group_rank(domain->group);
    domain->size = ls_group_size(domain->group);
    return LS_OK;
}

/* The group is borrowed until ls__domains_free. */
static void add_domain(ls_reducer *r, ls_group *given)
{
    r->domains[r->domain_count++] = (ls__reduce_domain){.given = given};
    ls__group_use(given, LS__USER_REDUCER, 1);
}

ls_status ls__domains_init(ls_reducer *r, ls_group *group)
{
    add_domain(r, group);
    LS_TRY(open_domain(r, &r->domains[0]));
    r->group = r->domains[0].group;
    r->rank = r->domains[0].rank;
    r->size = r->domains[0].size;
    r->agreement = ls__group_agreement(ls__round_robin_at(r->group, 0));
    int batch = 0;
    return ls__batch_find(r, "", NULL, &batch);
}

/* The rank in the reducer's group of each rank of `given`. */
static ls_status map_ranks(ls_reducer *r, const char *param, const ls_group *given, int **out)
{
    int *ranks = ls__arena_alloc(&r->arena, (size_t)given->size * sizeof *ranks);
    if (ranks == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for %d parameters", r->name,
                        r->param_count);
    }
    const ls_group *own = ls__round_robin_at(r->group, 0);
    for (int i = 0; i < given->size; i++) {
        ranks[i] = ls__member_of(own, given->member[i].world_rank);
        if (ranks[i] < 0) {
            return ls__fail(
                LS_ERR_INVALID,
                "reducer \"%s\": parameter %s has the group \"%s\", whose rank %d "
                "(rank %d of the world) is not in the reducer's group; make the reducer "
                "over a group that has all ranks of the parameters' groups",
                r->name, param, given->name, i, given->member[i].world_rank);
        }
    }
    *out = ranks;
    return LS_OK;
}

static ls_status too_many(const ls_reducer *r, const char *param)
{
    return ls__fail(
        LS_ERR_LIMIT,
        "reducer \"%s\": parameter %s has one more group than the %d that a reducer can "
        "have; give parameters that are reduced alike the same ls_group",
        r->name, param, LS__DOMAINS_MAX);
}

ls_status ls__domain_find(ls_reducer *r, const char *param, ls_group *given, int *out)
{
    int *ranks = NULL;
    *out = 0;
    while (given != NULL && *out < r->domain_count && r->domains[*out].given != given) {
        (*out)++;
    }
    if (*out < r->domain_count) {
        return LS_OK;
    }
    if (r->domain_count == LS__DOMAINS_MAX) {
        return too_many(r, param);
    }
    LS_TRY(map_ranks(r, param, given, &ranks));
    add_domain(r, given);
    return LS_OK;
}

ls_status ls__batch_find(ls_reducer *r, const char *param, const ls_group *given, int *out)
{
    given = given != NULL ? given : r->domains[0].given;
    *out = 0;
    while (*out < r->batch_count && r->batches[*out].given != given) {
        (*out)++;
    }
    if (*out < r->batch_count) {
        return LS_OK;
    }
    if (r->batch_count == LS__DOMAINS_MAX) {
        return too_many(r, param);
    }
    ls__reduce_batch *batch = &r->batches[r->batch_count];
    *batch = (ls__reduce_batch){.given = given, .size = given->size};
    LS_TRY(map_ranks(r, param, given, &batch->ranks));
    r->batch_count++;
    return LS_OK;
}

ls_status ls__domains_open(ls_reducer *r)
{
    for (int d = 1; d < r->domain_count; d++) {
        LS_TRY(open_domain(r, &r->domains[d]));
    }
    return LS_OK;
}

ls_status ls__domains_fill(ls_reducer *r)
{
    for (int i = 0; i < r->param_count; i++) {
        r->domains[r->params[i].key.domain].param_count++;
    }
    for (int d = 0; d < r->domain_count; d++) {
        ls__reduce_domain *domain = &r->domains[d];
        const size_t n = (size_t)domain->param_count;
        size_t bits;
        LS_TRY(ls__tables_make(r, d, &bits));
        domain->control_bytes =
            ls__round_up(sizeof(ls__reduce_control) + (n + 7) / 8 + bits, LS__CACHE_LINE);
        void *control = NULL;
        LS_TRY(ls__group_memory(domain->group, domain->control_bytes * (size_t)domain->size,
                                &control));
        domain->control = control;
        domain->params = ls__arena_alloc(&r->arena, (n + 1) * sizeof *domain->params);
        if (domain->params == NULL) {
            return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for %d parameters", r->name,
                            r->param_count);
        }
        domain->param_count = 0;
    }
    for (int i = 0; i < r->param_count; i++) {
        ls__reduce_domain *domain = &r->domains[r->params[i].key.domain];
        domain->params[domain->param_count++] = i;
    }
    return LS_OK;
}

static ls_status free_domain(ls_reducer *r, int d)
{
    ls__reduce_domain *domain = &r->domains[d];
    ls_status first = LS_OK;
    ls__tables_free(r, d);
    if (domain->control != NULL) {
        (void)ls_group_dealloc(domain->group, domain->control);
    }
    for (int k = 1; k < LS__PHASES_MAX; k++) {
        const ls_status status = ls_group_free(domain->phase[k]);
        first = first < 0 ? first : status;
    }
    if (domain->given->turns != NULL && domain->group != NULL) {
        const ls_status status = ls_group_free(domain->group); /* the handle */
        first = first < 0 ? first : status;
    }
    for (int i = 0; i < domain->turn_count; i++) {
        const ls_status status = ls_group_free(domain->turns[i]);
        first = first < 0 ? first : status;
    }
    return first;
}

ls_status ls__domains_free(ls_reducer *r)
{
    ls_status first = LS_OK;
    for (int d = r->domain_count - 1; d >= 0; d--) {
        const ls_status status = free_domain(r, d);
        first = first < 0 ? first : status;
        ls__group_use(r->domains[d].given, LS__USER_REDUCER, -1);
    }
    r->domain_count = 0;
    return first;
}

ls_status ls__domains_add_phases(ls_reducer *r, int phases)
{
    for (int d = 0; d < r->domain_count; d++) {
        ls__reduce_domain *domain = &r->domains[d];
        for (int k = 1; k < phases && domain->size > 1; k++) {
            if (domain->phase[k] == NULL) {
                LS_TRY(ls_group_new(domain->turns[0], NULL, 0, r->name, &domain->phase[k]));
            }
        }
    }
    return LS_OK;
}

ls_group *ls__domain_phase_group(const ls__reduce_domain *domain, int phase)
{
    return phase == 0 ? domain->group : domain->phase[phase];
}

int ls__domain_rank(const ls__reduce_domain *domain, int rank)
{
    return ls__round_robin_at(domain->group, 0)->member[rank].world_rank;
}

int ls__reducer_rank(const ls_reducer *r, int rank)
{
    return ls__domain_rank(&r->domains[0], rank);
}

int ls__reducer_domains(const ls_reducer *r)
{
    return r->domain_count;
}

ls_group *ls__reducer_domain_group(const ls_reducer *r, int domain)
{
    LS_ASSERT(domain >= 0 && domain < r->domain_count);
    return r->domains[domain].group;
}

int ls__reducer_param_domain(const ls_reducer *r, int param)
{
    LS_ASSERT(param >= 0 && param < r->param_count);
    return r->params[param].key.domain;
}

void ls__reducer_fail(ls_reducer *r, ls_status status, const char *text)
{
    for (int i = 0; i < LS__DIVISION_GROUPS; i++) {
        if (r->division.group[i] != NULL) {
            ls__group_fail(r->division.group[i], status, text);
        }
    }
    for (int d = 0; d < r->domain_count; d++) {
        for (int k = 0; k < LS__PHASES_MAX; k++) {
            ls_group *group = ls__domain_phase_group(&r->domains[d], k);
            if (group != NULL) {
                ls__group_fail(group, status, text);
            }
        }
    }
}

void ls__reducer_set_differ(ls_reducer *r, bool differ)
{
    r->differ = differ;
}

bool ls__reducer_agrees(const ls_reducer *r)
{
    return r->agrees;
}
