/* The secret exchange of a job on one host: node 0 gives the secret to processes of the same user,
 * which the kernel identifies, over a stream by a name of the host. Therefore a job that uses no
 * network needs no configuration. */
#ifndef LS_JOB_NODES_SECRET_EXCHANGE_H
#define LS_JOB_NODES_SECRET_EXCHANGE_H

#include <lockstep/status.h>

#include "base/env.h"

#define LS__SECRET_EXCHANGE_BYTES 32

/* Listens. Returns a descriptor, or -errno: -EADDRINUSE if another job has the port, -EPERM if
 * another user owns the folder of such names. */
int ls__secret_exchange_open(const ls__env *env, int port);
void ls__secret_exchange_close(const ls__env *env, int fd, int port);
/* ", process 123": the process that has the port; "" if none has. */
void ls__secret_exchange_owner(const ls__env *env, int port, char *out, size_t bytes);
/* Gives the secret to all processes of this user that have connected; never blocks. */
void ls__secret_exchange_turn(const ls__env *env, int fd,
                              const uint8_t secret[LS__SECRET_EXCHANGE_BYTES]);
/* LS_IN_PROGRESS: no process listens yet, or it gave no answer in time; try again. */
ls_status ls__secret_exchange_fetch(const ls__env *env, int port,
                                    uint8_t secret[LS__SECRET_EXCHANGE_BYTES]);

#endif
