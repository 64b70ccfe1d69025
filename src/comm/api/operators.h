/* The user's reduction operators, and premultiplied sums. */
#ifndef LS_COMM_API_OPERATORS_H
#define LS_COMM_API_OPERATORS_H

#include "comm/core/group.h"

/* A copy of the user's operator with this value; its function is NULL if it does not exist. */
ls__operator ls__operator_of(ls__comm *comm, ls_reduce_op op);
/* Multiplies the input of a PREMUL_SUM: in place, or into a pack, which `args` uses then. */
ls_status ls__premultiply(ls_group *group, ls__collective *args, double factor);

#endif
