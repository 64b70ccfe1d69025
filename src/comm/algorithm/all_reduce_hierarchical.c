/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce "hierarchical": ranks of a host add up their buffers before any data leaves it, and
 * each carries its share of the sum across. Two hosts of two, chunks named by (owner's place on its
 * host, host that adds it up):
 *
 *     within     0 ◀▶ 1              2 ◀▶ 3              each has its share of its host's sum
 *     across     0 ◀▶ 2   1 ◀▶ 3     partial sums of the other host's chunks, added up there
 *     back       0 ◀▶ 2   1 ◀▶ 3     results
 *     within     0 ◀▶ 1              2 ◀▶ 3
 *
 * All ranks send at once, and the link carries the minimum: 2(h-1)/h buffers leave each of h hosts,
 * however many ranks it has. There are as many shares as the smallest host has ranks; further ranks
 * of larger hosts contribute their buffers and receive the result. Each phase has two lanes
 * of its own (Note [Exchange]) and waits for the phases before it only, so it ends. Slices overlap:
 * while one is across, the next is added up within. Partial sums are wide, results rounded once.
 *
 * Exact where hosts are aligned: the ranks of a host are neighbours, and all hosts have the same
 * power of two of them (the last may have fewer). Then a host is a subtree of the canonical tree.
 * Otherwise all ranks still end with the same bytes.
 *
 * As the multi-leader designs of Bayatpour et al., SC 2017, section 4.
 */
#include "base/assert.h"
#include "comm/algorithm/algorithm.h"

#define SLICES 2

enum { WITHIN = 0, ACROSS = 2, BACK = 4, SPREAD = 6 }; /* lanes upwards; downwards one more */

typedef struct plan {
    ls__builder *b;
    const ls__program_spec *spec;
    ls__team local;  /* the ranks of this one's host */
    ls__team column; /* those of this one's place, by host; place: this one's host */
    int shares;      /* the smallest host's ranks */
    int most;        /* the largest host's */
    int last[2];     /* step of the two lanes of a phase; -1: none */
    ls__made joined[LS__PROGRAM_RANKS_MAX]; /* [hosts] of its chunks no INPUT is needed any more */
    ls__made made[LS__PROGRAM_RANKS_MAX];   /* [hosts] chunks of the own share of the result */
} plan;

static int host_of(const ls__program_spec *spec, int rank)
{
    return spec->host == NULL ? 0 : spec->host[rank];
}

/* How many ranks before this one share its host. */
static int place_of(const ls__program_spec *spec, int rank)
{
    int place = 0;
    for (int r = 0; r < rank; r++) {
        place += host_of(spec, r) == host_of(spec, rank) ? 1 : 0;
    }
    return place;
}

static void find_local(plan *p)
{
    const ls__program_spec *spec = p->spec;
    p->local.size = 0;
    for (int r = 0; r < spec->size; r++) {
        if (host_of(spec, r) == host_of(spec, spec->rank)) {
            p->local.place = r == spec->rank ? p->local.size : p->local.place;
            p->local.rank[p->local.size++] = (int16_t)r;
        }
    }
}

/* Hosts in the order of their first ranks. A rank without a share has a column, too: it needs to
 * know the hosts. */
static void find_hosts(plan *p)
{
    const ls__program_spec *spec = p->spec;
    int size[LS__PROGRAM_RANKS_MAX] = {0};
    p->column.size = 0;
    for (int r = 0; r < spec->size; r++) {
        int k = 0;
        while (k < p->column.size && host_of(spec, p->column.rank[k]) != host_of(spec, r)) {
            k++;
        }
        if (k == p->column.size) {
            p->column.size++;
            p->column.rank[k] = (int16_t)r;
            size[k] = 0;
        }
        if (size[k]++ == p->local.place) {
            p->column.rank[k] = (int16_t)r;
        }
        p->column.place = r == spec->rank ? k : p->column.place;
    }
    LS_ASSERT(size[0] >= 1); /* every host has a rank */
    p->shares = p->most = size[0];
    for (int k = 1; k < p->column.size; k++) {
        p->shares = size[k] < p->shares ? size[k] : p->shares;
        p->most = size[k] > p->most ? size[k] : p->most;
    }
}

/* Ranks without a share only contribute their buffers and receive the result. */
static bool has_share(const plan *p)
{
    return p->local.place < p->shares;
}

/* ---- where things are --------------------------------------------------------------------- */

static int chunk_of(const plan *p, int place, int host)
{
    return place * p->column.size + host;
}

static ls__ref user(const plan *p, ls__program_buffer buffer, int place, int host)
{
    return ls__ref_of(buffer, p->spec->rank, chunk_of(p, place, host));
}

