/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls. Each first waits until the save before it is written, and returns that save's
 * error if it failed. The ranks agree on every result that they must share before they act on it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/options.h"
#include "base/size.h"
#include "base/trace.h"
#include "checkpoint/internal.h"
#include "comm/api/control.h"

#define MARGIN 8 /* the disk has this part of timeout_ms less than ranks that wait for this one */

/* ---- opening ------------------------------------------------------------------------------ */

/* The arguments are checked before anything collective happens. Ranks are expected to pass the
 * same values; a rank that fails here alone leaves the others to their timeout. */
static ls_status check_options(const char *folder, const ls_checkpoint_options *set)
{
    size_t length = folder != NULL ? strlen(folder) : 0;
    if (length == 0 || length >= LS__CHECKPOINT_FOLDER_MAX) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_checkpoint_new: the path of the folder has %zu bytes; give 1 to %d",
                        length, LS__CHECKPOINT_FOLDER_MAX - 1);
    }
    if (set->keep < 1) {
        return ls__fail(LS_ERR_INVALID, "ls_checkpoint_new: keep is %d; it must be at least 1",
                        set->keep);
    }
    if (set->timeout_ms < 1) {
        return ls__fail(LS_ERR_INVALID, "ls_checkpoint_new: timeout_ms is %lld; it must be above 0",
                        (long long)set->timeout_ms);
    }
    return LS_OK;
}

/* Closing the descriptor releases the lock on the file. The call is harmless when no lock is
 * held. */
static void unlock(ls_checkpoint *c)
{
    if (c->lock_fd >= 0) {
        (void)c->files->close(c->files, c->lock_fd);
        c->lock_fd = -1;
    }
}

/* Runs on rank 0 only. Cleaning is safe only while no other job writes, so a reader cleans if it
 * finds the lock free, and gives it back at once. */
static ls_status prepare_folder(ls_checkpoint *c)
{
    if (c->set.load_only) {
        LS_TRY(ls__folder_is_there(c));
        ls__folder_try_lock(c);
    } else {
        LS_TRY(ls__folder_make(c));
        LS_TRY(ls__folder_lock(c));
    }
    if (c->lock_fd >= 0) {
        ls__folder_clean(c);
    }
    if (c->set.load_only) {
        unlock(c);
    }
    return LS_OK;
}

/* Rank 0 prepares the folder, and all ranks learn how that went. The word is not compared; it only
 * travels along. */
static ls_status open_folder(ls_checkpoint *c)
{
    ls__patient_renew(c->patient);
    ls_status status = c->rank == 0 ? prepare_folder(c) : LS_OK;
    const uint64_t async = (uint64_t)c->set.async;
    return ls__checkpoint_agree(c, status, &async, 1);
}

/* The group is not stored: the object later gets a group of its own, so that its operations
 * never interleave with the user's. Returns NULL without memory, with no error set. */
static ls_checkpoint *allocate(ls_runtime *runtime, const char *folder, ls_group *group,
                               const ls_checkpoint_options *set)
{
    const ls__env *env = runtime->env;
    ls_checkpoint *c = env->allocate(env, sizeof *c);
    if (c == NULL) {
        return NULL;
    }
    memset(c, 0, sizeof *c);
    c->runtime = runtime;
    c->env = env;
    c->set = *set;
    c->rank = ls_group_rank(group);
    c->size = ls_group_size(group);
    c->lock_fd = -1;
    memcpy(c->folder, folder, strlen(folder) + 1);
    c->reports = calloc((size_t)c->size, sizeof *c->reports);
    if (c->reports == NULL) {
        env->release(env, c, sizeof *c);
        return NULL;
    }
    c->patient = ls__patient_new(env, set->timeout_ms - set->timeout_ms / MARGIN, SIZE_MAX);
    c->files = ls__patient_env(c->patient, env);
    return c;
}

/* Frees everything except the group and the thread, which the caller has ended before: both may
 * still touch the object. */
