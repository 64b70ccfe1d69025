/* SPDX-License-Identifier: Apache-2.0 */
/* The clients of a federated round: k of n without repetition, in Floyd's order (Bentley and Floyd
 * 1987), which draws k numbers, however many clients there are. */
#include <string.h>

#include <lockstep/ddp.h>
#include <lockstep/random.h>

#include "base/error.h"

/* Draw number `index` of a round, in [0,below): one word of Philox of 64 bits, whose remainder
 * favours no client by more than 2^-32. */
static int64_t draw(uint64_t seed, int64_t round, int64_t index, int64_t below)
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)((uint64_t)index >> 32),
                                 (uint32_t)round, (uint32_t)((uint64_t)round >> 32)};
    const uint32_t key[2] = {(uint32_t)seed ^ 0x636c6965u, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    ls_philox4x32(counter, key, out);
    return (int64_t)(((uint64_t)out[0] << 32 | out[1]) % (uint64_t)below);
}

/* Where `client` is, or belongs, in the ascending list. */
static int64_t place_of(const int64_t *list, int64_t count, int64_t client)
{
    int64_t at = count;
    while (at > 0 && list[at - 1] >= client) {
        at--;
    }
    return at;
}

ls_status ls_sample_clients(uint64_t seed, int64_t round, int64_t clients, int64_t k, int64_t *out)
{
    if (out == NULL || round < 0 || k < 1 || k > clients) {
        return ls__fail_at_site(ls__fail(
            LS_ERR_INVALID,
            "ls_sample_clients: %lld of %lld clients in round %lld; give 1 <= k <= clients, a "
            "round from 0, and a place for the numbers",
            (long long)k, (long long)clients, (long long)round));
    }
    for (int64_t i = 0; i < k; i++) {
        const int64_t last = clients - k + i;
        int64_t client = draw(seed, round, i, last + 1), at = place_of(out, i, client);
        if (at < i && out[at] == client) {
            client = last; /* greater than all so far */
            at = i;
        }
        memmove(out + at + 1, out + at, (size_t)(i - at) * sizeof *out);
        out[at] = client;
    }
    return LS_OK;
}
