/* The error of two ranks that start with different settings: on one host heap.c finds them, between
 * hosts tcp_join.c. */
#ifndef LS_COMM_JOIN_SETTINGS_H
#define LS_COMM_JOIN_SETTINGS_H

#include "base/error.h"

/* A rank and its settings, as ls__comm_config writes them. */
typedef struct ls__settings_side {
    int rank;
    const char *settings;
} ls__settings_side;

/* LS_ERR_MISMATCH with a message that names both ranks and the first setting in which they differ,
 * the same on both ranks. The settings must differ. */
ls_status ls__settings_differ(ls__settings_side a, ls__settings_side b);

#endif
