/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bfloat16 tiles (AMX), as many as the processor can begin: four sums, 16 x 16 each, of
 * 32 multiply-adds an element and instruction. */
#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "peak.h"

#define ASK_FOR_STATE 0x1023 /* arch_prctl: a process must ask before it uses tiles */
#define TILE_STATE 18

typedef struct configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} configuration;

bool ls__bench_amx_allowed(void)
{
    return syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_STATE) == 0;
}

double ls__bench_peak_amx(int64_t rounds)
{
    configuration shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.row_bytes[i] = 64;
        shape.rows[i] = 16;
    }
    _tile_loadconfig(&shape);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_release();
    return 2.0 * 4 * 16 * 16 * 32 * (double)rounds;
}
