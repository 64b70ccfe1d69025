/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of `lockstep sim`, `lockstep plan auto` and `lockstep info --memory`. */
#ifndef TOOLS_SIM_H
#define TOOLS_SIM_H

#include "cost/job.h"
#include "programs/decoder.h"
#include "tools/cli/cli.h"

#define SIM_CLUSTER "8:200gbyte,8:25gbyte"
#define SIM_DEVICE "312tflop,2039gbyte"
#define SIM_DTYPES "bfloat16|float32"

/* sim_read.c: --cluster and --device, which are files if they do not begin with a digit; the device
 * is that of job->use.width. */
ls_status sim_read_cluster(const char *text, ls__sim_job *job);
ls_status sim_read_device(const char *text, ls__sim_job *job);

/* sim_model.c: options of a Llama or a Mixtral, and of the model in a folder. */
typedef struct sim_model {
    const char *init;
    int64_t kv_heads, hidden;
    bool tied;
} sim_model;

/* Rows of a table of options. The formatter would give each field a line of its own. */
/* clang-format off */
#define SIM_MODEL_OPTIONS(m)                                                                       \
    {"kv-heads", CLI_COUNT, &(m).kv_heads, .low = 1, .high = 1 << 16, .fallback = "as --heads",    \
     .help = "of llama and mixtral: heads of keys and values"},                                    \
    {"hidden", CLI_COUNT, &(m).hidden, .low = 1, .high = 1 << 24, .fallback = "4 times --dim",     \
     .help = "of llama and mixtral: width of the gated layer, or of an expert"},                   \
    {"tied", CLI_SWITCH, &(m).tied, .help = "of llama: the head is the table of tokens"},          \
    {"init", CLI_TEXT, &(m).init, .value_name = "DIR", .fallback = "",                             \
     .help = "a GPT-2, Llama or Mixtral of the shape in a folder's config.json"}
/* clang-format on */

/* Whether the model is a Llama, a Mixtral or in a folder, and so is read by sim_read_model. */
bool sim_reads_model(const sim_model *m, const char *model);
/* Completes `asked` and checks it, as lockstep train does: mistakes end the process. `context` 0:
 * the model's. Returns 0, or a status after cli_wrong. */
int sim_read_model(const cli_command *command, char *const *argv, const sim_model *m,
                   decoder_shape *asked, ls__gpt *out);
/* 0, or a status after cli_wrong for options that `model` would ignore. */
int sim_refuse_ignored(const cli_command *command, const sim_model *m, const char *model);
ls__gpt sim_gpt_of(const decoder_shape *shape); /* of what the calls above have read */
/* "llama: 22 layers, dim 2048 …": a line. */
void sim_print_model(const char *model, const ls__gpt *g, const char *dtype);

/* sim_trace.c: the timeline as a file of LOCKSTEP_TRACE's format, with the ranks along pp: those
 * that are 0 along dp and tp. LS_ERR_INVALID, LS_ERR_SYSTEM, LS_ERR_MEMORY. */
ls_status sim_write_trace(const ls__sim_job *job, const ls__sim_step *step, const char *path);

#endif
