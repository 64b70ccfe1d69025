/* SPDX-License-Identifier: Apache-2.0 */
/* Opening one checkpoint for reading: manifest, sizes, hashes, headers, in this order, everything
 * before a byte of it is used. The files stay mapped; restore.c copies out of them.
 *
 * Hashing costs a second a gigabyte. If all ranks are on one host they see the same pages, and each
 * checks its share of the files; otherwise each checks all files, because it may read from any.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"

/* The text is unmapped before returning: the parser copies everything into the arena. The step
 * inside must match the folder's name, or a renamed folder would restore the wrong position. */
static ls_status read_manifest(const ls_checkpoint *c, const char *folder, int64_t step,
                               ls__reading *r)
{
    char path[LS__CHECKPOINT_PATH_MAX];
    void *text = NULL;
    size_t bytes = 0;
    ls__path_join(path, folder, LS__MANIFEST_NAME);
    int error = c->files->map_file(c->files, path, &text, &bytes);
    if (error < 0) {
        return ls__file_read_failed(path, error);
    }
    ls_status status = text != NULL ? ls__manifest_parse(text, bytes, path, &r->arena, &r->manifest)
                                    : ls__fail(LS_ERR_FORMAT, "checkpoint: \"%s\" is empty", path);
    c->files->unmap_file(c->files, text, bytes);
    if (status == LS_OK && r->manifest.step != step) {
        return ls__fail(LS_ERR_FORMAT,
                        "checkpoint: \"%s\" says step %lld, unlike the name of its folder", path,
                        (long long)r->manifest.step);
    }
    return status;
}

/* Ranks of one host read the same page cache, so one of them is enough for each file; the
 * agreement afterwards spreads a mismatch to all. */
static bool is_my_share(const ls_checkpoint *c, int file)
{
    bool one_host = ls_local_world_size() == ls_world_size();
    return !one_host || file % c->size == c->rank;
}

/* The mapping is recorded before anything can fail, so ls__reading_close releases it on every
 * path. */
static ls_status map_file(const ls_checkpoint *c, const char *folder, ls__reading *r, int i)
{
    char path[LS__CHECKPOINT_PATH_MAX];
    const ls__manifest_file *file = &r->manifest.files[i];
    ls__path_join(path, folder, file->name);
    int error = c->files->map_file(c->files, path, &r->mapped[i], &r->mapped_bytes[i]);
    if (error < 0) {
        return ls__file_read_failed(path, error);
    }
    if (r->mapped_bytes[i] != file->bytes) {
        return ls__fail(LS_ERR_FORMAT, "checkpoint: \"%s\" has %zu bytes, but %zu were written",
                        path, r->mapped_bytes[i], file->bytes);
    }
    return is_my_share(c, i) ? ls__file_verify(c->files, path, file) : LS_OK;
}

/* One object of numbers and texts; a state has a scalar or two for each of its tensors at most. */
const ls__json_limit ls__scalars_limit = {(size_t)64 << 20, (size_t)1 << 20, 1, 1};

/* A missing or empty file is damage, not absence of scalars: the writer stores at least "{}". */
static ls_status read_scalars(const char *path, const void *text, size_t bytes, ls__reading *r)
{
    LS_TRY(ls__json_read(path, text, bytes, 0, &ls__scalars_limit, &r->scalars));
    return json_is_object(r->scalars)
               ? LS_OK
               : ls__fail(LS_ERR_FORMAT, "%s: its JSON is not an object", path);
}

/* Exactly one file holds JSON scalars; every other one listed must be a safetensors file. */
static ls_status parse_file(const char *folder, ls__reading *r, int i)
{
    char path[LS__CHECKPOINT_PATH_MAX];
    const ls__manifest_file *file = &r->manifest.files[i];
    ls__path_join(path, folder, file->name);
    if (strcmp(file->name, LS__CHECKPOINT_SCALARS) == 0) {
        return read_scalars(path, r->mapped[i], r->mapped_bytes[i], r);
    }
    return ls__safetensors_parse(r->mapped[i], r->mapped_bytes[i], path, &r->arena, &r->header[i]);
}

