/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the descriptors of an operation on different ranks and describes the first difference.
 * All ranks see the same descriptors once fence 0 is complete and compare them in the same order,
 * so all find the same pair: the first rank and the first one that differs from it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/planted.h"
#include "comm/algorithm/registry.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/core/post.h"
#include "comm/memory/control.h"
#include "comm/operation/mismatch.h"
#include "comm/operation/v_counts.h"

#define SIDE_MAX 400

/* Whether the operation combines values. */
static bool is_reduction(const ls__descriptor *d)
{
    return ls__operation_reduces((ls__operation)d->operation);
}

/* " from root 0" */
static const char *towards_root(const ls__descriptor *d)
{
    const ls__operation plain = ls__operation_plain((ls__operation)d->operation);
    return plain == LS__OP_BROADCAST || plain == LS__OP_SCATTER ? "from" : "to";
}

/* The algorithm that was asked for by name; NULL: automatic choice. */
static const char *algorithm_name(const ls__descriptor *d)
{
    int count = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    return d->algorithm > 0 && d->algorithm <= count ? algorithms[d->algorithm - 1]->name : NULL;
}

/* Whether both calls are at the same line of the program. */
static bool same_site(const ls__descriptor *a, const ls__descriptor *b)
{
    return a->line == b->line && strncmp(a->file, b->file, sizeof a->file) == 0;
}

/* In some v-variants only the two ends of a block know its length; there the receiver compares
 * (program_stream.c, v_layout.c). */
static bool counts_matter(const ls__descriptor *d)
{
    const ls__operation operation = (ls__operation)d->operation;
    return !ls__operation_is_v(operation) || ls__operation_counts_known(operation);
}

/* Equal counts, or counts that need not be equal. */
static bool same_counts(const ls__descriptor *a, const ls__descriptor *b)
{
    return a->counts_hash == b->counts_hash && (a->count == b->count || !counts_matter(a));
}

/* All that must agree. The place of the call is compared only with LOCKSTEP_CHECK=strict; addresses
 * and memory kinds may differ. */
bool ls__descriptor_equal(const ls__comm *comm, const ls__descriptor *a, const ls__descriptor *b)
{
    return LS__PLANTED(COMPARISON) ||
           (a->version == b->version && a->operation == b->operation &&
            a->reduce_op == b->reduce_op &&
            strncmp(a->op_name, b->op_name, sizeof a->op_name) == 0 && a->dtype == b->dtype &&
            a->algorithm == b->algorithm && a->forced == b->forced &&
            a->generation == b->generation && a->group == b->group && a->sequence == b->sequence &&
            same_counts(a, b) && a->root == b->root && a->tag == b->tag &&
            (a->tag_hash == b->tag_hash || LS__PLANTED(TAG)) &&
            memcmp(&a->divisor, &b->divisor, sizeof a->divisor) == 0 &&
            (!comm->strict || same_site(a, b)));
}

/* Packs a plain operation into one word. Every other field is 0 in `plain`, so a descriptor that
 * uses one of them, even one added later, differs from it and has no key. */
uint64_t ls__descriptor_key(const ls__comm *comm, const ls__descriptor *d)
{
    const ls__descriptor plain = {.version = LS__DESCRIPTOR_VERSION,
                                  .operation = d->operation,
                                  .reduce_op = d->reduce_op,
                                  .dtype = d->dtype,
                                  .generation = d->generation,
                                  .group = d->group,
                                  .sequence = d->sequence,
                                  .count = d->count,
                                  .root = d->root};
    return ls__descriptor_equal(comm, d, &plain)
               ? ls__key_of(d->operation, d->reduce_op, d->dtype, d->root,
                            counts_matter(d) ? d->count : 0)
               : 0;
}

/* Appends; text that does not fit is cut. */
static void add(char *out, size_t bytes, const char *format, ...) LS__PRINTF(3, 4);
static void add(char *out, size_t bytes, const char *format, ...)
{
    const size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    if (used + 1 < bytes) {
        (void)vsnprintf(out + used, bytes - used, format, args);
    }
    va_end(args);
}