static void release(ls_checkpoint *c)
{
    const ls__env *env = c->env;
    unlock(c);
    ls__patient_free(c->patient);
    if (c->image) {
        env->release(env, c->image, c->image_room);
    }
    ls__shown_fini(&c->shown);
    free(c->reports);
    free(c->scalars);
    env->release(env, c, sizeof *c);
}

/* A rank without memory aborts the caller's group, because the others already wait in
 * ls_group_new. Later failures are agreed on, so all ranks return the same error. */
ls_status ls_checkpoint_new(const char *folder, ls_group *group,
                            const ls_checkpoint_options *options, ls_checkpoint **out)
{
    LS__OPTIONS(ls_checkpoint_options, given, options);
    ls_runtime *runtime = ls__runtime_get("ls_checkpoint_new");
    *out = NULL;
    if (runtime == NULL) {
        return ls__self.status;
    }
    if (group == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_checkpoint_new: the group is NULL; give one, such as ls_world()");
    }
    LS_TRY(check_options(folder, &given));
    ls_checkpoint *c = allocate(runtime, folder, group, &given);
    if (c == NULL) {
        (void)ls_group_abort(group, "ls_checkpoint_new: no memory");
        return ls__fail(LS_ERR_MEMORY, "ls_checkpoint_new: no memory");
    }
    ls_status status = ls_group_new(group, NULL, 0, "checkpoint", &c->group);
    if (status == LS_OK) {
        status = open_folder(c);
    }
    if (status < 0) {
        char message[LS__MESSAGE_MAX];
        memcpy(message, ls__self.message, sizeof message);
        (void)ls_group_free(c->group);
        release(c);
        return ls__fail_again(status, message);
    }
    *out = c;
    return LS_OK;
}

/* ---- saving ------------------------------------------------------------------------------- */

#define SAVE_WORDS 4 /* of the first agreement: step, hash and bytes of the table's text, nonce */

/* What this rank shows. It does not communicate, so ranks may fail here independently; the caller
 * agrees on the result. */
static ls_status collect(ls_checkpoint *c, const ls_checkpoint_item *items, int count,
                         uint64_t words[SAVE_WORDS])
{
    ls__shown *s = &c->shown;
    if (c->set.load_only) {
        return ls__fail(LS_ERR_STATE, "ls_checkpoint_save: \"%s\" was opened with load_only",
                        c->folder);
    }
    if (c->step < 0) {
        return ls__fail(LS_ERR_INVALID, "ls_checkpoint_save: step is %lld; it must be >= 0",
                        (long long)c->step);
    }
    ls__shown_fini(s); /* of a save that failed */
    LS_TRY(ls__shown_init(s, c->env, c->rank, c->size));
    s->table.sums = c->size > 1;
    LS_TRY(ls__table_collect(&s->table, items, count));
    LS_TRY(ls__shown_write(s, &words[1]));
    words[2] = s->bytes;
    return c->env->random_bytes(c->env, &words[3], sizeof words[3]) < 0
               ? ls__fail(LS_ERR_SYSTEM, "ls_checkpoint_save: the system gave no random bytes")
               : LS_OK;
}

/* Reads the words of the last agreement. All ranks see the same words, hence all return the same
 * result without another exchange. */
static ls_status compare_steps(const ls_checkpoint *c)
{
    const ls__checkpoint_report *v = c->reports;
    for (int r = 1; r < c->size; r++) {
        if (v[r].word[0] != v[0].word[0]) {
            return ls__fail(LS_ERR_MISMATCH,
                            "ls_checkpoint_save: rank %d saves step %lld, rank 0 step %lld; give "
                            "the same step on all ranks",
                            r, (long long)v[r].word[0], (long long)v[0].word[0]);
        }
    }
    return LS_OK;
}

