/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators and their groups: made at the first collective of a communicator, in which all of
 * its members are; cached as its attribute; kept for reuse when it is freed.
 *
 * Note [Groups are not freed]
 * MPI_Comm_free is collective, but implementations do not wait in it, and programs free
 * communicators in different orders. ls_group_free waits for all members. So the group of a freed
 * communicator goes to a pool of its rank, and the next communicator of the same ranks takes it, if
 * all members have it in their pools; ls_finalize frees the rest.
 *
 * Note [One at a time]
 * Threads of a rank may be in the first collectives of two communicators at once. A group is made
 * by messages between its members, which must not mix with those of another one: so each member
 * tries to take its lock, and all begin only when all have it. */
#include "pmpi.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int keyval = MPI_KEYVAL_INVALID;
static MPI_Group world;
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER; /* Note [One at a time] */
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pmpi_place *pool;       /* Sync: pool_lock */
static int64_t next_id;        /* Sync: making */
static _Atomic unsigned freed; /* communicators, so far */

/* The communicator that this thread has used last. */
static _Thread_local struct {
    MPI_Comm comm;
    pmpi_place *place;
    unsigned freed;
} last;

static void place_free(pmpi_place *p)
{
    if (p != NULL) {
        free(p->ranks);
        free(p);
    }
}

/* Called by MPI_Comm_free, and by MPI_Finalize for what is left: then the groups are gone. */
static int give_back(MPI_Comm comm, int key, void *value, void *extra)
{
    pmpi_place *p = value;
    (void)comm;
    (void)key;
    (void)extra;
    atomic_fetch_add_explicit(&freed, 1, memory_order_release);
    if (!pmpi.on || p->group == NULL || ls_group_status(p->group) != LS_OK) {
        place_free(p);
        return MPI_SUCCESS;
    }
    (void)pthread_mutex_lock(&pool_lock);
    p->next = pool;
    pool = p;
    (void)pthread_mutex_unlock(&pool_lock);
    return MPI_SUCCESS;
}

int pmpi_groups_init(void)
{
    const int code = PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, give_back, &keyval, NULL);
    return code == MPI_SUCCESS ? PMPI_Comm_group(MPI_COMM_WORLD, &world) : code;
}

void pmpi_groups_fini(void)
{
    (void)PMPI_Group_free(&world);
    while (pool != NULL) {
        pmpi_place *p = pool;
        pool = p->next;
        place_free(p);
    }
}

/* The members' ranks in MPI_COMM_WORLD. False: an inter-communicator, a single rank, or a rank that
 * another MPI_Init has started. All members find the same. */
