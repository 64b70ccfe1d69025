/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint object: the types and functions that its files share.
 *
 *   replicas.c  items whose numbers differ between ranks
 *   collect.c   walks the items into a table, and copies them
 *   shown.c     the tables of all ranks, as one list; compares them
 *   plan.c      which rank writes which tensor, or part of one
 *   image.c     this rank's file, as bytes in memory: the snapshot
 *   agree.c     ranks report their results to each other, and all return the same
 *   folder.c    names on the disk; removes what is stale
 *   file.c      whole files: checked writes, fsync, hashes
 *   commit.c    the protocol that makes a checkpoint exist
 *   writer.c    the thread that runs it
 *   load.c      finds the newest whole one;  restore.c puts it into the items
 *
 * Who may touch what: between a save's copy and the end of its writing (`state` is BUSY) the
 * object belongs to the writer's thread, the group included; every public call first waits for
 * IDLE. So all ranks issue the group's operations in one order, and none of them is the user's.
 */
#ifndef LS_CHECKPOINT_INTERNAL_H
#define LS_CHECKPOINT_INTERNAL_H

#include <lockstep/checkpoint.h>

#include "base/arena.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/json.h"
#include "base/patient.h"
#include "base/runtime.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

#define LS__CHECKPOINT_PATH_MAX 4096
#define LS__CHECKPOINT_FOLDER_MAX 3840 /* leaves room for the names below it */
#define LS__CHECKPOINT_SCALARS "scalars.json"
extern const ls__json_limit ls__scalars_limit;
#define LS__CHECKPOINT_ARENA_CHUNK ((size_t)64 << 10)

/* ---- the table of the state ------------------------------------------------------------------ */

typedef enum ls__entry_type { LS__ENTRY_TENSOR, LS__ENTRY_INT64, LS__ENTRY_FLOAT64 } ls__entry_type;

/* A box of a tensor that lies in one piece in the memory its state function shows. */
typedef struct ls__part {
    int64_t start[LS_DIMS_MAX], dim[LS_DIMS_MAX]; /* in global coordinates */
    size_t skip, bytes;                           /* where in that memory, and how much */
} ls__part;

/* What one walk shows under one name: a scalar, or a box of a tensor. */
typedef struct ls__saved_entry {
    const char *name;
    ls__entry_type type;
    int rank;               /* the lowest of those whose tables are equal to the one it is from */
    ls_state_tensor tensor; /* zeros behind ndim; no data */
    size_t bytes;           /* of the local slice */
    struct ls__piece *mine; /* what this rank writes of it, or NULL */
    uint32_t sum;           /* CRC-32C of the local slice, if the table sums */
    int64_t int64;
    double float64;
    bool optional; /* a checkpoint may not contain it */
} ls__saved_entry;

/* A part of a box, the rank that writes it, and where. */
typedef struct ls__piece {
    const ls__saved_entry *entry; /* shows the box */
    int rank;
    int key;       /* of the part in that rank's file: 0 is the name, k is "name#k" */
    int name, box; /* the first of that name, and of that box, in the list of all ranks' entries */
    size_t offset; /* in the image, if this rank writes it */
    ls__part part;
} ls__piece;

typedef struct ls__table {
    bool sums; /* the walk also sums the tensors' bytes, to compare them with other ranks' */
    ls__arena arena;
    ls__saved_entry *list; /* in the order of the walk */
    int count, room;
    ls__saved_entry **sorted; /* by name */
} ls__table;

void ls__table_init(ls__table *table, const ls__env *env);
void ls__table_fini(ls__table *table);
/* Walks the items; LS_ERR_INVALID when two have one name, but not two boxes of one tensor. */
ls_status ls__table_collect(ls__table *table, const ls_checkpoint_item *items, int count);
/* Of a second walk, which has come to `at`: the entry, if it is what was shown before, else NULL.
 */
const ls__saved_entry *ls__table_next(const ls__table *table, int *at, const char *name,
                                      ls__entry_type type);
ls_status ls__table_add(ls__table *table, const ls__saved_entry *entry); /* copies the name */
/* By name, type, box and rank. */
int ls__entry_compare(const ls__saved_entry *a, const ls__saved_entry *b);
bool ls__entry_same_box(const ls__saved_entry *a, const ls__saved_entry *b);
bool ls__entry_same_tensor(const ls__saved_entry *a, const ls__saved_entry *b); /* box apart */
/* Whether all is in range; sets the bytes of the local slice. */
bool ls__tensor_is_valid(const ls_state_tensor *tensor, size_t *bytes);
/* Calls every item's state function with the visitor. */
ls_status ls__items_visit(const ls_checkpoint_item *items, int count,
                          const ls_state_visitor *visitor);