/* This rank's file, in memory. */
static ls_status copy_share(ls_checkpoint *c, const ls_checkpoint_item *items, int count)
{
    LS_TRY(ls__plan_writers(&c->shown));
    LS_TRY(ls__image_build(c));
    return ls__table_copy(&c->shown.table, items, count, c->image);
}

/* Everything up to the copy; collective. The nonce is rank 0's, so that all ranks name the same
 * temporary folder. After LS_OK the items may change again: the image holds their bytes. */
static ls_status take_snapshot(ls_checkpoint *c, const ls_checkpoint_item *items, int count)
{
    uint64_t words[SAVE_WORDS] = {(uint64_t)c->step};
    LS_TRY(ls__checkpoint_agree(c, collect(c, items, count, words), words, SAVE_WORDS));
    LS_TRY(compare_steps(c));
    c->nonce = c->reports[0].word[3];
    LS_TRY(ls__shown_exchange(c));
    LS_TRY(ls__shown_compare(&c->shown)); /* the same error on all ranks */
    return ls__checkpoint_agree(c, copy_share(c, items, count), NULL, 0);
}

/* The writer must be idle first: it owns the object, the group and the image while it runs. A
 * failed earlier save is reported here and this one is not started. */
static ls_status save(ls_checkpoint *c, int64_t step, const ls_checkpoint_item *items, int count)
{
    ls__stand_ins shown;
    LS_TRY(ls__writer_join(c));
    c->step = step;
    LS_TRY(ls__items_stand_in(c, items, count, true, &shown));
    const ls_status status = take_snapshot(c, shown.items, count);
    ls__stand_ins_free(&shown);
    LS_TRY(status);
    return c->set.async ? ls__writer_start(c) : ls__checkpoint_commit(c);
}

ls_status ls_checkpoint_save(ls_checkpoint *c, int64_t step, const ls_checkpoint_item *items,
                             int count)
{
    if (c == NULL || count < 0 || (count > 0 && items == NULL)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_checkpoint_save: the checkpoint or the items are missing; give both");
    }
    const uint64_t traced = ls__trace_begin();
    const ls_status status = save(c, step, items, count);
    ls__trace_end(traced, LS__TRACE_CHECKPOINT, "save", c->folder);
    return status;
}

/* Returns the error of the save that was being written, once. */
ls_status ls_checkpoint_wait(ls_checkpoint *c)
{
    if (c == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_checkpoint_wait: the checkpoint is NULL; check what ls_checkpoint_new "
                        "returned");
    }
    return ls__writer_join(c);
}

/* The error of the last save is copied before the teardown, which may overwrite the thread's
 * message. The object is released whatever the status. */
ls_status ls_checkpoint_free(ls_checkpoint *c)
{
    if (c == NULL) {
        return LS_OK;
    }
    char message[LS__MESSAGE_MAX];
    ls_status status = ls__writer_join(c);
    memcpy(message, ls__self.message, sizeof message);
    ls__writer_stop(c);
    ls_status freed = ls_group_free(c->group);
    release(c);
    return status < 0 ? ls__fail_again(status, message) : freed;
}

/* ---- loading ------------------------------------------------------------------------------ */

/* With these errors the files themselves are wrong, so an older checkpoint is tried. Any other
 * error (no memory, no descriptor, no permission, a disk that cannot be read now, a lost rank) may
 * pass: the checkpoint may be whole, and training that went on from an older one would set it
 * aside. */
static bool is_damage(ls_status status)
{
    return status == LS_ERR_FORMAT || status == LS_ERR_LIMIT || status == LS_ERR_NOT_FOUND;
}

/* Opens the checkpoint on all ranks; all or none succeed, and all have the same manifest. On
 * failure the caller still closes `reading`. The manifest's hash travels as text, 64 characters
 * in 8 words. */
