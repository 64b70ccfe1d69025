/* Tokenizers: text to the numbers that language models read, and back.
 *
 * Two kinds: bytes (256 tokens, a byte each), and byte-level byte-pair encoding as GPT-2 has it
 * (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.2; the
 * merges are those of Sennrich et al., "Neural Machine Translation of Rare Words with Subword
 * Units", ACL 2016), read from the files that Hugging Face's `tokenizers` and GPT-2 itself come in.
 * Ids are those of `tokenizers`' encode(text, add_special_tokens=False).
 *
 * A text is any bytes. An expression cuts it into words; the bytes of a word are merged pair by
 * pair, the pair of the lowest rank first, the leftmost of equal ones. Bytes that are not UTF-8
 * form words of their own, so decode(encode(text)) is exactly the text.
 */
#ifndef LOCKSTEP_TOKENIZER_H
#define LOCKSTEP_TOKENIZER_H

#include <lockstep/runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_tokenizer ls_tokenizer;

/* Opens "bytes"; a folder with tokenizer.json, or with vocab.json and merges.txt; or a
 * tokenizer.json by its own name. Ids are below 2^22.
 *
 * vocab.json + merges.txt are split by GPT-2's expression, and "<|endoftext|>" is special when the
 * vocabulary has it. Of a tokenizer.json are read: the model (BPE), the added tokens, and as
 * pre-tokenizer ByteLevel or a Split of a regular expression (isolated) followed by ByteLevel. Its
 * post-processor is ignored: adding tokens around a text is left to the caller.
 *
 * Errors name file and place: LS_ERR_NOT_FOUND, LS_ERR_SYSTEM (unreadable), LS_ERR_FORMAT,
 * LS_ERR_UNSUPPORTED (another model, normalizer or pre-tokenizer; an expression in a build without
 * PCRE2), LS_ERR_LIMIT. ls_init must have been called. Returns a new object, for any number of
 * threads at a time. */
LS_API ls_tokenizer *ls_tokenizer_new(const char *path);
LS_API void ls_tokenizer_free(ls_tokenizer *tokenizer); /* NULL is allowed */

/* One more than the highest id: the number of rows of an embedding. */
LS_API int64_t ls_tokenizer_count(const ls_tokenizer *tokenizer);

/* The id of the token with this text, special or not; -1 if it does not exist. */
LS_API int32_t ls_tokenizer_id(const ls_tokenizer *tokenizer, const char *token);

/* The tokens of `bytes` bytes of text; ls_bytes_free(*ids). Special tokens in the text are
 * recognised, as `tokenizers` does, so never encode untrusted text together with special tokens of
 * your own. Cost: linear in the text, n log n within a word of n bytes. LS_ERR_INVALID: a byte
 * that the vocabulary has no token for, with its offset; LS_ERR_LIMIT: the expression gives up, or
 * a word of more than 2^30 bytes. On errors *ids is NULL. */
LS_API ls_status ls_tokenizer_encode(const ls_tokenizer *tokenizer, const char *text, size_t bytes,
                                     int32_t **ids, int64_t *count);

/* The text of `count` tokens, special ones included; ls_bytes_free(*text). A 0 that is not counted
 * in *bytes stands behind it; the text itself may hold others, and need not be UTF-8 where tokens
 * are cut. LS_ERR_INVALID: an id that no token has. On errors *text is NULL. */
LS_API ls_status ls_tokenizer_decode(const ls_tokenizer *tokenizer, const int32_t *ids,
                                     int64_t count, char **text, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