bool ls__tensor_is_whole(const ls_state_tensor *tensor);
/* The second walk of a save: the bytes of what this rank writes go to their offsets in the image.
 */
ls_status ls__table_copy(ls__table *table, const ls_checkpoint_item *items, int count,
                         uint8_t *image);

/* Items as the walks see them: see replicas.c. */
typedef struct ls__stand_ins {
    const ls_checkpoint_item *items;
    ls_checkpoint_item *made;
    void *memory;
} ls__stand_ins;

struct ls_checkpoint;
/* The caller frees it after success. */
ls_status ls__items_stand_in(const struct ls_checkpoint *c, const ls_checkpoint_item *items,
                             int count, bool saves, ls__stand_ins *out);
void ls__stand_ins_free(ls__stand_ins *stand_ins);

/* ---- what all ranks show --------------------------------------------------------------------- */

typedef struct ls__shown {
    int rank, size;
    ls__table table;          /* of this rank */
    ls__table others;         /* of ranks whose tables differ from this one */
    int *same_as;             /* [size]: the lowest rank with an equal table */
    ls__saved_entry **sorted; /* the entries of both, by name, box and rank */
    int count;
    ls__saved_entry **both; /* memory of `sorted`, unless it is the table's */
    uint8_t *text;          /* the table, for the other ranks; malloc */
    size_t bytes;
    ls__piece *pieces; /* the plan for all ranks, by name and rank; malloc */
    int piece_count, piece_room;
} ls__shown;

ls_status ls__shown_init(ls__shown *shown, const ls__env *env, int rank, int size);
void ls__shown_fini(ls__shown *shown); /* also of a zero one */
/* Makes the text of the collected table and its hash: equal where all of the tables is. */
ls_status ls__shown_write(ls__shown *shown, uint64_t *hash);
/* Adds the entries of a text from `rank` to `others`. */
ls_status ls__shown_read(ls__shown *shown, int rank, const uint8_t *text, size_t bytes);
/* Needs same_as; called once, after all was added. */
ls_status ls__shown_sort(ls__shown *shown);
/* LS_ERR_MISMATCH if a name is not the same wherever it is shown, or boxes do not make up a tensor.
 * Local: ranks that show the same get the same error. */
ls_status ls__shown_compare(const ls__shown *shown);

/* Finds the pieces of all ranks: every box is written once, by ranks that show it. */
ls_status ls__plan_writers(ls__shown *shown);
/* Part `index` of at most `parts` of a box; returns how many there really are. */
int ls__part_cut(const ls__saved_entry *entry, int parts, int index, ls__part *out);
#define LS__PIECE_KEY_MAX (4096 + 12)
/* The key under which the piece is in the file of its rank. Returns out, or the name itself. */
const char *ls__piece_key(const char *name, int key, char out[LS__PIECE_KEY_MAX]);

/* ---- the object ------------------------------------------------------------------------------ */

enum ls__checkpoint_state { LS__CHECKPOINT_IDLE, LS__CHECKPOINT_BUSY, LS__CHECKPOINT_STOP };

#define LS__REPORT_WORDS 12
typedef struct ls__checkpoint_report {
    int32_t status;
    int32_t unused;
    uint64_t word[LS__REPORT_WORDS];
    char message[920];
} ls__checkpoint_report;

struct ls_checkpoint {
    ls_runtime *runtime;
    const ls__env *env;
    ls__patient *patient; /* Note [Deadline of the disk] in agree.c */
    const ls__env *files; /* its table, for calls about files */
    ls_group *group;      /* our own */
    int rank, size;
    char folder[LS__CHECKPOINT_PATH_MAX];
    ls_checkpoint_options set;
    int lock_fd;                    /* rank 0 while it may write; else -1 */
    ls__checkpoint_report *reports; /* [size], of the last agreement */

    int64_t skipped_after, skipped_last; /* steps that load passed over: (after, last] */

    /* the save being made */
    int64_t step;
    ls__shown shown;
    uint64_t nonce; /* of the temporary folder's name */
    uint8_t *image; /* the snapshot, kept from save to save */
    size_t image_room, image_bytes;
    char *scalars;      /* rank 0: the file's text; malloc */
    int nonfinite;      /* a piece of the plan that holds NaN or infinity; -1: none does */
    bool warned_of_nan; /* once; rank 0 */

    ls__env_thread *thread; /* NULL until the first asynchronous save */
    /* Sync: released by the side that ends its turn, acquired by the other, which parks on it */
    _Atomic uint32_t state;
    ls_status status; /* of the last writing, not yet returned */
    char message[LS__MESSAGE_MAX];
};

/* ---- agree.c --------------------------------------------------------------------------------- */

