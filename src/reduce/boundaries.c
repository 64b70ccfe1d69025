/* Where buckets end: the division of a row of cells whose last all-reduce ends first.
 *
 *     ready      a   b    c      d                a bucket starts when its last cell is ready and the
 *     wire       [ab     ][c      ][d]            bucket before it has ended
 *
 * Few large buckets start late, and many small ones pay for each start: with the time R(j) at which
 * cells 1 … j are ready and the cost of an all-reduce, the earliest end of the first j cells is
 *
 *     end(j) = min over i < j of  max(end(i), R(j)) + each + byte * (bytes of i+1 … j)
 *
 * which is exact, since an earlier end of the first i cells never makes the rest later. Many
 * divisions end equally early where the wire idles. The one with the fewest buckets is found from
 * behind: a bucket takes in as many cells as its deadline permits, and the deadline of the cells
 * before it is its latest start. (If a larger bucket fits, so does the rest: it has fewer cells, and
 * its deadline is earlier by no more than those cells would have taken.)
 */
#include "reduce/boundaries.h"

#include "base/assert.h"

#define ROW_MAX 512 /* bounds the search to 130 000 steps, well below a millisecond */

typedef struct row { /* cells, or neighbours that stay together; entry 0 is before the first */
    int count;
    double ready[ROW_MAX + 1];
    double before[ROW_MAX + 1]; /* bytes of the entries up to this one */
    double end[ROW_MAX + 1];    /* the earliest */
    int last[ROW_MAX + 1];      /* cell */
} row;

static void fill(row *r, const ls__boundary_cell *cells, int count)
{
    const int together = (count + ROW_MAX - 1) / ROW_MAX;
    r->count = 0;
    r->ready[0] = r->before[0] = r->end[0] = 0.0;
    for (int c = 0; c < count; c++) {
        if (c % together == 0) {
            r->count++;
            r->ready[r->count] = r->ready[r->count - 1];
            r->before[r->count] = r->before[r->count - 1];
        }
        const int at = r->count;
        r->ready[at] = cells[c].ready > r->ready[at] ? cells[c].ready : r->ready[at];
        r->before[at] += cells[c].bytes;
        r->last[at] = c;
    }
    LS_ASSERT(r->count <= ROW_MAX);
}

/* Of a bucket with the entries i+1 … j. */
static double seconds_of(const row *r, const ls__boundary_cost *cost, int i, int j)
{
    return cost->each + cost->byte * (r->before[j] - r->before[i]);
}

/* When a bucket with the entries i+1 … j ends at the earliest. */
static double end_of(const row *r, const ls__boundary_cost *cost, int i, int j)
{
    const double start = r->end[i] > r->ready[j] ? r->end[i] : r->ready[j];
    return start + seconds_of(r, cost, i, j);
}

static void find_ends(row *r, const ls__boundary_cost *cost)
{
    for (int j = 1; j <= r->count; j++) {
        r->end[j] = end_of(r, cost, j - 1, j);
        for (int i = 0; i < j - 1; i++) {
            const double end = end_of(r, cost, i, j);
            r->end[j] = end < r->end[j] ? end : r->end[j];
        }
    }
}

/* The first i for which the bucket i+1 … j ends by the deadline; rounding may leave none, and then
 * it is the i with which r->end[j] was found. */
static int reach(const row *r, const ls__boundary_cost *cost, int j, double deadline)
{
    int best = j - 1;
    for (int i = 0; i < j; i++) {
        const double end = end_of(r, cost, i, j);
        if (end <= deadline) {
            return i;
        }
        best = end < end_of(r, cost, best, j) ? i : best;
    }
    return best;
}

double ls__boundaries_find(const ls__boundary_cell *cells, int count, const ls__boundary_cost *cost,
                           double slack, bool *ends)
{
    row r;
    LS_ASSERT(count >= 0 && cost->each >= 0.0 && cost->byte >= 0.0 && slack >= 0.0);
    for (int c = 0; c < count; c++) {
        ends[c] = false;
    }
    fill(&r, cells, count);
    find_ends(&r, cost);
    double deadline = r.end[r.count] * (1.0 + slack);
    for (int j = r.count; j > 0;) {
        const int i = reach(&r, cost, j, deadline);
        ends[r.last[j]] = true;
        deadline -= seconds_of(&r, cost, i, j);
        j = i;
    }
    return r.end[r.count];
}

double ls__boundaries_end(const ls__boundary_cell *cells, int count, const ls__boundary_cost *cost,
                          const bool *ends)
{
    double ready = 0.0, bytes = 0.0, end = 0.0;
    for (int c = 0; c < count; c++) {
        ready = cells[c].ready > ready ? cells[c].ready : ready;
        bytes += cells[c].bytes;
        if (ends[c] || c == count - 1) {
            end = (end > ready ? end : ready) + cost->each + cost->byte * bytes;
            bytes = 0.0;
        }
    }
    return end;
}

/* A line through the points: its slope is the cost of one more all-reduce, and where it meets zero is
 * that of the bytes. Single all-reduces tell less: of several in flight, one ends with another. */
ls__boundary_cost ls__boundaries_fit(const double *buckets, const double *seconds, int count,
                                     double bytes, double each)
{
    double mean_buckets = 0.0, mean_seconds = 0.0, square = 0.0, product = 0.0;
    LS_ASSERT(each >= 0.0);
    for (int t = 0; t < count; t++) {
        mean_buckets += buckets[t] / count;
        mean_seconds += seconds[t] / count;
    }
    for (int t = 0; t < count; t++) {
        const double distance = buckets[t] - mean_buckets;
        square += distance * distance;
        product += distance * (seconds[t] - mean_seconds);
    }
    if (product > each * square) {
        each = product / square;
    }
    const double rest = mean_seconds - each * mean_buckets;
    return (ls__boundary_cost){each, rest > 0.0 && bytes > 0.0 ? rest / bytes : 0.0};
}
