/* The protocol that makes a checkpoint exist. On the writer's thread, or the user's when the save
 * is synchronous; all ranks run it alike.
 *
 *   rank 0   makes .tmp-step-…                                          ── agree
 *   all      write, fsync and hash their file                           ── agree
 *   all      send rank 0 the list of tensors in it
 *   rank 0   writes scalars.json and manifest.json, fsyncs them and the folder,
 *            renames it to step-…, fsyncs the parent                    ── agree
 *   rank 0   removes the ones that are too old
 *
 * Until the rename nothing that exists is touched; whatever fails before, on any rank, ends in the
 * removal of the temporary folder and the same error on all ranks.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/trace.h"
#include "checkpoint/internal.h"
#include "checkpoint/shape.h"
#include "comm/api/control.h"

/* A rank's rows: an array and three shapes for each tensor. They are shorter than the entries of the
 * manifest that are made of them. */
static const ls__json_limit rows_limit = {LS__MANIFEST_BYTES_MAX, 2 * LS__JSON_VALUES_MAX,
                                          2 * LS__JSON_CONTAINERS_MAX, 3};

/* A failed copy is reported here, because this agreement is the first one after it. Rank 0 also
 * refuses a step older than the newest one, which would look like another run's. */
static ls_status begin(ls_checkpoint *c, const char *path)
{
    if (c->copied < 0) {
        return ls__fail_again(c->copied, c->message);
    }
    if (c->rank != 0) {
        return LS_OK;
    }
    LS_TRY(ls__folder_check_later(c, c->step));
    const int error = c->files->make_folder(c->files, path);
    return error < 0 ? ls__file_fail(error, "checkpoint", "cannot make the folder", path) : LS_OK;
}

/* ---- the other ranks' files --------------------------------------------------------------- */

/* One text for all allocations of the list. */
static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for the list of tensors");
}

/* A row [name, dtype, global, start, local] as another rank's image.c wrote it. The name is
 * borrowed from `row`. Returns false for anything malformed: the row comes from a peer. */
static bool read_row(const json_t *row, const char **name, ls_state_tensor *t)
{
    int ndim[3];
    *name = json_string_value(json_array_get(row, 0));
    t->dtype = (ls_dtype)json_integer_value(json_array_get(row, 1));
    bool good = *name && ls__shape_read(json_array_get(row, 2), t->global, &ndim[0]) &&
                ls__shape_read(json_array_get(row, 3), t->start, &ndim[1]) &&
                ls__shape_read(json_array_get(row, 4), t->local, &ndim[2]);
    t->ndim = good ? ndim[0] : 0;
    return good && ndim[1] == ndim[0] && ndim[2] == ndim[0];
}

/* After the first failure the loop continues without effect: jansson's macro must not be left
 * while it holds a reference. */
static ls_status add_rows(json_t *manifest, const char *file, const char *text)
{
    size_t i;
    json_t *row, *rows = NULL;
    ls_status status = ls__json_read(file, text, strlen(text), 0, &rows_limit, &rows);
    json_array_foreach(rows, i, row)
    {
        const char *name;
        ls_state_tensor tensor = {.ndim = 0};
        if (status == LS_OK) {
            status = read_row(row, &name, &tensor)
                         ? ls__manifest_add_piece(manifest, file, name, &tensor)
                         : ls__fail(LS_ERR_INTERNAL, "checkpoint: a malformed row of %s", file);
        }
    }
    json_decref(rows);
    return status;
}

/* Receives all rows even after an earlier failure, since the senders wait. The caller frees
 * *out. Without memory the group is aborted: the message cannot be left in the channel. */
static ls_status receive_rows(ls_checkpoint *c, int rank, size_t bytes, char **out)
{
    const ls_collective_options options = ls__checkpoint_options_of(c, "checkpoint: tensors");
    *out = malloc(bytes + 1);
    if (*out == NULL) {
        (void)ls_group_abort(c->group, "no memory for the checkpoint's list of tensors");
        return no_memory();
    }
    (*out)[bytes] = '\0';
    return ls__control_recv(c->group, *out, bytes, rank, 0, &options);
}

