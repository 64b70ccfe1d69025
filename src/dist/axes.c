/* SPDX-License-Identifier: Apache-2.0 */
/* Reading axes, and the arithmetic of ranks in a grid. */
#include "dist/axes.h"

#include "base/runtime.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define ANY_SIZE 0 /* "*", until it is known */

static ls_status refuse(const char *text, const char *at, const char *wanted)
{
    return ls__fail(LS_ERR_INVALID,
                    "mesh \"%.200s\": %s is expected at \"%.40s\"; give axes as name=size, for "
                    "example dp=2,pp=4",
                    text, wanted, at);
}

/* *at moves behind the name. */
static ls_status read_name(const char *text, const char **at, ls__axis *axis)
{
    size_t length = 0;
    while (isalnum((unsigned char)(*at)[length]) || (*at)[length] == '_') {
        length++;
    }
    if (length == 0 || length >= sizeof axis->name) {
        return refuse(text, *at, "a name of 1 to 15 letters, digits and underscores");
    }
    memcpy(axis->name, *at, length);
    axis->name[length] = '\0';
    *at += length;
    return LS_OK;
}

static ls_status read_size(const char *text, const char **at, ls__axis *axis)
{
    char *end = NULL;
    if (**at != '=') {
        return refuse(text, *at, "= and a size");
    }
    ++*at;
    if (**at == '*') {
        axis->size = ANY_SIZE;
        ++*at;
        return LS_OK;
    }
    const long size = isdigit((unsigned char)**at) ? strtol(*at, &end, 10) : 0;
    if (size < 1 || size > INT_MAX) {
        return refuse(text, *at, "a size of 1 or more, or * for the ranks that remain,");
    }
    axis->size = (int)size;
    *at = end;
    return LS_OK;
}

static ls_status read_axes(const char *text, ls__axes *out)
{
    const char *at = text;
    for (bool more = true; more;) {
        if (out->count == LS_MESH_AXES_MAX) {
            return ls__fail(LS_ERR_INVALID, "mesh \"%.200s\": it has more than %d axes", text,
                            LS_MESH_AXES_MAX);
        }
        ls__axis *axis = &out->axis[out->count];
        LS_TRY(read_name(text, &at, axis));
        LS_TRY(read_size(text, &at, axis));
        if (ls__axes_find(out, axis->name, strlen(axis->name)) >= 0) {
            return ls__fail(LS_ERR_INVALID,
                            "mesh \"%.200s\": two axes are named \"%s\"; give each a name of its "
                            "own",
                            text, axis->name);
        }
        out->count++;
        more = *at == ',';
        if (!more && *at != '\0') {
            return refuse(text, at, "a comma or the end");
        }
        at += more;
    }
    return LS_OK;
}

/* The product of the known sizes, INT_MAX if it is larger; and the axis whose size is *, or -1. */
static int multiply(const ls__axes *axes, int *open, int *opens)
{
    int64_t product = 1;
    *open = -1;
    *opens = 0;
    for (int a = 0; a < axes->count; a++) {
        if (axes->axis[a].size == ANY_SIZE) {
            *open = a;
            ++*opens;
        } else if (product < INT_MAX) {
            product *= axes->axis[a].size;
        }
    }
    return product < INT_MAX ? (int)product : INT_MAX;
}

static ls_status fill_size(const char *text, int ranks, ls__axes *axes)
{
    int open, opens;
    const int product = multiply(axes, &open, &opens);
    if (opens > (ranks > 0)) {
        return ls__fail(LS_ERR_INVALID,
                        "mesh \"%.200s\": %d of its sizes %s *; give the size of every axis%s",
                        text, opens, opens > 1 ? "are" : "is", ranks > 0 ? " but one" : "");
    }
    if (ranks == 0 && product == INT_MAX) {
        return ls__fail(LS_ERR_LIMIT, "mesh \"%.200s\": its sizes make more than %d ranks", text,
                        INT_MAX - 1);
    }
    if (ranks > 0 && (opens > 0 ? ranks % product != 0 : ranks != product)) {
        return ls__fail(LS_ERR_INVALID,
                        "mesh \"%.200s\": its sizes make %s%d rank%s, and the group has %d; give "
                        "sizes whose product is %d",
                        text, opens > 0 ? "a multiple of " : "", product, product == 1 ? "" : "s",
                        ranks, ranks);
    }
    if (opens > 0) {
        axes->axis[open].size = ranks / product;
    }
    axes->ranks = ranks > 0 ? ranks : product;
    return LS_OK;
}

ls_status ls__axes_check_length(const char *text)
{
    return strlen(text) < LS__AXES_TEXT_MAX
               ? LS_OK
               : ls__fail(LS_ERR_INVALID,
                          "mesh \"%.40s…\": its axes take %zu bytes; at most %d are allowed", text,
                          strlen(text), LS__AXES_TEXT_MAX - 1);
}

ls_status ls__axes_parse(const char *text, int ranks, ls__axes *out)
{
    *out = (ls__axes){0};
    LS_TRY(ls__axes_check_length(text));
    LS_TRY(read_axes(text, out));
    LS_TRY(fill_size(text, ranks, out));
    int stride = 1;
    for (int a = out->count - 1; a >= 0; a--) {
        out->axis[a].stride = stride;
        stride *= out->axis[a].size;
    }
    return LS_OK;
}

int ls__axes_find(const ls__axes *axes, const char *name, size_t length)
{
    for (int a = 0; a < axes->count; a++) {
        if (strlen(axes->axis[a].name) == length && memcmp(axes->axis[a].name, name, length) == 0) {
            return a;
        }
    }
    return -1;
}

int ls__axes_coordinate(const ls__axes *axes, int axis, int rank)
{
    return rank / axes->axis[axis].stride % axes->axis[axis].size;
}

int ls__axes_ranks(const ls__axes *axes, uint32_t mask, int rank, int *ranks)
{
    int count = 0;
    for (int r = 0; r < axes->ranks; r++) {
        bool same = true;
        for (int a = 0; a < axes->count; a++) {
            same = same && ((mask & UINT32_C(1) << a) != 0 ||
                            ls__axes_coordinate(axes, a, r) == ls__axes_coordinate(axes, a, rank));
        }
        if (same) {
            ranks[count++] = r;
        }
    }
    return count;
}
