/* SPDX-License-Identifier: Apache-2.0 */
/* The elements of tensors in memory of the program, on whichever device tensors are made
 * (TEST_DEVICE): what a test reads and writes instead of ls_data. On the processor these are the
 * elements themselves, elsewhere a copy, which lives as long as tensors of this scope. */
#ifndef TEST_ELEMENTS_H
#define TEST_ELEMENTS_H

#include <string.h>

#include <lockstep/lockstep.h>

#include "test.h"

void test_note_elements(const void *at, size_t bytes); /* for TEST_BITS, in dist.c */

/* For what has elements of the program's memory as its subject. */
static inline bool test_on_device(void)
{
    return getenv("TEST_DEVICE") != NULL;
}

static inline size_t test_bytes_of(const ls_tensor *t)
{
    return (size_t)ls_numel(t) * ls_dtype_size(ls_dtype_of(t));
}

/* To be changed; put_elements then writes them. `t` is contiguous. */
static inline void *edit_elements(ls_tensor *t)
{
    const char *device = ls_device_of(t);
    LS_NO_GRAD;
    CHECK(device != NULL);
    void *at = ls_data(strcmp(device, "cpu") == 0 ? t : ls_to(t, "cpu"));
    CHECK(at != NULL || ls_numel(t) == 0);
    return at;
}

static inline void put_elements(ls_tensor *t, const void *at)
{
    CHECK_OK(strcmp(ls_device_of(t), "cpu") == 0 ? LS_OK : ls_copy_in(t, at, test_bytes_of(t)));
}

/* In the order of rows, of a view too. */
static inline const void *elements_of(ls_tensor *t)
{
    LS_NO_GRAD;
    const void *at = edit_elements(ls_is_contiguous(t) ? t : ls_contiguous(t));
    test_note_elements(at, test_bytes_of(t));
    return at;
}

static inline void put_float(ls_tensor *t, int64_t index, float value)
{
    float *at = edit_elements(t);
    at[index] = value;
    put_elements(t, at);
}

static inline void add_float(ls_tensor *t, int64_t index, float value)
{
    float *at = edit_elements(t);
    at[index] += value;
    put_elements(t, at);
}

static inline void put_int64(ls_tensor *t, int64_t index, int64_t value)
{
    int64_t *at = edit_elements(t);
    at[index] = value;
    put_elements(t, at);
}

#endif
