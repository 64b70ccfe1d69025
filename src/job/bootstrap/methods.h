/* Bootstrap methods that have a file of their own. LS_IN_PROGRESS: the method does not apply. */
#ifndef LS_JOB_BOOTSTRAP_METHODS_H
#define LS_JOB_BOOTSTRAP_METHODS_H

#include "job/bootstrap/bootstrap.h"
#include "job/store/store.h"

ls_status ls__bootstrap_others(const ls__env *env, int64_t timeout_ms, ls__boot *out);
ls_status ls__bootstrap_launcher(const ls__env *env, int64_t timeout_ms, ls__boot *out);
/* Records the error that is set on the place of a rank that could not join. */
void ls__boot_record_failure(const ls__env *env, ls__board_rank *place, ls_status status);

#endif
