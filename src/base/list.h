/* SPDX-License-Identifier: Apache-2.0 */
/* An intrusive doubly linked list with a sentinel: no allocation, O(1) insertion and removal.
 *
 *     struct job { int id; ls__list link; };
 *     ls__list jobs;  ls__list_init(&jobs);  ls__list_push_back(&jobs, &j->link);
 *     LS__LIST_EACH(at, &jobs) { struct job *j = LS__LIST_ITEM(at, struct job, link); … }
 *
 * A link that is in no list points at itself, so removing twice is harmless. The body of
 * LS__LIST_EACH may remove the item it stands on.
 */
#ifndef LS_BASE_LIST_H
#define LS_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ls__list ls__list;
struct ls__list {
    ls__list *next, *prev;
};

#define LS__LIST_ITEM(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))
#define LS__LIST_EACH(at, list)                                                                    \
    for (ls__list *at = (list)->next, *at##_next = at->next; at != (list);                         \
         at = at##_next, at##_next = at->next)

static inline void ls__list_init(ls__list *list)
{
    list->next = list;
    list->prev = list;
}

static inline bool ls__list_empty(const ls__list *list)
{
    return list->next == list;
}

static inline void ls__list_insert_between(ls__list *before, ls__list *after, ls__list *link)
{
    link->prev = before;
    link->next = after;
    before->next = link;
    after->prev = link;
}

static inline void ls__list_push_back(ls__list *list, ls__list *link)
{
    ls__list_insert_between(list->prev, list, link);
}

static inline void ls__list_push_front(ls__list *list, ls__list *link)
{
    ls__list_insert_between(list, list->next, link);
}

static inline void ls__list_remove(ls__list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    ls__list_init(link);
}

/* The first link, removed; NULL when the list is empty. */
static inline ls__list *ls__list_pop_front(ls__list *list)
{
    if (ls__list_empty(list)) {
        return NULL;
    }
    ls__list *link = list->next;
    ls__list_remove(link);
    return link;
}

#endif
