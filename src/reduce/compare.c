/* SPDX-License-Identifier: Apache-2.0 */
/* The facts that the ranks of a domain compare (dist/agree.h): the gradients that they register,
 * and, once in check_every synchronised backwards, the parameters themselves. Every rank applies
 * the same updates to the same bytes, so replicas that differ mean a flipped bit or a program that
 * changed parameters on one rank. */
#include "reduce/compare.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "reduce/domain.h"
#include "reduce/reducer.h"

#define SAME_MODEL "build the same model on every rank"
#define SAME_VALUE "give every rank the same"
#define SHAPE_SHOWN 256 /* characters of the caller's text */
#define DETAIL_TEXT (SHAPE_SHOWN + 256)

ls__agree_peers ls__domain_peers(const ls_reducer *r, const ls__reduce_domain *domain)
{
    ls__agree_peers peers = {.group = domain->group, .trains = true, .key = r->agreement};
    (void)snprintf(peers.who, sizeof peers.who, "reducer \"%.40s\"", r->name);
    return peers;
}

/* The text of an error after the name. The caller's text for a shape need not fit the count. */
static void describe(const ls_reducer *r, const ls__reduce_param *param, char text[DETAIL_TEXT])
{
    ls__text to = {text, DETAIL_TEXT};
    const int batch = r->batches[param->key.batch].size;
    ls__text_add(&to, param->shape != NULL ? " %s%.*s, %lld elements" : " %s%.*s[%lld]",
                 ls_dtype_name(param->key.dtype), SHAPE_SHOWN,
                 param->shape != NULL ? param->shape : "", (long long)param->count);
    if (param->key.divisor != 0) {
        ls__text_add(&to, ", divided by %.9g", param->key.divisor);
    } else if (batch != r->size) {
        ls__text_add(&to, ", divided by %d ranks", batch);
    }
    if (param->rows > 0) {
        ls__text_add(&to, ", %lld rows", (long long)param->rows);
    }
    if (param->map > 0) {
        ls__text_add(&to, ", in bucket %d", param->map);
    }
}

typedef struct registration {
    const ls_reducer *r;
    const ls__reduce_domain *domain;
} registration;

/* Different bucket sizes or wire types give different layouts, and the ranks would add up unrelated
 * parameters. */
static void list_registration(ls__facts *to, const void *arg)
{
    const registration *of = arg;
    const ls_reducer_options *options = &of->r->options;
    char name[48], detail[DETAIL_TEXT], in_all[48];
    (void)snprintf(in_all, sizeof in_all, " (%d parameters in all)", of->domain->param_count);
    for (int i = 0; i < of->domain->param_count; i++) {
        const ls__reduce_param *param = &of->r->params[of->domain->params[i]];
        (void)snprintf(name, sizeof name, "parameter %d", i);
        describe(of->r, param, detail);
        ls__facts_add(to, &(ls__fact){.name = name,
                                      .value = param->name,
                                      .own = detail,
                                      .note = in_all,
                                      .remedy = SAME_MODEL});
        if (param->shape != NULL && strlen(param->shape) > SHAPE_SHOWN) {
            (void)snprintf(name, sizeof name, "the shape of parameter %d", i);
            ls__facts_text(to, name, param->shape, SAME_MODEL);
        }
    }
    if (options->bucket_bytes == LS_BUCKET_BYTES_AUTO) {
        ls__facts_text(to, "bucket_bytes", "LS_BUCKET_BYTES_AUTO", SAME_VALUE);
    } else {
        ls__facts_number(to, "bucket_bytes", (double)options->bucket_bytes, SAME_VALUE);
    }
    ls__facts_number(to, "first_bucket_bytes", (double)options->first_bucket_bytes, SAME_VALUE);
    ls__facts_text(to, "wire_dtype", ls_dtype_name(options->wire_dtype), SAME_VALUE);
}

ls_status ls__reducer_compare(const ls_reducer *r, const ls__reduce_domain *domain)
{
    const ls__agree_peers peers = ls__domain_peers(r, domain);
    return ls__agree(&peers, list_registration, &(registration){r, domain});
}

/* ---- settings that may change, and the parameters themselves -------------------------------- */

/* A rank whose settings were others in the step may have them alike again. */
ls_status ls__changes_check(ls_reducer *r)
{
    if (!r->pass.settings_differ) {
        return LS_OK;
    }
    const ls__agree_peers peers = ls__domain_peers(r, &r->domains[0]);
    ls_status status = ls__agree_changes(&peers);
    status = status < 0
                 ? status
                 : ls__fail(LS_ERR_MISMATCH,
                            "%s: the ranks had different settings (learning rate, clipping or "
                            "type of products) in this step; set the same on every rank in every "
                            "step",
                            peers.who);
    ls__reducer_fail(r, status, ls_error_message());
    return status;
}

void ls__reducer_show_hashes(ls_reducer *r, const uint64_t *hashes)
{
    r->compares = true;
    r->hashes = hashes;
}

uint64_t ls__replica_hash(const ls_reducer *r, const ls__reduce_domain *domain)
{
    uint64_t hash = 0;
    if (r->hashes == NULL) {
        return r->compares ? LS__REPLICA_UNSEEN : LS__REPLICA_NOT_NOW;
    }
    for (int i = 0; i < domain->param_count; i++) {
        hash = (hash ^ r->hashes[domain->params[i]]) * UINT64_C(0x9E3779B185EBCA87);
        hash ^= hash >> 29;
    }
    return hash <= LS__REPLICA_UNSEEN ? LS__REPLICA_UNSEEN + 1 : hash;
}

static void list_replicas(ls__facts *to, const void *arg)
{
    const registration *of = arg;
    const bool hook = of->r->hook.given != NULL;
    char name[256];
    for (int i = 0; i < of->domain->param_count; i++) {
        const int param = of->domain->params[i];
        (void)snprintf(name, sizeof name, "the numbers of %.200s (parameter %d)",
                       of->r->params[param].name, i);
        ls__facts_hash(to, name, of->r->hashes[param],
                       hook ? "the communication hook gave the ranks different averages, a bit has "
                              "flipped, or the program changed it on one rank: continue from the "
                              "last checkpoint"
                            : "a bit has flipped, or the program changed it on one rank: continue "
                              "from the last checkpoint");
    }
}

/* Every rank of the domain finds the same parameter and rank. */
static ls_status compare_replicas(const ls_reducer *r, const ls__reduce_domain *domain)
{
    ls__agree_peers peers = ls__domain_peers(r, domain);
    (void)snprintf(peers.who, sizeof peers.who, "reducer \"%.20s\", synchronised backward %llu",
                   r->name, (unsigned long long)r->stats.reductions - 1);
    return domain->differs ? ls__agree(&peers, list_replicas, &(registration){r, domain}) : LS_OK;
}

ls_status ls__replica_check(ls_reducer *r)
{
    ls_status first = LS_OK;
    char text[LS__MESSAGE_MAX];
    for (int d = 0; r->compares && d < r->domain_count; d++) {
        const ls_status status = compare_replicas(r, &r->domains[d]);
        if (status < 0 && first == LS_OK) {
            first = status;
            memcpy(text, ls_error_message(), sizeof text);
        }
    }
    r->compares = false;
    r->hashes = NULL;
    if (first < 0) {
        ls__reducer_fail(r, first, text);
        return ls__fail_again(first, text);
    }
    return LS_OK;
}
