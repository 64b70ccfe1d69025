/* See step_log.h. Each line is written at once and in one piece, so a killed job leaves all lines
 * of the steps up to its last checkpoint. */
#include "step_log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "tools/cli/cli.h"

#define LINE_MAX_BYTES 1024

static _Noreturn void cannot(const step_log *log, const char *what)
{
    give_up(EXIT_FAILURE, "--%s: \"%s\" %s", log->asked_by, log->path, what);
}

/* The offset of the first line of a step after `start`, or of an incomplete line. */
static long end_of_step(const step_log *log, FILE *file, int64_t start)
{
    char line[LINE_MAX_BYTES];
    size_t head = strlen(log->head);
    long end = 0;
    while (fgets(line, sizeof line, file)) {
        char *behind = line + head;
        long long step = strncmp(line, log->head, head) == 0 ? strtoll(behind, &behind, 10) : 0;
        bool whole = strchr(line, '\n') != NULL;
        if (behind == line + head && whole) {
            cannot(log, "holds something else than steps; give another file");
        }
        if (step > start || !whole) {
            break;
        }
        end = ftell(file);
    }
    return end;
}

void step_log_open(step_log *log, const char *path, const char *asked_by, const char *head,
                   int64_t start)
{
    *log = (step_log){.path = path, .asked_by = asked_by, .head = head};
    FILE *file = start > 0 ? cli_open(path, "r+") : NULL;
    if (start > 0 && file == NULL && errno != ENOENT) {
        cannot(log, "cannot be cut behind the step to go on from");
    }
    if (file != NULL) {
        long end = end_of_step(log, file, start);
        if (end < 0 || fseek(file, end, SEEK_SET) != 0 || ftruncate(fileno(file), end) != 0) {
            cannot(log, "cannot be cut behind the step to go on from");
        }
    } else {
        file = cli_create(path);
    }
    if (file == NULL || setvbuf(file, NULL, _IOLBF, BUFSIZ) != 0) {
        give_up(EXIT_FAILURE, "--%s: \"%s\" cannot be written: %s", asked_by, path,
                strerror(errno));
    }
    log->file = file;
}

void step_log_add(step_log *log, const char *format, ...)
{
    if (!log->file) {
        return;
    }
    va_list args;
    va_start(args, format);
    int written = vfprintf(log->file, format, args);
    va_end(args);
    if (written < 0 || fputc('\n', log->file) == EOF) {
        cannot(log, "cannot be written");
    }
}

void step_log_close(step_log *log)
{
    if (log->file && fclose(log->file) != 0) {
        cannot(log, "cannot be written");
    }
    log->file = NULL;
}
