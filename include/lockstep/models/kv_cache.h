/* What a decoder keeps of the text it has read: each layer's keys and values. With them the next
 * token costs one token's work instead of the whole text's.
 *
 *     ls_kv_cache *cache = ls_gpt2_cache_new(model, 1);
 *     ls_gpt2_forward_cached(model, cache, prompt, 1, &logits);     the first time all of the prompt,
 *     ls_gpt2_forward_cached(model, cache, token, 1, &logits);      then a token at a time
 */
#ifndef LOCKSTEP_MODELS_KV_CACHE_H
#define LOCKSTEP_MODELS_KV_CACHE_H

#include <lockstep/lockstep.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_kv_cache ls_kv_cache;

/* For `batch` texts of `context` tokens at most; dim: of all heads of a key. float32, 8 bytes times
 * the product of the four. NULL with ls_error_message on failure. */
LS_API ls_kv_cache *ls_kv_cache_new(int layers, int64_t batch, int64_t context, int64_t dim);
LS_API void ls_kv_cache_free(ls_kv_cache *cache); /* NULL is allowed */

LS_API int64_t ls_kv_cache_length(const ls_kv_cache *cache); /* tokens read so far */
/* Forgets the tokens from `length` on; more than were read is as good as all. */
LS_API void ls_kv_cache_cut(ls_kv_cache *cache, int64_t length);

/* ---- for models --------------------------------------------------------------------------- */

/* Whether x is [B,T] with 1 <= last <= T, and the model in evaluation. */
LS_API ls_status ls_kv_cache_check(const ls_module *model, ls_tensor *x, int64_t last);
/* Before a forward pass over the next `tokens` of each text: LS_ERR_LIMIT when they do not fit,
 * LS_ERR_INVALID for another batch. */
LS_API ls_status ls_kv_cache_begin(ls_kv_cache *cache, int64_t batch, int64_t tokens);
/* Each layer once, in the order of the layers: takes what the new tokens made, [B,T,dim], and gives
 * back a view of all there is, [B,length+T,dim], in float32. */
LS_API void ls_kv_cache_extend(ls_kv_cache *cache, ls_tensor **keys, ls_tensor **values);
/* After it: the tokens count as read, unless something was wrong with what the layers gave. */
LS_API ls_status ls_kv_cache_commit(ls_kv_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
