/* The operations of a group that time, decide and share: Note [Deciding] in tune.h. */
#ifndef LS_COMM_TUNE_RUN_H
#define LS_COMM_TUNE_RUN_H

#include "comm/group/group.h"
#include "comm/tune/tune.h"

#define LS__TUNE_AT 8 /* operations of a group that come before; most jobs' groups have more */

/* What an operation of the tuner is there for. */
typedef enum ls__tuner_part {
    LS__TUNER_NONE,  /* it is the user's */
    LS__TUNER_FIRST, /* the table that rank 0 has */
    LS__TUNER_TIMED, /* needed as long as something is to be timed */
    LS__TUNER_SECOND /* the table made of that */
} ls__tuner_part;

ls_status ls__tuning_open(ls_group *group);
void ls__tuning_join(ls_group *group); /* its members are known */
void ls__tuning_close(ls_group *group);
/* lock; the LS__TUNE_AT-th operation has just been queued. LS_ERR_MEMORY */
ls_status ls__tuning_queue(ls_group *group);
/* token; whether a queued operation of the tuner is not needed after all */
bool ls__tuning_skips(const ls_group *group, const ls_work *work);
/* token; NULL: the default */
const ls__algorithm *ls__tuning_find(const ls_group *group, const ls_work *work);
/* What operations of this size use now, for reports; takes the token. */
const char *ls__tuning_name(ls_group *group, ls__operation operation, int64_t bytes);
/* lock; whether data of so many bytes travels with the announcement of this operation */
bool ls__tuning_one_shot(const ls_group *group, uint64_t sequence, size_t bytes);

#endif
