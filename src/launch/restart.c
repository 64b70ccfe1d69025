/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a job that failed is started again, and after which delay.
 *
 * A restart helps against failures that pass: a lost machine, a short lack of memory. A failure
 * that would only recur is not tried again:
 *
 *     nothing a rank did          no such program, a stop request, exit codes 126 and 127
 *     wrong use                   exit codes 2 and 64 before ls_init: bad arguments stay bad
 *     ranks that do not match     LS_ERR_MISMATCH, LS_ERR_INVALID, LS_ERR_FORMAT … on the board
 *     the same failure twice      at the same step, in the same words
 *
 * The texts of two attempts differ in process numbers, durations and clock times, addresses,
 * which rank reported first, and, within a step, where the dead rank was last seen; those are
 * left out. If no step is known (a program that does not use the library, or fails before it
 * trains) the last lines of output must be the same too, and a signal from outside proves
 * nothing.
 *
 * The first restart comes at once, further ones after 1, 2, 4 … 30 s. */
#include "launch/restart.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

#define DELAY_FIRST_MS 1000
#define DELAY_MAX_MS 30000
#define CODE_NOT_EXECUTABLE 126 /* the shell's */
#define CODE_USAGE 2            /* of shells, getopt's users, argparse */
#define CODE_USAGE_BSD 64       /* EX_USAGE */
#define CODE_NOT_FOUND 127
#define TEXT_MAX 1024

/* ---- the same failure ----------------------------------------------------------------------- */

/* Whether a text starts with another. */
static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Whether the first `length` bytes of `out`, which need no terminator, end with a text. */
static bool ends(const char *out, size_t length, const char *with)
{
    size_t bytes = strlen(with);
    return length >= bytes && memcmp(out + length - bytes, with, bytes) == 0;
}

/* Whether a number differs between attempts although the failure is the same: a duration, a
 * clock time, a process number, an address, or, if the step is known, a sequence number within
 * it. */
static bool varies(const char *out, size_t length, const char *token, size_t bytes, bool step_known)
{
    const char *unit = token + bytes;
    bool seconds = starts(unit, " s") ? !isalnum((unsigned char)unit[2]) : starts(unit, " ms");
    return seconds || memchr(token, ':', bytes) != NULL || ends(out, length, "pid ") ||
           ends(out, length, "process ") || ends(out, length, "0x") ||
           (step_known && ends(out, length, "#"));
}

/* The length of the number, time or address at the start of a text. */
static size_t token_bytes(const char *text, bool address)
{
    return strspn(text, address ? "0123456789abcdefABCDEF" : "0123456789.:");
}

/* Copies the parts of a text that are the same in two attempts. It knows the phrases of
 * job/agent/failure_text.c and job/board.c. */
static void put_stable(const char *text, bool step_known, char *out)
{
    size_t length = 0;
    while (*text != '\0' && length + 1 < TEXT_MAX) {
        bool address = ends(out, length, "0x") && isxdigit((unsigned char)*text);
        if (starts(text, "(host ")) {
            text += strcspn(text, ")");
        } else if (step_known && (starts(text, " while in ") || starts(text, "; last operation"))) {
            text += strcspn(text, "\n");
        } else if (isdigit((unsigned char)*text) || address) {
            size_t bytes = token_bytes(text, address);
            bool leave_out = varies(out, length, text, bytes, step_known);
            for (size_t i = 0; i < bytes && !leave_out && length + 1 < TEXT_MAX; i++) {
                out[length++] = text[i];
            }
            text += bytes;
        } else {
            out[length++] = *text++;
        }
    }
    out[length] = '\0';
}

/* Whether two texts agree in the parts that do not vary between attempts. */
static bool same_text(const char *a, const char *b, bool step_known)
{
    char x[TEXT_MAX], y[TEXT_MAX];
    put_stable(a, step_known, x);
    put_stable(b, step_known, y);
    return strcmp(x, y) == 0;
}

/* "rank 2 (host …) failed: …" without its subject, which may be any of several ranks. */
static const char *without_rank(const char *cause)
{
    const char *behind = strchr(cause, ')');
    return starts(cause, "rank ") && behind != NULL ? behind + 1 : cause;
}

/* Signals that a program does not raise by itself. */
static bool from_outside(int number)
{
    return number == SIGKILL || number == SIGTERM || number == SIGINT || number == SIGHUP;
}

/* See the top of this file. The step is the strongest evidence: it grows as long as the job
 * advances. */
static bool same_failure(const ls__restarts *self, const ls__job_result *result)
{
    const ls__job_failure *now = &result->failure, *then = &self->former;
    bool step_known = now->step != 0 || now->updates != 0;
    if (!self->failed_before || result->code != self->former_code || now->step != then->step ||
        now->updates != then->updates ||
        !same_text(without_rank(result->cause), without_rank(self->former_cause), step_known)) {
        return false;
    }
    return step_known ||
           (!from_outside(now->signal) && same_text(now->last_lines, then->last_lines, false));
}

