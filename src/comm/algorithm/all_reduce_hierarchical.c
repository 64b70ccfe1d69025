/* all_reduce "hierarchical": within each host to its first rank, between these, and back. Between
 * hosts each buffer travels as often as there are hosts to tell, not ranks. Two hosts of four:
 *
 *     within     1 ──▶ 0   3 ──▶ 2     5 ──▶ 4   7 ──▶ 6
 *                2 ──▶ 0               6 ──▶ 4
 *     between    0 ◀▶ 4
 *     back       0 ──▶ 2               4 ──▶ 6
 *                0 ──▶ 1   2 ──▶ 3     4 ──▶ 5   6 ──▶ 7
 *
 * Cost of h hosts of s ranks: about 2 log2 s + log2 h dependent steps; a first rank sends log2 h
 * buffers to other hosts, nobody else any. Partial sums are wide, the result is rounded once.
 *
 * Exact where hosts are aligned: the ranks of a host are neighbours, and all hosts have the same
 * power of two of them (the last may have fewer). Then a host is a subtree of the canonical tree.
 * Otherwise all ranks still end with the same bytes.
 */
#include "comm/algorithm/algorithm.h"

static int host_of(const ls__program_spec *spec, int rank)
{
    return spec->host == NULL ? 0 : spec->host[rank];
}

/* The ranks of this one's host, in order. */
static void find_near(const ls__program_spec *spec, ls__team *near)
{
    near->size = 0;
    for (int r = 0; r < spec->size; r++) {
        if (host_of(spec, r) == host_of(spec, spec->rank)) {
            near->place = r == spec->rank ? near->size : near->place;
            near->rank[near->size++] = (int16_t)r;
        }
    }
}

static bool is_first(const ls__program_spec *spec, int rank)
{
    for (int r = 0; r < rank; r++) {
        if (host_of(spec, r) == host_of(spec, rank)) {
            return false;
        }
    }
    return true;
}

static void find_firsts(const ls__program_spec *spec, ls__team *firsts)
{
    firsts->size = 0;
    for (int r = 0; r < spec->size; r++) {
        if (is_first(spec, r)) {
            firsts->place = r == spec->rank ? firsts->size : firsts->place;
            firsts->rank[firsts->size++] = (int16_t)r;
        }
    }
}

static bool is_aligned(const ls__program_spec *spec)
{
    int size = 1; /* of the first host */
    while (size < spec->size && host_of(spec, size) == host_of(spec, 0)) {
        size++;
    }
    if (size < spec->size && (size & (size - 1)) != 0) {
        return false;
    }
    for (int r = 0; r < spec->size; r++) {
        if (is_first(spec, r) != (r % size == 0) ||
            host_of(spec, r) != host_of(spec, r - r % size)) {
            return false;
        }
    }
    return true;
}

/* From the first of the host on, to ranks ever nearer. */
static void emit_back(ls__builder *b, const ls__program_spec *spec, const ls__team *near)
{
    const ls__ref out = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0);
    const int me = near->place;
    int distance = 1;
    while (distance < near->size && (me & distance) == 0) {
        distance *= 2;
    }
    if (me > 0) {
        (void)ls__builder_recv(b, 0, out, near->rank[me - distance]);
    }
    for (distance /= 2; distance > 0; distance /= 2) {
        if (me + distance < near->size) {
            (void)ls__builder_send(b, 0, out, near->rank[me + distance]);
        }
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "hierarchical"));
    ls__builder *b = ls__builder_new(spec, env, "hierarchical");
    ls__team near, firsts;
    find_near(spec, &near);
    const int last = ls__emit_team_tree(b, spec, &near);
    if (near.place == 0) {
        const ls__ref sum = ls__ref_scratch(spec, 1, 0, 0);
        const ls__ref result = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0);
        find_firsts(spec, &firsts);
        ls__emit_climb(b, spec, &firsts, last);
        (void)ls__builder_reduce(b, 0, &result, 1, &sum, 1);
    }
    emit_back(b, spec, &near);
    return ls__builder_finish(b, is_aligned(spec), out);
}

const ls__algorithm ls__all_reduce_hierarchical = {"hierarchical", LS__OP_ALL_REDUCE, false,
                                                   LS__IN_MESSAGES, generate};