const ls__safetensor *ls__piece_find(const ls__reading *r, const ls__manifest_tensor *t,
                                     const ls__manifest_piece *p)
{
    char key[LS__PIECE_KEY_MAX];
    return ls__safetensors_find(&r->header[p->file], ls__piece_key(t->name, p->key, key));
}

/* The manifest and the headers must describe each piece alike; restore.c then relies on every
 * lookup succeeding. */
static ls_status check_pieces(const ls__reading *r, const char *folder)
{
    for (int i = 0; i < r->manifest.tensor_count; i++) {
        const ls__manifest_tensor *t = &r->manifest.tensors[i];
        for (int k = 0; k < t->piece_count; k++) {
            const ls__manifest_piece *p = &t->pieces[k];
            const ls__safetensor *s = ls__piece_find(r, t, p);
            if (s == NULL || s->dtype != t->dtype || s->ndim != t->ndim ||
                memcmp(s->dim, p->dim, (size_t)t->ndim * sizeof p->dim[0]) != 0) {
                return ls__fail(LS_ERR_FORMAT,
                                "checkpoint: \"%s/%s\" does not hold \"%.200s\" in the shape and "
                                "type that the manifest lists",
                                folder, r->manifest.files[p->file].name, t->name);
            }
        }
    }
    return LS_OK;
}

/* On failure the arrays stay in `r` and ls__reading_close frees what was obtained. All files are
 * mapped and verified before any is parsed. */
static ls_status read_files(const ls_checkpoint *c, const char *folder, ls__reading *r)
{
    const size_t n = (size_t)r->manifest.file_count;
    r->header = calloc(n + 1, sizeof *r->header);
    r->mapped = calloc(n + 1, sizeof *r->mapped);
    r->mapped_bytes = calloc(n + 1, sizeof *r->mapped_bytes);
    if (r->header == NULL || r->mapped == NULL || r->mapped_bytes == NULL) {
        return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory to read %zu files", n);
    }
    for (int i = 0; i < r->manifest.file_count; i++) {
        LS_TRY(map_file(c, folder, r, i));
    }
    for (int i = 0; i < r->manifest.file_count; i++) {
        LS_TRY(parse_file(folder, r, i));
    }
    if (r->scalars == NULL) {
        return ls__fail(LS_ERR_FORMAT, "checkpoint: \"%s\" has no " LS__CHECKPOINT_SCALARS, folder);
    }
    return check_pieces(r, folder);
}

/* On failure too, the caller must call ls__reading_close. No communication: ranks may get
 * different results and agree afterwards. */
ls_status ls__reading_open(const ls_checkpoint *c, int64_t step, ls__reading *r)
{
    char name[64], folder[LS__CHECKPOINT_PATH_MAX];
    *r = (ls__reading){0};
    ls__arena_init(&r->arena, c->env, LS__CHECKPOINT_ARENA_CHUNK);
    ls__step_name(name, "", step);
    ls__path_join(folder, c->folder, name);
    LS_TRY(read_manifest(c, folder, step, r));
    return read_files(c, folder, r);
}

bool ls__checkpoint_is_finite(const ls_checkpoint *c, int64_t step)
{
    char name[64], folder[LS__CHECKPOINT_PATH_MAX];
    ls__reading r = {0};
    ls__arena_init(&r.arena, c->env, LS__CHECKPOINT_ARENA_CHUNK);
    ls__step_name(name, "", step);
    ls__path_join(folder, c->folder, name);
    const bool finite = read_manifest(c, folder, step, &r) == LS_OK && r.manifest.nonfinite == NULL;
    ls__arena_fini(&r.arena);
    return finite;
}

/* Also correct for a reading that was opened halfway or is zero. */
void ls__reading_close(const ls_checkpoint *c, ls__reading *r)
{
    for (int i = 0; r->mapped && r->mapped_bytes && i < r->manifest.file_count; i++) {
        c->files->unmap_file(c->files, r->mapped[i], r->mapped_bytes[i]);
    }
    free(r->header);
    free(r->mapped);
    free(r->mapped_bytes);
    json_decref(r->scalars);
    ls__arena_fini(&r->arena);
    *r = (ls__reading){0};
}
