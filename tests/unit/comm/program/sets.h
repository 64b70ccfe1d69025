/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of programs, one of each rank, made by an algorithm; and bugs planted in them. */
#ifndef SETS_H
#define SETS_H

#include <string.h>

#include "base/env.h"
#include "comm/algorithm/registry.h"
#include "comm/program/program.h"
#include "test.h"

#define RANKS_MAX 64

static const ls__memory memories[] = {LS__MEMORY_MESSAGES, LS__MEMORY_REGISTERED,
                                      LS__MEMORY_STAGED};

static inline void free_all(ls__program **programs, int size)
{
    for (int r = 0; r < size; r++) {
        ls__program_free(programs[r]);
    }
}

/* false when the algorithm does not run in this kind of memory. In place on the ranks whose bit
 * (modulo 64) is set. */
static inline bool generate_bound(const ls__algorithm *algorithm, ls__memory memory, int size,
                                  int root, uint64_t in_place, const int *host,
                                  ls__program **programs)
{
    for (int r = 0; r < size; r++) {
        const ls__program_spec spec = {
            algorithm->operation, memory, r, size, root, ((in_place >> (r % 64)) & 1) != 0, host};
        const ls_status status = algorithm->generate(&spec, ls__env_posix(), &programs[r]);
        if (status == LS_ERR_UNSUPPORTED && r == 0) {
            return false;
        }
        CHECK_OK(status);
    }
    return true;
}

static inline bool generate(const ls__algorithm *algorithm, ls__memory memory, int size, int root,
                            ls__program **programs)
{
    return generate_bound(algorithm, memory, size, root, 0, NULL, programs);
}

static inline const ls__algorithm *find(ls__operation operation, const char *name)
{
    const ls__algorithm *algorithm = ls__algorithm_find(operation, name);
    CHECK(algorithm != NULL);
    return algorithm;
}

typedef struct planted {
    ls__program *programs[RANKS_MAX];
    int size;
} planted;

static inline planted plant(ls__operation operation, const char *name, ls__memory memory, int size)
{
    planted p = {.size = size};
    CHECK(generate(find(operation, name), memory, size, 0, p.programs));
    CHECK_OK(ls__program_check(p.programs, size, 1));
    return p;
}

static inline void expect(planted *p, const char *words)
{
    CHECK_STATUS(ls__program_check(p->programs, p->size, 1), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), words);
    free_all(p->programs, p->size);
}

/* The nth step of a kind in the program of a rank. */
static inline ls__step *step_of(planted *p, int rank, ls__step_kind kind, int nth)
{
    ls__program *program = p->programs[rank];
    for (int s = 0; s < program->step_count; s++) {
        if (program->steps[s].kind == kind && nth-- == 0) {
            return &program->steps[s];
        }
    }
    test_fail(__FILE__, __LINE__, "rank %d has no such step", rank);
}

static inline ls__ref *src_of(planted *p, int rank, const ls__step *step, int i)
{
    return &p->programs[rank]->refs[step->first_src + i];
}

static inline ls__ref *dst_of(planted *p, int rank, const ls__step *step, int i)
{
    return &p->programs[rank]->refs[step->first_dst + i];
}

static inline void remove_step(planted *p, int rank, const ls__step *step)
{
    ls__program *program = p->programs[rank];
    const int at = (int)(step - program->steps), lanes_from = step->lane;
    memmove(&program->steps[at], &program->steps[at + 1],
            (size_t)(program->step_count - at - 1) * sizeof *step);
    for (int lane = lanes_from; lane < LS__PROGRAM_LANES_MAX; lane++) {
        program->lane_start[lane + 1]--;
    }
}

#endif
