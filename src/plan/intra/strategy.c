/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies and their costs (strategy.h). */
#include "plan/intra/strategy.h"

#include <math.h>
#include <string.h>

#include "cost/collective.h"
#include "placement/redistribute.h"
#include "tensor/placement.h"

#define OPTIMIZER_BYTES 28.0 /* of AdamW, for each parameter in float32 (cost/job.c) */

enum { I = LS__PLACED_INVARIANT, R = LS__PLACED_REPLICATED, P = LS__PLACED_PARTIAL };
enum { V = LS__PLACED_VARYING, S0 = LS__PLACED_SHARDED };

/* ---- along one axis -------------------------------------------------------------------------- */

typedef struct ways {
    const ls__graph_kind *k;
    int ranks;
    bool runnable;
    ls__way *out;
    int count;
} ways;

static bool is_linear(const ls__graph_kind *k)
{
    return k->how == LS__FOLLOW_LINEAR;
}

/* `fused`: a tensor whose last dimension consists of groups. */
static bool can_divide(const ways *w, ls_shape shape, int place, bool fused)
{
    const int d = ls__place_dim(place);
    const int groups = fused && w->k->groups > 1 && d == shape.ndim - 1 ? w->k->groups : 1;
    return d < 0 || (d < shape.ndim && shape.dim[d] % ((int64_t)w->ranks * groups) == 0);
}

/* Whether ls_tensor_parallel and ls_ddp_new can run it: they cut matrices and tables of layers,
 * samples, and the sequence of activations between the layers. */
static bool is_runnable(const ls__graph_kind *k, const ls__way *way)
{
    const int cut = ls__place_dim(way->in[0]);
    if (is_linear(k) && cut > 0 && cut != k->in[0].ndim - 1) {
        return false;
    }
    for (int i = 0; i < k->count; i++) {
        const int d = ls__place_dim(way->in[i]);
        const bool layer = is_linear(k) || (k->how == LS__FOLLOW_EMBEDS && d == 0);
        if ((k->from[i] == LS__GRAPH_PARAM && d >= 0 && !layer) ||
            (k->from[i] == LS__GRAPH_DATA && d > 0)) {
            return false;
        }
    }
    return way->made != P || way->out != P || !(is_linear(k) || k->how == LS__FOLLOW_EMBEDS);
}

static void add_way(ways *w, const ls__way *way)
{
    const bool layer = is_linear(w->k); /* else a slice of its result */
    bool fits =
        can_divide(w, w->k->shape, way->made, layer) && can_divide(w, w->k->shape, way->out, layer);
    for (int i = 0; i < w->k->count; i++) {
        fits = fits && (w->k->from[i] == LS__GRAPH_ABSENT ||
                        can_divide(w, w->k->in[i], way->in[i], !layer));
    }
    fits = fits && (!w->k->last || way->out == I || way->out == V);
    fits = fits && (!w->runnable || is_runnable(w->k, way));
    for (int i = 0; i < w->count && fits; i++) {
        fits = memcmp(&w->out[i], way, sizeof *way) != 0;
    }
    if (fits && w->count < LS__WAYS_MAX) {
        w->out[w->count++] = *way;
    }
}

/* `place` everywhere. */
static ls__way way_everywhere(const ls__graph_kind *k, int place)
{
    ls__way way;
    memset(&way, 0, sizeof way); /* compared byte by byte */
    for (int i = 0; i < k->count; i++) {
        way.in[i] = (int8_t)place;
    }
    way.made = way.out = (int8_t)place;
    return way;
}

/* The dimension of input i that becomes `to`; -1: none does. */
static int source_of(const ls__graph_kind *k, int i, int to)
{
    for (int d = 0; d < k->in[i].ndim; d++) {
        if (k->to[i][d] == to &&
            (to < 0 || k->in[i].dim[d] == k->shape.dim[to] || k->how != LS__FOLLOW_ELEMENTWISE)) {
            return d;
        }
    }
    return -1;
}

/* The result along d. */
static void add_sharded(ways *w, int d)
{
    const ls__graph_kind *k = w->k;
    ls__way way = way_everywhere(k, R);
    bool any = false;
    for (int i = 0; i < k->count; i++) {
        const int from = k->from[i] != LS__GRAPH_ABSENT ? source_of(k, i, d) : -1;
        way.in[i] = (int8_t)(from >= 0 ? S0 + from : R);
        any = any || (from >= 0 && k->from[i] != LS__GRAPH_DATA);
        any = any || (from >= 0 && k->how == LS__FOLLOW_EMBEDS);
    }
    way.made = way.out = (int8_t)(S0 + d);
    way.divides = true;
    if (any) {
        add_way(w, &way);
    }
}