/* "float32[4] sum", with root, algorithm and divisor if they are given. */
static void add_shape(char *out, size_t bytes, const ls__descriptor *d)
{
    if (d->operation == LS__OP_BARRIER) {
        return;
    }
    add(out, bytes, " %s[%lld]", ls_dtype_name((ls_dtype)d->dtype), (long long)d->count);
    if (is_reduction(d)) {
        add(out, bytes, " %s", ls_reduce_op_name((ls_reduce_op)d->reduce_op));
        if (d->op_name[0] != '\0') {
            add(out, bytes, " \"%.*s\"", LS__OP_NAME_MAX - 1, d->op_name);
        }
    }
    if (ls__operation_has_root((ls__operation)d->operation)) {
        add(out, bytes, " %s root %d", towards_root(d), (int)d->root);
    }
    if (algorithm_name(d) != NULL) {
        add(out, bytes, " by %s", algorithm_name(d));
    }
    if (d->divisor != 0 && d->reduce_op != LS_AVG) {
        add(out, bytes, " divided by %.17g", d->divisor);
    }
}

/* "rank 0 has float32[4] sum (bucket 3) at train.c:88 (host n1, pid 812)" */
static void side(const ls__comm *comm, const ls__descriptor *d, int rank, bool name, char *out,
                 size_t bytes)
{
    char who[128];
    out[0] = '\0';
    add(out, bytes, "rank %d %s", rank, name ? "calls " : "has");
    if (name) {
        add(out, bytes, "%s", ls__operation_name((ls__operation)d->operation));
    }
    add_shape(out, bytes, d);
    if (d->text[0] != '\0') {
        add(out, bytes, " (%.*s)", LS__TAG_MAX, d->text);
    }
    if (d->file[0] != '\0') {
        add(out, bytes, " at %.*s:%d", LS__FILE_MAX, d->file, (int)d->line);
    }
    ls__comm_name(comm, rank, who, sizeof who);
    const char *place = strchr(who, '(');
    if (place != NULL) {
        add(out, bytes, " %s", place);
    }
}

/* Calls that say different things of themselves: their sizes differ because they are others. */
static bool other_tags(const ls__descriptor *a, const ls__descriptor *b)
{
    return a->text[0] != '\0' && b->text[0] != '\0' &&
           strncmp(a->text, b->text, sizeof a->text) != 0;
}

/* Advice for the first difference, in the order in which a user would look for it. */
static const char *remedy(const ls__descriptor *a, const ls__descriptor *b)
{
    if (a->operation != b->operation || (!same_counts(a, b) && other_tags(a, b))) {
        return "all ranks must call the same operations in the same order";
    }
    if (a->dtype != b->dtype) {
        return "give every rank the same dtype";
    }
    if (!same_counts(a, b)) {
        return ls__operation_is_v((ls__operation)a->operation) ? "give every rank the same counts"
                                                               : "give every rank the same count";
    }
    if (a->reduce_op != b->reduce_op || strncmp(a->op_name, b->op_name, sizeof a->op_name) != 0) {
        return "give every rank the same reduce-op";
    }
    if (a->root != b->root) {
        return "give every rank the same root";
    }
    if (a->tag != b->tag) {
        return a->operation == LS__OP_BARRIER
                   ? "a monitored barrier matches no other: call ls_monitored_barrier on all ranks"
                   : "give every rank the same list of counts";
    }
    if (a->algorithm != b->algorithm) {
        return "ask for the same algorithm on every rank";
    }
    if (a->tag_hash != b->tag_hash) {
        return "the tags differ: do all ranks have the same model and call in the same order?";
    }
    if (memcmp(&a->divisor, &b->divisor, sizeof a->divisor) != 0) {
        return "give every rank the same divisor";
    }
    if (!same_site(a, b)) {
        return "LOCKSTEP_CHECK=strict requires every rank to make a call at the same place of the "
               "program; is a branch taken on some ranks only?";
    }
    return "all ranks must run the same program with the same settings";
}

/* Short: the shape and the place of the call follow where the ranks are compared. */
void ls__operation_text(const ls_group *group, const ls__descriptor *d, char *out, size_t bytes)
{
    out[0] = '\0';
    add(out, bytes, "%s #%llu", ls__operation_name((ls__operation)d->operation),
        (unsigned long long)d->sequence);
    if (d->text[0] != '\0') {
        add(out, bytes, " (%.*s)", LS__TAG_MAX, d->text);
    }
    add(out, bytes, " on group \"%s\"", group->name);
}

/* The lower rank is `a` wherever two ranks notice the same mismatch, so they report the same
 * text. */
void ls__mismatch_text(const ls_group *group, const ls__descriptor *a, int rank_a,
                       const ls__descriptor *b, int rank_b, char *out, size_t bytes)
{
    char first[SIDE_MAX], second[SIDE_MAX];
    const bool other_operation = a->operation != b->operation;
    side(group->comm, a, rank_a, other_operation, first, sizeof first);
    side(group->comm, b, rank_b, other_operation, second, sizeof second);
    snprintf(out, bytes, "%s #%llu on group \"%s\" disagrees: %s, %s; %s",
             other_operation ? "operation" : ls__operation_name((ls__operation)a->operation),
             (unsigned long long)a->sequence, group->name, first, second, remedy(a, b));
    if (!other_operation) {
        ls__counts_difference(group, a, rank_a, b, rank_b, first, sizeof first);
        add(out, bytes, "%s", first);
    }
}

