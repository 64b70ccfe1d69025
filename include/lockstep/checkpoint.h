/* Checkpoints: the state that a job needs to continue after it ended, written so that the previous
 * checkpoint is never lost.
 *
 *     const ls_checkpoint_item items[] = {
 *         LS_ITEM("model", ls_ddp_module(net)), LS_ITEM("optim", optim),
 *         LS_ITEM("loader", loader), LS_ITEM("random", ls_runtime_current())};
 *     LS_CHECK(ls_checkpoint_new("run7", ls_world(), NULL, &c));
 *     ls_status found = ls_checkpoint_load(c, items, 4, &step);   // LS_ERR_NOT_FOUND: from step 0
 *     for (; step < steps; step++) {
 *         … train one step …
 *         if ((step + 1) % 1000 == 0) LS_CHECK(ls_checkpoint_save(c, step + 1, items, 4));
 *     }
 *     LS_CHECK(ls_checkpoint_free(c));
 *
 * On the disk a checkpoint is a folder  DIR/step-00000120/  with
 *     state-00001-of-00004.safetensors …   tensors, shared out over the ranks by bytes (large ones
 *                                          in parts: blocks of rows, under one name in several
 *                                          files), so each rank writes one file, all at once
 *     scalars.json                         integers and numbers
 *     manifest.json                        written last: version, step, world size, size and
 *                                          SHA-256 of every file (`sha256sum` shows the same)
 *                                          and of itself, and where every part of a tensor lies
 * It is made in a temporary folder beside it and renamed when all of it is on the disk, so a name
 * that exists is complete. The newest `keep` stay. Files are data only; every size is checked
 * against the file before memory is taken. DIR/lock is held by the job that writes there.
 *
 * A checkpoint holds the values of the state visitors (state.h), under logical names, without
 * buckets or ranks.
 * Save between steps, when no gradient is pending: gradients are not saved.
 * - At the same number of ranks training goes on bit for bit.
 * - At another number no sample is lost or repeated: a loader's position is (epoch, samples of the
 *   epoch that are done), and the rest of the epoch is cut anew into steps of the new global batch,
 *   starting at that sample. If the rest is no whole number of steps, the last one is short, or
 *   dropped with drop_last, as at the end of any epoch. The batch of a *rank* is the program's
 *   affair: with more ranks the global batch grows unless it asks for less.
 */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <lockstep/comm.h>
#include <lockstep/state.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_checkpoint ls_checkpoint;

/* One stateful object: `state` is called with `object` and `prefix`, as ls_module_state is. It is
 * called twice per save and per load and must show the same both times. LS_ITEM (lockstep.h) fills
 * one for modules, optimizers, loaders and runtimes. */
typedef struct ls_checkpoint_item {
    size_t size;        /* of this struct; the distance of items in a list */
    const char *prefix; /* "model", "optim", "loader" … */
    void *object;
    ls_status (*state)(void *object, const char *prefix, const ls_state_visitor *visitor);
} ls_checkpoint_item;

typedef struct ls_checkpoint_options {
    size_t size;
    int keep;           /* newest complete checkpoints that stay; default 2, at least 1 */
    bool async;         /* write from a copy, on a thread of its own; default true */
    int64_t timeout_ms; /* for the slowest rank's disk; default an hour */
    bool load_only;     /* nothing is made in the folder, not even a lock: ls_checkpoint_save is
                           refused, and a folder that does not exist is LS_ERR_NOT_FOUND; default
                           false */
    bool partial;       /* ls_checkpoint_load takes what the items show and leaves the rest of the
                           checkpoint alone: the model without its optimizer; default false */
} ls_checkpoint_options;
#define LS_DEFAULTS_ls_checkpoint_options .keep = 2, .async = true, .timeout_ms = 3600000,
LS_DEFAULTS_FUNCTION(checkpoint)

/* Opens the folder; rank 0 makes it if it is missing, and removes incomplete files of a job that
 * died. Collective. While another job writes to the folder it can be opened for loading only; if a
 * checkpoint disappears meanwhile, load takes the newer one. Errors name the path. */
LS_API ls_status ls_checkpoint_new(const char *folder, ls_group *group,
                                   const ls_checkpoint_options *options, ls_checkpoint **out);

