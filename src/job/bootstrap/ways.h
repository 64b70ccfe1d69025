/* Ways into a world that have a file of their own. LS_IN_PROGRESS: the way does not apply. */
#ifndef LS_JOB_BOOTSTRAP_WAYS_H
#define LS_JOB_BOOTSTRAP_WAYS_H

#include "job/bootstrap/bootstrap.h"
#include "job/store/store.h"

ls_status ls__bootstrap_others(const ls__env *env, int64_t timeout_ms, ls__boot *out);
ls_status ls__bootstrap_launcher(const ls__env *env, int64_t timeout_ms, ls__boot *out);

#endif
