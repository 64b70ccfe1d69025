/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol that makes a checkpoint exist. On the writer's thread, or the user's when the save
 * is synchronous; all ranks run it alike.
 *
 *   rank 0   makes .tmp-step-…                                          ── agree
 *   all      write, fsync and hash their file                           ── agree
 *   rank 0   writes scalars.json and manifest.json, fsyncs them and the folder,
 *            renames it to step-…, fsyncs the parent                    ── agree
 *   rank 0   removes the ones that are too old
 *
 * A file with NaN or infinity in it is written as well, but the manifest names the tensor, and no
 * finite checkpoint makes way for it.
 *
 * Until the rename nothing that exists is touched; whatever fails before, on any rank, ends in the
 * removal of the temporary folder and the same error on all ranks.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/nonfinite.h"
#include "base/size.h"
#include "base/trace.h"
#include "checkpoint/internal.h"

/* Refuses a step older than the newest one, which would look like another run's. */
static ls_status begin_commit(ls_checkpoint *c, const char *path)
{
    if (c->rank != 0) {
        return LS_OK;
    }
    LS_TRY(ls__folder_check_later(c, c->step));
    const int error = c->files->make_folder(c->files, path);
    return error < 0 ? ls__file_fail(error, "checkpoint", "cannot make the folder", path) : LS_OK;
}

/* ---- rank 0's part ------------------------------------------------------------------------ */

/* One text for all allocations of the manifest. */
static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for the list of tensors");
}

/* Reads size and hash of each rank's file from the reports of the last agreement, so no other
 * agreement may come in between. What is in the files follows from the plan. */
static ls_status list_files(const ls_checkpoint *c, json_t *manifest)
{
    char name[LS__MANIFEST_FILE_NAME_MAX];
    uint8_t hash[LS__DIGEST_BYTES];
    for (int r = 0; r < c->size; r++) {
        ls__state_file_name(name, r, c->size);
        memcpy(hash, &c->reports[r].word[1], sizeof hash);
        if (!ls__manifest_add_file(manifest, name, (size_t)c->reports[r].word[0], hash)) {
            return no_memory();
        }
    }
    for (int i = 0; i < c->shown.piece_count; i++) {
        const ls__piece *p = &c->shown.pieces[i];
        ls__state_file_name(name, p->rank, c->size);
        if (!ls__manifest_add_piece(manifest, name, p->entry->name, p->key, &p->entry->tensor,
                                    p->part.start, p->part.dim)) {
            return no_memory();
        }
    }
    return LS_OK;
}

/* The manifest is parsed exactly as load will parse it before it is published: an inconsistent
 * plan must fail now, not at the restart. */
static ls_status check_text(const ls_checkpoint *c, const char *text, size_t bytes)
{
    ls__arena arena;
    ls__manifest manifest;
    ls__arena_init(&arena, c->env, LS__CHECKPOINT_ARENA_CHUNK);
    ls_status status = ls__manifest_parse(text, bytes, "checkpoint: the manifest to be written",
                                          &arena, &manifest);
    ls__arena_fini(&arena);
    return status;
}

/* Written after every other file, so that its presence implies theirs. `manifest` gains the
 * entry of scalars.json. */
static ls_status write_manifest(ls_checkpoint *c, const char *temporary, json_t *manifest)
{
    uint8_t hash[LS__DIGEST_BYTES];
    size_t bytes = 0, length = strlen(c->scalars);
    LS_TRY(ls__json_check("checkpoint: scalars.json to be written", c->scalars, length,
                          &ls__scalars_limit));
    LS_TRY(ls__file_write(c->files, temporary, LS__CHECKPOINT_SCALARS, c->scalars, length, hash));
    if (!ls__manifest_add_file(manifest, LS__CHECKPOINT_SCALARS, length, hash)) {
        return no_memory();
    }
    char *text = ls__manifest_text(manifest, &bytes);
    if (text == NULL) {
        return no_memory();
    }
    ls_status status = check_text(c, text, bytes);
    if (status == LS_OK) {
        status = ls__file_write(c->files, temporary, LS__MANIFEST_NAME, text, bytes, hash);
    }
    free(text);
    return status;
}

/* Rank 0 only. The folder is synced before the rename: otherwise a power failure could leave the
 * final name with missing files in it. */
