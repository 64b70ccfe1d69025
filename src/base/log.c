/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines to the program's callback, or to stderr, one write each, so that lines of several ranks
 * never mix.
 *
 * The level is the runtime's; a thread without a runtime reads LOCKSTEP_DEBUG (or, where that is
 * not set, TORCH_DISTRIBUTED_DEBUG) at each call, since there is nowhere to keep it.
 */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/runtime.h"
#include "base/settings.h"

#define LINE_MAX_BYTES 4096

static const char *const level_names[] = {"error", "warning", "info", "debug"};

typedef struct level_word {
    const char *word;
    ls_log_level level;
} level_word;

/* The words of LOCKSTEP_DEBUG, and those of PyTorch's variable. */
static const level_word own_words[] = {{"error", LS_LOG_ERROR},
                                       {"warn", LS_LOG_WARN},
                                       {"info", LS_LOG_INFO},
                                       {"debug", LS_LOG_DEBUG},
                                       {"warning", LS_LOG_WARN}};
static const level_word torch_words[] = {
    {"off", LS_LOG_WARN}, {"info", LS_LOG_INFO}, {"detail", LS_LOG_DEBUG}};

/* Case does not matter, as with PyTorch's variable. */
static bool find_level(const level_word *words, size_t count, const char *text, ls_log_level *out)
{
    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(words[i].word, text) == 0) {
            *out = words[i].level;
            return true;
        }
    }
    return false;
}

/* An unknown word counts as "warn"; it is reported once, at the start, by the caller that reads
 * *known. */
ls_log_level ls__log_level_setting(bool *known)
{
    ls_log_level level = LS_LOG_WARN;
    const char *own = ls__setting_get("LOCKSTEP_DEBUG");
    const char *torch = ls__setting_get("TORCH_DISTRIBUTED_DEBUG");
    bool found = true;
    if (own != NULL) {
        found = find_level(own_words, sizeof own_words / sizeof *own_words, own, &level);
    } else if (torch != NULL) {
        found = find_level(torch_words, sizeof torch_words / sizeof *torch_words, torch, &level);
    }
    if (known != NULL) {
        *known = found;
    }
    return level;
}

/* The program's own destination of log lines; NULL: stderr.
 * Sync: read with the lock shared for as long as the function runs, so that a change waits. */
static struct {
    pthread_rwlock_t lock;
    ls_log_fn fn;
    void *arg;
} callback = {.lock = PTHREAD_RWLOCK_INITIALIZER};

/* Returns only when no thread is inside the former function, so `arg` may be freed then. */
void ls_set_log_callback(ls_log_fn fn, void *arg)
{
    pthread_rwlock_wrlock(&callback.lock);
    callback.fn = fn;
    callback.arg = arg;
    pthread_rwlock_unlock(&callback.lock);
}

/* Whether the program has a callback, which then received the line. The callback must not set
 * another one. */
static bool deliver(ls_log_level level, const char *text)
{
    pthread_rwlock_rdlock(&callback.lock);
    const bool taken = callback.fn != NULL;
    if (taken) {
        callback.fn(level, text, callback.arg);
    }
    pthread_rwlock_unlock(&callback.lock);
    return taken;
}

/* Allocates nothing. The callback receives the text without the prefix and the line's end. */
void ls_log_message(ls_log_level level, const char *format, ...)
{
    const ls_runtime *runtime = ls__self.runtime;
    if (level > (runtime != NULL ? runtime->log_level : ls__log_level_setting(NULL))) {
        return;
    }
    char line[LINE_MAX_BYTES];
    const char *name = level_names[(unsigned)level <= LS_LOG_DEBUG ? level : LS_LOG_DEBUG];
    bool ranked = runtime != NULL && runtime->rank >= 0;
    int head = ranked ? snprintf(line, sizeof line, "[rank %d] %s: ", runtime->rank, name)
                      : snprintf(line, sizeof line, "lockstep: %s: ", name);
    size_t room = sizeof line - (size_t)head - 1; /* one byte stays for the line's end */
    va_list args;
    va_start(args, format);
    int body = vsnprintf(line + head, room, format, args);
    va_end(args);
    if (deliver(level, line + head)) {
        return;
    }
    size_t length = (size_t)head;
    if (body > 0) {
        length += (size_t)body < room ? (size_t)body : room - 1;
    }
    line[length++] = '\n';
    const ls__env *env = runtime != NULL ? runtime->env : ls__env_posix();
    (void)env->write(env, 2, line, length);
}
