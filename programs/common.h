/* What the examples share: flags, ending with words, and the live line. */
#ifndef PROGRAMS_COMMON_H
#define PROGRAMS_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lockstep/status.h>

#define EXIT_USAGE 2

/* ---- flags -------------------------------------------------------------------------------- */

typedef enum flag_kind {
    FLAG_TEXT,   /* const char ** */
    FLAG_COUNT,  /* int64_t * */
    FLAG_NUMBER, /* double * */
    FLAG_SWITCH  /* bool *: --greedy, without a value */
} flag_kind;

typedef struct flag {
    const char *name; /* "steps": --steps N or --steps=N */
    flag_kind kind;
    void *value;      /* holds the default */
    double low, high; /* both allowed; of numbers */
    const char *help;
} flag;

/* Fills the values from the command line. --help prints the flags and ends the program; a mistake
 * is explained and ends it with EXIT_USAGE. */
void flags_parse(const char *what, const flag *flags, int count, int argc, char **argv);

/* Which of the words, NULL behind the last, --`name` is; another one ends the program. */
int flag_choice(const char *name, const char *value, const char *const *words);

/* Says why on stderr and ends the program. When all ranks have the same to say, rank 0 says it. */
_Noreturn void give_up(int code, const char *format, ...) LS_PRINTF(2, 3);
/* Gives up with the words of the library, without a source line: the user's data is at fault, not
 * the program. */
void must(ls_status status);

/* ---- the live line ------------------------------------------------------------------------ */

/* One line that is updated in place on a terminal; in a pipe, a plain line every two seconds. */
typedef struct live {
    bool terminal;
    bool open;    /* an unfinished line stands on the terminal */
    double shown; /* when the last plain line was printed */
    int width;    /* of the line on the terminal */
} live;

void live_start(live *line);
/* `last` prints a plain line even if the two seconds are not over. */
void live_show(live *line, bool last, const char *format, ...) LS_PRINTF(3, 4);
void live_end(live *line); /* what is printed next starts on a fresh line */

/* "1:05", "2:03:04" */
const char *duration(double seconds, char *out, size_t bytes);

/* Bytes as text: printable ones and newlines as they are, others as \xNN. */
void print_escaped(const uint8_t *bytes, int64_t count);

#endif
