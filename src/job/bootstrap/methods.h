/* Bootstrap methods that have a file of their own. LS_IN_PROGRESS: the method does not apply. */
#ifndef LS_JOB_BOOTSTRAP_METHODS_H
#define LS_JOB_BOOTSTRAP_METHODS_H

#include "job/bootstrap/bootstrap.h"
#include "job/store/store.h"

ls_status ls__bootstrap_others(const ls__env *env, int64_t timeout_ms, ls__boot *out);
ls_status ls__bootstrap_launcher(const ls__env *env, int64_t timeout_ms, ls__boot *out);

#endif
