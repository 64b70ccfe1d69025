/* Restarting is for what passes: a lost machine, memory that was short for a moment. A failure that
 * would only come again is not tried again:
 *
 *     nothing a rank did          no such program, a stop request, exit codes 126 and 127
 *     wrong use                   exit codes 2 and 64 before ls_init: bad arguments stay bad
 *     ranks that do not fit       LS_ERR_MISMATCH, LS_ERR_INVALID, LS_ERR_FORMAT … on the board
 *     the same failure twice      at the same step, in the same words
 *
 * The words of two attempts differ in process numbers, durations and clock times, addresses, which
 * rank spoke first, and, within a step, where the dead rank was last seen; those are left out.
 * Where no step is known (a program that does not use the library, or fails before it trains) the
 * output's last lines must be the same too, and a signal that comes from outside proves nothing.
 *
 * The first restart comes at once, further ones after 1, 2, 4 … 30 s.
 */
#include "launch/restart.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define DELAY_FIRST_MS 1000
#define DELAY_MAX_MS 30000
#define CODE_NOT_EXECUTABLE 126 /* the shell's */
#define CODE_USAGE 2            /* of shells, getopt's users, argparse */
#define CODE_USAGE_BSD 64       /* EX_USAGE */
#define CODE_NOT_FOUND 127
#define TEXT_MAX 1024

/* ---- the same failure ----------------------------------------------------------------------- */

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool ends(const char *out, size_t length, const char *with)
{
    size_t bytes = strlen(with);
    return length >= bytes && memcmp(out + length - bytes, with, bytes) == 0;
}

/* Of a number: what differs from one attempt to the next though the failure is the same. */
static bool passing(const char *out, size_t length, const char *token, size_t bytes,
                    bool step_known)
{
    const char *unit = token + bytes;
    bool seconds = starts(unit, " s") ? !isalnum((unsigned char)unit[2]) : starts(unit, " ms");
    return seconds || memchr(token, ':', bytes) != NULL || ends(out, length, "pid ") ||
           ends(out, length, "process ") || ends(out, length, "0x") ||
           (step_known && ends(out, length, "#"));
}

static size_t token_bytes(const char *text, bool address)
{
    return strspn(text, address ? "0123456789abcdefABCDEF" : "0123456789.:");
}

/* Writes what of a text is the same in two attempts. */
static void put_lasting(const char *text, bool step_known, char *out)
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
            bool leave_out = passing(out, length, text, bytes, step_known);
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

static bool same_text(const char *a, const char *b, bool step_known)
{
    char x[TEXT_MAX], y[TEXT_MAX];
    put_lasting(a, step_known, x);
    put_lasting(b, step_known, y);
    return strcmp(x, y) == 0;
}

/* "rank 2 (host …) failed: …" without who it was. */
static const char *without_rank(const char *cause)
{
    const char *behind = strchr(cause, ')');
    return starts(cause, "rank ") && behind != NULL ? behind + 1 : cause;
}

static bool from_outside(int number)
{
    return number == SIGKILL || number == SIGTERM || number == SIGINT || number == SIGHUP;
}

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

static void remember(ls__restarts *self, const ls__job_result *result)
{
    self->failed_before = true;
    self->former_code = result->code;
    self->former = result->failure;
    snprintf(self->former_cause, sizeof self->former_cause, "%s", result->cause);
}

/* ---- the decision --------------------------------------------------------------------------- */

static bool lasting_status(int status)
{
    return status == LS_ERR_MISMATCH || status == LS_ERR_INVALID || status == LS_ERR_FORMAT ||
           status == LS_ERR_UNSUPPORTED;
}

/* Restarts that count against the limit. */
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

static void say_again(const ls__restarts *self, ls__restart *out, int number)
{
    char within[32], when[32];
    put_within(self, within, sizeof within);
    snprintf(when, sizeof when, out->delay_ms > 0 ? "in %lld s" : "at once",
             (long long)(out->delay_ms / 1000));
    snprintf(out->text, sizeof out->text, "restart %d of %d%s, %s", number, self->max, within,
             when);
}

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
             "not restarted: the same failure twice%s; it would come again", where);
}

/* Why a single look is enough, or NULL. */
static const char *hopeless(const ls__job_result *result)
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
    return lasting_status(failure->status) ? "it would come again" : NULL;
}

ls__restart ls__restart_decide(ls__restarts *self, const ls__job_result *result, uint64_t now_ns)
{
    ls__restart out = {.again = false};
    int before = counted(self, now_ns);
    const char *why = hopeless(result);
    if (why != NULL && lasting_status(result->failure.status)) {
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
