/* SPDX-License-Identifier: Apache-2.0 */
/* Status names and the message of a thread's last failing call.
 *
 * A message is formatted aside first, because its arguments may point into the former message
 * (ls__fail(status, "…: %s", ls_error_message()) is the usual way to add to one).
 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/runtime.h"

const char *ls_status_name(ls_status status)
{
    switch (status) {
#define NAME(name, value, text)                                                                    \
    case name:                                                                                     \
        return #name;
        LS_STATUS_TABLE(NAME)
#undef NAME
    }
    return "unknown status";
}

/* Of the calling thread, like the message. */
ls_status ls_error_status(void)
{
    return ls__self.status;
}

const char *ls_error_message(void)
{
    return ls__self.message;
}

/* Keeps `text` as this thread's message; a text that is too long ends in an ellipsis. `text` may
 * lie in the message itself. */
static void keep(ls_status status, const char *text)
{
    size_t length = strnlen(text, LS__MESSAGE_MAX);
    bool cut = length == LS__MESSAGE_MAX;
    memmove(ls__self.message, text, cut ? LS__MESSAGE_MAX - 1 : length);
    if (cut) {
        memcpy(ls__self.message + LS__MESSAGE_MAX - 4, "...", 3);
        length = LS__MESSAGE_MAX - 1;
    }
    ls__self.message[length] = '\0';
    ls__self.status = status;
    ls__self.fails++;
}

/* One byte more than a message, so that `keep` sees what was cut. */
typedef struct draft {
    char text[LS__MESSAGE_MAX + 1];
    size_t used;
} draft;

/* Appends; what does not fit is cut off, with one byte more than a message left to show it. */
static void draft_add_list(draft *d, const char *format, va_list args)
{
    int wanted = vsnprintf(d->text + d->used, sizeof d->text - d->used, format, args);
    if (wanted > 0) {
        d->used += (size_t)wanted;
    }
    if (d->used >= sizeof d->text) {
        d->used = sizeof d->text - 1;
    }
}

/* The same with arguments of its own. */
static void LS__PRINTF(2, 3) draft_add(draft *d, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    draft_add_list(d, format, args);
    va_end(args);
}

ls_status ls__fail(ls_status status, const char *format, ...)
{
    draft d = {.used = 0};
    va_list args;
    va_start(args, format);
    draft_add_list(&d, format, args);
    va_end(args);
    keep(status, d.text);
    return status;
}

/* The public name of ls__fail, for functions and data sets of users. */
ls_status ls_fail(ls_status status, const char *format, ...)
{
    draft d = {.used = 0};
    va_list args;
    va_start(args, format);
    draft_add_list(&d, format, args);
    va_end(args);
    keep(status, d.text);
    return status;
}

/* The message already set may itself be an argument: it is formatted aside first. */
ls_status ls__fail_within(ls_status status, const char *format, ...)
{
    draft d = {.used = 0};
    va_list args;
    va_start(args, format);
    draft_add_list(&d, format, args);
    va_end(args);
    draft_add(&d, ": %s", ls__self.message);
    keep(status, d.text);
    return status;
}

/* How many bytes of the message are "FILE:LINE: "; 0 when it begins otherwise. */
static size_t site_bytes(const char *message, const char *file, int line)
{
    char site[LS__MESSAGE_MAX];
    const int bytes = snprintf(site, sizeof site, "%s:%d: ", file, line);
    const bool fits = bytes > 0 && (size_t)bytes < sizeof site;
    return fits && strncmp(message, site, (size_t)bytes) == 0 ? (size_t)bytes : 0;
}

/* Adds the user's place once, however many layers pass the error on. */
ls_status ls__fail_at_site(ls_status status)
{
    const char *file = ls__self.file;
    if (file == NULL || file[0] == '\0' || site_bytes(ls__self.message, file, ls__self.line) > 0) {
        return status;
    }
    return ls__fail(status, "%s:%d: %s", file, ls__self.line, ls__self.message);
}

ls_status ls__fail_again(ls_status status, const char *message)
{
    keep(status, message);
    return status;
}

/* Ends the program; the launcher then reports this rank as the first to fail. */
void ls_check_failed(ls_status status, const char *file, int line, const char *expression)
{
    if (status >= 0) {
        return;
    }
    const char *message = ls_error_message();
    message += site_bytes(message, file, line); /* the line begins with the place already */
    char rank[32] = "";                         /* unknown before ls_init */
    if (ls__self.runtime != NULL) {
        (void)snprintf(rank, sizeof rank, "rank %d: ", ls_rank());
    }
    fprintf(stderr, "%s%s:%d: %s: %s%s%s\n", rank, file, line, expression, ls_status_name(status),
            message[0] != '\0' ? ": " : "", message);
    exit(1);
}

/* ---- the user's functions ----------------------------------------------------------------- */

ls__user_call ls__user_call_begin(void)
{
    return (ls__user_call){.fails = ls__self.fails, .file = ls__self.file, .line = ls__self.line};
}

/* "backward of "f"", with the line in brackets. */
static void put_what(const ls__user_call *call, const char *format, va_list args, draft *out)
{
    draft_add_list(out, format, args);
    if (call->file != NULL && call->file[0] != '\0') {
        draft_add(out, " (%s:%d)", call->file, call->line);
    }
}

static ls_status fail_positive(ls_status status, const draft *what)
{
    return ls__fail(LS_ERR_INVALID,
                    "%s returned %d, which is neither LS_OK nor an error; return LS_OK, or a "
                    "negative ls_status",
                    what->text, (int)status);
}

ls_status ls__user_status(ls_status status, const char *format, ...)
{
    draft what = {.used = 0};
    if (status <= 0) {
        return status;
    }
    va_list args;
    va_start(args, format);
    draft_add_list(&what, format, args);
    va_end(args);
    return fail_positive(status, &what);
}

static ls_status fail_without_text(ls_status status, const draft *what)
{
    return ls__fail(status, "%s returned %s without ls_fail", what->text, ls_status_name(status));
}

ls_status ls__user_call_end(const ls__user_call *call, ls_status status, const char *format, ...)
{
    draft what = {.used = 0};
    if (status == LS_OK) {
        return status;
    }
    va_list args;
    va_start(args, format);
    put_what(call, format, args, &what);
    va_end(args);
    if (status > 0) {
        return fail_positive(status, &what);
    }
    return ls__self.fails == call->fails ? fail_without_text(status, &what)
                                         : ls__fail_within(status, "%s", what.text);
}

ls_status ls__user_call_check(const ls__user_call *call, ls_status status, const char *format, ...)
{
    draft what = {.used = 0};
    if (status == LS_OK || (status < 0 && ls__self.fails != call->fails)) {
        return status;
    }
    va_list args;
    va_start(args, format);
    put_what(call, format, args, &what);
    va_end(args);
    return status > 0 ? fail_positive(status, &what) : fail_without_text(status, &what);
}
