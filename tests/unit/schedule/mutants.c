/* SPDX-License-Identifier: Apache-2.0 */
/* The verifier beside an independent execution (execute.h): damaged tables that deadlock or give
 * other weights than the sequential twin are refused, and damaged tables that still give the same
 * ones are accepted. */
#include <stdio.h>

#include "execute.h"
#include "tables.h"

#define MUTANTS_OF_EACH 2000

static uint64_t state;

static int draw(int below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)below);
}

static ls__actions *any_list(ls__schedule *s)
{
    ls__actions *list = &s->rank[draw(s->ranks)];
    return list->count > 1 ? list : &s->rank[0];
}

static void swap_two(ls__schedule *s)
{
    ls__actions *list = any_list(s), *other = draw(8) == 0 ? any_list(s) : list;
    const int i = draw(list->count);
    const int j = other != list || draw(2) == 0 ? draw(other->count) : (i + 1) % list->count;
    const ls__action a = list->list[i];
    list->list[i] = other->list[j];
    other->list[j] = a;
}

static void delete_one(ls__schedule *s)
{
    ls__actions *list = any_list(s);
    const int i = draw(list->count);
    memmove(&list->list[i], &list->list[i + 1], (size_t)(list->count - i - 1) * sizeof *list->list);
    list->count--;
}

/* A copy of one goes to another place of the list. */
static void insert_at(ls__schedule *s, int rank, int at, ls__action a)
{
    ls__actions *list = &s->rank[rank];
    ls__schedule_push(s, rank, a);
    CHECK(!s->no_memory);
    memmove(&list->list[at + 1], &list->list[at],
            (size_t)(list->count - 1 - at) * sizeof *list->list);
    list->list[at] = a;
}

static void duplicate_one(ls__schedule *s)
{
    const int rank = (int)(any_list(s) - s->rank), count = s->rank[rank].count;
    const int i = draw(count);
    insert_at(s, rank, draw(2) == 0 ? i + 1 : draw(count + 1), s->rank[rank].list[i]);
}

static void move_one(ls__schedule *s)
{
    const int rank = (int)(any_list(s) - s->rank);
    ls__actions *list = &s->rank[rank];
    const int i = draw(list->count);
    const ls__action a = list->list[i];
    memmove(&list->list[i], &list->list[i + 1], (size_t)(list->count - i - 1) * sizeof *list->list);
    list->count--;
    insert_at(s, rank, draw(list->count + 1), a);
}

static uint16_t changed(uint16_t field, int below)
{
    return draw(3) == 0 ? (uint16_t)draw(below + 1) : (uint16_t)(field + (draw(2) ? 1 : -1));
}

static void change_field(ls__schedule *s)
{
    ls__actions *list = any_list(s);
    ls__action *a = &list->list[draw(list->count)];
    switch (draw(5)) {
    case 0:
        a->kind = (uint8_t)draw(LS__ACTION_KINDS);
        break;
    case 1:
        a->stage = changed(a->stage, s->stages);
        break;
    case 2:
        a->micro_batch = changed(a->micro_batch, s->micro_batches);
        break;
    case 3:
        a->peer = changed(a->peer, s->ranks);
        break;
    default:
        a->version = changed(a->version, s->micro_batches);
    }
}

static void (*const mutations[])(ls__schedule *) = {swap_two, delete_one, duplicate_one, move_one,
                                                    change_field};

typedef struct tally {
    int bad, refused, good, accepted;
} tally;

static void try_mutant(const ls__schedule *s, tally *t)
{
    const char *why = NULL;
    ls__schedule *mutant = table_copy(s);
    for (int times = 1 + draw(2); times > 0; times--) {
        mutations[draw(5)](mutant);
    }
    const bool good = executes_as_twin(mutant, &why);
    const bool accepted = ls__schedule_verify(mutant) == LS_OK;
    if (good != accepted) {
        printf("# %s: %s\n%s", good ? "good, but refused" : why, accepted ? "" : ls_error_message(),
               ls__schedule_print(mutant));
    }
    t->good += good;
    t->accepted += good && accepted;
    t->bad += !good;
    t->refused += !good && !accepted;
    ls__schedule_free(mutant);
}

TEST(bad_tables_are_refused_and_good_ones_accepted)
{
    tally all = {0};
    state = test_seed();
    for (int i = 0; i < table_kind_count; i++) {
        tally t = {0};
        ls__schedule *s = table_of(table_kinds[i].name, &table_kinds[i].spec);
        for (int k = 0; k < MUTANTS_OF_EACH / TEST_SLOWER; k++) {
            try_mutant(s, &t);
        }
        ls__schedule_free(s);
        printf("# %s: %d of %d bad mutants refused, %d of %d good ones accepted\n",
               table_kinds[i].name, t.refused, t.bad, t.accepted, t.good);
        CHECK(t.bad > MUTANTS_OF_EACH / 4 / TEST_SLOWER);
        CHECK_INT(t.accepted, t.good);
        CHECK(t.refused >= t.bad - t.bad / 100);
        all.good += t.good;
    }
    CHECK(all.good > 100); /* such as two actions that do not depend on each other, swapped */
}

TEST_MAIN
