/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a module: the steps of its forward function in order, so that a model can be cut into
 * pipeline stages (GPipe, Huang et al. 2019; PipeDream, Narayanan et al. 2019) and measured step by
 * step.
 *
 * A class declares its parts with the function `parts` of ls_module_class:
 *
 *     static void gpt_parts(ls_module *m, ls_parts *parts)
 *     {
 *         gpt *self = (gpt *)m;
 *         ls_parts_add(parts, &LS_PART(.name = "embed", .run = gpt_embed, .uses = "tokens drop"));
 *         ls_parts_add_children(parts, self->blocks);          // "blocks.0", "blocks.1", …
 *         ls_parts_add(parts, &LS_PART(.name = "head", .run = gpt_head, .uses = "norm head"));
 *     }
 *
 * Each part has one result, and takes results of earlier parts or inputs of the module: by default
 * that of the part before it. A further edge (`from`) is a skip connection, or a mask that many
 * parts read; it may cross any number of cuts. Run one after the other, all parts compute what
 * ls_forward computes, to the last bit (ls_module_check_parts). A parameter that two parts use (a
 * tied embedding) belongs to both. Modules that draw random numbers are not shared by parts: draws
 * are counted by module. All models of lockstep/models have parts, and so has ls_sequential_new.
 *
 * Nothing in this header is collective.
 */
#ifndef LOCKSTEP_PARTS_H
#define LOCKSTEP_PARTS_H

#include <lockstep/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_PART_FROM_MAX 8 /* edges into a part */
/* In `from`: input number k of the module; numbers from 0 on are parts. */
#define LS_PART_INPUT(k) (-1 - (k))

/* A part: either a module of the tree, which is called with ls_forward (one input) or
 * ls_forward_many, or a function of the module whose class declares it. */
typedef struct ls_part {
    size_t size;      /* LS_PART sets it */
    const char *name; /* NULL: the module's dotted name */
    ls_module *module;
    /* inputs[from_count] -> the result; a poisoned tensor on failure. */
    ls_tensor *(*run)(ls_module *self, ls_tensor *const *inputs);
    /* Of `run`: dotted names of the children, parameters and buffers of `self` that it uses, with
     * spaces between them; "*": all. */
    const char *uses;
    const int *from; /* where the inputs come from; NULL: the part before, or input 0 */
    int from_count;
} ls_part;
#define LS_PART(...)                                                                               \
    (ls_part)                                                                                      \
    {                                                                                              \
        .size = sizeof(ls_part), __VA_ARGS__                                                       \
    }

/* Adds a part (its strings and `from` are copied) and returns its number; -1 when it cannot be
 * added. The first error is kept, and ls_module_part_count returns it. For the class's function
 * `parts` only. */
LS_API int ls_parts_add(ls_parts *parts, const ls_part *part);
/* A part for each child of `sequence`, and for each child of a child that is an
 * ls_sequential_new. */
LS_API void ls_parts_add_children(ls_parts *parts, ls_module *sequence);

/* The number of parts; of a class without any, 1: the whole module. Negative: the error
 * (ls_status), if the declaration is wrong. */
LS_API int ls_module_part_count(ls_module *module);
/* The name of part i (borrowed until the module is freed); NULL if there is none. */
LS_API const char *ls_module_part_name(ls_module *module, int i);
/* Where part i takes its inputs from, as in ls_part.from; returns how many (at most
 * LS_PART_FROM_MAX), or a negative status. */
LS_API int ls_module_part_from(ls_module *module, int i, int *from);

/* The tensors that cross the ends of a stage, parts first … first+count-1. `in`: parts before it,
 * and inputs of the module, whose values it takes, in ascending order, inputs first
 * (LS_PART_INPUT(0), LS_PART_INPUT(1), …, 0, 1, …); `out`: its parts whose results later parts
 * take, in ascending order, and its last part if that is the module's. Each array has room for
 * LS_CALL_TENSORS_MAX. */
typedef struct ls_stage_edges {
    int in_count, out_count;
    int in[LS_CALL_TENSORS_MAX], out[LS_CALL_TENSORS_MAX];
} ls_stage_edges;
LS_API ls_status ls_module_stage_edges(ls_module *module, int first, int count,
                                       ls_stage_edges *out);
/* Runs these parts: inputs and outputs in the order of ls_module_stage_edges. An input that the
 * caller of the module omits is NULL. After an error outputs[] are poisoned tensors. Hooks of
 * modules that are split among parts do not run. */
LS_API ls_status ls_module_run_stage(ls_module *module, int first, int count,
                                     ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                                     int output_count);

/* Whether the parts, one after the other, give what ls_forward gives for these inputs (those of
 * ls_forward_many), to the last bit: what a pipeline needs, and cannot see for itself once the
 * model is cut. A part that calls a module that it does not declare is LS_ERR_STATE. Both run in
 * evaluation mode and without a graph, and change nothing. Call it in a test, or before
 * ls_pipeline_new; with LOCKSTEP_CHECK=strict a pipeline's first step calls it with its first
 * micro-batch, on the ranks that have all inputs of the module. LS_ERR_MISMATCH names the first
 * element that differs, or both shapes; LS_ERR_STATE: ls_module_keep_parts has freed some parts. */
LS_API ls_status ls_module_check_parts(ls_module *module, ls_tensor *const *inputs,
                                       int input_count);

/* Frees every parameter, buffer and module that these parts (numbers in ascending order) do not
 * use; the rest keeps its names ("blocks.3.qkv.weight"), so optimizers, ls_ddp_new and checkpoints
 * of a stage work on just these. From then on only these parts can be run, and ls_forward is
 * LS_ERR_STATE. The parts keep their numbers. Call it before the model is wrapped or has an
 * optimizer. A part that uses what it does not declare fails: with the module's name and
 * LS_ERR_STATE where it calls a freed module, with LS_ERR_STALE where it reads a freed parameter
 * or buffer. Your structs of freed modules stay in memory; what the `free` of their class has
 * freed does not. */
LS_API ls_status ls_module_keep_parts(ls_module *module, const int *parts, int count);

/* Parts of equal numbers, up to one: stage s of `stages` is parts *first … *first+*count-1, none of
 * which is empty. LS_ERR_INVALID when there are fewer parts than stages. */
LS_API ls_status ls_module_cut_evenly(ls_module *module, int stages, int s, int *first, int *count);
/* Cuts before the named parts: "blocks.3 head" makes three stages. first[] has room for
 * LS_CALL_TENSORS_MAX and receives the first part of each; returns how many, or a negative status:
 * LS_ERR_INVALID for a name that no part has, for the first part, and for an order that is not that
 * of the parts. */
LS_API int ls_module_cut_at(ls_module *module, const char *names, int *first);

/* An error of a part names the line that declares it; see Note [Call sites] in types.h. */
#if !defined(LS_NO_SITES)
#define ls_parts_add(...) LS_AT(ls_parts_add(__VA_ARGS__))
#define ls_parts_add_children(...) LS_AT(ls_parts_add_children(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
