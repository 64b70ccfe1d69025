/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C (Castagnoli), as iSCSI, ext4 and TFRecord use it: polynomial 0x1EDC6F41, reflected. */
#ifndef LS_BASE_CRC32C_H
#define LS_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Goes on from `crc`, which is 0 at the start; ls__crc32c(0, "123456789", 9) == 0xe3069283. */
uint32_t ls__crc32c(uint32_t crc, const void *data, size_t bytes);
/* The same by a table; what processors without the instruction run. */
uint32_t ls__crc32c_plain(uint32_t crc, const void *data, size_t bytes);
const char *ls__crc32c_path(void); /* for reports: the code that sums large data here */

#endif
