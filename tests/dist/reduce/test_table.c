/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of which only the reached rows are sent between hosts, beside reducers and wrappers that
 * send whole tables: the averages have the same bits. */
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "number.h"
#include "says.h"
#include "test.h"

enum { PARAMS = 3, TABLE = 1, ROWS = 700, COLUMNS = 40, ROUNDS = 6 };
static const int64_t COUNTS[PARAMS] = {1001, ROWS *COLUMNS, 300};

static uint64_t hash(uint64_t at)
{
    at = (at ^ at >> 33) * 0xff51afd7ed558ccdu;
    return (at ^ at >> 33) * 0xc4ceb9fe1a85ec53u >> 11;
}

/* Rows are packed where some ranks share no memory. */
static bool between_hosts(void)
{
    const char *hosts = getenv("LOCKSTEP_HOSTS");
    return ls_world_size() > 1 && hosts != NULL && atoi(hosts) > 1;
}

static ls_reducer *make(ls_reducer_param params[PARAMS], int64_t rows, ls_reduce_mode mode)
{
    static const char *const NAMES[PARAMS] = {"a", "table", "b"};
    ls_reducer *r = NULL;
    for (int p = 0; p < PARAMS; p++) {
        params[p] =
            (ls_reducer_param){.name = NAMES[p], .count = COUNTS[p], .rows = p == TABLE ? rows : 0};
    }
    CHECK_OK(ls_reducer_new(ls_world(), params, PARAMS,
                            LS_OPTIONS(ls_reducer_options, .bucket_bytes = 1 << 20, .mode = mode),
                            &r));
    return r;
}

/* What a rank reaches in a round: 20 rows, some of them twice; none; every row; or nothing is
 * said. */
enum kind { FEW, NONE, EVERY, UNSAID, UNUSED, KINDS };

static enum kind kind_of(int rank, int round)
{
    if (round < 2) {
        return round == 1 && rank == 0 ? UNUSED : FEW;
    }
    return round == ROUNDS - 1 ? UNSAID : hash((uint64_t)(31 * rank + round)) % KINDS;
}

static int reached_by(int rank, int round, int64_t index[ROWS])
{
    const enum kind kind = kind_of(rank, round);
    int count = kind == EVERY ? ROWS : kind == FEW || kind == UNSAID ? 20 : 0;
    for (int i = 0; i < count; i++) {
        index[i] =
            kind == EVERY ? i : (int64_t)(hash((uint64_t)(rank * 999 + round * 77 + i)) % ROWS);
    }
    return count;
}

/* Adds a micro-batch's gradients: the table's only where it is reached. */
static void add(const ls_reducer_param params[PARAMS], int round, int part)
{
    int64_t index[ROWS];
    const int count = reached_by(ls_rank(), round, index);
    for (int p = 0; p < PARAMS; p++) {
        float *grad = params[p].grad;
        for (int64_t k = 0; p != TABLE && k < COUNTS[p]; k++) {
            grad[k] += test_number(7, (uint64_t)(100 * ls_rank() + 10 * round + part), (uint64_t)k);
        }
    }
    for (int64_t k = 0; k < count * (int64_t)COLUMNS; k++) {
        ((float *)params[TABLE].grad)[index[k / COLUMNS] * COLUMNS + k % COLUMNS] +=
            test_number(8, (uint64_t)(100 * ls_rank() + 10 * round + part), (uint64_t)k);
    }
}

static void ready(ls_reducer *r, bool unused)
{
    for (int p = PARAMS - 1; p >= 0; p--) {
        if (!unused || p != TABLE) {
            CHECK_OK(ls_reducer_ready(r, p, NULL));
        }
    }
    CHECK_OK(ls_reducer_wait(r));
}

/* One step of `parts` micro-batches; `zero`: else the new average is added to the last one. */
static void step(ls_reducer *r, const ls_reducer_param params[PARAMS], int round, int parts,
                 bool zero)
{
    const uint8_t used[PARAMS] = {1, kind_of(ls_rank(), round) != UNUSED, 1};
    int64_t index[ROWS];
    const int count = reached_by(ls_rank(), round, index);
    if (zero) {
        CHECK_OK(ls_reducer_zero(r));
    }
    for (int part = 0; part < parts; part++) {
        if (params[TABLE].rows > 0 && used[TABLE] && kind_of(ls_rank(), round) != UNSAID) {
            CHECK_OK(ls_reducer_reach(r, TABLE, index, count / 2));
            CHECK_OK(ls_reducer_reach(r, TABLE, index + count / 2, count - count / 2));
        }
        CHECK_OK(ls_reducer_begin(
            r, LS_OPTIONS(ls_reducer_begin_options, .used = used, .local = part < parts - 1)));
        add(params, round, part);
        ready(r, !used[TABLE]);
    }
}

static uint64_t bytes_sent(const ls_reducer *r)
{
    ls_reducer_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_reducer_get_stats(r, &stats));
    return stats.gradient_bytes;
}

