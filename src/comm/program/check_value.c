/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions over contributions, interned: one node for each different expression. "((r0 + r1) +
 * r2) rounded" is a ROUND of a SUM of a SUM and a LEAF. Two chunks that hold the same node have the
 * same bits, whatever the data. Sums are not commutative here, because the canonical order of
 * summation fixes the sides, too. */
#include <string.h>

#include "comm/program/check.h"

#define TIMES_MAX 1000 /* counting stops here: a broken program may double at every step */

/* Value 0 is "undefined", so numbering starts at 1. */
void ls__values_init(ls__values *values, const ls__env *env)
{
    memset(values, 0, sizeof *values);
    values->env = env;
    values->count = 1;
}

/* The arrays do not exist before the first value. */
static void release(const ls__env *env, void *memory, size_t bytes)
{
    if (memory != NULL) {
        env->release(env, memory, bytes);
    }
}

/* Values become invalid. */
void ls__values_fini(ls__values *values)
{
    release(values->env, values->node, (size_t)values->room * sizeof *values->node);
    release(values->env, values->scratch, (size_t)values->room * sizeof *values->scratch);
    release(values->env, values->bucket, (size_t)values->buckets * sizeof *values->bucket);
}

/* Mixes all three fields; buckets are a power of two, so the low bits must be good. */
static uint32_t hash(int32_t kind, int32_t a, int32_t b)
{
    uint32_t h = (uint32_t)kind * 0x9e3779b1u;
    h = (h ^ (uint32_t)a) * 0x85ebca6bu;
    h = (h ^ (h >> 15) ^ (uint32_t)b) * 0xc2b2ae35u;
    return h ^ (h >> 16);
}

/* Puts the node into its hash bucket. */
static void link(ls__values *values, ls__value v)
{
    ls__check_node *node = &values->node[v];
    ls__value *head =
        &values->bucket[hash(node->kind, node->a, node->b) & (uint32_t)(values->buckets - 1)];
    node->next = *head;
    *head = v;
}

/* Doubles the room for nodes, with as many hash buckets. */
static bool grow(ls__values *values)
{
    const ls__env *env = values->env;
    const int32_t room = values->room ? values->room * 2 : 1024;
    ls__values bigger = *values;
    bigger.node = env->allocate(env, (size_t)room * sizeof *bigger.node);
    bigger.scratch = env->allocate(env, (size_t)room * sizeof *bigger.scratch);
    bigger.bucket = env->allocate(env, (size_t)room * sizeof *bigger.bucket);
    bigger.room = room;
    bigger.buckets = room;
    if (bigger.node == NULL || bigger.scratch == NULL || bigger.bucket == NULL) {
        ls__values_fini(&bigger);
        return false;
    }
    if (values->count > 1) {
        memcpy(bigger.node, values->node, (size_t)values->count * sizeof *bigger.node);
    }
    memset(bigger.bucket, 0, (size_t)room * sizeof *bigger.bucket);
    for (ls__value v = 1; v < bigger.count; v++) {
        link(&bigger, v);
    }
    ls__values_fini(values);
    *values = bigger;
    return true;
}

/* Returns the number of the expression, a new one if it is not known yet; 0: no memory. */
static ls__value intern(ls__values *values, int32_t kind, int32_t a, int32_t b)
{
    if (values->failed || (values->count >= values->room && !grow(values))) {
        values->failed = true;
        return 0;
    }
    ls__value v = values->bucket[hash(kind, a, b) & (uint32_t)(values->buckets - 1)];
    for (; v != 0; v = values->node[v].next) {
        const ls__check_node *node = &values->node[v];
        if (node->kind == kind && node->a == a && node->b == b) {
            return v;
        }
    }
    values->node[values->count] = (ls__check_node){kind, a, b, 0};
    link(values, values->count);
    return values->count++;
}

/* The contribution of a rank to a place. */
ls__value ls__value_leaf(ls__values *values, int rank, int place)
{
    return intern(values, LS__NODE_LEAF, rank, place);
}

/* An undefined operand makes the sum undefined. */
static ls__value sum(ls__values *values, ls__value a, ls__value b)
{
    return a == 0 || b == 0 ? 0 : intern(values, LS__NODE_SUM, a, b);
}

/* Adjacent pairs first, then pairs of pairs: an unpaired rest joins at the end. */
ls__value ls__value_tree(ls__values *values, const ls__value *operands, int count)
{
    ls__value part[LS__PROGRAM_RANKS_MAX];
    memcpy(part, operands, (size_t)count * sizeof *part);
    for (int step = 1; step < count; step *= 2) {
        for (int i = 0; i + step < count; i += 2 * step) {
            part[i] = sum(values, part[i], part[i + step]);
        }
    }
    return part[0];
}

/* Rounding a leaf or a rounded sum again changes nothing. */
ls__value ls__value_round(ls__values *values, ls__value value)
{
    if (value == 0 || values->node[value].kind != LS__NODE_SUM) {
        return value;
    }
    return intern(values, LS__NODE_ROUND, value, 0);
}

/* A leaf is not: it has the element type from the start. */
bool ls__value_is_rounded(const ls__values *values, ls__value value)
{
    return value != 0 && values->node[value].kind == LS__NODE_ROUND;
}

/* The leftmost leaf decides; a sum over chunks of different places is found by ls__value_count. */
int ls__value_place(const ls__values *values, ls__value value)
{
    while (value != 0 && values->node[value].kind != LS__NODE_LEAF) {
        value = values->node[value].a;
    }
    return value == 0 ? -1 : values->node[value].b;
}

/* Operands have smaller numbers, so one pass upwards visits them first. New nodes made on the way
 * lie above `value` and need no visit. */
ls__value ls__value_unrounded(ls__values *values, ls__value value)
{
    for (ls__value v = 1; v <= value; v++) {
        const ls__check_node node = values->node[v];
        ls__value plain = v;
        if (node.kind == LS__NODE_ROUND) {
            plain = values->scratch[node.a];
        } else if (node.kind == LS__NODE_SUM) {
            const int32_t *s = values->scratch;
            const ls__value a = s[node.a], b = s[node.b];
            if (a != node.a || b != node.b) {
                const int32_t room = values->room;
                plain = sum(values, a, b);
                if (values->room != room) { /* the scratch moved: begin again */
                    v = 0;
                    continue;
                }
            }
        }
        values->scratch[v] = plain;
    }
    return value == 0 ? 0 : values->scratch[value];
}

/* Adds to the number of uses, up to TIMES_MAX. */
static void spread(int32_t *times, ls__value to, int32_t more)
{
    times[to] = times[to] + more > TIMES_MAX ? TIMES_MAX : times[to] + more;
}

/* One pass downwards: every node is visited after all nodes that use it. */
int ls__value_count(ls__values *values, ls__value value, int place, int size, int *times)
{
    int others = 0;
    memset(times, 0, (size_t)size * sizeof *times);
    if (value == 0) {
        return 0;
    }
    int32_t *uses = values->scratch;
    memset(uses, 0, ((size_t)value + 1) * sizeof *uses);
    uses[value] = 1;
    for (ls__value v = value; v > 0; v--) {
        const ls__check_node *node = &values->node[v];
        if (uses[v] == 0) {
            continue;
        }
        if (node->kind == LS__NODE_LEAF && node->b == place) {
            times[node->a] = uses[v];
        } else if (node->kind == LS__NODE_LEAF) {
            others++;
        } else {
            spread(uses, node->a, uses[v]);
            if (node->kind == LS__NODE_SUM) {
                spread(uses, node->b, uses[v]);
            }
        }
    }
    return others;
}
