/* Fingerprints of boxes: products of random numbers modulo a Mersenne prime. */
#include "checkpoint/boxes.h"

#include <stdlib.h>
#include <string.h>

#include <lockstep/random.h>

#include "base/assert.h"

#define PRIME (((uint64_t)1 << 61) - 1)

/* Both below PRIME, as is the result. */
uint64_t ls__box_add(uint64_t a, uint64_t b)
{
    LS_ASSERT(a < PRIME && b < PRIME);
    return a + b >= PRIME ? a + b - PRIME : a + b;
}

/* 2^61 is 1 modulo PRIME, so the bits from the 61st on are added to those below. */
static uint64_t multiply(uint64_t a, uint64_t b)
{
    __extension__ const unsigned __int128 product = (unsigned __int128)a * b;
    return ls__box_add((uint64_t)product & PRIME, (uint64_t)(product >> 61));
}

/* h(dimension, coordinate), which looks random to everybody who did not know the key. */
static uint64_t number_of(const ls__boxes *boxes, int dimension, int64_t coordinate)
{
    const uint32_t counter[4] = {(uint32_t)coordinate, (uint32_t)((uint64_t)coordinate >> 32),
                                 (uint32_t)dimension, 0};
    uint32_t block[4];
    ls_philox4x32(counter, boxes->key, block);
    const uint64_t number = ((uint64_t)block[0] << 32 | block[1]) & PRIME;
    return number == PRIME ? 0 : number;
}

ls__boxes ls__boxes_of(const char hash[LS__DIGEST_HEX + 1])
{
    ls__boxes boxes;
    char word[9] = {0};
    for (int i = 0; i < 2; i++) {
        memcpy(word, hash + 8 * i, 8);
        boxes.key[i] = (uint32_t)strtoul(word, NULL, 16);
    }
    return boxes;
}

/* A scalar is a box without dimensions: the empty product. */
uint64_t ls__box_print(const ls__boxes *boxes, const int64_t *start, const int64_t *dim, int ndim)
{
    uint64_t print = 1;
    for (int d = 0; d < ndim; d++) {
        LS_ASSERT(start[d] >= 0 && dim[d] >= 0 && start[d] <= INT64_MAX - dim[d]);
        const uint64_t end = number_of(boxes, d, start[d] + dim[d]);
        print =
            multiply(print, ls__box_add(number_of(boxes, d, start[d]), end == 0 ? 0 : PRIME - end));
    }
    return print;
}