/* A partial result as it is, where the operator adds nothing to it, and added up. */
static void add_partial(ways *w, ls__way way)
{
    const ls__graph_kind *k = w->k;
    const bool bias = k->count > 2 && k->from[2] != LS__GRAPH_ABSENT;
    way.made = P;
    way.divides = true;
    if (!bias && (!is_linear(k) || strcmp(k->name, "linear") == 0)) {
        way.out = P;
        add_way(w, &way);
    }
    if (!is_linear(k) && k->how != LS__FOLLOW_EMBEDS) {
        return;
    }
    way.in[2] = (int8_t)(bias ? I : way.in[2]);
    way.out = I;
    add_way(w, &way);
    for (int d = 0; d < k->shape.ndim; d++) {
        if (w->runnable && (k->shape.ndim < 3 || d != k->shape.ndim - 2)) {
            continue; /* the sequence of [B,T,C] */
        }
        /* A bias along the dimension would have its part. */
        way.in[2] = (int8_t)(!bias ? way.in[2] : d == k->shape.ndim - 1 ? S0 : R);
        way.out = (int8_t)(S0 + d);
        add_way(w, &way);
    }
}

/* Sums over a dimension of inputs 0 and 1, or of a reduction's input. */
static void add_contraction(ways *w)
{
    const ls__graph_kind *k = w->k;
    if (k->how == LS__FOLLOW_REDUCES) {
        for (int d = 0; d < k->in[0].ndim; d++) {
            ls__way way = way_everywhere(k, S0 + d);
            way.out = way.made = (int8_t)(k->to[0][d] == LS__TO_MEAN ? V : P);
            way.divides = true;
            if (k->to[0][d] == LS__TO_SUM || k->to[0][d] == LS__TO_MEAN) {
                add_way(w, &way);
            }
        }
        return;
    }
    const int a = source_of(k, 0, LS__TO_SUM), b = k->count > 1 ? source_of(k, 1, LS__TO_SUM) : -1;
    if (a >= 0 && b >= 0) {
        ls__way way = way_everywhere(k, R);
        way.in[0] = (int8_t)(S0 + a);
        way.in[1] = (int8_t)(S0 + b);
        add_partial(w, way);
    }
}

/* Rows of a table on the rank that has them. */
static void add_lookup(ways *w)
{
    if (w->k->how == LS__FOLLOW_EMBEDS) {
        ls__way way = way_everywhere(w->k, R);
        way.in[0] = S0;
        add_partial(w, way);
    }
}

/* A loss: the mean of this rank's part, or its share of the classes. */
static void add_loss(ways *w)
{
    const ls__graph_kind *k = w->k;
    for (int d = 0; k->how == LS__FOLLOW_CLASSES && d < k->in[0].ndim; d++) {
        ls__way way = way_everywhere(k, S0 + d);
        const bool classes = d == k->in[0].ndim - 1;
        way.in[1] = (int8_t)(classes ? R : S0 + d);
        way.made = way.out = (int8_t)(classes ? I : V);
        way.divides = true;
        way.reduces = classes;
        add_way(w, &way);
    }
    if (k->how == LS__FOLLOW_ELEMENTWISE && k->shape.ndim == 0) {
        const ls__way way = way_everywhere(k, V);
        add_way(w, &way);
    }
}

/* A partial sum goes through what is linear in it. */
static void add_linear(ways *w)
{
    const ls__graph_kind *k = w->k;
    const int inputs = k->linear == LS__LINEAR_EACH ? 2 : k->linear == LS__LINEAR_FIRST ? 1 : 0;
    if (k->linear == LS__LINEAR_ALL) {
        const ls__way all = way_everywhere(k, P);
        add_way(w, &all);
    }
    for (int i = 0; i < inputs && i < k->count && !is_linear(k); i++) {
        ls__way way = way_everywhere(k, R);
        way.in[i] = P;
        way.made = way.out = P;
        if (k->from[i] >= 0) {
            add_way(w, &way);
        }
    }
}

static int ways_of(const ls__graph_kind *k, int ranks, bool runnable, ls__way *out)
{
    ways w = {k, ranks, runnable, out, 0};
    const ls__way equal = way_everywhere(k, I), copies = way_everywhere(k, R);
    add_way(&w, &equal);
    add_way(&w, &copies);
    for (int d = 0; d < k->shape.ndim; d++) {
        add_sharded(&w, d);
    }
    add_contraction(&w);
    add_lookup(&w);
    add_loss(&w);
    add_linear(&w);
    return w.count;
}

