/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of unchanged.c. */
#ifndef TEST_UNCHANGED_H
#define TEST_UNCHANGED_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern bool quick; /* fewer types and counts: QUICK is set */
/* digits: 0 every bit, 6 floats, 13 doubles */
void record(const void *data, size_t bytes, int digits);
void check_at(bool right, int line);
#define check(right) check_at(right, __LINE__)
uint32_t draw(void); /* of this rank's own stream */

void reductions(MPI_Comm comm);
void few(MPI_Comm comm); /* one of each kind */
void movers(MPI_Comm comm);
void passed_through(MPI_Comm comm);
void progress(int rank, int size);
void threads(void);

#endif