static ls__ref scratch(const plan *p, int slot, int place, int host)
{
    return ls__ref_scratch(p->spec, p->shares * p->column.size, slot, chunk_of(p, place, host));
}

/* The others of `all` but me, numbered. */
static int among_others(int which, int me)
{
    return which > me ? which - 1 : which;
}

static int received_rows(const plan *p)
{
    return p->most > 1 ? p->most - 1 : 1;
}

static int sent_rows(const plan *p)
{
    return p->most > p->shares ? p->shares : p->shares - 1;
}

/* The contribution of the rank at `place` of this host to this rank's share. */
static ls__ref received(const plan *p, int place, int host)
{
    const int row = among_others(place, p->local.place);
    return scratch(p, row * p->column.size + host, p->local.place, host);
}

/* The host's sum of this rank's share; it takes the place of the first contribution. */
static ls__ref sum(const plan *p, int host)
{
    return scratch(p, host, p->local.place, host);
}

/* This rank's contribution to another's share, wide. */
static ls__ref given(const plan *p, int place, int host)
{
    const int row = received_rows(p) + (has_share(p) ? among_others(place, p->local.place) : place);
    return scratch(p, row * p->column.size + host, place, host);
}

/* The sum of another host. */
static ls__ref remote_sum(const plan *p, int host)
{
    const int slot =
        (received_rows(p) + sent_rows(p)) * p->column.size + among_others(host, p->column.place);
    return scratch(p, slot, p->local.place, p->column.place);
}

/* All ranks alike: slices are cut by it. */
static int slots(const plan *p)
{
    return (received_rows(p) + sent_rows(p) + 1) * p->column.size - 1;
}

/* ---- traffic ------------------------------------------------------------------------------ */

/* One message of chunk `host`; `lane` is where it travels. */
typedef void (*emit_fn)(plan *p, int lane, int place, int host);

typedef struct traffic {
    const ls__team *team;
    int lane; /* upwards */
    emit_fn send, recv;
} traffic;

static void emit_if(plan *p, const traffic *t, emit_fn emit, int lane, int place, int host)
{
    if (place >= 0 && place < t->team->size) {
        emit(p, lane, place, host);
    }
}

/* Note [Exchange], of a team. */
static void emit_traffic(plan *p, const traffic *t, int host)
{
    const int me = t->team->place;
    for (int down = 1; down >= 0; down--) {
        for (int k = 1; k < t->team->size; k++) {
            const int to = down ? me - k : me + k, from = down ? me + k : me - k;
            if (me / k % 2 == 0) {
                emit_if(p, t, t->send, t->lane + down, to, host);
                emit_if(p, t, t->recv, t->lane + down, from, host);
            } else {
                emit_if(p, t, t->recv, t->lane + down, from, host);
                emit_if(p, t, t->send, t->lane + down, to, host);
            }
        }
    }
}

/* The last step of `lane` follows the step that made the value. */
static void after(const plan *p, int lane, ls__made made)
{
    if (made.lane != lane) {
        ls__builder_after(p->b, lane, made.lane, made.step);
    }
}

/* The k-th of the hosts, from the own one on: in this order chunks are worked on. */
static int nth_host(const plan *p, int k)
{
    return (p->column.place + k) % p->column.size;
}

/* ---- within ------------------------------------------------------------------------------- */

/* Sends this rank's contribution to the share of the rank at `place`, if that has one. */
static void give(plan *p, int lane, int place, int host)
{
    if (place < p->shares) {
        const ls__ref wide = given(p, place, host);
        (void)ls__builder_copy(p->b, lane, wide, user(p, LS__BUFFER_INPUT, place, host));
        p->last[lane] = ls__builder_send(p->b, lane, wide, p->local.rank[place]);
    }
}

/* Receives the contribution of the rank at `place` to this rank's share. */
static void get(plan *p, int lane, int place, int host)
{
    if (has_share(p)) {
        p->last[lane] =
            ls__builder_recv(p->b, lane, received(p, place, host), p->local.rank[place]);
    }
}

/* Adds up the contributions of all ranks of the host, in the order of their places. */
static void emit_sum(plan *p, int host)
{
    const ls__ref own = user(p, LS__BUFFER_INPUT, p->local.place, host), dst = sum(p, host);
    ls__ref src[LS__PROGRAM_RANKS_MAX];
    for (int i = 0; i < p->local.size; i++) {
        src[i] = i == p->local.place ? own : received(p, i, host);
    }
    p->last[0] = p->local.size == 1 ? ls__builder_copy(p->b, 0, dst, own)
                                    : ls__builder_reduce(p->b, 0, &dst, 1, src, p->local.size);
    if (p->last[1] >= 0) {
        ls__builder_after(p->b, 0, 1, p->last[1]);
    }
    p->joined[host] = (ls__made){0, p->last[0]};
}

