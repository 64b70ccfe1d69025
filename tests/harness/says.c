/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a text holds what a printf format of the library can have made. */
#include "says.h"

#include <string.h>

static bool begins_as(const char *text, const char *format);

/* The letter of a conversion, and behind it. */
static char conversion_at(const char **format)
{
    const char *letter = *format + 1 + strspn(*format + 1, "-+#0123456789.*hlzj");
    *format = *letter != '\0' ? letter + 1 : letter;
    return *letter;
}

/* A conversion to words: of any length within the line. */
static bool words_and(const char *text, const char *rest)
{
    for (;; text++) {
        if (begins_as(text, rest)) {
            return true;
        }
        if (*text == '\0' || *text == '\n') {
            return false;
        }
    }
}

/* Bytes that a conversion to a number or a character can have printed here; 0: none. */
static size_t printed(const char *text, char letter)
{
    switch (letter) {
    case '%':
        return *text == '%' ? 1 : 0;
    case 'c':
        return *text != '\0' ? 1 : 0;
    case 'f':
    case 'e':
    case 'g':
        return strspn(text, "0123456789.-+einfa");
    case 'x':
    case 'p':
        return strspn(text, "0123456789abcdefx");
    default:
        return strspn(text, "0123456789-");
    }
}

static bool begins_as(const char *text, const char *format)
{
    while (*format != '\0') {
        if (*format != '%') {
            if (*text++ != *format++) {
                return false;
            }
            continue;
        }
        const char letter = conversion_at(&format);
        if (letter == 's') {
            return words_and(text, format);
        }
        const size_t bytes = printed(text, letter);
        if (bytes == 0) {
            return false;
        }
        text += bytes;
    }
    return true;
}

int test_count_said(const char *text, const char *format)
{
    int count = 0;
    for (; *text != '\0'; text += *text != '\0') {
        if (begins_as(text, format)) {
            count++;
            text += strcspn(text, "\n");
        }
    }
    return count;
}
