/* ls_init on a given env table: for simulations, and tests that count or fail what it does. */
#ifndef LS_COMM_RUNTIME_INIT_H
#define LS_COMM_RUNTIME_INIT_H

#include <lockstep/runtime.h>

#include "base/env.h"

ls_status ls__init_with(const ls__env *env, const ls_init_options *options);

#endif
