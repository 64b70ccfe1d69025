/* SPDX-License-Identifier: Apache-2.0 */
/* AMX (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18): eight
 * tiles of 16 rows of 64 bytes. Four accumulate 32 x 32 elements of C, two hold A, two B:
 *
 *             B 4   B 5
 *     A 6   |  0  |  1  |      Each instruction adds 16 x 16 x 32 products; a tile that is loaded
 *     A 7   |  2  |  3  |      serves two of them.
 *
 * The system must be asked for the tiles' state once per process. oneDNN does so when it is asked
 * for its instruction set, so without oneDNN they are not used. */
#include "kernel/cpu/tiles.h"

#include <immintrin.h>
#include <stdatomic.h>

#include "base/assert.h"
#include "kernel/cpu/onednn.h"

#define TILES __attribute__((target("amx-tile,amx-bf16")))
#define HALF (LS__TILE_SIDE / 2)

/* oneDNN has asked the system for permission by then; without it the first tile instruction would
 * trap. */
bool ls__tiles_usable(void)
{
    return ls__onednn_has_tiles();
}

/* Sets the tile registers of this thread. Pairs with ls__tiles_end, which gives the state back so
 * that context switches stay cheap. */
TILES void ls__tiles_begin(void)
{
    struct { /* the layout of palette 1 */
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
}

/* Gives the tile state of this thread back. */
TILES void ls__tiles_end(void)
{
    _tile_release();
}

/* C[32,32] at (i, j). */
TILES static void run_block(const ls__tiles_product *p, int64_t i, int64_t j)
{
    float *c = p->c + i * p->c_row + j, *lower = c + HALF * p->c_row;
    const long a_bytes = (long)p->a_row * 2, b_bytes = (long)p->b_row * 4;
    const long c_bytes = (long)p->c_row * 4;
    if (p->accumulate) {
        _tile_loadd(0, c, c_bytes);
        _tile_loadd(1, c + HALF, c_bytes);
        _tile_loadd(2, lower, c_bytes);
        _tile_loadd(3, lower + HALF, c_bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < p->k; k += LS__TILE_SIDE) {
        const ls__bfloat16 *a = p->a + i * p->a_row + k;
        const uint32_t *b = p->b + k / 2 * p->b_row + j;
        _tile_loadd(4, b, b_bytes);
        _tile_loadd(5, b + HALF, b_bytes);
        _tile_loadd(6, a, a_bytes);
        _tile_loadd(7, a + HALF * p->a_row, a_bytes);
        _tile_dpbf16ps(0, 6, 4);
        _tile_dpbf16ps(1, 6, 5);
        _tile_dpbf16ps(2, 7, 4);
        _tile_dpbf16ps(3, 7, 5);
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + HALF, c_bytes);
    _tile_stored(2, lower, c_bytes);
    _tile_stored(3, lower + HALF, c_bytes);
}

/* Between ls__tiles_begin and ls__tiles_end of the same thread. The fences keep the compiler from
 * moving plain stores past loads of the tiles, which it does not see. */
TILES void ls__tiles_run(const ls__tiles_product *p)
{
    LS_ASSERT((p->m | p->n | p->k) % LS__TILE_SIDE == 0);
    atomic_signal_fence(memory_order_seq_cst); /* tiles load memory that plain code has stored */
    for (int64_t i = 0; i < p->m; i += LS__TILE_SIDE) {
        for (int64_t j = 0; j < p->n; j += LS__TILE_SIDE) {
            run_block(p, i, j);
        }
    }
    atomic_signal_fence(memory_order_seq_cst);
}
