/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a job's secret: 64 hexadecimal digits and a newline, readable only by its owner. */
#ifndef LS_JOB_NODES_SECRET_H
#define LS_JOB_NODES_SECRET_H

#include <lockstep/status.h>

#include "base/env.h"

#define LS__SECRET_FILE_BYTES 32 /* of the secret itself */

/* `from` names the flag or variable that gave the path. */
ls_status ls__secret_read(const ls__env *env, const char *path, const char *from,
                          uint8_t secret[LS__SECRET_FILE_BYTES]);
/* Draws a new one, as text with a 0 at its end; and reads such a text. */
ls_status ls__secret_draw(const ls__env *env, char text[2 * LS__SECRET_FILE_BYTES + 1]);
bool ls__secret_parse(const char *text, size_t bytes, uint8_t secret[LS__SECRET_FILE_BYTES]);
/* Creates a new file with a random secret. An existing file stays as it is, and the call fails. */
ls_status ls__secret_create(const ls__env *env, const char *path);

/* ---- secret_exchange.c: the secret of a job on one host -------------------------------------- */

/* Node 0 gives it to processes of the same user, which the kernel identifies, over a stream by a
 * name of the host. Therefore a job that uses no network needs no configuration. */
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
