/* SPDX-License-Identifier: Apache-2.0 */
/* A plan: how one kind of operation runs in a group, prepared once. A kind is an operation, where
 * the buffers of all members lie or the algorithm asked for by name, the root, and whether it is in
 * place. select.c makes and chooses plans; a work points to the one that it runs by. */
#ifndef LS_COMM_CORE_PLAN_H
#define LS_COMM_CORE_PLAN_H

#include "comm/core/work.h"
#include "comm/program/program.h"

struct ls__plan {
    const ls__program *program; /* NULL: not made yet */
    int first_step;             /* after fence 0 if announcing does the steps before it; else 0 */
    bool one_shot; /* what it publishes goes with the announcement, and one_shot.c runs it */
    bool blocks[LS__BUFFER_STAGE + 1]; /* one-shot: chunk c of INPUT, OUTPUT, STAGE is block c */
};

/* Fills a plan, which from then on owns the program. `announced`: of an operation whose blocks go
 * with the announcement. Then it runs in one shot if the program can (plan.c); if not, which is so
 * for the packed blocks of v-variants, it begins behind the fence. */
void ls__plan_init(ls__plan *plan, const ls__program *program, bool announced);

/* Whether a result takes more than one reducing step: then it is divided at the end. */
bool ls__reduces_in_steps(const ls__program *program);

#endif
