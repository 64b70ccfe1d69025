/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of pipelines as files, and the profiles that they are made from.
 *
 *   measure.c    the parts of a module, measured (profile.h)
 *   profile.c    the file of a profile
 *   partition.c  which parts become a stage (partition.h)
 *   inter.c      the same for a step with a flush, on submeshes (inter.h)
 *   predict.c    what a plan takes, and its file
 *   choose.c     which of these plans is written (choose.h)
 *   auto.c       mesh, cuts, schedule and all else of a GPT (auto.h); auto_file.c: its file
 *   plan.c       the plan that a program follows (lockstep/plan.h)
 *   text.c       fields of both files
 */
#ifndef LS_PLAN_PLAN_H
#define LS_PLAN_PLAN_H

#include <lockstep/plan.h>

#include "base/arena.h"
#include "base/json.h"

#define LS__PLAN_FORMAT "lockstep plan"
#define LS__PLAN_VERSION 2
#define LS__PLAN_VERSION_WITHOUT_MESH 1 /* of `plan pipeline`: ranks of one pipeline */
#define LS__PLAN_SIZES_MAX 16           /* numbers that are a model's shape */
#define LS__PLAN_PARTS_MAX 1024         /* as many as a module may have */
#define LS__PLAN_NAME_MAX 512           /* bytes of a part's name, and of the model's */

struct ls_plan {
    ls__arena arena; /* owns all of it */
    const char *model, *schedule;
    char *cut, *replicas_text;
    int workers, micro_batches;
    double step_seconds; /* negative: unknown */
    const char **parts;  /* [part_count] */
    int part_count;
    int *first, *replicas; /* [stages] its first part, its workers */
    int stages;
    /* Of version 2; in version 1 the mesh is NULL. */
    ls_plan_settings settings;
    ls_plan_size *sizes; /* [size_count] of the model */
    int size_count;
};

/* Parses the text of a file; `what` begins the messages. */
ls_status ls__plan_parse(const ls__env *env, const char *what, const char *text, size_t bytes,
                         ls_plan **out);

/* ---- fields of a file (text.c) --------------------------------------------------------------- */

typedef struct ls__plan_reader {
    const char *what; /* names the file */
    ls__arena *arena; /* for copies */
} ls__plan_reader;

ls_status ls__plan_malformed(const ls__plan_reader *r, const char *field);
ls_status ls__plan_no_memory(const ls__plan_reader *r);
/* "format" and "version" of a file. */
ls_status ls__plan_read_head(const ls__plan_reader *r, const json_t *root, const char *format,
                             int version);
/* A copy of a text of 1 to LS__PLAN_NAME_MAX - 1 printable bytes. */
ls_status ls__plan_read_name(const ls__plan_reader *r, const json_t *value, const char *field,
                             const char **out);
/* Whether `value` is an integer from low to high. */
bool ls__plan_read_int(const json_t *value, int64_t low, int64_t high, int64_t *out);
/* Whether it is a finite number from 0 on. */
bool ls__plan_read_number(const json_t *value, double *out);
/* Whether a part may have this name: printable, without spaces, as ls_module_cut_at needs. */
bool ls__plan_part_name_is_good(const char *name);

/* Writes `root` (NULL: there was no memory to make it) as a text that people can read.
 * LS_ERR_MEMORY, LS_ERR_SYSTEM. `what` begins the messages. */
ls_status ls__plan_save(const ls__env *env, const char *what, const json_t *root, const char *path);

#endif
