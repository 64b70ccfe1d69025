/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps: on a GPU, all kernels of a step of training started by one call (a CUDA graph).
 *
 * A step of small kernels takes as long as the host needs to start them. Where shapes are fixed the
 * device can record them once and repeat them:
 *
 *     static ls_status step(void *arg, ls_tensor *const *in, ls_tensor **out)
 *     {
 *         struct training *t = arg;
 *         out[0] = ls_cross_entropy(ls_forward(t->net, in[0]), in[1], NULL);
 *         LS_TRY(ls_backward(out[0]));
 *         LS_TRY(ls_clip_grad_norm(t->net, 1.0, NULL, &t->norm));
 *         LS_TRY(ls_optim_step(t->optim));
 *         ls_optim_zero_grad(t->optim);
 *         return LS_OK;
 *     }
 *     …
 *     ls_captured *captured = ls_captured_new(step, &training);
 *     for (…) {
 *         ls_optim_set_lr(optim, …);
 *         LS_CHECK(ls_captured_run(captured, (ls_tensor *[]){x, y}, 2, &loss, 1));
 *     }
 *
 * The first run of the step makes it as any program does (optimizers get their state), the second
 * is watched, the third is recorded, and from then on a run is a replay, which does not call the
 * function: it copies the inputs to where those of the recorded run lay, and starts the recorded
 * kernels. Every run has the results of the function itself, to the bit: the learning rate and the
 * step count of an optimizer, and the masks of a dropout (ls_step_begin) are those of the run.
 *
 * Gradients are accumulated within the step: it takes the batches of all micro-batches as inputs,
 * and begins each one with ls_captured_step_begin, so that masks of a replay are its own. Only the
 * last backward exchanges (ls_ddp_set_sync).
 *
 *     for (int k = 0; k < MICRO; k++) {
 *         LS_TRY(ls_captured_step_begin(&t->context[k]));
 *         ls_tensor *loss = ls_cross_entropy(ls_forward(t->net, in[2 * k]), in[2 * k + 1], NULL);
 *         LS_TRY(ls_ddp_set_sync(t->net, k == MICRO - 1));
 *         LS_TRY(ls_backward(ls_scale(loss, 1.0 / MICRO)));
 *     }
 *
 * A replay repeats the device's work with the arguments of the recorded run. Everything else must
 * be the same in each run: numbers of the host are those of the recorded run (the largest norm of
 * clipping, a factor of ls_scale, a dropout's probability, training mode), other work of the
 * function is not done, and memory that it uses must stay: modules, optimizers and tensors outlive
 * the captured step. Parameters that are moved (ls_module_to), drawn anew (ls_fill_normal), frozen
 * or thawed, and settings that an optimizer loads, end the capture, and two runs later the step is
 * captured anew.
 *
 * Gradients that the step leaves, for an optimizer outside of it, are those of the run, and it may
 * add to gradients that it finds. A run that finds a gradient where the recorded one found none, or
 * the reverse, is made as without a capture.
 *
 * Runs with other shapes, types, autocast, seed or sample offset than the recorded one, and with
 * inputs on another device or that require gradients, are made as without a capture. For runs of a
 * second shape, or of fewer micro-batches, make a second ls_captured of the same function: each
 * replays its own recording. Every run of a step is made without a capture if
 *   - the program reads or waits for the device (ls_item, ls_copy_out), makes tensors of numbers of
 *     its own (ls_from_data, ls_full: give them as inputs), or computes on the processor;
 *   - ranks exchange something that is not captured, numbers are drawn by ls_rand or
 *     ls_fill_normal, a tensor is kept (ls_keep), or ls_step_begin is called;
 *   - or the device captures nothing: the processor does not.
 * ls_captured_why names the reason. Two checks are captured: the device checks indices of
 * ls_embedding and targets of losses, and *norm of ls_clip_grad_norm is written when the run
 * returns (so its address must be the same in each run). Where a check fails, or the norm is
 * not finite, the run returns that error, and no optimizer after the check has stepped: if it is
 * the only one, no parameter has changed. Running statistics of batch norm have moved, as in a run
 * without a capture whose loss is refused.
 *
 * Averages of ls_ddp_new over backend "nccl" are captured with the step. Then all ranks of its
 * group call ls_captured_run for every step, and agree before each run: they replay the same
 * recording, or all run without it. Where one rank cannot capture the step, none does. A check that
 * fails on one rank is LS_ERR_PEER on the others, and no rank has made the step. A replay has the
 * deadline of the group, and ends as its operations do when a rank dies or hangs (comm.h). Not
 * captured are zero, gradients over several groups, buffers that are broadcast, statistics of batch
 * norm over ranks, weighted backwards, optimizers in backward, local gradients that one run leaves
 * to the next (LS_NO_SYNC), and other exchanges. */
#ifndef LOCKSTEP_CAPTURED_H
#define LOCKSTEP_CAPTURED_H

#include <lockstep/random.h>
#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A step: from inputs of any shapes and types to outputs, float32 of one element each. What it
 * makes is freed when it returns (it runs in a scope of its own), the outputs after they were read.
 * An error ends the run, and is returned. */
typedef ls_status (*ls_step_fn)(void *arg, ls_tensor *const *inputs, ls_tensor **outputs);

#define LS_CAPTURED_MAX 256 /* inputs of a step, and outputs */

typedef struct ls_captured ls_captured;

/* Borrows `arg`. NULL with ls_error_message: without a step or memory. */
LS_API ls_captured *ls_captured_new(ls_step_fn step, void *arg);
/* Frees the recorded kernels and gives their memory back to the device's tensors. Call it on the
 * thread of the runs, before the modules and optimizers of the step are freed: NCCL ends no group
 * that recorded kernels still use. NULL is allowed. */
LS_API void ls_captured_free(ls_captured *captured);

/* Makes the step (torch.cuda.make_graphed_callables), with inputs[input_count] on the device where
 * tensors are made (ls_device_use), which stay the caller's. values[value_count] become the
 * elements of the outputs, for which, as for checks, it waits; without either it does not wait.
 * All runs are made by one thread, and no other one starts work on the device during the third.
 * Errors: the step's own; LS_ERR_INVALID for an output of another shape; LS_ERR_STATE within a
 * step, or when the recorded run differs from the one before; LS_ERR_SYSTEM when the device fails
 * to record. After the last two the step was not made: zero the gradients, and the runs to come are
 * made without a capture. */
LS_API ls_status ls_captured_run(ls_captured *captured, ls_tensor *const *inputs, int input_count,
                                 double *values, int value_count);

/* ls_step_begin (random.h) for a micro-batch within the step, or as outside of steps. Each replay
 * reads the context at this address when it begins: it outlives the captured step, each
 * micro-batch has its own, and the program writes it before each run, not in the function, which a
 * replay does not call. A run with another sample offset there than the recorded one is made
 * without the capture. LS_ERR_INVALID for NULL. */
LS_API ls_status ls_captured_step_begin(const ls_step_context *context);

/* Why the step is not captured; "" if it is, or if that is not known before the third run. Where
 * the shapes of inputs change in every third run or more often, it names the change; where runs
 * begin under LS_NO_SYNC, it says so. Valid until the next run. */
LS_API const char *ls_captured_why(const ls_captured *captured);
/* The runs so far that were replays, the recorded one included. */
LS_API int64_t ls_captured_replays(const ls_captured *captured);

#ifdef __cplusplus
}
#endif

#ifndef LS_NO_SITES
#define ls_captured_run(...) LS_AT(ls_captured_run(__VA_ARGS__))
#endif

#endif
