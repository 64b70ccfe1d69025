/* Whether the replicas are still equal. Every rank applies the same updates to the same bytes, so a
 * difference means a flipped bit or a program that changed parameters on one rank. Eight bytes a
 * domain go with the control exchange; only if these differ are the hashes of all parameters
 * exchanged, to name the first one. */
#include "reduce/replica.h"
#include "comm/api/control.h"

#include <string.h>

#include "base/assert.h"
#include "reduce/domain.h"
#include "reduce/reducer.h"

void ls__reducer_show_hashes(ls_reducer *r, const uint64_t *hashes)
{
    r->hashes = hashes;
}

uint64_t ls__replica_hash(const ls_reducer *r, const ls__reduce_domain *domain)
{
    uint64_t hash = 0;
    for (int i = 0; r->hashes != NULL && i < domain->param_count; i++) {
        hash = (hash ^ r->hashes[domain->params[i]]) * UINT64_C(0x9E3779B185EBCA87);
        hash ^= hash >> 29;
    }
    return r->hashes != NULL && hash == 0 ? 1 : hash; /* 0 says that nobody looked */
}

/* The hash that most ranks have for parameter i, and on how many; the lowest rank's of several. */
static uint64_t usual_hash(const uint64_t *all, int ranks, int count, int i, int *votes)
{
    uint64_t usual = 0;
    *votes = 0;
    for (int rank = 0; rank < ranks; rank++) {
        const uint64_t hash = all[(size_t)rank * (size_t)count + (size_t)i];
        int same = 0;
        for (int other = 0; other < ranks; other++) {
            same += all[(size_t)other * (size_t)count + (size_t)i] == hash;
        }
        if (same > *votes) {
            usual = hash;
            *votes = same;
        }
    }
    return usual;
}

/* Every rank finds the same parameter and rank. */
static ls_status name_difference(const ls_reducer *r, const ls__reduce_domain *domain,
                                 const uint64_t *all)
{
    for (int i = 0; i < domain->param_count; i++) {
        int votes = 0;
        const uint64_t usual = usual_hash(all, domain->size, domain->param_count, i, &votes);
        for (int rank = 0; rank < domain->size; rank++) {
            if (all[(size_t)rank * (size_t)domain->param_count + (size_t)i] == usual) {
                continue;
            }
            return ls__fail(
                LS_ERR_MISMATCH,
                "reducer \"%s\": the replicas differ before synchronised backward %llu: parameter "
                "%s on rank %d is not what %d of %d ranks have%s; a bit has flipped, or the "
                "program "
                "changed it on one rank: continue from the last checkpoint",
                r->name, (unsigned long long)r->stats.reductions - 1,
                r->params[domain->params[i]].name, ls__domain_rank(domain, rank), votes,
                domain->size, 2 * votes > domain->size ? "" : " (either may be wrong)");
        }
    }
    LS_ASSERT(false); /* equal hashes of all parameters have equal sums */
    return LS_OK;
}

/* Exchanges the hashes of the domain's parameters. */
static ls_status find_difference(const ls_reducer *r, const ls__reduce_domain *domain)
{
    const ls__env *env = r->runtime->env;
    const size_t n = (size_t)domain->param_count;
    const size_t bytes = n * ((size_t)domain->size + 1) * sizeof(uint64_t);
    uint64_t *own = env->allocate(env, bytes);
    if (own == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory to compare models", r->name);
    }
    for (size_t i = 0; i < n; i++) {
        own[i] = r->hashes[domain->params[i]];
    }
    ls_status status = ls__control_all_gather(domain->group, own, own + n, (int64_t)n, LS_UINT64,
                                              LS_OPTIONS(ls_collective_options, .tag = "replicas"));
    if (status == LS_OK) {
        status = name_difference(r, domain, own + n);
    }
    env->release(env, own, bytes);
    return status;
}

ls_status ls__replica_check(ls_reducer *r)
{
    ls_status first = LS_OK;
    char text[LS__MESSAGE_MAX];
    for (int d = 0; r->hashes != NULL && d < r->domain_count; d++) {
        const ls_status status = r->domains[d].differs ? find_difference(r, &r->domains[d]) : LS_OK;
        if (status < 0 && first == LS_OK) {
            first = status;
            memcpy(text, ls_error_message(), sizeof text);
        }
    }
    r->hashes = NULL;
    if (first < 0) {
        ls__reducer_fail(r, first, text);
        return ls__fail_again(first, text);
    }
    return LS_OK;
}