/* Saves all items as step `step` >= 0. Collective. With `async` it returns after the copy: of
 * 1/ranks of what is replicated, into memory kept from save to save. An error of the writing is
 * returned, with the same text on all ranks, by the next call, which does nothing else. At most one
 * is being written: a second save waits. Saving a step again replaces it. LS_ERR_STATE when the
 * folder holds a later step (another run's; a damaged one that load passed over is moved aside).
 * LS_ERR_MISMATCH when the ranks' items differ. */
LS_API ls_status ls_checkpoint_save(ls_checkpoint *checkpoint, int64_t step,
                                    const ls_checkpoint_item *items, int count);

/* Waits until everything is on the disk and committed by all ranks. Collective. */
LS_API ls_status ls_checkpoint_wait(ls_checkpoint *checkpoint);

/* Loads the newest complete checkpoint into the items and says its step; collective, all ranks take
 * the same one. A damaged one is named in a warning and the one before it is taken; the next save
 * renames it to damaged-step-…. LS_ERR_NOT_FOUND when there is none at all, LS_ERR_FORMAT when none
 * is whole. LS_ERR_MISMATCH names a tensor or scalar whose shape or dtype differs, or that one side
 * lacks; nothing is changed then. */
LS_API ls_status ls_checkpoint_load(ls_checkpoint *checkpoint, const ls_checkpoint_item *items,
                                    int count, int64_t *step);

/* Waits for the writing to end, then frees, whatever it returns. Collective; NULL is allowed. */
LS_API ls_status ls_checkpoint_free(ls_checkpoint *checkpoint);

/* ---- weights of other programs: safetensors -------------------------------------------------
 *
 * A file of named tensors as Hugging Face's libraries write and read them (format: README of
 * huggingface/safetensors). `path` is such a file, the index of a model in several files
 * (*.json, its "weight_map" says which tensor lies where), or a folder with model.safetensors or
 * model.safetensors.index.json. Only tensors are looked at; scalars of the items stay as they are.
 * Neither call is collective: each rank reads for itself, and one rank writes. */

typedef struct ls_safetensors_options {
    size_t size;
    const char *prefix; /* stands in front of every name in the file and not here, with its dot:
                           "model."; other names of the file are not looked at; default none */
    bool
        strict; /* a name that only one side has is an error; else it is left alone; default true */
    /* The number-th (from 0) other name under which a file may hold `name`, if it does not hold
     * `name` itself; false: there are no more. `prefix` is put before it. NULL: none. */
    bool (*other_name)(void *arg, const char *name, int number, char *out, size_t bytes);
    /* Asked for every name that only one side has, although `strict`: may it be? NULL: no. */
    bool (*allow)(void *arg, const char *name, bool in_file);
    void *arg;
} ls_safetensors_options;
#define LS_DEFAULTS_ls_safetensors_options .strict = true,
LS_DEFAULTS_FUNCTION(safetensors)

/* Loads tensors by name into what the items show (of a module: ls_module_load_safetensors in
 * lockstep.h). Shapes must be equal; float16, bfloat16 and float64 are converted if this side has
 * float32, other types must be equal. LS_ERR_MISMATCH lists tensors that are missing, unexpected or
 * of another shape; LS_ERR_FORMAT, LS_ERR_NOT_FOUND name the file. An error changes nothing. */
LS_API ls_status ls_safetensors_load(const char *path, const ls_checkpoint_item *items, int count,
                                     const ls_safetensors_options *options);

/* Writes all tensors of the items into one file, which appears under its name when it is whole; of
 * the options only `prefix` is used. A tensor of which this rank shows a slice is
 * LS_ERR_UNSUPPORTED: save a checkpoint. */
LS_API ls_status ls_safetensors_save(const char *path, const ls_checkpoint_item *items, int count,
                                     const ls_safetensors_options *options);

/* The random state as an item: seed, parameters initialised so far, and the number of the step and
 * of the random operations in it. (Where the rank's samples lie in the step is not saved: the
 * loader sets it with each batch; a hand-written loop, with ls_step_begin.) */
LS_API ls_status ls_runtime_state(ls_runtime *runtime, const char *prefix,
                                  const ls_state_visitor *visitor);

#ifdef __cplusplus
}
#endif
#endif
