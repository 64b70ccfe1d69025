/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt knows matrices by columns: a row-major C = A B is its C' = B' A'. What it chooses for a
 * shape (an algorithm, after its own model) is kept with the descriptors of the shape.
 *
 * Products of float32 are float32 throughout: no TF32, whose 10 bits of a mantissa would make a GPU
 * learn differently from the processor. */
#include "cuda/blas.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cuda/driver.h"
#include "cuda/plans.h"

/* Numbers of the library's own headers. */
enum { COMPUTE_FLOAT32 = 68, FLOAT32 = 0, BFLOAT16 = 14, TRANSPOSED = 1 };
enum { DESC_TRANS_A = 3, DESC_TRANS_B = 4, LAYOUT_BATCH = 5, LAYOUT_BATCH_STRIDE = 6 };
enum { PREFERENCE_WORKSPACE = 1, PREFERENCE_ALIGNMENT_A = 5 /* to D: 8 */ };
#define ALIGNMENT_MAX 256

typedef struct algorithm {
    uint64_t data[8];
} algorithm;

typedef struct choice { /* cublasLtMatmulHeuristicResult_t */
    algorithm algorithm;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} choice;

/* X(symbol, arguments); all return a status, 0: it worked. */
#define FUNCTIONS(X)                                                                               \
    X(cublasLtCreate, (void **handle))                                                             \
    X(cublasLtMatmulDescCreate, (void **desc, int compute, int scale))                             \
    X(cublasLtMatmulDescDestroy, (void *desc))                                                     \
    X(cublasLtMatmulDescSetAttribute, (void *desc, int attribute, const void *at, size_t bytes))   \
    X(cublasLtMatrixLayoutCreate,                                                                  \
      (void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld))                      \
    X(cublasLtMatrixLayoutDestroy, (void *layout))                                                 \
    X(cublasLtMatrixLayoutSetAttribute,                                                            \
      (void *layout, int attribute, const void *at, size_t bytes))                                 \
    X(cublasLtMatmulPreferenceCreate, (void **preference))                                         \
    X(cublasLtMatmulPreferenceSetAttribute,                                                        \
      (void *preference, int attribute, const void *at, size_t bytes))                             \
    X(cublasLtMatmulPreferenceDestroy, (void *preference))                                         \
    X(cublasLtMatmulAlgoGetHeuristic,                                                              \
      (void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int asked,  \
       choice *out, int *found))                                                                   \
    X(cublasLtMatmul,                                                                              \
      (void *handle, void *desc, const void *alpha, const void *a, void *layout_a, const void *b,  \
       void *layout_b, const void *beta, const void *c, void *layout_c, void *d, void *layout_d,   \
       const algorithm *algorithm, void *workspace, size_t workspace_bytes, void *stream))

static struct {
#define X(name, arguments) int(*name) arguments;
    FUNCTIONS(X)
#undef X
} lt;
static void *handle;

typedef struct key { /* all that a choice depends on; compared as bytes */
    int64_t m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c, alignment;
    int64_t flags;
} key;

typedef struct plan {
    key of;
    bool used;
    void *desc, *a, *b, *c;
    algorithm algorithm;
} plan;

/* Under the lock of the workspace, which the caller holds. */
static plan plans[LS__CUDA_PLANS];
static int plan_count;
static const ls__cuda_plans known = {plans, sizeof *plans, sizeof(key), offsetof(plan, of),
                                     offsetof(plan, used)};

bool ls__cuda_blas_open(char *error, size_t bytes)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    static const char *const symbols[] = {
#define X(name, arguments) #name,
        FUNCTIONS(X)
#undef X
            NULL};
    void *table[sizeof symbols / sizeof *symbols - 1];
    char why[400];
    if (!ls__cuda_library(names, symbols, table, why, sizeof why)) {
        snprintf(error, bytes,
                 "cuBLASLt, which computes products: %s; install it (it comes with CUDA and with "
                 "PyTorch), or name its folder in LD_LIBRARY_PATH",
                 why);
        return false;
    }
    _Static_assert(sizeof table == sizeof lt, "a pointer for each function");
    memcpy(&lt, table, sizeof table);
    const int status = lt.cublasLtCreate(&handle);
    if (status != 0) {
        snprintf(error, bytes, "cublasLtCreate: status %d", status);
    }
    return status == 0;
}

/* Notes a failed step; true: go on. */
static bool works(int status, const char *what)
{
    if (status != 0) {
        char text[32];
        snprintf(text, sizeof text, "status %d", status);
        ls__cuda_fail(what, text);
    }
    return status == 0;
}

/* The largest power of two up to ALIGNMENT_MAX that divides all addresses. */
static int64_t alignment_of(const ls__cuda_product *p)
{
    const uintptr_t bits = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->c | ALIGNMENT_MAX;
    return (int64_t)(bits & -bits);
}

static key key_of(const ls__cuda_product *p)
{
    const int64_t flags = (p->trans_a ? 1 : 0) | (p->trans_b ? 2 : 0) | (p->half ? 4 : 0) |
                          (p->half_out ? 8 : 0) | (p->beta != 0.0f ? 16 : 0);
    return (key){p->m,     p->n,        p->k,        p->lda,      p->ldb,          p->ldc,
                 p->batch, p->stride_a, p->stride_b, p->stride_c, alignment_of(p), flags};
}