static ls_status open_on_all(ls_checkpoint *c, int64_t step, ls__reading *reading)
{
    uint64_t words[LS__DIGEST_HEX / 8] = {0};
    ls_status status = ls__reading_open(c, step, reading);
    if (status == LS_OK) {
        memcpy(words, reading->manifest.hash, sizeof words);
    }
    LS_TRY(ls__checkpoint_agree(c, status, words, LS__DIGEST_HEX / 8));
    for (int r = 1; r < c->size; r++) {
        if (memcmp(c->reports[r].word, c->reports[0].word, sizeof words) != 0) {
            return ls__fail(
                LS_ERR_FORMAT,
                "checkpoint: rank %d sees another manifest than rank 0; give a folder on "
                "a file system that all hosts share",
                r);
        }
    }
    return LS_OK;
}

/* Collective: only rank 0 has listed the folder, so its choice is broadcast. `*step` becomes -1
 * when the list is exhausted. */
static ls_status next_step(ls_checkpoint *c, const int64_t *steps, int count, int k, int64_t *step)
{
    const ls_collective_options options = ls__checkpoint_options_of(c, "checkpoint: which step");
    *step = c->rank == 0 && k < count ? steps[k] : -1;
    return ls__control_broadcast(c->group, step, 1, LS_INT64, 0, &options);
}

/* Finds the newest checkpoint that is whole; *step is its step. The steps passed over are noted
 * for the next save. *newest is the first step that was tried, or -1 if the folder holds none.
 * On LS_OK the caller closes `reading`. */
static ls_status find_newest(ls_checkpoint *c, const int64_t *steps, int count,
                             ls__reading *reading, int64_t *step, int64_t *newest)
{
    char first[LS__MESSAGE_MAX] = "";
    *newest = -1;
    for (int k = 0;; k++) {
        LS_TRY(next_step(c, steps, count, k, step));
        if (*step < 0) {
            break;
        }
        *newest = *newest < 0 ? *step : *newest;
        ls_status status = open_on_all(c, *step, reading);
        if (status == LS_OK) {
            c->skipped_after = *step;
            c->skipped_last = *newest;
            return LS_OK;
        }
        ls__reading_close(c, reading);
        if (!is_damage(status)) {
            return status;
        }
        if (c->rank == 0) {
            LS__WARN("checkpoint: step %lld in \"%s\" is damaged%s; trying the one before it: %s",
                     (long long)*step, c->folder, c->set.load_only ? " or was just removed" : "",
                     ls_error_message());
        }
        if (first[0] == '\0') {
            memcpy(first, ls__self.message, sizeof first);
        }
    }
    if (*newest < 0) {
        return ls__fail(LS_ERR_NOT_FOUND,
                        "checkpoint: \"%s\" holds no checkpoint (no step-… folder)", c->folder);
    }
    return ls__fail(LS_ERR_FORMAT,
                    "checkpoint: no checkpoint in \"%s\" is complete; the newest: %.1500s",
                    c->folder, first);
}

/* Only rank 0 lists the folder: on a network file system two hosts may see different entries.
 * Collective; the other ranks pass an empty list. */
static ls_status list_and_find(ls_checkpoint *c, ls__reading *reading, int64_t *step,
                               int64_t *newest)
{
    int64_t *steps = NULL;
    int count = 0;
    *newest = -1;
    ls_status status = c->rank == 0 ? ls__folder_steps(c, &steps, &count) : LS_OK;
    status = ls__checkpoint_agree(c, status, NULL, 0);
    if (status == LS_OK) {
        status = find_newest(c, steps, count, reading, step, newest);
    }
    free(steps);
    return status;
}

/* While another job writes, every listed checkpoint may be pruned before it is opened, but then
 * a newer one exists. The search repeats as long as the newest step grows, so it ends when the
 * writer rests. */
static ls_status find_while_others_write(ls_checkpoint *c, ls__reading *reading, int64_t *step)
{
    int64_t newest = -1, before;
    ls_status status;
    do {
        before = newest;
        status = list_and_find(c, reading, step, &newest);
    } while (c->set.load_only && status == LS_ERR_FORMAT && newest > before);
    return status;
}

