/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing whole sentences of the library with what a user reads. */
#ifndef TEST_SAYS_H
#define TEST_SAYS_H

#include "test.h"

/* The text holds a whole sentence of the library, given as its format in the source: %d stands for
 * any number, %s for any words; a part of it that no other sentence has will do, too.
 * tests/golden/sources.py counts the sentence as provoked. */
#define CHECK_SAYS(text, format)                                                                   \
    do {                                                                                           \
        const char *text_ = (text), *format_ = (format);                                           \
        if (test_count_said(text_, format_) == 0) {                                                \
            test_fail(__FILE__, __LINE__, "\"%s\" is not said in: %s", format_, text_);            \
        }                                                                                          \
    } while (0)
int test_count_said(const char *text, const char *format); /* lines that hold it */
/* Marks a whole sentence that a helper looks for with one of the two. */
#define SAYS(format) format

#endif