/* Reads size and hash of the rank's file from the reports of the last agreement, so no other
 * agreement may come in between. */
static ls_status add_rank(ls_checkpoint *c, json_t *manifest, int rank, const char *rows)
{
    char name[LS__MANIFEST_FILE_NAME_MAX];
    uint8_t hash[LS__DIGEST_BYTES];
    ls__state_file_name(name, rank, c->size);
    memcpy(hash, &c->reports[rank].word[2], sizeof hash);
    if (!ls__manifest_add_file(manifest, name, (size_t)c->reports[rank].word[0], hash)) {
        return no_memory();
    }
    return add_rows(manifest, name, rows);
}

/* Rank 0 only. A failure to understand a rank's rows is remembered but the remaining ranks are
 * still received; only a failed receive ends the loop early. */
static ls_status gather(ls_checkpoint *c, json_t *manifest)
{
    ls_status status = manifest != NULL ? add_rank(c, manifest, 0, c->pieces) : no_memory();
    for (int r = 1; r < c->size; r++) {
        char *rows = NULL;
        ls_status received = receive_rows(c, r, (size_t)c->reports[r].word[1], &rows);
        status = received == LS_OK && status == LS_OK ? add_rank(c, manifest, r, rows) : status;
        free(rows);
        LS_TRY(received);
    }
    return status;
}

/* The length already went with the report's words, so rank 0 posts a receive of just this size. */
static ls_status send_rows(ls_checkpoint *c)
{
    const ls_collective_options options = ls__checkpoint_options_of(c, "checkpoint: tensors");
    return ls__control_send(c->group, c->pieces, strlen(c->pieces), 0, 0, &options);
}

/* ---- rank 0's part ------------------------------------------------------------------------ */

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
    ls_status status = gather(c, manifest);
    if (status == LS_OK) {
        status = write_manifest(c, temporary, manifest);
    }
    json_decref(manifest);
    LS_TRY(status);
    LS_TRY(ls__file_sync_folder(c->files, temporary));
    return ls__folder_publish(c, temporary);
}

/* ---- all ranks ---------------------------------------------------------------------------- */

/* Collective. The words of the agreement are [bytes, length of the rows, hash of the file];
 * add_rank reads them in this layout. A missing folder on another rank means that the file
 * system is not shared. */
static ls_status write_own(ls_checkpoint *c, const char *temporary)
{
    char name[LS__MANIFEST_FILE_NAME_MAX];
    uint64_t words[2 + LS__DIGEST_BYTES / 8] = {c->image_bytes, strlen(c->pieces)};
    ls__state_file_name(name, c->rank, c->size);
    ls_status status =
        ls__file_write(c->files, temporary, name, c->image, c->image_bytes, (uint8_t *)&words[2]);
    if (status == LS_ERR_NOT_FOUND && c->rank != 0) {
        status = ls__fail(LS_ERR_NOT_FOUND,
                          "checkpoint: rank 0 has made \"%s\", but it does not exist here; give a "
                          "folder on a file system that all hosts share",
                          temporary);
    }
    if (status == LS_OK) {
        status =
            ls__json_check("checkpoint: the list of tensors", c->pieces, words[1], &rows_limit);
    }
    return ls__checkpoint_agree(c, status, words, 2 + LS__DIGEST_BYTES / 8);
}

/* Collective. The last agreement comes after the rename, so all ranks learn whether the
 * checkpoint exists. */
static ls_status write_all_files(ls_checkpoint *c, const char *temporary)
{
    LS_TRY(write_own(c, temporary));
    ls_status status = c->rank == 0 ? publish(c, temporary) : send_rows(c);
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
    ls_status status = ls__checkpoint_agree(c, begin(c, temporary), NULL, 0);
    if (status == LS_OK) {
        status = write_all_files(c, temporary);
    }
    if (c->rank == 0 && status == LS_OK) {
        ls__folder_prune(c);
    } else if (c->rank == 0) {
        (void)ls__folder_remove(c, temporary); /* does not exist any more after the rename */
    }
    ls__trace_end(traced, LS__TRACE_CHECKPOINT, "write", c->folder);
    return status;
}
