/* A text that grows in the caller's buffer. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

/* Text that does not fit is cut off, and the result always ends in 0; room must be at least 1. */
void ls__text_add(ls__text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text->at, text->room, format, arguments);
    va_end(arguments);
    size_t used = length < 0 ? 0 : (size_t)length;
    used = used < text->room ? used : text->room - 1;
    text->at += used;
    text->room -= used;
}
