/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the answers of `lockstep paper questions`. */
#ifndef PAPER_QUESTIONS_H
#define PAPER_QUESTIONS_H

#include "paper.h"

typedef enum question { BACKEND, BUCKET, RESOURCES } question;

typedef struct answers {
    paper *p;
    json_t *table;
    question question;
    const char *file; /* "fig6" */
} answers;

/* Adds a row: `of` names what was measured. */
void question_answer(const answers *a, const char *of, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether there are no rows; then a row says how to make some. */
bool question_is_absent(const answers *a, const json_t *rows);
/* Whether both are of one network and medium. */
bool question_is_same(const json_t *a, const json_t *b);

/* Rows of one question; false after it printed which file is damaged. */
bool question_buckets(paper *p, json_t *table); /* question_buckets.c */
bool question_ranks(paper *p, json_t *table);   /* question_ranks.c */

#endif
