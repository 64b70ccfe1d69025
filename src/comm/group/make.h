/* SPDX-License-Identifier: Apache-2.0 */
/* Making groups: together with all ranks of the parent, or among the members alone. */
#ifndef LS_COMM_GROUP_MAKE_H
#define LS_COMM_GROUP_MAKE_H

#include "comm/backend/plugin.h"
#include "comm/core/group.h"

/* A group to be made. ls__group_create is collective over the parent (with `among`: over `ranks`)
 * and called between begin_making and end_making, so by one thread at a time. */
typedef struct ls__group_creation {
    const int *ranks; /* of the parent; NULL: all */
    int count;
    const char *name;    /* NULL: numbered */
    const char *tag;     /* of the exchange, equal on all ranks of the parent; NULL: name and ranks.
                            With a tag the ranks may make different groups, or none */
    bool among;          /* collective over these ranks only */
    const char *backend; /* NULL: the parent's */
    bool canonical;      /* refuse a backend whose sums have another order */
} ls__group_creation;
ls_status ls__group_create(ls_group *parent, const ls__group_creation *creation, ls_group **out);
typedef struct ls__group_exchange { /* among some ranks of a group */
    ls_group *parent;
    const int *ranks;
    int count;
    const char *tag;
} ls__group_exchange;
ls_status ls__group_exchange_among(const ls__group_exchange *exchange, void *all, size_t bytes);
ls_status ls__group_begin_making(ls_group *parent);
/* Whether a group that may be freed since still exists: a number is given once. */
bool ls__group_exists(ls__comm *comm, uint32_t id);
void ls__group_end_making(ls__comm *comm);

/* plugin_open.c. Makes the group's data travel by this backend (a name or a path; the group is
 * native so far). Collective over the group, blocking. Fails alike on all ranks. */
ls_status ls__plugin_attach(ls_group *group, const char *asked);

/* beside.c, Note [Data of a device]. *plugin: of this name, if all ranks of the group can load it;
 * else NULL, and the first rank that cannot has warned. Collective. */
ls_status ls__backend_everywhere(ls_group *group, const char *backend, ls__plugin **plugin);
/* The group of the same ranks for memory of a device with this backend; NULL: data passes through
 * the host. It is freed with `group`. The first call is collective, and all ask for the same. */
ls_status ls__group_beside(ls_group *group, const char *backend, ls_group **out);

#endif