/* Compares both ways on all ranks: what a rank shows must be in the checkpoint, and what is in the
 * checkpoint must be shown by some rank, unless the load is partial. `shown` has a byte for each
 * name of the checkpoint; NULL: there was no memory for it here. */
static ls_status check_names(ls_checkpoint *c, const ls__reading *reading,
                             const ls_checkpoint_item *items, int count, uint8_t *shown)
{
    char name[64], folder[LS__CHECKPOINT_PATH_MAX];
    const size_t names = ls__restore_names(reading);
    const ls_collective_options options = ls__checkpoint_options_of(c, "checkpoint: names");
    ls__step_name(name, "", reading->manifest.step);
    ls__path_join(folder, c->folder, name);
    const ls_status here =
        shown != NULL ? ls__restore_check(reading, items, count, shown, folder)
                      : ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for %zu names", names);
    LS_TRY(ls__checkpoint_agree(c, here, NULL, 0));
    if (c->set.partial || names == 0) {
        return LS_OK;
    }
    LS_TRY(ls__control_all_reduce(c->group, shown, (int64_t)names, LS_UINT8, LS_MAX, &options));
    return ls__restore_check_rest(reading, shown, c->set.ignore, folder);
}

static ls_status check_fit(ls_checkpoint *c, const ls__reading *reading,
                           const ls_checkpoint_item *items, int count)
{
    uint8_t *shown = calloc(ls__restore_names(reading) + 1, 1);
    const ls_status status = check_names(c, reading, items, count, shown);
    free(shown);
    return status;
}

/* The check is agreed on before the first byte is written, so a mismatch on one rank leaves the
 * state of all unchanged. A failure after that leaves a partial load and its message says so. */
static ls_status load_from(ls_checkpoint *c, const ls__reading *reading, int64_t step,
                           const ls_checkpoint_item *items, int count)
{
    char name[64], folder[LS__CHECKPOINT_PATH_MAX];
    ls__step_name(name, "", step);
    ls__path_join(folder, c->folder, name);
    LS_TRY(check_fit(c, reading, items, count));
    ls_status status = ls__restore_apply(reading, items, count);
    if (status < 0) {
        (void)ls__fail_within(status,
                              "checkpoint: \"%s\" was loaded only in part; do not train with this "
                              "state",
                              folder);
    }
    return ls__checkpoint_agree(c, status, NULL, 0);
}

static ls_status load_into(ls_checkpoint *c, const ls__reading *reading, int64_t step,
                           const ls_checkpoint_item *items, int count)
{
    ls__stand_ins shown;
    LS_TRY(ls__items_stand_in(c, items, count, false, &shown));
    const ls_status status = load_from(c, reading, step, shown.items, count);
    ls__stand_ins_free(&shown);
    return status;
}

/* `*step` is set only on success. The pending save is awaited first: its files may be the ones
 * to load. */
ls_status ls_checkpoint_load(ls_checkpoint *c, const ls_checkpoint_item *items, int count,
                             int64_t *step)
{
    int64_t found = -1;
    ls__reading reading = {0};
    if (c == NULL || step == NULL || count < 0 || (count > 0 && items == NULL)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_checkpoint_load: the checkpoint, the items or the place for the step "
                        "are missing; give all three");
    }
    LS_TRY(ls__writer_join(c));
    ls__patient_renew(c->patient);
    ls_status status = find_while_others_write(c, &reading, &found);
    if (status == LS_OK) {
        status = load_into(c, &reading, found, items, count);
        if (status == LS_OK && c->rank == 0 && reading.manifest.nonfinite != NULL) {
            LS__WARN("checkpoint: step %lld of \"%s\" holds values that are not finite, in "
                     "\"%.200s\" at least: the run that saved it had diverged",
                     (long long)found, c->folder, reading.manifest.nonfinite);
        }
        ls__reading_close(c, &reading);
    }
    if (status == LS_OK) {
        *step = found;
    }
    return status;
}
