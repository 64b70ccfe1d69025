/* SPDX-License-Identifier: Apache-2.0 */
/* Parsers of data sets' files. */
#include "base/assert.h"
#include "data/cifar.h"
#include "data/npy.h"
#include "data/shard.h"
#include "targets.h"

static uint64_t sum_bytes(const uint8_t *data, size_t begin, size_t end)
{
    uint64_t sum = 0;
    for (size_t i = begin; i < end; i++) {
        sum += data[i];
    }
    return sum;
}

bool fuzz_npy(const uint8_t *data, size_t bytes)
{
    ls__npy array;
    if (ls__npy_parse(data, bytes, "fuzz", &array) < 0) {
        return false;
    }
    int64_t count = 1;
    LS_ASSERT(array.ndim >= 0 && array.ndim <= LS_DIMS_MAX);
    for (int i = 0; i < array.ndim; i++) {
        LS_ASSERT(array.dim[i] >= 0);
        count *= array.dim[i];
    }
    const size_t size = (size_t)count * ls_dtype_size(array.dtype);
    LS_ASSERT(array.count == count && array.begin + size == bytes);
    volatile uint64_t sum = sum_bytes(data, array.begin, array.begin + size);
    (void)sum;
    return true;
}

bool fuzz_shard(const uint8_t *data, size_t bytes)
{
    ls__shard shard;
    if (ls__shard_parse(data, bytes, "fuzz", &shard) < 0) {
        return false;
    }
    const size_t size = (size_t)shard.count * (size_t)shard.token_bytes;
    LS_ASSERT(shard.count > 0 && shard.begin + size == bytes);
    volatile uint64_t sum = sum_bytes(data, shard.begin, shard.begin + size);
    (void)sum;
    return true;
}

bool fuzz_cifar(const uint8_t *data, size_t bytes)
{
    int64_t count = 0;
    if (ls__cifar_check(data, bytes, "fuzz", &count) < 0) {
        return false;
    }
    LS_ASSERT(count > 0 && (size_t)count * LS__CIFAR_RECORD == bytes);
    for (int64_t i = 0; i < count; i++) {
        LS_ASSERT(data[(size_t)i * LS__CIFAR_RECORD] < 10);
    }
    return true;
}