/* The failure with which the next one is compared. */
static void remember(ls__restarts *self, const ls__job_result *result)
{
    self->failed_before = true;
    self->former_code = result->code;
    self->former = result->failure;
    snprintf(self->former_cause, sizeof self->former_cause, "%s", result->cause);
}

/* ---- the decision --------------------------------------------------------------------------- */

/* Errors that lie in the program or its data, so that every attempt finds them. */
static bool recurs(int status)
{
    return status == LS_ERR_MISMATCH || status == LS_ERR_INVALID || status == LS_ERR_FORMAT ||
           status == LS_ERR_UNSUPPORTED;
}

/* The restarts that count against the limit: all, or those within the window. The ring holds as
 * many as the largest limit allows, so no restart that counts is lost. */
static int counted(const ls__restarts *self, uint64_t now_ns)
{
    uint64_t window_ns = (uint64_t)self->window_s * 1000000000u;
    int count = 0;
    for (int i = self->count - 1; i >= 0 && count < self->max; i--) {
        if (window_ns > 0 && now_ns - self->made_ns[i % LS__RESTARTS_MAX] > window_ns) {
            break;
        }
        count++;
    }
    return count;
}

/* After `before` restarts: 0, 1, 2, 4 … s. */
static int64_t delay_ms(int before)
{
    int64_t delay = before == 0 ? 0 : DELAY_FIRST_MS;
    for (int i = 1; i < before && delay < DELAY_MAX_MS; i++) {
        delay *= 2;
    }
    return delay < DELAY_MAX_MS ? delay : DELAY_MAX_MS;
}

static void put_within(const ls__restarts *self, char *out, size_t bytes)
{
    out[0] = '\0';
    if (self->window_s > 0) {
        snprintf(out, bytes, " within %d s", self->window_s);
    }
}

/* The line that announces a restart, with its number and delay. */
static void say_again(const ls__restarts *self, ls__restart *out, int number)
{
    char within[32], when[32];
    put_within(self, within, sizeof within);
    snprintf(when, sizeof when, out->delay_ms > 0 ? "in %lld s" : "at once",
             (long long)(out->delay_ms / 1000));
    snprintf(out->text, sizeof out->text, "restart %d of %d%s, %s", number, self->max, within,
             when);
}

/* Names the step as the program counts it: the activity holds step + 1. */
static void say_same(const ls__job_failure *failure, ls__restart *out)
{
    char where[64] = "";
    if (failure->step != 0) {
        snprintf(where, sizeof where, " at step %llu", (unsigned long long)failure->step - 1);
    } else if (failure->updates != 0) {
        snprintf(where, sizeof where, " after optimizer step %llu",
                 (unsigned long long)failure->updates);
    }
    snprintf(out->text, sizeof out->text,
             "not restarted: the same failure occurred twice%s; it would recur", where);
}

/* Why this failure alone is reason enough not to restart; NULL: it is not. */
static const char *reason_to_end(const ls__job_result *result)
{
    const ls__job_failure *failure = &result->failure;
    if (failure->final) {
        return "it is not a failure of the ranks";
    }
    if (result->code == CODE_NOT_EXECUTABLE || result->code == CODE_NOT_FOUND) {
        return "exit codes 126 and 127 mean that a program cannot be started";
    }
    if (failure->before_init && (result->code == CODE_USAGE || result->code == CODE_USAGE_BSD)) {
        return "exit codes 2 and 64 before ls_init mean that a program was used wrongly";
    }
    return recurs(failure->status) ? "it would recur" : NULL;
}

/* Remembers the failure in any case, for the comparison with the next. */
ls__restart ls__restart_decide(ls__restarts *self, const ls__job_result *result, uint64_t now_ns)
{
    LS_ASSERT(result->code != 0 && self->max <= LS__RESTARTS_MAX);
    ls__restart out = {.again = false};
    int before = counted(self, now_ns);
    const char *why = reason_to_end(result);
    if (why != NULL && recurs(result->failure.status)) {
        snprintf(out.text, sizeof out.text, "not restarted: %s (%s)", why,
                 ls_status_name(result->failure.status));
    } else if (why != NULL) {
        snprintf(out.text, sizeof out.text, "not restarted: %s", why);
    } else if (same_failure(self, result)) {
        say_same(&result->failure, &out);
    } else if (before >= self->max) {
        char within[32];
        put_within(self, within, sizeof within);
        snprintf(out.text, sizeof out.text, "not restarted: %d of %d restarts%s are used", before,
                 self->max, within);
    } else {
        out.again = true;
        out.delay_ms = delay_ms(before);
        say_again(self, &out, before + 1);
        self->made_ns[self->count++ % LS__RESTARTS_MAX] = now_ns;
    }
    remember(self, result);
    return out;
}
