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

#endif
