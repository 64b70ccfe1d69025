/* SPDX-License-Identifier: Apache-2.0 */
/* Event logs: the numbers of a run by step, in a file that other programs read while the run goes
 * on (torch.utils.tensorboard.SummaryWriter).
 *
 *     ls_event_log *log = ls_event_log_new("run.jsonl", NULL);      JSON Lines: `lockstep report`
 *     ls_event_log_add(log, step, "train/loss", loss);              {"step": 3, "loss": 2.81}
 *     ls_event_log_free(log);
 *
 * Every rank may make the same calls after ls_init; only rank 0 writes. A line or record is handed
 * to the system before its call returns, so a killed job leaves whole lines. No call is collective,
 * and a log belongs to one thread at a time.
 */
#ifndef LOCKSTEP_EVENT_LOG_H
#define LOCKSTEP_EVENT_LOG_H

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_EVENT_NAME_MAX 63 /* bytes of a group and a name with the slash between them */

typedef struct ls_event_log ls_event_log;

typedef enum ls_event_format {
    LS_EVENTS_JSON = 0,       /* `path` is a file: an object a line, which begins with its step */
    LS_EVENTS_LINES = 1,      /* a file: the step and the numbers, with blanks between them */
    LS_EVENTS_TENSORBOARD = 2 /* a folder, which is made: `tensorboard --logdir PATH` */
} ls_event_format;

typedef struct ls_event_log_options {
    size_t size;
    ls_event_format format; /* default LS_EVENTS_JSON */
    /* The run goes on after this many steps, from a checkpoint: lines of later steps, which it will
     * write again, are removed, and TensorBoard drops them. Default 0: a file begins anew. */
    int64_t start;
} ls_event_log_options;
#define LS_DEFAULTS_ls_event_log_options .start = 0,
LS_DEFAULTS_FUNCTION(event_log)

/* Opens a log. What lies at the path of a file is replaced, so nothing is written through a link,
 * and no pipe is waited for. NULL with LS_ERR_SYSTEM or LS_ERR_NOT_FOUND where the file cannot be
 * made, LS_ERR_FORMAT where the file to go on with holds something else, LS_ERR_INVALID where that
 * is no regular file, LS_ERR_STATE while another run writes the file. */
LS_API ls_event_log *ls_event_log_new(const char *path, const ls_event_log_options *options);

/* Adds one number. What precedes the last slash of `name` is its group: TensorBoard draws the
 * curves of a group beside each other, the other formats leave it out. LS_ERR_INVALID: the name has
 * no or more than LS_EVENT_NAME_MAX bytes, is not UTF-8, or is "step" in JSON; LS_ERR_SYSTEM: the
 * file cannot be written, as on a full disk. Later numbers are written once there is room. */
LS_API ls_status ls_event_log_add(ls_event_log *log, int64_t step, const char *name, double value);

/* One of several values of a step. `text` or `numbers`, where one is given, goes to JSON in place
 * of `number`, and nowhere else. All pointers are borrowed for the call. */
typedef struct ls_event_value {
    const char *name;
    double number; /* not finite: null in JSON */
    const char *text;
    const int64_t *numbers; /* [count]: a list; with count 0 one integer */
    int64_t count;
} ls_event_value;

/* Adds them as one line, or one record of TensorBoard. Errors are those of ls_event_log_add. */
LS_API ls_status ls_event_log_add_all(ls_event_log *log, int64_t step, const char *group,
                                      const ls_event_value *values, int count);

/* Closes the file and frees the log, also if it returns an error. NULL is allowed. */
LS_API ls_status ls_event_log_free(ls_event_log *log);

#ifdef __cplusplus
}
#endif

#endif
