/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the CUDA device: blocks are cut from slabs, reused, given back when memory is out, and
 * kept from the next owner while another stream uses them. */
#include "test.h"

#include "cuda/driver.h"
#include "cuda/memory.h"
#include "device/device.h"

#include "../fake_cuda/fake.h"

const ls__device_plugin *ls__device_plugin_get(void);

static const ls__device *open_device(void)
{
    char error[LS__DEVICE_ERROR_MAX] = "";
    const ls__device *device = ls__device_plugin_get()->open(0, error);
    CHECK_STR(error, "");
    CHECK(device != NULL);
    return device;
}

static void *get(size_t bytes)
{
    return ls__cuda_memory_get(NULL, bytes);
}

static void put(void *memory, size_t bytes)
{
    ls__cuda_memory_put(NULL, memory, bytes);
}

static void *new_stream(void)
{
    void *stream = NULL;
    CHECK_INT(ls__cu_driver.cuStreamCreate(&stream, 0), 0);
    return stream;
}

TEST(small_blocks_are_cut_from_slabs_and_reused)
{
    (void)open_device();
    const size_t before = fake_cuda_used();
    void *block[64];
    for (int i = 0; i < 64; i++) {
        block[i] = get(1000 + (size_t)i);
        CHECK(block[i] != NULL && (uintptr_t)block[i] % 256 == 0);
    }
    CHECK_INT(fake_cuda_used() - before, LS__CUDA_SLAB);
    CHECK_INT(ls__cuda_memory_figures().reserved, fake_cuda_used());
    put(block[3], 1003);
    CHECK(get(1024) == block[3]);
    for (int i = 0; i < 64; i++) {
        put(block[i], 1000 + (size_t)i);
    }
    CHECK_INT(fake_cuda_used() - before, LS__CUDA_SLAB); /* kept */
}

TEST(large_blocks_are_the_drivers_own)
{
    (void)open_device();
    const size_t before = fake_cuda_used(), bytes = (size_t)5 << 20;
    void *block = get(bytes);
    CHECK_INT(fake_cuda_used() - before, bytes);
    put(block, bytes);
    CHECK_INT(fake_cuda_used(), before);
    CHECK_INT(ls__cuda_memory_figures().used, before); /* the workspace */
}

TEST(when_memory_is_out_empty_slabs_go_back)
{
    (void)open_device();
    void *small = get(512), *kept = NULL;
    fake_cuda_limit(fake_cuda_used() + ((size_t)1 << 20));
    CHECK(get((size_t)3 << 20) == NULL); /* the slab is in use */
    put(small, 512);
    kept = get((size_t)3 << 20);
    CHECK(kept != NULL);
    CHECK(get((size_t)3 << 20) == NULL);
    put(kept, (size_t)3 << 20);
}

/* A block that another stream reads is not given to anybody until that stream has come so far. */
TEST(a_block_waits_for_the_other_stream_that_uses_it)
{
    (void)open_device();
    void *other = new_stream(), *first = get(4096);
    fake_cuda_hold(other, 1);
    ls__cuda_memory_used(first, other);
    put(first, 4096);
    CHECK_INT(ls__cuda_memory_figures().waiting, 1);
    void *second = get(4096);
    CHECK(second != first);
    put(second, 4096);
    fake_cuda_hold(other, 0);
    CHECK_INT(ls__cu_driver.cuStreamSynchronize(other), 0);
    void *a = get(4096), *b = get(4096);
    CHECK(a == first || b == first);
    CHECK_INT(ls__cuda_memory_figures().waiting, 0);
}

TEST(a_block_that_no_stream_uses_any_more_does_not_wait)
{
    (void)open_device();
    void *other = new_stream(), *block = get(4096);
    ls__cuda_memory_used(block, other);
    CHECK_INT(ls__cu_driver.cuStreamSynchronize(other), 0);
    put(block, 4096);
    CHECK_INT(ls__cuda_memory_figures().waiting, 0);
    CHECK(get(4096) == block);
}

/* Out of memory is worth a wait for the other stream. */
TEST(memory_that_waits_is_taken_before_a_request_fails)
{
    (void)open_device();
    const size_t bytes = (size_t)4 << 20;
    void *other = new_stream(), *block = get(bytes);
    fake_cuda_limit(fake_cuda_used());
    ls__cuda_memory_used(block, other);
    put(block, bytes); /* goes back here if the other stream is fast */
    CHECK(get(bytes) != NULL);
}

TEST_MAIN
