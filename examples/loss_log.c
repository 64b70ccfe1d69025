/* See loss_log.h. Each line goes out whole and at once, so that a killed job leaves all lines of
 * the steps that its last checkpoint holds. */
#include "loss_log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

#define LINE_MAX_BYTES 64

static _Noreturn void cannot(const char *path, const char *what)
{
    give_up(EXIT_FAILURE, "--log-losses: \"%s\" %s", path, what);
}

/* Where the line of the first step behind `start` begins, or half a line does. */
static long end_of_step(FILE *log, const char *path, int64_t start)
{
    char line[LINE_MAX_BYTES];
    long end = 0;
    while (fgets(line, sizeof line, log)) {
        char *behind = NULL;
        long long step = strtoll(line, &behind, 10);
        if (behind == line || *behind != ' ') {
            cannot(path, "holds something else than losses; give another file");
        }
        if (step > start || !strchr(line, '\n')) {
            break;
        }
        end = ftell(log);
    }
    return end;
}

FILE *loss_log_open(const char *path, int64_t start)
{
    FILE *log = start > 0 ? fopen(path, "r+") : NULL;
    if (log) {
        long end = end_of_step(log, path, start);
        if (end < 0 || fseek(log, end, SEEK_SET) != 0 || ftruncate(fileno(log), end) != 0) {
            cannot(path, "cannot be cut behind the step to go on from");
        }
    } else {
        log = fopen(path, "w");
    }
    if (!log || setvbuf(log, NULL, _IOLBF, BUFSIZ) != 0) {
        cannot(path, "cannot be written");
    }
    return log;
}

void loss_log_add(FILE *log, const char *path, int64_t step, double loss)
{
    if (fprintf(log, "%lld %.9g\n", (long long)step, loss) < 0) {
        cannot(path, "cannot be written");
    }
}

void loss_log_close(FILE *log, const char *path)
{
    if (log && fclose(log) != 0) {
        cannot(path, "cannot be written");
    }
}
