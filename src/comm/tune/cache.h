/* SPDX-License-Identifier: Apache-2.0 */
/* The tuning file: times measured by `lockstep tune`, by layout of the ranks on hosts. Its path is
 * LOCKSTEP_TUNE_FILE, else lockstep/tuning in XDG_CACHE_HOME or in ~/.cache. Each line is an entry:
 * a key (the configuration that was measured), then, separated by tabs, the algorithms, each with
 * its nanoseconds at the sizes of ls__tune_bytes. `lockstep tune` writes the file and rank 0 of a
 * job reads it. A file that cannot be read counts as an empty one.
 */
#ifndef LS_COMM_TUNE_CACHE_H
#define LS_COMM_TUNE_CACHE_H

#include "comm/core/group.h"
#include "comm/tune/tune.h"

#define LS__TUNE_KEY_MAX 256 /* bytes of a key with its final 0 */

#define LS__TUNE_SHARED_MAX ((size_t)16 << 10) /* bytes of the text that rank 0 shares */

/* Copies the lines that were timed from this rank's host with its configuration; "" without any. */
void ls__tune_read_file(const ls__comm *comm, char *out, size_t bytes);
/* The figures that such a text gives for a group of this layout, and its times if this very layout
 * was timed. False: the text has no usable line, and the figures are the default ones. */
bool ls__tune_figures(const char *text, const ls__layout *layout, const ls__env *env,
                      ls__timings *timings, ls__figures *figures);
/* Writes times into the file. LS_ERR_SYSTEM, LS_ERR_MEMORY; LS_ERR_INVALID: no path is known. */
ls_status ls__tune_keep(const ls__comm *comm, const ls__layout *layout, const ls__timings *timings);

/* The path of the file, also for `lockstep info`. False: no path is known. */
bool ls__tune_file(char *out, size_t bytes);
/* Calls each() for every entry. False: the file does not exist, or has another format. */
bool ls__tune_each(const ls__env *env, const char *path,
                   void (*each)(void *arg, const char *key, const char *times), void *arg);
/* Enters the times of an entry into `timings`. False: it names none of their algorithms. */
bool ls__tune_read_times(const char *times, ls__timings *timings);
/* Parses the layout at the end of a key. False: it has none. */
bool ls__tune_key_layout(const char *key, ls__layout *out);

#endif
