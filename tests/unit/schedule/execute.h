/* SPDX-License-Identifier: Apache-2.0 */
/* An execution of a table in symbols, written from Note [Meaning of a table] (schedule.h) and from
 * nothing of the verifier: values are hashes of what they were made from, so two results are equal
 * only if the same operations were applied to the same values in the same order. */
#ifndef EXECUTE_H
#define EXECUTE_H

#include "schedule/schedule.h"

/* Whether the table can be executed to its end with channels that hold one message, and
 * every stage then has the weights, and every micro-batch the loss, of the sequential twin. *why
 * (may be NULL) is a static text. */
bool executes_as_twin(const ls__schedule *s, const char **why);

#endif
