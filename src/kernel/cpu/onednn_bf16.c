/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bfloat16 matrices through oneDNN, which has kernels for processors with bfloat16
 * instructions, AMX best of all.
 *
 * A plan is one primitive for the shape of a part, made for one thread, and what each thread needs
 * to run it; the work is cut by shape (gemm_cut.h), so the bits do not depend on the number of
 * threads. The last part of a cut may be shorter and has a plan of its own. Scratch memory is the
 * caller's.
 *
 * Note [Two kernels]
 * Where all three matrices are dense oneDNN 2.6 takes its blocked kernel ("brg", 400 to 950 GF/s on
 * a core with AMX), else the one behind its gemm ("gemm:jit"), which is as fast into float32 (480
 * to 560 for a transposed A, dW) and slower into bfloat16 (300 to 500 against 520 to 950), but
 * still several times as fast as float32. Without bfloat16 instructions it would widen and be
 * slower than the built-in product.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "kernel/cpu/gemm_cut.h"
#include "kernel/cpu/onednn.h"
#include "kernel/cpu/onednn_api.h"
#include "kernel/cpu/plans.h"
#include "kernel/cpu/threads.h"

#define SLOTS_MAX 64 /* threads that run parts */
#define ALIGN 64

enum { A, B, C, BIAS, SCRATCH, MEMORIES };

typedef struct
    plan { /* of one shape; kept in the table of plans (plans.h), used by one call at a time */
    dnnl_engine_t engine;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t product;
    dnnl_memory_desc_t layout[MEMORIES];
    bool biased;
    size_t scratch_bytes;
    int slots;
    struct { /* of one thread */
        dnnl_stream_t stream;
        dnnl_memory_t memory[MEMORIES];
    } slot[SLOTS_MAX];
} plan;

typedef struct request { /* what a plan is made for */
    ls__gemm_bf16 part;  /* its shape and types; pointers are not used, but whether bias is NULL */
    int slots;           /* threads that will run it */
} request;

static bool is_ok(dnnl_status_t status)
{
    return status == dnnl_success;
}

/* ---- making ------------------------------------------------------------------------------- */

/* A transposed matrix is described by its strides; nothing is copied. */
static bool describe_matrix(dnnl_memory_desc_t *out, int64_t rows, int64_t cols, int64_t ld,
                            bool trans, dnnl_data_type_t type)
{
    const ls__layout_shape shape = {2, {rows, cols}, type};
    const dnnl_dims_t strides = {trans ? 1 : ld, trans ? ld : 1};
    return ls__layout_strided(out, &shape, strides);
}

/* Layouts are the caller's own, so no reorder runs before or after the product. */
static bool describe(plan *p, const ls__gemm_bf16 *g)
{
    dnnl_memory_desc_t *of = p->layout;
    return describe_matrix(&of[A], g->m, g->k, g->lda, g->trans_a, dnnl_bf16) &&
           describe_matrix(&of[B], g->k, g->n, g->ldb, g->trans_b, dnnl_bf16) &&
           describe_matrix(&of[C], g->m, g->n, g->ldc, false, g->half ? dnnl_bf16 : dnnl_f32) &&
           describe_matrix(&of[BIAS], 1, g->n, g->n, false, dnnl_f32);
}

/* The scratch memory is the caller's: oneDNN would otherwise allocate in every call. An output that
 * is added to becomes a sum after the product. */
static bool describe_extras(dnnl_primitive_attr_t attributes, bool adds)
{
    dnnl_post_ops_t sum = NULL;
    bool made =
        is_ok(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user));
    if (made && adds) {
        made = is_ok(dnnl_post_ops_create(&sum)) && ls__append_sum(sum) &&
               is_ok(dnnl_primitive_attr_set_post_ops(attributes, sum));
    }
    if (sum != NULL) {
        (void)dnnl_post_ops_destroy(sum);
    }
    return made;
}

/* Not the loop that takes everything; see Note [Two kernels]. */
static bool is_fast(dnnl_primitive_desc_t description)
{
    const char *name = NULL;
    return ls__onednn_has_bf16() &&
           is_ok(dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, &name)) &&
           (strncmp(name, "brg", 3) == 0 || strncmp(name, "gemm:jit", 8) == 0);
}

/* The primitive for one part. False where oneDNN has none, or only its slow loop. A plan made in
 * part is ended by plan_fini. */
static bool make_product(plan *p, const ls__gemm_bf16 *g)
{
    const ls__matmul_layouts layouts = {&p->layout[A], &p->layout[B],
                                        p->biased ? &p->layout[BIAS] : NULL, &p->layout[C]};
    dnnl_primitive_attr_t attributes = NULL;
    bool made = is_ok(dnnl_primitive_attr_create(&attributes)) &&
                describe_extras(attributes, g->beta != 0.0f) &&
                ls__describe_matmul(&p->description, &layouts, attributes, p->engine) &&
                is_fast(p->description) &&
                is_ok(dnnl_primitive_create(&p->product, p->description));
    if (attributes != NULL) {
        (void)dnnl_primitive_attr_destroy(attributes);
    }
    return made;
}

