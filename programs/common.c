/* What the examples share. Nothing here knows about training. */
#include "common.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/runtime.h>

#define PLAIN_SECONDS 2.0
/* All ranks find the same mistake. Rank 0 tells it; the others wait, longer than the launcher takes
 * to end them when rank 0 has failed, and speak only when rank 0 had nothing to say. */
#define OTHER_RANKS_WAIT_SECONDS 2

/* ---- ending ------------------------------------------------------------------------------- */

/* Known before ls_init: the launcher sets RANK. */
static bool speaks_first(void)
{
    const char *rank = getenv("RANK");
    return !rank || strcmp(rank, "0") == 0;
}

void give_up(int code, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!speaks_first()) {
        (void)nanosleep(&(struct timespec){.tv_sec = OTHER_RANKS_WAIT_SECONDS}, NULL);
    }
    (void)fflush(stdout);
    (void)fprintf(stderr, "error: %s\n", text);
    exit(code);
}

void must(ls_status status)
{
    if (status < 0) {
        give_up(EXIT_FAILURE, "%s", ls_error_message());
    }
}

/* ---- flags -------------------------------------------------------------------------------- */

static void print_value(const flag *f)
{
    switch (f->kind) {
    case FLAG_TEXT:
        (void)printf("%s", *(const char **)f->value ? *(const char **)f->value : "none");
        break;
    case FLAG_COUNT:
        (void)printf("%lld", (long long)*(int64_t *)f->value);
        break;
    case FLAG_NUMBER:
        (void)printf("%g", *(double *)f->value);
        break;
    case FLAG_SWITCH:
        (void)printf("off");
        break;
    }
}

static _Noreturn void print_help(const char *what, const flag *flags, int count)
{
    static const char *const shown[] = {" TEXT", " N", " X", ""};
    if (speaks_first()) {
        (void)printf("%s\n%s", what, count > 0 ? "\n" : "");
    }
    for (int i = 0; speaks_first() && i < count; i++) {
        int used = printf("  --%s%s", flags[i].name, shown[flags[i].kind]);
        (void)printf("%*s%s (default ", used < 24 ? 24 - used : 1, "", flags[i].help);
        print_value(&flags[i]);
        (void)printf(")\n");
    }
    exit(0);
}

static void set_number(const flag *f, const char *text)
{
    char *end = NULL;
    errno = 0;
    double number = f->kind == FLAG_COUNT ? (double)strtoll(text, &end, 10) : strtod(text, &end);
    if (end == text || *end || errno || isnan(number)) {
        give_up(EXIT_USAGE, "--%s is \"%s\"; it takes %s", f->name, text,
                f->kind == FLAG_COUNT ? "a whole number" : "a number");
    }
    if (number < f->low || number > f->high) {
        give_up(EXIT_USAGE, "--%s is %s; it must be in %.10g to %.10g", f->name, text, f->low,
                f->high);
    }
    if (f->kind == FLAG_COUNT) {
        *(int64_t *)f->value = strtoll(text, NULL, 10);
    } else {
        *(double *)f->value = number;
    }
}

static const flag *find_flag(const flag *flags, int count, const char *name, size_t length)
{
    for (int i = 0; i < count; i++) {
        if (strlen(flags[i].name) == length && memcmp(flags[i].name, name, length) == 0) {
            return &flags[i];
        }
    }
    return NULL;
}

void flags_parse(const char *what, const flag *flags, int count, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(what, flags, count);
        }
        if (strncmp(argv[i], "--", 2) != 0) {
            give_up(EXIT_USAGE, "\"%s\" is no flag; --help lists them", argv[i]);
        }
        const char *name = argv[i] + 2;
        const char *equals = strchr(name, '=');
        size_t length = equals ? (size_t)(equals - name) : strlen(name);
        const flag *f = find_flag(flags, count, name, length);
        if (!f) {
            give_up(EXIT_USAGE, "unknown flag --%.*s; --help lists them", (int)length, name);
        }
        if (f->kind == FLAG_SWITCH) {
            if (equals) {
                give_up(EXIT_USAGE, "--%s is a switch; it takes no value", f->name);
            }
            *(bool *)f->value = true;
            continue;
        }
        if (!equals && i + 1 == argc) {
            give_up(EXIT_USAGE, "--%s needs a value", f->name);
        }
        const char *text = equals ? equals + 1 : argv[++i];
        if (f->kind == FLAG_TEXT) {
            *(const char **)f->value = text;
        } else {
            set_number(f, text);
        }
    }
}

int flag_choice(const char *name, const char *value, const char *const *words)
{
    char all[256] = "";
    size_t used = 0;
    for (int i = 0; words[i]; i++) {
        if (strcmp(value, words[i]) == 0) {
            return i;
        }
        const char *between = i == 0 ? "" : words[i + 1] ? ", " : " or ";
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", between, words[i]);
        used = used < sizeof all ? used : sizeof all - 1;
    }
    give_up(EXIT_USAGE, "--%s is \"%s\"; it takes %s", name, value, all);
}

/* ---- the live line ------------------------------------------------------------------------ */

/* Under the launcher our stdout is a pipe; it says whether its own is a terminal. */
static bool may_update_lines(void)
{
    const char *launcher = getenv("LOCKSTEP_LIVE");
    return isatty(STDOUT_FILENO) == 1 || (launcher && strcmp(launcher, "1") == 0);
}

void live_start(live *line)
{
    *line = (live){.terminal = may_update_lines(), .shown = -PLAIN_SECONDS};
}

void live_show(live *line, bool last, const char *format, ...)
{
    double now = ls_time();
    if (!line->terminal && !last && now - line->shown < PLAIN_SECONDS) {
        return;
    }
    va_list args;
    va_start(args, format);
    int width = vprintf(format, args);
    va_end(args);
    if (line->terminal) {
        /* Blanks cover what a longer line left behind. */
        (void)printf("%*s\r", line->width > width ? line->width - width : 0, "");
        line->width = width;
        line->open = true;
    } else {
        (void)printf("\n");
        line->shown = now;
    }
    (void)fflush(stdout);
}

void live_end(live *line)
{
    if (line->open) {
        (void)printf("\n");
        line->open = false;
        line->width = 0;
    }
}

const char *duration(double seconds, char *out, size_t bytes)
{
    long long whole = seconds > 0.0 ? (long long)(seconds + 0.5) : 0;
    if (whole >= 3600) {
        (void)snprintf(out, bytes, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    } else {
        (void)snprintf(out, bytes, "%lld:%02lld", whole / 60, whole % 60);
    }
    return out;
}

void print_escaped(const uint8_t *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (bytes[i] == '\n' || (bytes[i] >= ' ' && bytes[i] <= '~')) {
            (void)putchar(bytes[i]);
        } else {
            (void)printf("\\x%02x", bytes[i]);
        }
    }
}
