/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of algorithms: registry.c. */
#ifndef LS_COMM_ALGORITHM_REGISTRY_H
#define LS_COMM_ALGORITHM_REGISTRY_H

#include "comm/program/program.h"

const ls__algorithm *const *ls__algorithms(int *count);
const ls__algorithm *ls__algorithm_find(ls__operation operation, const char *name);
/* '"direct", "ring"' … of an operation, or 'none' */
void ls__algorithm_names(ls__operation operation, char *out, size_t bytes);
int ls__algorithm_index(const ls__algorithm *algorithm); /* pinned */

#endif
