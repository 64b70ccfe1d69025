/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a module, for the other files of this layer and for ddp. */
#ifndef LS_NN_MODULE_H
#define LS_NN_MODULE_H

#include <stddef.h>

#include <lockstep/nn.h>

#include "base/axes.h"
#include "base/runtime.h"
#include "base/slots.h"

#define LS__MODULE_DEPTH_MAX 64  /* bounds the recursion over nested modules */
#define LS__MODULE_NAME_MAX 63   /* of one part; a dotted name has at most DEPTH_MAX parts */
#define LS__CLASS_BYTES_MAX 4096 /* a larger size was never set: the class is uninitialised */

/* Whether the class, perhaps of a program built with an older header, gives this function. */
#define LS__CLASS_HAS(cls, field)                                                                  \
    ((cls)->size >= offsetof(ls_module_class, field) + sizeof(cls)->field && (cls)->field != NULL)

/* How the layers of a module convert what crosses them (tensor_parallel.c). */
typedef struct ls__parallel {
    char axis[LS__AXIS_NAME_BYTES]; /* "": they do not */
    int number, ranks, rank;        /* of the axis in the mesh, and of this one along it */
    bool sequence, keep_gathered;
    bool cuts;         /* a parameter of it, or of a module in it, or computes fewer heads */
    ls_hook *compares; /* of the model: its first inputs; NULL: it has */
    int heads; /* of a layer that computes fewer heads than there are ranks; 0: of another */
} ls__parallel;

/* A parameter or buffer of a whole tree, under its dotted name. */
typedef struct ls__module_item {
    const char *name; /* valid while the root lives */
    ls_tensor *value;
    bool buffer; /* false: a parameter */
    bool unsaved;
} ls__module_item;

typedef enum ls__entry_kind { LS__ENTRY_PARAM, LS__ENTRY_BUFFER, LS__ENTRY_CHILD } ls__entry_kind;

typedef enum ls__entry_mark { LS__MARK_NONE, LS__MARK_BELOW, LS__MARK_WHOLE } ls__entry_mark;

typedef struct ls__entry {
    ls__entry_kind kind;
    ls__entry_mark mark; /* during ls_module_keep_parts */
    bool unsaved;        /* a buffer that the state leaves out */
    char name[LS__MODULE_NAME_MAX + 1];
    ls_tensor *tensor;
    ls_module *child;
} ls__entry;

/* A cached list of items. Older ones stay until the root is freed, because the names in them are
 * promised to live as long. */
typedef struct ls__item_list ls__item_list;
struct ls__item_list {
    ls__item_list *older;
    int entries; /* of the whole tree when it was made; -1: an entry has changed since */
    int count;
    ls__module_item *items;
};

typedef struct ls__module_hook ls__module_hook; /* hooks.h */

struct ls__module_entries {
    ls__entry *list;
    int count, capacity;
    ls__entry *whole; /* [whole_count] the list before ls__parts_set_aside; or NULL */
    int whole_count;
    ls__slots names; /* of the list */
    ls_module *parent;
    char name[LS__MODULE_NAME_MAX + 1]; /* within the parent */
    ls__item_list *cache;
    char *message;          /* of the first failure */
    ls_parts *parts;        /* as its class has declared them; NULL: not yet */
    ls__module_hook *hooks; /* on its forward, in order of addition */
    ls__draw_place draws;   /* what its forward draws; its path names its parameters' streams */
    ls__parallel parallel;
    ls_tensor *loss;      /* that its last forward has set (losses.c); NULL: none */
    bool has_tensors;     /* it was made in a runtime */
    bool former_training; /* its mode before check_parts.c */
    bool withheld;        /* ls_module_status fails: see ls__module_withhold */
    ls_module *retired;   /* of a root: the modules that ls__module_retire has emptied, … */
    ls_module *next;      /* … each with the next one */
    ls__runtime_guest guest;
};

/* All distinct parameters and buffers below `module`, in order of addition (depth first). Cached:
 * allocates only when the tree grew since the last call. NULL with an error when memory is out. */
const ls__module_item *ls__module_items(ls_module *module, int *count);

/* Frees a wrapper, whose only entry is the module it wraps, and returns that module, which is then
 * a root of its own. */
ls_module *ls__module_unwrap(ls_module *wrapper);

/* The module that a wrapper wraps, however deep; of another module, itself. */
ls_module *ls__module_wrapped(ls_module *module);
/* The entry name[length], or NULL. In constant time: modules may have 100,000. */
const ls__entry *ls__module_entry(const ls_module *module, const char *name, size_t length);
/* After entries have moved. */
void ls__module_index(ls_module *module);
/* All entries of the tree; a changed number means that it has grown. */
int ls__module_entry_count(const ls_module *module);
bool ls__is_sequential(const ls_module *module); /* whether ls_sequential_new made it */
/* Frees what an entry holds, but for tensors of which `keeps` is true. The entry is then void. The
 * memory of its modules, to which structs of the user still point, lives as long as `root`; they
 * are withheld. */
void ls__module_retire(ls__entry *entry, ls_module *root,
                       bool (*keeps)(void *root, const ls_tensor *tensor));
/* From now on the module and all below it are errors where they are used, or no longer. */
void ls__module_withhold(ls_module *module, bool withheld);
/* Calls body(arg, outputs) as a forward of `module`: in its activity, draws and errors. */
ls_status ls__module_within(ls_module *module, ls_status (*body)(void *arg, ls_tensor **outputs),
                            void *arg, ls_tensor **outputs, int output_count);

void ls__items_free(ls__item_list *list); /* and the older ones; NULL is allowed */

/* The module's names from below `root` on, with dots. False: it is not below it, or they do not
 * fit. */
bool ls__module_path_below(const ls_module *root, const ls_module *module, char *out, size_t bytes);

/* The name under which its parent knows it; its class' name for a root. */
const char *ls__module_name(const ls_module *module);

/* The error of a call that is given no module. */
ls_status ls__module_missing(const char *call);

/* Notes the failure of the last call as the module's and its parents', unless they have one. */
void ls__module_fail(ls_module *module, ls_status status);

/* Goes on with a hash over name and bytes of an item (hash.c); 0 with the error set. */
uint64_t ls__module_item_hash(uint64_t hash, const ls__module_item *item);
/* Goes on with a hash over more bytes. */
uint64_t ls__hash_bytes(uint64_t hash, const void *data, size_t bytes);

/* clip.c: whether other ranks train a parameter, too: it is of a wrapper over several ranks, of a
 * stage, or divided along an axis of the mesh in force. What a rank trains by itself has its own
 * settings. */
bool ls__param_is_shared(const ls_tensor *param);

#endif
