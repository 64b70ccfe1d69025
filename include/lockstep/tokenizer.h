/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers convert text to token ids, the numbers that language models read, and back.
 *
 * There are three kinds: bytes (256 tokens, one for each byte); the byte-level byte-pair encoding
 * of GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section
 * 2.2; its merges: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units",
 * ACL 2016); and that of SentencePiece (Kudo and Richardson, EMNLP 2018) as Llama 2, Mistral and
 * Mixtral have it, which merges characters. The last two are read from the files of Hugging Face's
 * `tokenizers` or of GPT-2 itself, and give the ids of `tokenizers`'
 * encode(text, add_special_tokens=False).
 *
 * A text may contain any bytes. A regular expression splits it into words; in a word pairs are
 * merged, the pair of the lowest rank first, and the leftmost of equal pairs. Bytes that are not
 * UTF-8 form separate words, so decode(encode(text)) is exactly the text; with the normalizer NFC
 * it is the text in that form, with a tokenizer that puts a space before a text the text with that
 * space, and with added tokens that take white space around them (lstrip, rstrip) without it. No
 * call is collective.
 */
#ifndef LOCKSTEP_TOKENIZER_H
#define LOCKSTEP_TOKENIZER_H

#include <lockstep/runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_tokenizer ls_tokenizer;

/* Opens `path`: "bytes"; a folder with tokenizer.json, or with vocab.json and merges.txt (OpenAI's
 * encoder.json and vocab.bpe); or the path of a tokenizer.json. Ids are below 2^22. ls_init must
 * have been called. The tokenizer may be used by any number of threads at the same time.
 *
 * With vocab.json and merges.txt, GPT-2's expression splits the text, and "<|endoftext|>" is
 * special if the vocabulary has it. Of a tokenizer.json, the model (BPE), the added tokens, the
 * normalizer (none, NFC, or Prepend and Replace as Llama 2 has them) and the pre-tokenizer are
 * read, which must be Metaspace, ByteLevel, or Splits (isolated) and Digits followed by ByteLevel.
 * The decoder is not read. The post-processor and saved truncation and padding are not applied: all
 * tokens of a text are given, and the caller adds tokens around it (ls_tokenizer_start).
 *
 * NULL on failure; the message names the file and the position: LS_ERR_NOT_FOUND, LS_ERR_SYSTEM
 * (unreadable), LS_ERR_FORMAT, LS_ERR_UNSUPPORTED (another model, normalizer or pre-tokenizer, an
 * expression in a build without PCRE2, NFC in one without utf8proc), LS_ERR_LIMIT. */
LS_API ls_tokenizer *ls_tokenizer_new(const char *path);
LS_API void ls_tokenizer_free(ls_tokenizer *tokenizer); /* NULL is allowed */

/* The highest id plus one, that is, the number of rows of an embedding. */
LS_API int64_t ls_tokenizer_count(const ls_tokenizer *tokenizer);

/* The id of the token with this text, special or not; -1 if it does not exist. */
LS_API int32_t ls_tokenizer_id(const ls_tokenizer *tokenizer, const char *token);

/* The id that the post-processor of a tokenizer.json (TemplateProcessing) puts before a text, as
 * that of <s> in Llama 2's; -1: it puts none. Models that were trained with it expect it before a
 * prompt. */
LS_API int32_t ls_tokenizer_start(const ls_tokenizer *tokenizer);

/* Converts text[bytes] to *count ids in new memory, which ls_bytes_free(*ids) frees. Special tokens
 * in the text are recognised, as in `tokenizers`, so never encode untrusted text together with your
 * own special tokens. The cost is linear in the text, and n log n within a word of n bytes.
 * LS_ERR_INVALID: the vocabulary has no token for a byte, whose offset the message names.
 * LS_ERR_LIMIT: the expression exceeds its limits, or a word has more than 2^30 bytes. On an error
 * *ids is NULL. */
LS_API ls_status ls_tokenizer_encode(const ls_tokenizer *tokenizer, const char *text, size_t bytes,
                                     int32_t **ids, int64_t *count);

/* Converts ids[count], special tokens included, to a text of *bytes bytes in new memory, which
 * ls_bytes_free(*text) frees. A 0 byte, which is not counted, follows the text; the text itself may
 * contain 0 bytes, and is not valid UTF-8 if the ids begin or end within a character.
 * LS_ERR_INVALID: no token has the id. On an error *text is NULL. */
LS_API ls_status ls_tokenizer_decode(const ls_tokenizer *tokenizer, const int32_t *ids,
                                     int64_t count, char **text, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
