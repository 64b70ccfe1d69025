/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks of one host find each other under another launcher: local rank 0 listens by a name made
 * of user and job; each rank says who it is and receives the board and the secret. The stream then
 * becomes its connection to the store. No port is used; only processes of one user may connect. */
#ifndef LS_JOB_BOOTSTRAP_LOCAL_RENDEZVOUS_H
#define LS_JOB_BOOTSTRAP_LOCAL_RENDEZVOUS_H

#include "job/bootstrap/detect.h"
#include "job/store/store.h"

#define LS__LOCAL_MAGIC 0x4c534d45u /* "LSME" */
#define LS__LOCAL_TEXT 1024
#define LS__LOCAL_VERSION 32

typedef struct ls__local_hello {
    uint32_t magic;
    int32_t rank, world_size, local_rank, local_size;
    char version[LS__LOCAL_VERSION];
} ls__local_hello;

typedef struct ls__local_reply { /* comes with the board's descriptor, unless status is below 0 */
    uint32_t magic;
    int32_t status;
    uint8_t secret[LS__STORE_SECRET_BYTES];
    char text[LS__LOCAL_TEXT];
} ls__local_reply;

/* The name for a job: at most LS__HOST_NAME_MAX bytes. */
void ls__local_name(const ls__detected *detected, char *out, size_t bytes);

typedef struct ls__local_joined {
    int fd;       /* the connection to the store; the caller's */
    int board_fd; /* the caller's */
    int host_pid; /* the process of local rank 0; 0: unknown */
    uint8_t secret[LS__STORE_SECRET_BYTES];
} ls__local_joined;

/* Connects to local rank 0's agent and waits until all ranks are there, or the deadline. */
ls_status ls__local_join(const ls__env *env, const ls__detected *detected, uint64_t deadline_ns,
                         ls__local_joined *out);

#endif
