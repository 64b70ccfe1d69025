/* What was timed before, by layout, in a file of the user's: LOCKSTEP_TUNE_FILE, else
 * lockstep/tuning in XDG_CACHE_HOME or ~/.cache. A line an entry: what was measured, and behind
 * tabs the algorithms, each with its nanoseconds at the sizes of ls__tune_bytes. `lockstep tune`
 * writes it, rank 0 of a job reads it. A file that cannot be used is as good as none.
 */
#ifndef LS_COMM_TUNE_CACHE_H
#define LS_COMM_TUNE_CACHE_H

#include "comm/group/group.h"
#include "comm/tune/tune.h"

#define LS__TUNE_KEY_MAX 256

#define LS__TUNE_SHARED_MAX ((size_t)16 << 10)

/* What the file has of this rank's host, line by line; "" if there is nothing. */
void ls__tune_read_file(const ls__comm *comm, char *out, size_t bytes);
/* Figures of such a text for a group of this layout, and its times if it was timed itself; false:
 * nothing is known, and the figures are the default ones. */
bool ls__tune_figures(const char *text, const ls__layout *layout, const ls__env *env,
                      ls__timings *timings, ls__figures *figures);
/* Puts times into the file. LS_ERR_SYSTEM, LS_ERR_MEMORY; LS_ERR_INVALID: there is no place. */
ls_status ls__tune_keep(const ls__comm *comm, const ls__layout *layout, const ls__timings *timings);

/* For `lockstep info`: where it is; false: nowhere. */
bool ls__tune_file(char *out, size_t bytes);
/* Calls each() for every entry; false: there is no such file, or it is none of ours. */
bool ls__tune_each(const ls__env *env, const char *path,
                   void (*each)(void *arg, const char *key, const char *times), void *arg);
/* Fills in what such a text says of the algorithms in `timings`; false: nothing. */
bool ls__tune_read_times(const char *times, ls__timings *timings);
/* The layout in a key; false: it has none. */
bool ls__tune_key_layout(const char *key, ls__layout *out);

#endif