/* A row-major [rows,columns] is cuBLASLt's [columns,rows]. */
static bool make_layout(void **out, bool half, int64_t rows, int64_t columns, int64_t ld,
                        const ls__cuda_product *p, int64_t stride)
{
    const int32_t batch = (int32_t)p->batch;
    return works(lt.cublasLtMatrixLayoutCreate(out, half ? BFLOAT16 : FLOAT32, (uint64_t)columns,
                                               (uint64_t)rows, ld),
                 "cublasLtMatrixLayoutCreate") &&
           (p->batch == 1 ||
            (works(lt.cublasLtMatrixLayoutSetAttribute(*out, LAYOUT_BATCH, &batch, sizeof batch),
                   "cublasLtMatrixLayoutSetAttribute") &&
             works(lt.cublasLtMatrixLayoutSetAttribute(*out, LAYOUT_BATCH_STRIDE, &stride,
                                                       sizeof stride),
                   "cublasLtMatrixLayoutSetAttribute")));
}

/* Of C' = B' A' the first operand is B. */
static bool describe(plan *made, const ls__cuda_product *p)
{
    const int32_t transposed = TRANSPOSED;
    const int64_t a_rows = p->trans_a ? p->k : p->m, a_columns = p->trans_a ? p->m : p->k;
    const int64_t b_rows = p->trans_b ? p->n : p->k, b_columns = p->trans_b ? p->k : p->n;
    return works(lt.cublasLtMatmulDescCreate(&made->desc, COMPUTE_FLOAT32, FLOAT32),
                 "cublasLtMatmulDescCreate") &&
           (!p->trans_b || works(lt.cublasLtMatmulDescSetAttribute(made->desc, DESC_TRANS_A,
                                                                   &transposed, sizeof transposed),
                                 "cublasLtMatmulDescSetAttribute")) &&
           (!p->trans_a || works(lt.cublasLtMatmulDescSetAttribute(made->desc, DESC_TRANS_B,
                                                                   &transposed, sizeof transposed),
                                 "cublasLtMatmulDescSetAttribute")) &&
           make_layout(&made->a, p->half, a_rows, a_columns, p->lda, p, p->stride_a) &&
           make_layout(&made->b, p->half, b_rows, b_columns, p->ldb, p, p->stride_b) &&
           make_layout(&made->c, p->half_out, p->m, p->n, p->ldc, p, p->stride_c);
}

static bool choose(plan *made)
{
    void *preference = NULL;
    const uint64_t workspace = LS__CUDA_WORKSPACE;
    const uint32_t alignment = (uint32_t)made->of.alignment;
    choice found = {0};
    int count = 0;
    if (!works(lt.cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate")) {
        return false;
    }
    bool good = works(lt.cublasLtMatmulPreferenceSetAttribute(preference, PREFERENCE_WORKSPACE,
                                                              &workspace, sizeof workspace),
                      "cublasLtMatmulPreferenceSetAttribute");
    for (int i = 0; i < 4 && good; i++) {
        good = works(lt.cublasLtMatmulPreferenceSetAttribute(preference, PREFERENCE_ALIGNMENT_A + i,
                                                             &alignment, sizeof alignment),
                     "cublasLtMatmulPreferenceSetAttribute");
    }
    good = good &&
           works(lt.cublasLtMatmulAlgoGetHeuristic(handle, made->desc, made->b, made->a, made->c,
                                                   made->c, preference, 1, &found, &count),
                 "cublasLtMatmulAlgoGetHeuristic");
    (void)lt.cublasLtMatmulPreferenceDestroy(preference);
    if (good && count == 0) {
        ls__cuda_fail("cublasLtMatmulAlgoGetHeuristic", "no algorithm for the shape");
    }
    made->algorithm = found.algorithm;
    return good && count > 0;
}

static void drop(plan *p)
{
    if (p->desc != NULL) {
        (void)lt.cublasLtMatmulDescDestroy(p->desc);
    }
    void *const layouts[] = {p->a, p->b, p->c};
    for (int i = 0; i < 3; i++) {
        if (layouts[i] != NULL) {
            (void)lt.cublasLtMatrixLayoutDestroy(layouts[i]);
        }
    }
    *p = (plan){0};
}

/* All go when there are many: a model has a few hundred shapes at most. */
static void make_room(void)
{
    if (plan_count == LS__CUDA_PLANS_USED_MAX) {
        for (int i = 0; i < LS__CUDA_PLANS; i++) {
            drop(&plans[i]);
        }
        plan_count = 0;
    }
}

static const plan *plan_of(const ls__cuda_product *p)
{
    const key wanted = key_of(p);
    plan *at = ls__cuda_plan_place(&known, &wanted);
    if (at->used) {
        return at;
    }
    make_room();
    at = ls__cuda_plan_place(&known, &wanted);
    at->of = wanted;
    at->used = describe(at, p) && choose(at);
    if (!at->used) {
        drop(at);
        return NULL;
    }
    plan_count++;
    return at;
}

void ls__cuda_blas_product(const ls__cuda_product *p, ls_stream *stream)
{
    const float one = 1.0f;
    ls__cuda_enter();
    const plan *use = plan_of(p);
    if (use != NULL) {
        (void)works(lt.cublasLtMatmul(handle, use->desc, &one, p->b, use->b, p->a, use->a, &p->beta,
                                      p->c, use->c, p->c, use->c, &use->algorithm,
                                      ls__cuda_self.workspace, LS__CUDA_WORKSPACE, (void *)stream),
                    "cublasLtMatmul");
    }
}