/* A stream and memory handles of one thread: their data pointers are set before every piece, so
 * threads cannot share them. */
static bool make_slot(plan *p, int at)
{
    bool made =
        is_ok(dnnl_stream_create(&p->slot[at].stream, p->engine, dnnl_stream_default_flags));
    for (int i = 0; made && i < MEMORIES; i++) {
        made = ls__memory_new(&p->slot[at].memory[i], &p->layout[i], p->engine);
    }
    return made;
}

/* Also for a plan that was made in part. */
static void plan_fini(void *memory)
{
    plan *p = memory;
    for (int i = 0; i < p->slots; i++) {
        for (int m = 0; m < MEMORIES; m++) {
            (void)dnnl_memory_destroy(p->slot[i].memory[m]); /* NULL is allowed */
        }
        if (p->slot[i].stream != NULL) {
            (void)dnnl_stream_destroy(p->slot[i].stream);
        }
    }
    for (int i = 0; i < MEMORIES; i++) {
        ls__layout_fini(&p->layout[i]);
    }
    if (p->product != NULL) {
        (void)dnnl_primitive_destroy(p->product);
    }
    if (p->description != NULL) {
        (void)dnnl_primitive_desc_destroy(p->description);
    }
    if (p->engine != NULL) {
        (void)dnnl_engine_destroy(p->engine);
    }
}

/* In zeroed memory; false where oneDNN has no fast kernel, and then nothing is left behind. */
static bool plan_make(void *memory, const void *argument)
{
    plan *p = memory;
    const request *r = argument;
    int threads = ls__threads_own();
    p->biased = r->part.bias != NULL;
    p->slots = r->slots;
    ls__threads_set(1); /* for one thread, whatever the caller has */
    bool made = is_ok(dnnl_engine_create(&p->engine, dnnl_cpu, 0)) && describe(p, &r->part) &&
                make_product(p, &r->part) &&
                ls__layout_chosen(&p->layout[SCRATCH], p->description, dnnl_query_scratchpad_md);
    ls__threads_set(threads);
    if (made) {
        p->scratch_bytes = ls__round_up(ls__layout_bytes(&p->layout[SCRATCH]), ALIGN);
    }
    for (int i = 0; made && i < p->slots; i++) {
        made = make_slot(p, i);
    }
    if (!made) {
        plan_fini(p);
    }
    return made;
}

/* ---- running ------------------------------------------------------------------------------ */

typedef struct job { /* one call */
    const ls__gemm_bf16 *g;
    ls__gemm_cut cut;
    int64_t pieces;
    int slots;
    plan *of[2];  /* of a part, and of the rest; the second is NULL where there is none */
    plan *own[2]; /* memory for those that the table does not give */
} job;

/* The request for the part that `piece` belongs to. */
static request request_of(const job *j, int64_t piece)
{
    return (request){.part = ls__gemm_piece(j->g, &j->cut, piece), .slots = j->slots};
}

/* The last part of a product may be smaller than the others and then needs a plan of its own. */
static bool has_rest(const job *j)
{
    return ls__gemm_cut_is_rest(&j->cut, j->cut.parts - 1);
}

/* Threads and slots are fixed here, before any plan is made: a plan has one slot for each
 * thread. */
static job job_of(const ls__gemm_bf16 *g, plan own[2])
{
    job j = {.g = g, .cut = ls__gemm_cut_of(g), .own = {&own[0], &own[1]}};
    int threads = ls__threads_own();
    j.pieces = j.cut.parts * g->batch;
    bool many = j.pieces > 1 && g->m * g->n * g->k * g->batch >= LS__CUT_WORK;
    j.slots = many && threads <= SLOTS_MAX ? threads : 1;
    return j;
}

static const ls__plan_kind kind = {sizeof(plan), plan_make, plan_fini};

/* Everything a plan depends on. Two products with one key may use one plan, one after the other. */
static ls__plan_key key_of(const request *r)
{
    const ls__gemm_bf16 *g = &r->part;
    int flags = g->trans_a | g->trans_b << 1 | g->half << 2 | (g->bias != NULL) << 3 |
                (g->beta != 0.0f) << 4;
    ls__plan_key key = {{g->m, g->n, g->k, g->lda, g->ldb, g->ldc, flags, r->slots}};
    key.at[LS__PLAN_KEY - 1] = LS__PLAN_GEMM_BF16;
    return key;
}

/* A kept plan, or one in `own` when there is no store or another thread holds the plan. NULL if
 * oneDNN has no kernel. */
