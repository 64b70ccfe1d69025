/* SPDX-License-Identifier: Apache-2.0 */
/* The parts that a class has declared (lockstep/parts.h). */
#ifndef LS_NN_PARTS_H
#define LS_NN_PARTS_H

#include <lockstep/parts.h>

#define LS__PARTS_MAX 1024

typedef struct ls__module_part {
    char *name;
    ls_module *module;                                        /* or */
    ls_tensor *(*run)(ls_module *self, ls_tensor *const *in); /* with the names it uses */
    char *uses;
    int from[LS_PART_FROM_MAX], from_count;
    bool freed;       /* ls_module_keep_parts has not kept it */
    const char *file; /* of its declaration; NULL: unknown */
    int line;
} ls__module_part;

struct ls_parts {
    ls_module *self; /* whose class declares them */
    ls__module_part *list;
    int count, room;
    int entries; /* of the tree when they were declared */
    ls_status status;
    char *message; /* of the first error */
    bool cut;      /* some parts are freed: they cannot be declared again */
};

/* The parts of `module`, or of the module that it wraps; declared again when the tree has grown.
 * NULL with the error set. Borrowed until the module is freed. */
const ls_parts *ls__parts_of(ls_module *module);
/* LS_ERR_INVALID unless first … first+count-1 are some of the parts, LS_ERR_STATE when they were
 * freed. */
ls_status ls__parts_check(const ls_parts *parts, const char *call, int first, int count);
/* One line for each part, which says how it was declared; with free(). NULL with the error set. */
char *ls__parts_print(ls_module *module);
/* uses[i] becomes whether the part uses parameter i of ls_module_params. */
ls_status ls__part_uses(ls_module *module, int part, const ls_param *params, int count, bool *uses);
/* Modules that the part does not declare are withheld (nn/module.h) until ls__module_withhold. */
ls_status ls__part_withhold_others(const ls_parts *parts, int part);
/* As ls_module_keep_parts, but nothing is freed before ls__parts_keep. Meanwhile
 * ls__parts_bring_back makes the module whole again, also below a wrapper. */
ls_status ls__parts_set_aside(ls_module *module, const int *list, int count);
void ls__parts_bring_back(ls_module *module);
ls_status ls__parts_keep(ls_module *module, const int *list, int count);
/* Runs all parts as ls_module_run_stage does, each with only the modules that it declares. */
ls_status ls__parts_run_apart(ls_module *module, ls_tensor *const *inputs, int input_count,
                              ls_tensor **out);
/* A value's elements row-major as they lie in memory, detached: kernels may add in another order in
 * another layout, so a channels-last one is [N,H,W,C] then. And back to [N,C,H,W]. */
ls_tensor *ls__part_elements(ls_tensor *value, bool *channels_last);
ls_tensor *ls__part_value(ls_tensor *elements, bool channels_last);
void ls__parts_free(ls_parts *parts); /* NULL is allowed */

#endif
