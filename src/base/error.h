/* SPDX-License-Identifier: Apache-2.0 */
/* Failing with a message. `return ls__fail(LS_ERR_INVALID, "all_reduce: …", …)` sets this thread's
 * message and yields the code. A message says what was asked, what was found, and what to do. */
#ifndef LS_BASE_ERROR_H
#define LS_BASE_ERROR_H

#include <stdint.h>

#include <lockstep/status.h>

#include "base/compiler.h"

#define LS__MESSAGE_MAX 2048 /* a report with both sides of a mismatch fits */

ls_status ls__fail(ls_status status, const char *format, ...) LS__PRINTF(2, 3);
/* Puts "context: " before the message already set; returns status unchanged. */
ls_status ls__fail_within(ls_status status, const char *format, ...) LS__PRINTF(2, 3);
/* Puts the line of the user's program before this thread's message, where the call was one that
 * notes it (types.h, Note [Call sites]) and the message does not begin so already. */
ls_status ls__fail_at_site(ls_status status);
/* Sets message and status of this thread from a stored failure (the root cause of a group's). */
ls_status ls__fail_again(ls_status status, const char *message);

/* The status of a user's function, whose name the format makes: one above 0 is LS_ERR_INVALID, as
 * it is neither success nor an error. */
ls_status ls__user_status(ls_status status, const char *format, ...) LS__PRINTF(2, 3);

/* Around a call of a user's function. */
typedef struct ls__user_call {
    uint64_t fails;   /* messages before it */
    const char *file; /* the line of the user's program that led to it; NULL: none is known */
    int line;
} ls__user_call;
ls__user_call ls__user_call_begin(void);
/* Its status, at most 0; an error begins with "WHAT (FILE:LINE): ". The message is its own, or says
 * that it has none: an older one would be another failure's. */
ls_status ls__user_call_end(const ls__user_call *call, ls_status status, const char *format, ...)
    LS__PRINTF(3, 4);
/* The same where messages are complete in themselves: only one that is missing is made. */
ls_status ls__user_call_check(const ls__user_call *call, ls_status status, const char *format, ...)
    LS__PRINTF(3, 4);

#endif
