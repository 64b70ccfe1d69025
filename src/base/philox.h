/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of Philox4x32-10 (Salmon et al. 2011, see random.c): for the scalar function and
 * for the kernels that make a vector of blocks at once (kernel/cpu/philox.h). */
#ifndef LS_BASE_PHILOX_H
#define LS_BASE_PHILOX_H

#define LS__PHILOX_ROUNDS 10
#define LS__PHILOX_M0 0xD2511F53u
#define LS__PHILOX_M1 0xCD9E8D57u
#define LS__PHILOX_W0 0x9E3779B9u /* the golden ratio */
#define LS__PHILOX_W1 0xBB67AE85u /* sqrt(3) - 1 */

#endif
