/* SPDX-License-Identifier: Apache-2.0 */
/* Who listens on a port of this host, as far as this user may know. */
#ifndef LS_TESTS_PORT_OWNER_H
#define LS_TESTS_PORT_OWNER_H

#include "base/env.h"

/* Writes "process 4711 (python3 train.py)", or that it is not known who; returns `out`. */
const char *ls__port_owner(const ls__env *env, int port, char *out, size_t bytes);

#endif
