/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the files of a vocabulary: what pair.c and json.c share. */
#ifndef LS_TOKENIZER_READ_H
#define LS_TOKENIZER_READ_H

#include <jansson.h>

#include "tokenizer/tokenizer.h"

#define LS__PATH_QUOTED 400 /* bytes of a path in `where` */
#define LS__WHERE_MAX 500

/* A whole file, a 0 behind it; free(*text). */
ls_status ls__read_text(const ls__env *env, const char *path, char **text, size_t *bytes);
/* The same as JSON; json_decref(*root). A mistake is named with line and offset. */
ls_status ls__read_json(const ls__env *env, const char *path, json_t **root);
/* An object of tokens and their ids. */
ls_status ls__read_vocab(ls_tokenizer *t, const char *path, const json_t *vocab);

#endif
