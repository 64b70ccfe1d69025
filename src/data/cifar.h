/* SPDX-License-Identifier: Apache-2.0 */
/* CIFAR-10's binary version (Krizhevsky 2009): records of a label 0 … 9 and 3 planes, red, green
 * and blue, of 32 x 32 bytes. No header: what is wrong shows in the size and in the labels. */
#ifndef LS_DATA_CIFAR_H
#define LS_DATA_CIFAR_H

#include <stddef.h>
#include <stdint.h>

#include <lockstep/status.h>

#define LS__CIFAR_PIXELS (3 * 32 * 32)
#define LS__CIFAR_RECORD (1 + LS__CIFAR_PIXELS)

/* `data` is the whole file; `path` names it in messages. LS_ERR_FORMAT; LS_ERR_INVALID when it is
 * empty. */
ls_status ls__cifar_check(const uint8_t *data, size_t bytes, const char *path, int64_t *count);

#endif
