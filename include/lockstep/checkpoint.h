/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: the state that a job needs to continue later, written in such a way that the
 * previous checkpoint is never lost.
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
 * On disk a checkpoint is a folder  DIR/step-00000120/  with these files:
 *     state-00001-of-00004.safetensors …   tensors, distributed by bytes over the ranks that hold
 *                                          them (large ones in blocks of rows, under one name in
 *                                          several files), so that all ranks write at the same
 *                                          time, one file each. Further pieces of a tensor in one
 *                                          file are called NAME#1, NAME#2 …
 *     scalars.json                         integers and numbers
 *     manifest.json                        written last: version, step, world size, the size and
 *                                          SHA-256 of every file (as `sha256sum` prints it) and of
 *                                          itself, and the location of every part of a tensor. The
 *                                          version is 3 if a file holds several pieces of a tensor,
 *                                          else 2; both are read
 * A checkpoint is written to a temporary folder and renamed when it is completely on the disk, so a
 * folder with such a name is complete. The newest `keep` checkpoints remain. A save whose tensors
 * hold NaN or infinity is written like any other, but a warning and "nonfinite" in the manifest
 * name the tensor, and it pushes no finite one out: while none of the newest `keep` is finite, the
 * newest finite one remains beside them. Loading runs no code, and every size is compared with the
 * file before memory is allocated. The job that writes holds a lock on DIR/lock.
 *
 * A checkpoint contains the values of the state visitors (state.h) under logical names, without
 * buckets or ranks. Save between steps, because gradients are not saved.
 *
 * What the ranks show when they save:
 * - Each rank shows what it has. Where several show one name, dtype and global shape of a tensor,
 *   or the value of a scalar, are the same on them.
 * - The slices of a tensor that all ranks show are together the whole tensor. Two slices are equal
 *   (replicas, written once, by these ranks in turns) or have no element in common. The numbers of
 *   replicas are the same: their checksums are compared. After local steps (ls_ddp_set_local) call
 *   ls_ddp_average with the optimizer first, or choose with ls_checkpoint_item.replicas what is
 *   saved.
 * When they load, each rank again shows what it wants to have, in any slices: what 4 pipeline
 * stages saved is loaded by 2 or by 1, a sharded tensor by ranks that hold it whole, and the
 * reverse. What is in the checkpoint must be shown by some rank, unless `partial` or `ignore` says
 * otherwise.
 *
 * - With the same number of ranks, training continues bit for bit.
 * - With another number, no sample is lost or repeated: the position of a loader is (epoch, samples
 *   of the epoch that were read), and the rest of the epoch is divided into steps of the new global
 *   batch from that sample on. If the rest is not a whole number of steps, the last step is short,
 *   or dropped with drop_last, as at the end of any epoch. The program chooses the batch of a
 *   *rank*, so with more ranks the global batch grows unless the program reduces it.
 *
 * A file system that hangs ends a call with LS_ERR_TIMEOUT after timeout_ms; the text names the
 * file. The object can then only be freed; a thread and its memory remain until the end of the
 * process.
 *
 * LS_ERR_SYSTEM (disk full, for example), LS_ERR_FORMAT and LS_ERR_NOT_FOUND name the path. An
 * error of one rank is returned on all ranks.
 */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <lockstep/comm.h>
#include <lockstep/state.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_checkpoint ls_checkpoint;

/* What ls_checkpoint_save makes of an item whose numbers differ between ranks, as after local steps
 * (ls_ddp_set_local):
 *   EQUAL  refuses it: LS_ERR_MISMATCH names the tensor. Default
 *   EACH   saves every rank's, under the names "ranks.R-of-N.PREFIX…", from which as many ranks
 *          load. `ignore` = "ranks." skips them on other numbers of ranks
 *   MEAN   saves the mean over the ranks of its tensors of floating point, under its own names; the
 *          object keeps its numbers. Other values must be equal. Equal numbers keep their bits.
 *          Loading gives every rank the mean
 * A checkpoint can have both of one object, as two items: the mean for any number of ranks, then
 * each rank's, to go on bit for bit. */