/* Ranks without a share are above all ranks with one: they send downwards only. */
static void emit_within(plan *p)
{
    const traffic t = {&p->local, WITHIN, give, get};
    for (int k = 0; k < p->column.size; k++) {
        const int host = nth_host(p, k);
        emit_traffic(p, &t, host);
        if (has_share(p)) {
            emit_sum(p, host);
        } else {
            p->joined[host] = (ls__made){1, p->last[1]};
        }
    }
}

/* ---- across and back ---------------------------------------------------------------------- */

static void send_sum(plan *p, int lane, int place, int host)
{
    (void)host;
    p->last[lane - ACROSS] = ls__builder_send(p->b, lane, sum(p, place), p->column.rank[place]);
    after(p, lane, p->joined[place]);
}

static void recv_sum(plan *p, int lane, int place, int host)
{
    (void)host;
    p->last[lane - ACROSS] =
        ls__builder_recv(p->b, lane, remote_sum(p, place), p->column.rank[place]);
}

/* The own host's sum was made before those of the others, which this rank has sent. */
static void emit_result(plan *p)
{
    const int hosts = p->column.size, me = p->column.place;
    const ls__ref dst = user(p, LS__BUFFER_OUTPUT, p->local.place, me);
    ls__ref src[LS__PROGRAM_RANKS_MAX];
    for (int k = 0; k < hosts; k++) {
        src[k] = k == me ? sum(p, k) : remote_sum(p, k);
    }
    p->made[me] = (ls__made){ACROSS, ls__builder_reduce(p->b, ACROSS, &dst, 1, src, hosts)};
    after(p, ACROSS, hosts == 1 ? p->joined[me] : (ls__made){ACROSS + 1, p->last[1]});
}

static void send_result(plan *p, int lane, int place, int host)
{
    (void)ls__builder_send(p->b, lane, user(p, LS__BUFFER_OUTPUT, p->local.place, host),
                           p->column.rank[place]);
    after(p, lane, p->made[host]);
}

static void recv_result(plan *p, int lane, int place, int host)
{
    const ls__ref dst = user(p, LS__BUFFER_OUTPUT, p->local.place, place);
    p->made[place] = (ls__made){lane, ls__builder_recv(p->b, lane, dst, p->column.rank[place])};
    after(p, lane, p->made[host]);
}

/* Only ranks with a share. */
static void emit_across(plan *p)
{
    const traffic across = {&p->column, ACROSS, send_sum, recv_sum};
    const traffic back = {&p->column, BACK, send_result, recv_result};
    emit_traffic(p, &across, p->column.place);
    emit_result(p);
    emit_traffic(p, &back, p->column.place);
}

/* ---- within again ------------------------------------------------------------------------- */

/* Hands the result of this rank's share to the rank at `place`. */
static void send_spread(plan *p, int lane, int place, int host)
{
    if (has_share(p)) {
        (void)ls__builder_send(p->b, lane, user(p, LS__BUFFER_OUTPUT, p->local.place, host),
                               p->local.rank[place]);
        after(p, lane, p->made[host]);
    }
}

/* The own INPUT lies there in place, so it must have been used. */
static void recv_spread(plan *p, int lane, int place, int host)
{
    if (place < p->shares) {
        (void)ls__builder_recv(p->b, lane, user(p, LS__BUFFER_OUTPUT, place, host),
                               p->local.rank[place]);
        after(p, lane, p->joined[host]);
    }
}

static void emit_spread(plan *p)
{
    const traffic t = {&p->local, SPREAD, send_spread, recv_spread};
    for (int k = 0; k < p->column.size; k++) {
        emit_traffic(p, &t, nth_host(p, k));
    }
}

/* ---- all ---------------------------------------------------------------------------------- */

/* Whether every host is a subtree of the canonical tree; the head of this file says when. */
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
        if ((place_of(spec, r) == 0) != (r % size == 0) ||
            host_of(spec, r) != host_of(spec, r - r % size)) {
            return false;
        }
    }
    return true;
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "hierarchical"));
    plan p = {.b = ls__builder_new(spec, env, "hierarchical"), .spec = spec, .last = {-1, -1}};
    find_local(&p);
    find_hosts(&p);
    ls__builder_chunks(p.b, p.shares * p.column.size, slots(&p));
    ls__builder_wide(p.b);
    ls__builder_overlap(p.b, p.column.size > 1 ? SLICES : 1);
    emit_within(&p);
    if (has_share(&p)) {
        emit_across(&p);
    }
    emit_spread(&p);
    return ls__builder_finish(p.b, is_aligned(spec), out);
}

const ls__algorithm ls__all_reduce_hierarchical = {"hierarchical", LS__OP_ALL_REDUCE, false,
                                                   LS__IN_MESSAGES, generate};
