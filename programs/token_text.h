/* SPDX-License-Identifier: Apache-2.0 */
/* Text files as tokens of any tokenizer, in memory. For large texts use shards, which `lockstep
 * data tokens` makes once. */
#ifndef PROGRAMS_TOKEN_TEXT_H
#define PROGRAMS_TOKEN_TEXT_H

#include <lockstep/lockstep.h>
#include <lockstep/tokenizer.h>

/* Encodes the files of `text` (ls_text_dataset_new), of which a sample is a window of context + 1
 * tokens that never crosses a file, `stride` apart: x int32 [context], y the same shifted by one.
 * Borrows both for the call. LS_ERR_INVALID when every file is shorter than a window. */
ls_status token_text_new(const ls_dataset *text, const ls_tokenizer *tokenizer, int64_t context,
                         int64_t stride, ls_dataset **out);

/* Windows of a part of the text at `path`, a file or a folder. Windows for training may start at
 * any token; those of LS_TEXT_HELD_OUT do not overlap. `tokenizer` NULL: every byte is a token.
 * LS_ERR_FORMAT: a file of the training part is a shard of tokens; a page of HTML is reported. */
ls_status text_windows_new(const char *path, const ls_tokenizer *tokenizer, int64_t context,
                           ls_text_part part, ls_dataset **out);

/* Ends the program if the file at `path` begins as a text: --format tokens would take two
 * characters for a token. A folder is left to its reader, which takes its *.bin only. */
void must_be_tokens(const char *path);

#endif