typedef enum ls_replicas {
    LS_REPLICAS_EQUAL = 0,
    LS_REPLICAS_EACH = 1,
    LS_REPLICAS_MEAN = 2
} ls_replicas;

/* One stateful object. `state` has the form of ls_module_state and is called with `object` and
 * `prefix`, twice per save and per load; it must visit the same values both times. LS_ITEM
 * (lockstep.h) initialises an item for modules, optimizers, loaders and runtimes. */
typedef struct ls_checkpoint_item {
    size_t size;        /* of this struct, and the distance between two items of an array */
    const char *prefix; /* "model", "optim", "loader" … */
    void *object;
    ls_status (*state)(void *object, const char *prefix, const ls_state_visitor *visitor);
    ls_replicas replicas; /* the same on all ranks; of weights (ls_safetensors_save) not used */
} ls_checkpoint_item;

typedef struct ls_checkpoint_options {
    size_t size;
    int keep;           /* number of complete checkpoints that remain; default 2, at least 1 */
    bool async;         /* ls_checkpoint_save returns while a thread still writes; default true */
    int64_t timeout_ms; /* milliseconds: deadline for the slowest rank's disk; default one hour */
    bool load_only;     /* creates nothing in the folder, not even a lock: ls_checkpoint_save is
                           refused, and a folder that does not exist is LS_ERR_NOT_FOUND; default
                           false */
    bool partial;       /* ls_checkpoint_load loads only the values that the items visit and ignores
                           those that no rank visits (a model without its optimizer, for example);
                           default false */
    /* As `partial`, but only for names that begin with this text, or one of several with spaces
       between them: "model.comm_hook. ranks." for the state of a communication hook and for that of
       each rank. Borrowed until ls_checkpoint_free; default NULL, none */
    const char *ignore;
} ls_checkpoint_options;
#define LS_DEFAULTS_ls_checkpoint_options .keep = 2, .async = true, .timeout_ms = 3600000,
LS_DEFAULTS_FUNCTION(checkpoint)

/* Opens the folder. Rank 0 creates it if it does not exist, and removes incomplete files of a job
 * that died. Collective; the group is borrowed. LS_ERR_STATE while another job writes to the
 * folder, with the process and the host of that job's rank 0; the lock of a job that died does not
 * count. Such a folder can be opened with load_only; if a checkpoint disappears meanwhile,
 * ls_checkpoint_load uses a newer one. */
LS_API ls_status ls_checkpoint_new(const char *folder, ls_group *group,
                                   const ls_checkpoint_options *options, ls_checkpoint **out);

/* Saves items[count] as step `step` >= 0. Collective. With `async` it returns after all ranks have
 * copied their shares (1/ranks of replicated tensors) to memory that is reused by the next save. An
 * error in writing is returned, with the same text on all ranks, by the next call, which then does
 * nothing else. If the previous save is still being written, the call waits for it. Saving a step
 * again replaces it, but LS_ERR_INVALID instead of a state that is not finite in place of a finite
 * one. LS_ERR_STATE when the folder contains a later step of another run (a damaged one that
 * ls_checkpoint_load skipped is renamed). LS_ERR_MISMATCH names a tensor or scalar that is not the
 * same on two ranks (its shape or its numbers), the slice of a tensor that no rank shows, or two
 * slices that overlap. LS_ERR_LIMIT above 256 MiB of names, shapes and slices, those of ranks that
 * show the same counted once. The cost of comparing them is n log n; ranks that all show the same
 * exchange a hash. */
LS_API ls_status ls_checkpoint_save(ls_checkpoint *checkpoint, int64_t step,
                                    const ls_checkpoint_item *items, int count);

/* Waits until the last save is on the disk and all ranks have committed it. Collective. */
LS_API ls_status ls_checkpoint_wait(ls_checkpoint *checkpoint);

