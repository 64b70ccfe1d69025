/* SPDX-License-Identifier: Apache-2.0 */
/* A cache of the keys and values of each layer for the text that a decoder has read. With it, the
 * next token costs the work of one token instead of that of the whole text.
 *
 *     ls_kv_cache *cache = ls_gpt2_cache_new(model, 1);
 *     ls_gpt2_forward_cached(model, cache, prompt, 1, &logits);     first the whole prompt,
 *     ls_gpt2_forward_cached(model, cache, token, 1, &logits);      then one token after the other
 */
#ifndef LOCKSTEP_MODELS_KV_CACHE_H
#define LOCKSTEP_MODELS_KV_CACHE_H

#include <lockstep/lockstep.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_kv_cache ls_kv_cache;

/* A cache for `batch` texts of at most `context` tokens; `dim` is the size of a key over all heads.
 * It needs 8 bytes times the product of the four arguments (float32). NULL with ls_error_message on
 * failure. */
LS_API ls_kv_cache *ls_kv_cache_new(int layers, int64_t batch, int64_t context, int64_t dim);
LS_API void ls_kv_cache_free(ls_kv_cache *cache); /* NULL is allowed */

LS_API int64_t ls_kv_cache_length(const ls_kv_cache *cache); /* tokens read so far */
/* Discards the tokens from position `length` on; a larger length than was read changes nothing. */
LS_API void ls_kv_cache_cut(ls_kv_cache *cache, int64_t length);

/* ---- for models --------------------------------------------------------------------------- */

/* LS_OK if x is [B,T] with 1 <= last <= T and the model is in evaluation mode and was not cut with
 * sequence parallelism; otherwise an error. */
LS_API ls_status ls_kv_cache_check(const ls_module *model, ls_tensor *x, int64_t last);
/* Begins a forward pass over the next `tokens` tokens of each text. LS_ERR_LIMIT when they do not
 * fit, LS_ERR_INVALID for another batch size. */
LS_API ls_status ls_kv_cache_begin(ls_kv_cache *cache, int64_t batch, int64_t tokens);
/* Called once for each layer, in their order: appends the keys and values of the new tokens,
 * [B,T,dim], and replaces them by views of all keys and values, [B,length+T,dim], in float32. */
LS_API void ls_kv_cache_extend(ls_kv_cache *cache, ls_tensor **keys, ls_tensor **values);
/* Ends the forward pass: the tokens count as read, unless a layer passed wrong tensors. */
LS_API ls_status ls_kv_cache_commit(ls_kv_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