/* Rows that any rank reaches; ROWS where one does not say which. */
static int64_t union_of(int round)
{
    bool taken[ROWS] = {false};
    int64_t count = 0;
    for (int rank = 0; rank < ls_world_size(); rank++) {
        int64_t index[ROWS];
        const int reached = reached_by(rank, round, index);
        for (int i = 0; i < reached; i++) {
            taken[index[i]] = true;
        }
        if (kind_of(rank, round) == UNSAID) {
            return ROWS;
        }
    }
    for (int i = 0; i < ROWS; i++) {
        count += taken[i];
    }
    return count;
}

/* Of a bucket with such gradients: parameters start on 64-byte borders, and each rank reduces a
 * part of as many lines of 64 bytes. */
static uint64_t bucket_of(uint64_t lines)
{
    const uint64_t ranks = (uint64_t)ls_world_size();
    return 64 * ((lines + ranks - 1) / ranks * ranks);
}

static uint64_t lines_of(int p)
{
    return ((uint64_t)COUNTS[p] * sizeof(float) + 63) / 64;
}

/* A table has a bucket of its own between hosts. */
static void check_sent(const ls_reducer *rows, const ls_reducer *all, int round)
{
    const uint64_t taken = (uint64_t)union_of(round), row = COLUMNS * sizeof(float);
    const uint64_t whole = bucket_of(lines_of(0) + lines_of(TABLE) + lines_of(2));
    const uint64_t table = taken <= ROWS * 3 / 4 ? taken * row : bucket_of(lines_of(TABLE));
    CHECK_INT(bytes_sent(all), whole);
    CHECK_INT(bytes_sent(rows),
              between_hosts() ? bucket_of(lines_of(0)) + table + bucket_of(lines_of(2)) : whole);
}

DIST_TESTS(rows_of_tables_give_the_bits_of_whole_ones_on_, _ranks, 1, 2, 3, 4, 5, 6, 7, 8)
{
    for (int mode = LS_REDUCE_OVERLAP; mode <= LS_REDUCE_BUCKETED; mode++) {
        ls_reducer_param rows[PARAMS], all[PARAMS];
        ls_reducer *by_rows = make(rows, ROWS, (ls_reduce_mode)mode);
        ls_reducer *whole = make(all, 0, LS_REDUCE_OVERLAP);
        for (int round = 0; round < 4 * ROUNDS; round++) {
            const int parts = round / ROUNDS % 2 == 0 ? 1 : 3;
            step(by_rows, rows, round % ROUNDS, parts, round < 2 * ROUNDS);
            step(whole, all, round % ROUNDS, parts, round < 2 * ROUNDS);
            for (int p = 0; p < PARAMS; p++) {
                CHECK(memcmp(rows[p].grad, all[p].grad, (size_t)COUNTS[p] * sizeof(float)) == 0);
            }
            if (parts == 1 && round < 2 * ROUNDS) {
                check_sent(by_rows, whole, round % ROUNDS);
            }
        }
        CHECK_OK(ls_reducer_free(by_rows));
        CHECK_OK(ls_reducer_free(whole));
    }
}

/* What a local backward has added is averaged, though the next one does not reach its row: here the
 * last byte of the row alone, which is all that 2.0f has. */
DIST_TEST(a_row_that_is_zero_but_for_its_last_byte_is_sent, 2)
{
    const int64_t other = 9;
    ls_reducer_param rows[PARAMS];
    ls_reducer *r = make(rows, ROWS, LS_REDUCE_OVERLAP);
    CHECK_OK(ls_reducer_zero(r));
    float *last = (float *)rows[TABLE].grad + 5 * COLUMNS + COLUMNS - 1;
    CHECK_OK(ls_reducer_begin(r, LS_OPTIONS(ls_reducer_begin_options, .local = true)));
    *last = ls_rank() == 0 ? 2.0f : 0.0f;
    ready(r, false);
    CHECK_OK(ls_reducer_reach(r, TABLE, &other, 1));
    CHECK_OK(ls_reducer_begin(r, NULL));
    ready(r, false);
    CHECK_NEAR(*last, 1.0, 0.0);
    CHECK_OK(ls_reducer_free(r));
}

DIST_TEST(rows_that_a_table_does_not_have_are_refused, 2)
{
    ls_reducer_param params[PARAMS];
    ls_reducer *r = make(params, ROWS, LS_REDUCE_OVERLAP), *none = NULL;
    const int64_t index[2] = {0, ROWS};
    CHECK_STATUS(ls_reducer_reach(r, TABLE, index, 2), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_reducer_reach: number %lld is row %lld of parameter %s; give "
               "rows in [0,%lld)");
    CHECK_STATUS(ls_reducer_reach(r, 0, index, 1), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_reducer_reach: parameter %d with %lld rows; give a parameter "
               "that was registered with rows, and where their numbers lie");
    CHECK_STATUS(ls_reducer_reach(r, TABLE, NULL, 1), LS_ERR_INVALID);
    CHECK_OK(ls_reducer_free(r));
    params[0] = (ls_reducer_param){.name = "a", .count = 100, .rows = 7};
    CHECK_STATUS(ls_reducer_new(ls_world(), params, 1, NULL, &none), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "reducer \"%s\": parameter %s has %lld elements in %lld rows; give "
               "a number of rows that divides them, or 0");
}