/* Fails the group. Only receiver and sender know this length, so no other rank could find the
 * mismatch. */
void ls__mismatch_block(ls_group *group, int from, const ls__descriptor *sender, int64_t sent,
                        int64_t expected)
{
    const ls__comm *comm = group->comm;
    const ls__descriptor *own = ls__counts_descriptor(group);
    const int to = group->rank;
    const int rank_from = group->member[from].world_rank, rank_to = group->member[to].world_rank;
    char part[SIDE_MAX], text[LS__FAILURE_MAX];
    ls__operation_text(group, own, text, sizeof text);
    add(text, sizeof text,
        " disagrees on a block: rank %d sends %lld elements to rank %d, which expects %lld",
        rank_from, (long long)sent, rank_to, (long long)expected);
    side(comm, sender, rank_from, false, part, sizeof part);
    add(text, sizeof text, "; %s", part);
    side(comm, own, rank_to, false, part, sizeof part);
    add(text, sizeof text, ", %s; give both ranks the same count for this block", part);
    ls__group_cause(group, LS_ERR_MISMATCH, text);
}

/* Whether the member has announced the operation. */
static bool is_here(const ls_group *group, int r, uint64_t sequence)
{
    return atomic_load_explicit(&ls__post_slot(group, r, sequence)->stamp, memory_order_acquire) >=
           ls__stamp(sequence, 1);
}

/* An end of a rooted operation may not need the other member's message, but is compared all the
 * same, so that two roots do not both believe that all went well. */
void ls__mismatch_check_member(ls_group *group, int member, uint64_t sequence)
{
    const ls__post *own = ls__post_slot(group, group->rank, sequence);
    const ls__post *other = ls__post_slot(group, member, sequence);
    const uint64_t stamp = atomic_load_explicit(&own->stamp, memory_order_acquire);
    /* An operation in progress is compared when it passes fence 0 or stalls. */
    const uint64_t finished = atomic_load_explicit(&group->own->finished, memory_order_relaxed);
    if (stamp >> LS__FENCE_BITS != sequence || finished < sequence ||
        ls__descriptor_equal(group->comm, &own->descriptor, &other->descriptor)) {
        return;
    }
    char text[LS__FAILURE_MAX];
    const bool lower = group->rank < member; /* both ranks name the lower one first */
    const int first = lower ? group->rank : member, second = lower ? member : group->rank;
    ls__mismatch_text(group, &(lower ? own : other)->descriptor, group->member[first].world_rank,
                      &(lower ? other : own)->descriptor, group->member[second].world_rank, text,
                      sizeof text);
    ls__group_cause(group, LS_ERR_MISMATCH, text);
}

/* Whether all members that are here have published the same key, which is one comparison each; key
 * 0 proves nothing. */
static bool same_keys(const ls_group *group, uint64_t sequence)
{
    uint64_t key = 0;
    for (int r = 0; r < group->size; r++) {
        if (is_here(group, r, sequence)) {
            const uint64_t of_rank = ls__post_slot(group, r, sequence)->line.key;
            if (of_rank == 0 || (key != 0 && of_rank != key)) {
                return false;
            }
            key = of_rank;
        }
    }
    return true;
}

/* Compares with the first member that is here, in the order of ranks, so that all ranks report the
 * same pair. */
bool ls__mismatch_check(ls_group *group, const ls_work *work)
{
    const uint64_t sequence = work->descriptor.sequence;
    if (same_keys(group, sequence)) {
        return false;
    }
    int first = 0;
    while (first < group->size && !is_here(group, first, sequence)) {
        first++;
    }
    for (int r = first + 1; r < group->size; r++) {
        const ls__descriptor *a = &ls__post_slot(group, first, sequence)->descriptor;
        const ls__descriptor *b = &ls__post_slot(group, r, sequence)->descriptor;
        if (is_here(group, r, sequence) && !ls__descriptor_equal(group->comm, a, b)) {
            char text[LS__FAILURE_MAX];
            ls__mismatch_text(group, a, group->member[first].world_rank, b,
                              group->member[r].world_rank, text, sizeof text);
            ls__group_cause(group, LS_ERR_MISMATCH, text);
            return true;
        }
    }
    return false;
}
