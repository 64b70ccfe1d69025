/* SPDX-License-Identifier: Apache-2.0 */
/* What test.c and dist.c share. */
#ifndef HARNESS_H
#define HARNESS_H

#include "test.h"

#define TEST_EXIT_SKIPPED 77 /* automake's and TAP's habit */

/* Runs the body on test->ranks ranks and returns an exit code of a test. Defined in dist.c, which
 * only programs with a DIST_TEST link; NULL in the others. */
extern int test_run_ranks(const test_case *test) __attribute__((weak));

/* One rank of the test, in a process that mpirun has started. */
extern int test_rank(const test_case *test) __attribute__((weak));

/* Around each test, and with its result. Defined in promises.c, which only programs that check a
 * promised time link; NULL in the others. */
extern void test_promises_begin(void) __attribute__((weak));
extern void test_promises_end(void) __attribute__((weak));
extern void test_promises_show(void) __attribute__((weak));

/* How many processes of the running test have called SKIP. */
int test_skips(void);

#endif