static bool read_members(MPI_Comm comm, pmpi_place *p)
{
    int inter = 0;
    MPI_Group group;
    bool all = true;
    (void)PMPI_Comm_test_inter(comm, &inter);
    (void)PMPI_Comm_size(comm, &p->size);
    (void)PMPI_Comm_rank(comm, &p->rank);
    if (inter || p->size < 2 || p->size > pmpi.size) {
        return false;
    }
    int *own = malloc((size_t)p->size * sizeof *own);
    p->ranks = malloc((size_t)p->size * sizeof *p->ranks);
    if (own == NULL || p->ranks == NULL) { /* the others would wait for this rank */
        (void)fprintf(stderr, "lockstep: no memory for the ranks of a communicator\n");
        (void)PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (int r = 0; r < p->size; r++) {
        own[r] = r;
    }
    (void)PMPI_Comm_group(comm, &group);
    (void)PMPI_Group_translate_ranks(group, p->size, own, world, p->ranks);
    (void)PMPI_Group_free(&group);
    free(own);
    for (int r = 0; r < p->size; r++) {
        all = all && p->ranks[r] != MPI_UNDEFINED;
    }
    return all;
}

/* The link to the oldest group in the pool that has these members. */
static pmpi_place **find_in_pool(const pmpi_place *p)
{
    pmpi_place **found = NULL;
    for (pmpi_place **at = &pool; *at != NULL; at = &(*at)->next) {
        const pmpi_place *q = *at;
        if (q->size == p->size &&
            memcmp(q->ranks, p->ranks, (size_t)p->size * sizeof *p->ranks) == 0 &&
            (found == NULL || q->id < (*found)->id)) {
            found = at;
        }
    }
    return found;
}

/* Takes `making` on all members, and finds what they agree on: the number of the group, and whether
 * all have the same one in their pools. */
static int agree(MPI_Comm comm, const pmpi_place *p, bool *reuse, int64_t *id)
{
    for (;;) {
        const bool mine = pthread_mutex_trylock(&making) == 0;
        (void)pthread_mutex_lock(&pool_lock);
        pmpi_place **at = find_in_pool(p);
        const long long candidate = at != NULL ? (*at)->id : -1;
        (void)pthread_mutex_unlock(&pool_lock);
        long long say[4] = {!mine, mine ? next_id : 0, candidate, -candidate}, all[4];
        const int code = PMPI_Allreduce(say, all, 4, MPI_LONG_LONG, MPI_MAX, comm);
        if (code == MPI_SUCCESS && all[0] == 0) {
            *reuse = all[2] >= 0 && all[2] == -all[3];
            *id = *reuse ? all[2] : all[1];
            return MPI_SUCCESS;
        }
        if (mine) {
            (void)pthread_mutex_unlock(&making);
        }
        if (code != MPI_SUCCESS) {
            return code;
        }
        (void)sched_yield();
    }
}

/* `making`. */
static void take_from_pool(pmpi_place *p)
{
    (void)pthread_mutex_lock(&pool_lock);
    pmpi_place **at = find_in_pool(p), *old = *at;
    *at = old->next;
    (void)pthread_mutex_unlock(&pool_lock);
    p->group = old->group;
    p->id = old->id;
    place_free(old);
}

/* `making`. */
static void make_group(MPI_Comm comm, pmpi_place *p, int64_t id)
{
    char name[48];
    int made, all = 0;
    snprintf(name, sizeof name, comm == MPI_COMM_WORLD ? "MPI_COMM_WORLD" : "communicator %lld",
             (long long)id);
    made = ls_group_new_among(ls_world(), p->ranks, p->size, name, &p->group) == LS_OK;
    if (!made) {
        (void)fprintf(stderr, "lockstep: %s is served by MPI: %s\n", name, ls_error_message());
    }
    (void)PMPI_Allreduce(&made, &all, 1, MPI_INT, MPI_MIN, comm);
    p->id = id;
    next_id = id + 1;
    if (!all) {
        p->group = NULL; /* left to ls_finalize: another member does not have it */
    }
}

static pmpi_place *make_place(MPI_Comm comm)
{
    bool reuse = false;
    int64_t id = 0;
    pmpi_place *p = calloc(1, sizeof *p);
    if (p == NULL) {
        (void)fprintf(stderr, "lockstep: no memory for a communicator\n");
        (void)PMPI_Abort(MPI_COMM_WORLD, 1);
        return NULL;
    }
    if (read_members(comm, p) && agree(comm, p, &reuse, &id) == MPI_SUCCESS) {
        if (reuse) {
            take_from_pool(p);
        } else {
            make_group(comm, p, id);
        }
        (void)pthread_mutex_unlock(&making);
    }
    (void)PMPI_Comm_set_attr(comm, keyval, p);
    return p;
}

pmpi_place *pmpi_find(MPI_Comm comm)
{
    const unsigned now = atomic_load_explicit(&freed, memory_order_acquire);
    void *value = NULL;
    int there = 0;
    if (last.place != NULL && last.comm == comm && last.freed == now) {
        return last.place->group != NULL ? last.place : NULL;
    }
    if (comm == MPI_COMM_NULL || PMPI_Comm_get_attr(comm, keyval, &value, &there) != MPI_SUCCESS) {
        return NULL;
    }
    last.place = there ? value : make_place(comm);
    last.comm = comm;
    last.freed = now;
    return last.place->group != NULL ? last.place : NULL;
}
