/* SPDX-License-Identifier: Apache-2.0 */
/* Every element type in tensors and in files: casts that saturate, and weights that come back. */
#include <string.h>

#include <lockstep/lockstep.h>

#include "scratch.h"
#include "test.h"

typedef struct range {
    ls_dtype dtype;
    double low, high;
} range;

static const range integers[] = {
    {LS_INT8, -128, 127},
    {LS_UINT8, 0, 255},
    {LS_INT16, -32768, 32767},
    {LS_UINT16, 0, 65535},
    {LS_INT32, -0x1p31, 0x1p31 - 1},
    {LS_UINT32, 0, 0x1p32 - 1},
    {LS_INT64, -0x1p63, 0x1p63},
    {LS_UINT64, 0, 0x1p64},
};

static double cast_of(double value, ls_dtype dtype)
{
    LS_SCOPE;
    double out = 0.0;
    ls_tensor *t = ls_cast(ls_full(LS_SCALAR, LS_FLOAT64, value), dtype);
    CHECK_INT(ls_dtype_of(t), dtype);
    CHECK_OK(ls_item(ls_cast(t, LS_FLOAT64), &out));
    return out;
}

TEST(casts_to_integers_cut_and_saturate)
{
    CHECK_OK(ls_init(NULL));
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        const range *r = &integers[i];
        CHECK_NEAR(cast_of(-1e30, r->dtype), r->low, 0.0);
        CHECK_NEAR(cast_of(1e30, r->dtype), r->high, 0.0);
        CHECK_NEAR(cast_of(100.9, r->dtype), 100.0, 0.0);
        CHECK_NEAR(cast_of(-100.9, r->dtype), r->low < 0 ? -100.0 : 0.0, 0.0);
    }
    CHECK_OK(ls_finalize());
}

/* A module with one buffer of each type, every byte of which is `seed` + its place. */
static ls_module *holder_new(int seed)
{
    ls_module *m = ls_identity_new();
    for (int d = 0; d < LS_DTYPE_COUNT; d++) {
        unsigned char bytes[24];
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] = (unsigned char)(d == LS_BOOL ? seed % 2 : seed + (int)i);
        }
        CHECK_OK(ls_module_add_buffer(m, ls_dtype_name((ls_dtype)d),
                                      ls_from_data(bytes, LS_SHAPE(3), (ls_dtype)d)));
    }
    CHECK_OK(ls_module_status(m));
    return m;
}

TEST(weights_of_every_type_come_back_from_safetensors)
{
    scratch_begin();
    CHECK_OK(ls_init(NULL));
    ls_module *saved = holder_new(3), *loaded = holder_new(8);
    const char *path = scratch_at("all.safetensors");
    CHECK(ls_module_hash(saved) != ls_module_hash(loaded));
    CHECK_OK(ls_module_save_safetensors(saved, path, NULL));
    CHECK_OK(ls_module_load_safetensors(loaded, path, NULL));
    CHECK(ls_module_hash(saved) == ls_module_hash(loaded));
    ls_module_free(saved);
    ls_module_free(loaded);
    CHECK_OK(ls_finalize());
    scratch_end();
}

TEST_MAIN