/* ---- on all axes ----------------------------------------------------------------------------- */

/* Two axes that share a dimension need as many parts as both have. */
static bool go_together(const ls__graph_kind *k, const ls__way *a, const ls__way *b, int ranks)
{
    bool good = a->out != b->out || ls__place_dim(a->out) < 0 ||
                k->shape.dim[ls__place_dim(a->out)] % ranks == 0;
    for (int i = 0; i < k->count && good; i++) {
        const int d = ls__place_dim(a->in[i]);
        good = a->in[i] != b->in[i] || d < 0 || d >= k->in[i].ndim || k->in[i].dim[d] % ranks == 0;
    }
    return good;
}

int ls__strategies(const ls__graph_kind *k, const ls__intra_mesh *mesh, ls__strategy *out)
{
    ls__way way[LS__INTRA_AXES_MAX][LS__WAYS_MAX];
    int counts[LS__INTRA_AXES_MAX] = {0}, count = 0;
    for (int a = 0; a < mesh->axes; a++) {
        counts[a] = ways_of(k, mesh->axis[a].size, mesh->runnable, way[a]);
    }
    memset(out, 0, LS__STRATEGIES_MAX * sizeof *out);
    for (int i = 0; i < counts[0]; i++) {
        for (int j = 0; j < (mesh->axes > 1 ? counts[1] : 1); j++) {
            out[count].way[0] = way[0][i];
            if (mesh->axes > 1) {
                out[count].way[1] = way[1][j];
            }
            count += mesh->axes == 1 || go_together(k, &way[0][i], &way[1][j],
                                                    mesh->axis[0].size * mesh->axis[1].size);
        }
    }
    return count;
}

/* ---- conversions ----------------------------------------------------------------------------- */

static double bytes_of(ls_shape shape)
{
    double bytes = sizeof(float);
    for (int d = 0; d < shape.ndim; d++) {
        bytes *= (double)shape.dim[d];
    }
    return bytes;
}

static double move_seconds(const ls__intra_axis *axis, ls__move move, double bytes)
{
    const ls__collective_cost half = ls__collective_half(axis->size),
                              all = ls__collective_all_reduce(axis->size, true);
    const int messages = move == LS__MOVE_ALL_REDUCE  ? all.messages
                         : move > LS__MOVE_ALL_REDUCE ? half.messages
                                                      : 0;
    return messages * axis->latency +
           axis->byte * (double)ls__move_bytes(move, axis->size, (int64_t)bytes);
}

/* Forward, and the adjoint in backward. */
static double convert_seconds(const ls__intra_axis *axis, int from, int to, double bytes)
{
    if (from == to) {
        return 0.0;
    }
    const ls__move there = ls__move_of(from, to),
                   back = ls__move_of(ls__place_dual(to), ls__place_dual(from));
    return there == LS__MOVE_NONE || back == LS__MOVE_NONE
               ? INFINITY
               : move_seconds(axis, there, bytes) + move_seconds(axis, back, bytes);
}

static double parts_of(const ls__intra_mesh *mesh, int axis, int place)
{
    return ls__place_dim(place) >= 0 ? mesh->axis[axis].size : 1.0;
}

/* One axis after the other, in the cheaper order: an axis along which a tensor is sharded leaves
 * the other one less to move. */
static double reshard_seconds(const ls__intra_mesh *mesh, const int *from, const int *to,
                              double bytes)
{
    const ls__intra_axis *axis = mesh->axis;
    if (mesh->axes == 1) {
        return convert_seconds(&axis[0], from[0], to[0], bytes);
    }
    const double first =
        convert_seconds(&axis[0], from[0], to[0], bytes / parts_of(mesh, 1, from[1])) +
        convert_seconds(&axis[1], from[1], to[1], bytes / parts_of(mesh, 0, to[0]));
    const double second =
        convert_seconds(&axis[1], from[1], to[1], bytes / parts_of(mesh, 0, from[0])) +
        convert_seconds(&axis[0], from[0], to[0], bytes / parts_of(mesh, 1, to[1]));
    return fmin(first, second);
}

/* Whether a layer makes this conversion itself: that of a matrix's input, or of the first
 * activations between the layers. */
static bool is_converted(const ls__graph_kind *from, const ls__graph_kind *to, int i, int a, int b)
{
    const int sequence = S0 + from->shape.ndim - 2;
    const bool enters = is_linear(to) && i == 0 && (a == I || from->shape.ndim > 2);
    const bool begins = from->constant || from->how == LS__FOLLOW_EMBEDS;
    return a == b || (enters && b == R && (a == I || a == sequence)) ||
           (enters && b == I && a == sequence) || (begins && (a == R || a == I) && b == sequence);
}