DIST_TEST(ranks_that_differ_in_the_rows_of_a_table_are_a_mismatch, 2)
{
    ls_reducer_param param = {.name = "a", .count = 32000, .rows = 100 * (1 + ls_rank())};
    ls_reducer *r = NULL;
    CHECK_STATUS(ls_reducer_new(ls_world(), &param, 1, NULL, &r), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "rank 0 has a float32[32000], 100 rows");
    CHECK_CONTAINS(ls_error_message(), "rank 1 has a float32[32000], 200 rows");
}

/* ---- under data parallelism ----------------------------------------------------------------- */

enum { VOCAB = 900, WIDTH = 32, TOKENS = 24 };

/* What reaches the table besides a lookup, or whatever its rows do not show. */
typedef enum way { LOOKUP, TWICE, TIED, PART, HOOK, BY_HAND } way;

static ls_module *wrapped(ls_reduce_mode mode)
{
    ls_module *layers[] = {ls_embedding_new(VOCAB, WIDTH), ls_linear_new(WIDTH, 3, NULL)};
    ls_module *net = ls_sequential_new(layers, 2);
    net = ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .mode = mode));
    CHECK(net != NULL);
    return net;
}

static ls_param table_of(ls_module *net)
{
    ls_param params[3];
    CHECK_INT(ls_module_params(net, params, 3), 3);
    CHECK_INT(ls_shape_of(params[0].value).dim[0], VOCAB);
    return params[0];
}

static ls_tensor *tokens(int round)
{
    int32_t index[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        index[i] = (int32_t)(hash((uint64_t)(ls_rank() * 1000 + round * 50 + i)) % VOCAB);
    }
    return ls_from_data(index, LS_SHAPE(2, TOKENS / 2), LS_INT32);
}

static ls_status add_to_row(void *arg, ls_tensor *t, ls_tensor *grad)
{
    (void)arg, (void)t;
    ((float *)ls_data(grad))[(VOCAB - 1) * WIDTH] += (float)(1 + ls_rank());
    return LS_OK;
}

static ls_tensor *loss_of(way w, ls_module *net, int round)
{
    ls_tensor *y = ls_forward(net, tokens(round)), *table = table_of(net).value;
    ls_tensor *loss = ls_mean(ls_mul(y, y));
    if (w == TWICE) {
        ls_tensor *again = ls_forward(net, tokens(round + 100));
        loss = ls_add(loss, ls_mean(ls_mul(again, y)));
    } else if (w == TIED) {
        loss = ls_add(loss, ls_mean(ls_mul(table, table)));
    } else if (w == PART) {
        const int32_t index[2] = {1, 4};
        ls_tensor *rows =
            ls_embedding(ls_slice(table, 0, 500, 509), ls_from_data(index, LS_SHAPE(2), LS_INT32));
        loss = ls_add(loss, ls_mean(ls_mul(rows, rows)));
    }
    return loss;
}

static void train(way w, ls_module *net, uint64_t *sent)
{
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    ls_hook *hook = w == HOOK ? ls_grad_hook_new(table_of(net).value, add_to_row, NULL) : NULL;
    for (int round = 0; round < 6; round++) {
        const bool two = round % 2 == 1;
        for (int part = 0; part <= two; part++) {
            LS_SCOPE;
            CHECK_OK(ls_ddp_set_sync(net, part == two));
            CHECK_OK(ls_backward(loss_of(w, net, 2 * round + part)));
            if (w == BY_HAND && part < two) {
                CHECK_OK(add_to_row(NULL, NULL, ls_grad(table_of(net).value)));
            }
        }
        ls_ddp_stats stats = {.size = sizeof stats};
        CHECK_OK(ls_ddp_get_stats(net, &stats));
        *sent += stats.reduce.gradient_bytes;
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    if (hook != NULL) {
        ls_hook_free(hook);
    }
    ls_optim_free(optim);
}

DIST_TESTS(embeddings_are_averaged_by_rows_with_the_same_bits_on_, _ranks, 1, 2, 3, 5, 8)
{
    for (way w = LOOKUP; w <= BY_HAND; w++) {
        uint64_t sent[2] = {0, 0}, hashes[2];
        for (int flat = 0; flat < 2; flat++) {
            CHECK_OK(ls_manual_seed(3));
            ls_module *net = wrapped(flat ? LS_REDUCE_FLAT : LS_REDUCE_OVERLAP);
            train(w, net, &sent[flat]);
            hashes[flat] = ls_module_hash(net);
            ls_module_free(net);
        }
        CHECK(hashes[0] == hashes[1]);
        const bool by_rows = between_hosts() && (w == LOOKUP || w == TWICE || w == BY_HAND);
        CHECK((sent[0] < sent[1] / 2) == by_rows);
    }
}

TEST_MAIN