/* Loads the newest complete checkpoint into the items and sets *step. Collective; all ranks load
 * the same checkpoint. If it is damaged (a file is missing, or its bytes are not those that were
 * written), a warning names it, the previous one is loaded, and the next save renames the damaged
 * one to damaged-step-…, of which the newest two remain. LS_ERR_SYSTEM when a file cannot be read
 * now (no descriptor, no permission, an error of the disk): this may pass, so no older checkpoint
 * is loaded. A warning names a tensor that was saved with NaN or infinity. LS_ERR_NOT_FOUND if the
 * folder has no checkpoint, LS_ERR_FORMAT if all are damaged. LS_ERR_MISMATCH names a tensor or
 * scalar whose shape or dtype differs, that a rank shows and the checkpoint lacks, or that the
 * checkpoint has and no rank shows; nothing is changed then. */
LS_API ls_status ls_checkpoint_load(ls_checkpoint *checkpoint, const ls_checkpoint_item *items,
                                    int count, int64_t *step);

/* Waits for the last save and frees the object, also if it returns an error of that save.
 * Collective; NULL is allowed. */
LS_API ls_status ls_checkpoint_free(ls_checkpoint *checkpoint);

/* ---- weights of other programs: safetensors -------------------------------------------------
 *
 * These functions read and write files of named tensors in the format of Hugging Face's libraries
 * (specified in the README of huggingface/safetensors). `path` is such a file, the index of a model
 * in several files (*.json, whose "weight_map" names the file of each tensor), or a folder with
 * model.safetensors or model.safetensors.index.json. Scalars of the items are ignored. Neither call
 * is collective: every rank reads by itself, and one rank writes. */

typedef struct ls_safetensors_options {
    size_t size;
    const char *prefix; /* precedes every name in the file but not the names here, with its dot:
                           "model."; names without it are ignored; default none: if no name fits,
                           a prefix that all names in the file have ("module.") is left out */
    bool strict;        /* a name that only one side has is an error; otherwise it is ignored;
                           default true */
    /* Writes to out[bytes] alternative number `number` (from 0) for a `name` that the file does not
     * contain, without `prefix`; returns false if there is none. NULL: no alternatives. */
    bool (*other_name)(void *arg, const char *name, int number, char *out, size_t bytes);
    /* With `strict`, returns true to accept a name that only one side has. NULL: none is
     * accepted. */
    bool (*allow)(void *arg, const char *name, bool in_file);
    void *arg;
} ls_safetensors_options;
#define LS_DEFAULTS_ls_safetensors_options .strict = true,
LS_DEFAULTS_FUNCTION(safetensors)

/* Loads tensors by name into the items (for a module: ls_module_load_safetensors in lockstep.h).
 * Shapes must be equal; float16, bfloat16 and float64 are converted to float32, other dtypes must
 * be equal. A tensor in the file that nobody asks for may have any dtype.
 * LS_ERR_MISMATCH lists tensors that are missing, unexpected or of another shape;
 * LS_ERR_FORMAT and LS_ERR_NOT_FOUND name the file. After an error nothing is changed. */
LS_API ls_status ls_safetensors_load(const char *path, const ls_checkpoint_item *items, int count,
                                     const ls_safetensors_options *options);

/* Writes all tensors of the items into one file, which gets its name when it is complete. Of the
 * options only `prefix` is used. A tensor of which this rank has only a slice is
 * LS_ERR_UNSUPPORTED: save a checkpoint instead, or show the whole of it (ls_tensor_whole). The
 * state functions are called once and then once for each element size that occurs. */
LS_API ls_status ls_safetensors_save(const char *path, const ls_checkpoint_item *items, int count,
                                     const ls_safetensors_options *options);

/* The random state as an item: the seed, the number of parameters initialised so far, the number of
 * the step, and the number of random operations in the step. (The sample offset of ls_step_begin is
 * not saved, because the loader, or the program, sets it with each batch.) */
LS_API ls_status ls_runtime_state(ls_runtime *runtime, const char *prefix,
                                  const ls_state_visitor *visitor);

#ifdef __cplusplus
}
#endif
#endif
