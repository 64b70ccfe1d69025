/* SPDX-License-Identifier: Apache-2.0 */
/* The time of an operator on a device.
 *
 *     312tflop,2039gbyte             an upper bound of its speed, and of that of its memory
 *     matmul 8192 6144 2048 0.92ms   m, n, k and the measured time of [m,k] x [k,n]; any number
 *     attention 32768 128 64 1.5ms   tokens times heads, the context, the width of a head, and the
 *                                    measured time of attention, forward; any number
 *     message 30us                   that a message between ranks of a host takes besides its bytes
 *     wait 15us                      where ranks share cores: the time of a core that a rank loses
 *                                    each time that it waits for others in a collective
 *
 * What was measured takes that time. Others take the time of the roofline (Williams et al. 2009)
 * divided by the efficiency that was measured at the next smaller and the next larger number of
 * operations, of attention those of a row, between which it is linear in the logarithm; without
 * any, all of the roofline. Attention that was not measured is two matmuls, queries by keys and
 * scores by values.
 */
#ifndef LS_COST_PROCESSOR_H
#define LS_COST_PROCESSOR_H

#include <lockstep/status.h>

#include <stdbool.h>
#include <stdint.h>

#define LS__PROCESSOR_POINTS_MAX 256
/* That a step moves for a parameter: AdamW reads and writes p, m and v and reads g, in float32, and
 * the norm of the gradients has read g. */
#define LS__OPTIMIZER_BYTES 32.0

typedef struct ls__processor_point {
    int64_t m, n, k;
    double seconds;
    double efficiency; /* the roofline's time over it */
} ls__processor_point;

typedef struct ls__processor_points {
    ls__processor_point point[LS__PROCESSOR_POINTS_MAX]; /* ascending in m n k, or in n k */
    int count;
    bool by_row; /* a row costs the same however many there are: n k says how efficient it is */
} ls__processor_points;

typedef struct ls__processor {
    double flops, memory; /* a second */
    double message, wait; /* seconds; 0: none */
    ls__processor_points matmul, attention;
    int width; /* bytes of an element */
} ls__processor;

/* Items as in the drawing, with "," or ends of lines between them (units.h). `what` begins the
 * messages. LS_ERR_FORMAT, LS_ERR_LIMIT. */
ls_status ls__processor_parse(const char *what, const char *text, size_t bytes, int width,
                              ls__processor *out);

double ls__processor_matmul(const ls__processor *d, int64_t m, int64_t n, int64_t k);
/* Forward, of all tokens by all heads of a rank. */
double ls__processor_attention(const ls__processor *d, int64_t rows, int64_t context,
                               int64_t width);
/* Of an operator that its memory limits. */
double ls__processor_bytes(const ls__processor *d, double bytes);

#endif