double ls__resharding_seconds(const ls__graph_kind *from, const ls__strategy *a,
                              const ls__graph_kind *to, const ls__strategy *b, int i,
                              const ls__intra_mesh *mesh)
{
    int x[LS__INTRA_AXES_MAX] = {0}, y[LS__INTRA_AXES_MAX] = {0};
    for (int k = 0; k < mesh->axes; k++) {
        x[k] = a->way[k].out;
        y[k] = b->way[k].in[i];
        if (mesh->runnable && !is_converted(from, to, i, x[k], y[k])) {
            return INFINITY;
        }
    }
    return reshard_seconds(mesh, x, y, bytes_of(from->shape));
}

/* ---- an operator ----------------------------------------------------------------------------- */

int ls__place_kept(int used)
{
    return used == R ? I : used;
}

/* The sum of its gradient, and the optimizer's memory traffic for this rank's part. */
static double param_seconds(const ls__graph_kind *k, const ls__strategy *s, int i,
                            const ls__intra_mesh *mesh)
{
    int kept[LS__INTRA_AXES_MAX] = {0}, used[LS__INTRA_AXES_MAX] = {0};
    double own = bytes_of(k->in[i]);
    for (int a = 0; a < mesh->axes; a++) {
        used[a] = s->way[a].in[i];
        kept[a] = ls__place_kept(used[a]);
        own /= parts_of(mesh, a, kept[a]);
    }
    return reshard_seconds(mesh, kept, used, bytes_of(k->in[i])) +
           ls__processor_bytes(&mesh->device, OPTIMIZER_BYTES * own / sizeof(float));
}

/* Of the whole operator on one rank: matrix products three times, attention three and a half times
 * (backward makes the scores again); memory traffic of others in forward, and twice in backward. */
static double work_seconds(const ls__graph_kind *k, const ls__processor *d)
{
    double bytes = bytes_of(k->shape);
    if (k->macs > 0.0) {
        const double one = (double)k->m * (double)k->n * (double)k->k;
        if (one == 0.0) {
            return 0.0;
        }
        return k->how == LS__FOLLOW_ATTENDS
                   ? 3.5 * ls__processor_attention(d, k->m, k->n, k->k)
                   : 3.0 * k->macs / one * ls__processor_matmul(d, k->m, k->n, k->k);
    }
    for (int i = 0; i < k->count; i++) {
        const bool table = k->how == LS__FOLLOW_EMBEDS && i == 0; /* its rows alone are read */
        bytes += k->from[i] >= 0 && !table ? bytes_of(k->in[i]) : 0.0;
    }
    return k->view ? 0.0 : 3.0 * ls__processor_bytes(d, bytes);
}

static double own_conversion(const ls__graph_kind *k, const ls__strategy *s,
                             const ls__intra_mesh *mesh)
{
    int made[LS__INTRA_AXES_MAX] = {0}, out[LS__INTRA_AXES_MAX] = {0};
    double seconds = 0.0;
    for (int a = 0; a < mesh->axes; a++) {
        made[a] = s->way[a].made;
        out[a] = s->way[a].out;
        const int other = mesh->axes - 1 - a;
        const double rows =
            bytes_of(k->in[0]) / (double)(k->in[0].ndim > 0 ? k->in[0].dim[k->in[0].ndim - 1] : 1);
        seconds += s->way[a].reduces
                       ? 3.0 * move_seconds(&mesh->axis[a], LS__MOVE_ALL_REDUCE,
                                            rows / (mesh->axes > 1 && s->way[other].divides &&
                                                            !s->way[other].reduces
                                                        ? mesh->axis[other].size
                                                        : 1))
                       : 0.0;
    }
    return seconds + reshard_seconds(mesh, made, out, bytes_of(k->shape));
}

double ls__strategy_seconds(const ls__graph_kind *k, const ls__strategy *s,
                            const ls__intra_mesh *mesh)
{
    double work = work_seconds(k, &mesh->device);
    for (int a = 0; a < mesh->axes; a++) {
        work /= s->way[a].divides ? mesh->axis[a].size : 1;
    }
    double seconds = work + own_conversion(k, s, mesh);
    for (int i = 0; i < k->count; i++) {
        seconds += k->from[i] == LS__GRAPH_PARAM ? param_seconds(k, s, i, mesh) : 0.0;
    }
    return seconds;
}