static plan *take_plan(ls__plans *plans, const request *r, plan *own)
{
    ls__plan_key key = key_of(r);
    plan *p = plans != NULL ? ls__plans_take(plans, &key, &kind, r) : NULL;
    if (p != NULL) {
        return p;
    }
    memset(own, 0, sizeof *own);
    return plan_make(own, r) ? own : NULL;
}

/* Kept plans go back to the store; a plan in `own` is freed here. */
static void give(ls__plans *plans, plan *p, const plan *own)
{
    if (p == own) {
        plan_fini(p);
    } else if (p != NULL) {
        ls__plans_give(plans, p);
    }
}

/* A transposed matrix is named so, since oneDNN's kernels differ there. */
static void report_refusal(const ls__gemm_bf16 *g)
{
    char what[128];
    (void)snprintf(what, sizeof what, "a product of bfloat16, [%lld,%lld]%s x [%lld,%lld]%s",
                   (long long)g->m, (long long)g->k, g->trans_a ? " transposed" : "",
                   (long long)g->k, (long long)g->n, g->trans_b ? " transposed" : "");
    ls__onednn_refused(what, (double)g->m * (double)g->n * (double)g->k, true);
}

/* False if oneDNN refuses a part; the plans obtained so far are still end()'s to give back. Without
 * instructions for bfloat16 it refuses all, and each attempt to make a plan would take memory. */
static bool begin_job(job *j)
{
    if (!ls__onednn_has_bf16()) {
        return false;
    }
    for (int i = 0; i < 1 + has_rest(j); i++) {
        request r = request_of(j, i == 0 ? 0 : j->cut.parts - 1);
        j->of[i] = take_plan(j->g->plans, &r, j->own[i]);
        if (j->of[i] == NULL) {
            report_refusal(&r.part);
            return false;
        }
    }
    return true;
}

/* Pairs with begin_job(), whatever that returned. */
static void end(job *j)
{
    for (int i = 0; i < 2; i++) {
        if (j->of[i] != NULL) {
            give(j->g->plans, j->of[i], j->own[i]);
        }
    }
}

/* Both plans of a job run in the same scratch memory, one after the other in each thread. */
static size_t slot_bytes(const job *j)
{
    size_t first = j->of[0]->scratch_bytes;
    size_t rest = j->of[1] != NULL ? j->of[1]->scratch_bytes : 0;
    return first > rest ? first : rest;
}

/* oneDNN's interface knows no const. */
static void point(dnnl_memory_t memory, const void *data)
{
    (void)dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)data);
}

/* One piece on this thread, in `slot`, which is the thread's own: its handles are pointed at the
 * piece's operands here. */
static void run_piece(const job *j, int64_t at, int slot)
{
    const plan *p = j->of[ls__gemm_cut_is_rest(&j->cut, at % j->cut.parts) ? 1 : 0];
    ls__gemm_bf16 g = ls__gemm_piece(j->g, &j->cut, at);
    const dnnl_memory_t *memory = p->slot[slot].memory;
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, memory[A]},
                                         {DNNL_ARG_WEIGHTS, memory[B]},
                                         {DNNL_ARG_DST, memory[C]},
                                         {DNNL_ARG_SCRATCHPAD, memory[SCRATCH]},
                                         {DNNL_ARG_BIAS, memory[BIAS]}};
    point(memory[A], g.a);
    point(memory[B], g.b);
    point(memory[C], g.c);
    point(memory[BIAS], g.bias);
    point(memory[SCRATCH], (const char *)j->g->workspace + (size_t)slot * slot_bytes(j));
    /* Cannot fail once primitive and memory are there. */
    dnnl_status_t status =
        dnnl_primitive_execute(p->product, p->slot[slot].stream, p->biased ? 5 : 4, arguments);
    LS_ASSERT(is_ok(status));
    (void)dnnl_stream_wait(p->slot[slot].stream);
}

/* False if oneDNN has no kernel for it; C is then unchanged. Each thread runs whole pieces, so
 * oneDNN is told to use one thread in each. */
bool ls__onednn_gemm_bf16(const ls__gemm_bf16 *g)
{
    plan own[2];
    job j = job_of(g, own);
    bool made = begin_job(&j);
    if (made) {
        LS__PARALLEL_FOR(j.slots > 1, int64_t at = 0, at < j.pieces, at++, {
            int threads = ls__threads_own();
            ls__threads_set(1);
            run_piece(&j, at, j.slots > 1 ? ls__thread_index() : 0);
            ls__threads_set(threads);
        })
    }
    end(&j);
    return made;
}

/* Bytes; 0 also where oneDNN has no kernel. Makes the plan, which a store then keeps for the
 * run. */
size_t ls__onednn_gemm_bf16_workspace(const ls__gemm_bf16 *g)
{
    plan own[2];
    job j = job_of(g, own);
    bool made = begin_job(&j);
    size_t bytes = made ? (size_t)j.slots * slot_bytes(&j) : 0;
    end(&j);
    return bytes;
}
