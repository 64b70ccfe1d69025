/* Algorithms that the user asks for by operation and size:
 *
 *     LOCKSTEP_ALGORITHM="all_reduce=0-4k:recursive_doubling,4k-:direct;broadcast=chain"
 *
 * Sizes are bytes of the larger buffer of a rank, from the first to below the second; k, M, G are
 * powers of 1000, Ki, Mi, Gi of 1024; no upper one: no limit; none at all: every size. Sizes that
 * no rule covers are chosen as ever. All ranks must be given the same (ls__comm_config). */
#ifndef LS_COMM_TUNE_RULES_H
#define LS_COMM_TUNE_RULES_H

#include "comm/program/program.h"

#define LS__RULES_MAX 8 /* of an operation */

typedef struct ls__tune_rule {
    int64_t from, below; /* bytes */
    const ls__algorithm *algorithm;
} ls__tune_rule;

typedef struct ls__rules {
    int count[LS__OP_COUNT];
    ls__tune_rule rule[LS__OP_COUNT][LS__RULES_MAX];
    uint64_t hash; /* of the text; 0: there is none */
} ls__rules;

typedef enum ls__tune_mode { /* LOCKSTEP_TUNE */
                             LS__TUNE_AUTO,
                             LS__TUNE_OFF
} ls__tune_mode;
ls_status ls__tune_mode_read(ls__tune_mode *mode); /* LS_ERR_INVALID */

/* LS_ERR_INVALID, LS_ERR_LIMIT: the text says what is wrong and what may be written. */
ls_status ls__rules_read(ls__rules *rules);
ls_status ls__rules_parse(ls__rules *rules, const char *text);
/* NULL: none for this size */
const ls__algorithm *ls__rules_find(const ls__rules *rules, ls__operation operation, int64_t bytes);

#endif
