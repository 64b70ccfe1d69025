/* The secret of a job of one host: handed to processes of the same user, whom the kernel names,
 * over a stream by a name of the host. So nothing has to be configured where no network is
 * involved. */
#ifndef LS_JOB_NODES_SECRET_EXCHANGE_H
#define LS_JOB_NODES_SECRET_EXCHANGE_H

#include <lockstep/status.h>

#include "base/env.h"

#define LS__SECRET_EXCHANGE_BYTES 32

/* Listens; -errno: -EADDRINUSE when another job has the port,
 * -EPERM when another user has the folder of such names. */
int ls__secret_exchange_open(const ls__env *env, int port);
void ls__secret_exchange_close(const ls__env *env, int fd, int port);
/* ", process 123", of who has the port; "" where nobody has. */
void ls__secret_exchange_owner(const ls__env *env, int port, char *out, size_t bytes);
/* Gives the secret to those who have come; never blocks. */
void ls__secret_exchange_turn(const ls__env *env, int fd,
                              const uint8_t secret[LS__SECRET_EXCHANGE_BYTES]);
/* LS_IN_PROGRESS: nobody is there yet. */
ls_status ls__secret_exchange_fetch(const ls__env *env, int port,
                                    uint8_t secret[LS__SECRET_EXCHANGE_BYTES]);

#endif