/* Every rank passes the status of its part (with ls_error_message when it is an error) and up to
 * LS__REPORT_WORDS words (NULL: none); all return the same status and text: that of the lowest
 * rank that failed. The words of all are in checkpoint->reports. */
ls_status ls__checkpoint_agree(ls_checkpoint *c, ls_status mine, const uint64_t *words, int count);
ls_collective_options ls__checkpoint_options_of(const ls_checkpoint *c, const char *tag);

/* ---- folder.c, file.c ------------------------------------------------------------------------ */

void ls__path_join(char out[LS__CHECKPOINT_PATH_MAX], const char *folder, const char *name);
void ls__step_name(char out[64], const char *before, int64_t step);
void ls__state_file_name(char out[LS__MANIFEST_FILE_NAME_MAX], int rank, int size);

/* The steps whose folders exist, latest first; malloc. */
ls_status ls__folder_steps(const ls_checkpoint *c, int64_t **steps, int *count);
ls_status ls__folder_make(const ls_checkpoint *c); /* with its parents */
ls_status ls__folder_lock(ls_checkpoint *c);       /* sets lock_fd */
void ls__folder_try_lock(ls_checkpoint *c);        /* sets lock_fd unless somebody writes there */
ls_status ls__folder_is_there(const ls_checkpoint *c);
void ls__folder_clean(const ls_checkpoint *c); /* what a dead job left; says what it could not */
void ls__folder_prune(const ls_checkpoint *c); /* all but the newest ones */
/* Removes a folder and the files in it; 0 or the first -errno. */
int ls__folder_remove(const ls_checkpoint *c, const char *path);
void ls__folder_temporary(const ls_checkpoint *c, char out[LS__CHECKPOINT_PATH_MAX]);
ls_status ls__folder_check_later(const ls_checkpoint *c, int64_t step);
/* Gives the temporary folder its name and makes that last. */
ls_status ls__folder_publish(ls_checkpoint *c, const char *temporary);

ls_status ls__file_write_failed(const ls__env *env, const char *folder, const char *path,
                                size_t bytes, int error);
ls_status ls__file_read_failed(const char *path, int error); /* FORMAT and NOT_FOUND: damage */
/* Creates the file, writes all, fsyncs, and says the hash. */
ls_status ls__file_write(const ls__env *env, const char *folder, const char *name, const void *data,
                         size_t bytes, uint8_t hash[LS__DIGEST_BYTES]);
ls_status ls__file_sync_folder(const ls__env *env, const char *path);
/* Reads the file and compares size and hash with what the manifest says. */
ls_status ls__file_verify(const ls__env *env, const char *path, const ls__manifest_file *expected);

/* ---- shown.c, image.c, commit.c, writer.c, load.c, restore.c --------------------------------- */

/* Collective, after an agreement on [step, hash, bytes] of the texts. */
ls_status ls__shown_exchange(ls_checkpoint *c);
ls_status ls__image_build(ls_checkpoint *c); /* all but the tensors' bytes */
ls_status ls__checkpoint_commit(ls_checkpoint *c);
ls_status ls__writer_start(ls_checkpoint *c); /* hands the save to the thread */
ls_status ls__writer_join(ls_checkpoint *c);  /* waits; returns and forgets its error */
void ls__writer_stop(ls_checkpoint *c);

/* A checkpoint opened for reading. */
typedef struct ls__reading {
    ls__arena arena;
    ls__manifest manifest;
    ls__safetensors *header; /* [file_count]; empty for the scalars */
    void **mapped;           /* [file_count] */
    size_t *mapped_bytes;
    json_t *scalars;
} ls__reading;

/* The piece in its file, or NULL. */
const ls__safetensor *ls__piece_find(const ls__reading *from, const ls__manifest_tensor *tensor,
                                     const ls__manifest_piece *piece);
ls_status ls__reading_open(const ls_checkpoint *c, int64_t step, ls__reading *out);
/* Whether the manifest can be read and names no tensor that is not finite. */
bool ls__checkpoint_is_finite(const ls_checkpoint *c, int64_t step);
void ls__reading_close(const ls_checkpoint *c, ls__reading *reading);

/* Changes nothing. Sets of all names in the checkpoint, ls__restore_names, those that items
 * show. */
ls_status ls__restore_check(const ls__reading *from, const ls_checkpoint_item *items, int count,
                            uint8_t *shown, const char *what);
size_t ls__restore_names(const ls__reading *from);
/* LS_ERR_MISMATCH names what the checkpoint has and nobody shows. */
ls_status ls__restore_check_rest(const ls__reading *from, const uint8_t *shown, const char *ignore,
                                 const char *what);
ls_status ls__restore_apply(const ls__reading *from, const ls_checkpoint_item *items, int count);

#endif
