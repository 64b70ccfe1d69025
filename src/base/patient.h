/* SPDX-License-Identifier: Apache-2.0 */
/* Calls about files, and to the resolver of names, with a deadline.
 *
 * A system call about a file cannot be cancelled, and on a file system that hangs it never returns.
 * A patient table makes such calls on a thread of its own: one that has not ended by its deadline
 * returns -ETIMEDOUT, and so do all later ones, at once. The thread that hangs, and the memory it
 * may still write to, remain until the end of the process.
 *
 * A page of a mapped file may hang as well, when it is first read. So the thread reads a byte of
 * every page before the mapping is handed out; pages that the system has dropped since are read
 * again without a deadline.
 *
 * The checkpoint's files, the weights' and those of file.c are opened, read and written this
 * way. */
#ifndef LS_BASE_PATIENT_H
#define LS_BASE_PATIENT_H

#include "base/env.h"

typedef struct ls__patient ls__patient;

#define LS__PATIENT_HEAD ((size_t)1 << 20) /* of a file that is read here and there, for long */

/* For one thread at a time. Each call may take timeout_ms. `ahead`: how many bytes at the beginning
 * of a mapped file are read first; SIZE_MAX: all. Without memory or without a thread: NULL, which
 * the functions below accept; the real table then serves, without a deadline. */
ls__patient *ls__patient_new(const ls__env *real, int64_t timeout_ms, size_t ahead);
void ls__patient_free(ls__patient *patient);

/* From here on all calls have one deadline, timeout_ms from now. A caller whose peers wait for the
 * end of its calls renews it when they begin to wait, so that it does not end later than they
 * do. */
void ls__patient_renew(ls__patient *patient);

/* The table: memory, and calls about files; no other entry is set. `real` for NULL. */
const ls__env *ls__patient_env(ls__patient *patient, const ls__env *real);

#define LS__PATIENT_ADDRESSES 16

typedef struct ls__resolve_spec {
    const char *name;
    int64_t timeout_ms;
    bool (*stop)(void *arg); /* asked now and then whether to give up; NULL: never */
    void *stop_arg;
} ls__resolve_spec;

/* As env->resolve, which waits for a name server as long as the system's resolver likes. Writes at
 * most LS__PATIENT_ADDRESSES addresses. -ETIMEDOUT; -ECANCELED: `stop` said so. */
int ls__resolve_within(const ls__env *env, const ls__resolve_spec *spec,
                       char (*out)[LS__ADDRESS_MAX], int room);

#endif
