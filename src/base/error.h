/* Failing with a message. `return ls__fail(LS_ERR_INVALID, "all_reduce: …", …)` sets this thread's
 * message and yields the code. A message says what was asked, what was found, and what to do. */
#ifndef LS_BASE_ERROR_H
#define LS_BASE_ERROR_H

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

#endif