static ls_status publish(ls_checkpoint *c, const char *temporary)
{
    json_t *manifest = ls__manifest_new(c->step, c->size);
    ls_status status = manifest != NULL ? list_files(c, manifest) : no_memory();
    if (status == LS_OK && c->nonfinite >= 0 &&
        !ls__manifest_set_nonfinite(manifest, c->shown.pieces[c->nonfinite].entry->name)) {
        status = no_memory();
    }
    if (status == LS_OK) {
        status = write_manifest(c, temporary, manifest);
    }
    json_decref(manifest);
    LS_TRY(status);
    LS_TRY(ls__file_sync_folder(c->files, temporary));
    return ls__folder_publish(c, temporary);
}

#define OWN_WORDS (2 + LS__DIGEST_BYTES / 8)

/* ---- all ranks ---------------------------------------------------------------------------- */

/* The first piece of this rank's file with an element that is not finite; -1: all are. */
static int find_nonfinite(const ls_checkpoint *c)
{
    for (int i = 0; i < c->shown.piece_count; i++) {
        const ls__piece *p = &c->shown.pieces[i];
        const ls_dtype dtype = p->entry->tensor.dtype;
        const int64_t count = (int64_t)(p->part.bytes / ls_dtype_size(dtype));
        if (p->rank == c->rank && ls__nonfinite_find(c->image + p->offset, dtype, 0, count) >= 0) {
            return i;
        }
    }
    return -1;
}

/* Reads the words of write_own's agreement. All ranks number the pieces alike. */
static void note_nonfinite(ls_checkpoint *c)
{
    c->nonfinite = -1;
    for (int r = c->size - 1; r >= 0; r--) {
        const int piece = (int)c->reports[r].word[OWN_WORDS - 1] - 1;
        c->nonfinite = piece >= 0 ? piece : c->nonfinite;
    }
    if (c->nonfinite >= 0 && c->rank == 0 && !c->warned_of_nan) {
        const ls__piece *p = &c->shown.pieces[c->nonfinite];
        c->warned_of_nan = true;
        LS__WARN(
            "checkpoint: \"%.200s\" of rank %d is not finite in step %lld of \"%s\"; it is "
            "saved, and so long as no finite one follows, the newest finite checkpoint is kept "
            "beside the newest %d",
            p->entry->name, p->rank, (long long)c->step, c->folder, c->set.keep);
    }
}

/* Collective. The words of the agreement are [bytes, hash of the file, 1 + a piece that is not
 * finite]; list_files reads them. A missing folder on another rank means that the file system is
 * not shared. */
static ls_status write_own(ls_checkpoint *c, const char *temporary)
{
    char name[LS__MANIFEST_FILE_NAME_MAX];
    uint64_t words[OWN_WORDS] = {c->image_bytes};
    ls__state_file_name(name, c->rank, c->size);
    ls_status status =
        ls__file_write(c->files, temporary, name, c->image, c->image_bytes, (uint8_t *)&words[1]);
    if (status == LS_ERR_NOT_FOUND && c->rank != 0) {
        status = ls__fail(LS_ERR_NOT_FOUND,
                          "checkpoint: rank 0 has made \"%s\", but it does not exist here; give a "
                          "folder on a file system that all hosts share",
                          temporary);
    }
    words[OWN_WORDS - 1] = (uint64_t)(find_nonfinite(c) + 1);
    LS_TRY(ls__checkpoint_agree(c, status, words, OWN_WORDS));
    note_nonfinite(c);
    return LS_OK;
}

/* Collective. The last agreement comes after the rename, so all ranks learn whether the
 * checkpoint exists. */
static ls_status write_all_files(ls_checkpoint *c, const char *temporary)
{
    LS_TRY(write_own(c, temporary));
    ls_status status = c->rank == 0 ? publish(c, temporary) : LS_OK;
    return ls__checkpoint_agree(c, status, NULL, 0);
}

/* Collective. All ranks return the same status; on failure the temporary folder is removed and
 * earlier checkpoints are unchanged. */
ls_status ls__checkpoint_commit(ls_checkpoint *c)
{
    char temporary[LS__CHECKPOINT_PATH_MAX];
    const uint64_t traced = ls__trace_begin();
    ls__folder_temporary(c, temporary);
    ls__patient_renew(c->patient);
    ls_status status = ls__checkpoint_agree(c, begin_commit(c, temporary), NULL, 0);
    if (status == LS_OK) {
        status = write_all_files(c, temporary);
    }
    if (c->rank == 0 && status == LS_OK) {
        ls__folder_prune(c);
    } else if (c->rank == 0) {
        (void)ls__folder_remove(c, temporary); /* does not exist any more after the rename */
    }
    ls__shown_fini(&c->shown);
    ls__trace_end(traced, LS__TRACE_CHECKPOINT, "write", c->folder);
    return status;
}
