/* SPDX-License-Identifier: Apache-2.0 */
/* The types and functions that the files of src/tokenizer share.
 *
 *     open.c     which files; json.c and pair.c read them, row by row (table.c), into the tables of
 *                vocab.c
 *     encode.c   text ─▶ special tokens cut out ─▶ stretches of UTF-8 ─▶ words (split.h)
 *     merge.c    the bytes, or the characters, of one word ─▶ its tokens
 *
 * A vocabulary file writes tokens in the byte-level alphabet: each byte is one printable character
 * (alphabet.c); or in that of SentencePiece, which writes a space as "▁" and a byte as "<0x0A>"
 * (pieces.c). In memory a token is its bytes. A tokenizer does not change once it is open; what
 * changes while a text is encoded stands in an ls__encoder, one a thread.
 */
#ifndef LS_TOKENIZER_TOKENIZER_H
#define LS_TOKENIZER_TOKENIZER_H

#include <lockstep/tokenizer.h>

#include "base/arena.h"
#include "base/env.h"
#include "base/siphash.h"
#include "tokenizer/split.h"

#define LS__TOKEN_IDS_MAX ((int64_t)1 << 22) /* the largest vocabularies have 2^18 */
/* The table of ids has a place for each id below the largest, so a file of few tokens may have only
 * this many ids, and this many more for each token. */
#define LS__TOKEN_IDS_FREE ((int64_t)1 << 18)
#define LS__TOKEN_IDS_EACH 16
#define LS__SPLITS_MAX 8                     /* of a file; those in use have at most 5 */
#define LS__WORD_BYTES_MAX ((size_t)1 << 30) /* places in a word are int32 */

/* ---- vocab.c --------------------------------------------------------------------------------- */

typedef struct ls__token {
    const char *text; /* in the arena; NULL: no token has this id */
    uint32_t bytes;
    int32_t added; /* 1 + its place in the tokenizer's `added`, whose text counts; 0: none */
} ls__token;

typedef struct ls__vocab {
    ls__arena arena;
    ls__token *tokens; /* [count], by id */
    int64_t count, capacity;
    ls__siphash_key key; /* of the slots: the texts come from a file that anybody may have
                            written */
    int32_t *slots;      /* open addressing by text: id + 1, 0: free */
    size_t slot_count, used;
} ls__vocab;

void ls__vocab_init(ls__vocab *vocab, const ls__env *env);
void ls__vocab_fini(ls__vocab *vocab);
/* Gives an id without a text a copy of this one. `listed`: ls__vocab_find finds it; no two listed
 * texts are the same. Returns false without memory. 0 <= id < LS__TOKEN_IDS_MAX, bytes < 2^32. */
bool ls__vocab_add(ls__vocab *vocab, int32_t id, const char *text, size_t bytes, bool listed);
const ls__token *ls__vocab_get(const ls__vocab *vocab, int64_t id);             /* NULL: none */
int32_t ls__vocab_find(const ls__vocab *vocab, const char *text, size_t bytes); /* -1: none */

typedef struct ls__merge {
    uint64_t pair; /* ls__pair(left, right); LS__NO_PAIR: a free slot */
    uint32_t rank; /* lower ones first */
    int32_t id;    /* of the merged token */
} ls__merge;

typedef struct ls__merges {
    uint64_t key;     /* random and odd: a pair's slot is a product with it (Dietzfelbinger 1997) */
    ls__merge *slots; /* open addressing by pair */
    size_t slot_count, used;
} ls__merges;

#define LS__NO_PAIR UINT64_MAX

static inline uint64_t ls__pair(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void ls__merges_init(ls__merges *merges, const ls__env *env);
void ls__merges_fini(ls__merges *merges);
/* A pair that is there already gets the new rank. False: no memory. */
bool ls__merges_set(ls__merges *merges, uint64_t pair, uint32_t rank, int32_t id);
const ls__merge *ls__merges_find(const ls__merges *merges, uint64_t pair); /* NULL: none */

/* ---- alphabet.c ------------------------------------------------------------------------------ */

/* The bytes that `text` stands for, into `out` of at least strlen(text) bytes. Returns false if it
 * holds a character outside the alphabet. */
bool ls__alphabet_read(const char *text, char *out, size_t *bytes);

/* ---- pieces.c -------------------------------------------------------------------------------- */

#define LS__SPACE_MARK "\xe2\x96\x81" /* U+2581, "▁": a space, also in a text */

/* A token of the file as its bytes, into `out` of at least strlen(text) bytes; returns their
 * number. */
size_t ls__piece_read(const char *text, char *out);
/* The byte that "<0x0A>" stands for; -1: it is another token. */
int ls__piece_byte(const char *text);
/* Whether a token goes on after the end of a word. */
bool ls__piece_joins_words(const char *raw, size_t bytes);
/* *out: `text` with a space for each "▁", free() it; NULL: it has none. */
ls_status ls__piece_spaces(const char *text, size_t bytes, char **out, size_t *out_bytes);

/* ---- the tokenizer --------------------------------------------------------------------------- */

/* Tokens that are found in the text before anything else. There are two sorts, the second of which
 * is looked for in what the first left (`normalized` in tokenizer.json). */
typedef struct ls__added {
    const char *text;
    size_t bytes;
    int32_t id;
    bool second;
    size_t prefix;       /* bytes before its own that the normalizer puts there */
    bool lstrip, rstrip; /* it takes the white space before it, behind it */
} ls__added;

/* Which pieces of a text, those between added tokens, get a space before them. */
typedef enum ls__prefix {
    LS__PREFIX_NONE,
    LS__PREFIX_FIRST,   /* the one at the beginning of the text, unless it begins with a space */
    LS__PREFIX_MISSING, /* each that does not begin with a space */
    LS__PREFIX_EACH     /* before added tokens of the second sort are looked for */
} ls__prefix;

struct ls_tokenizer {
    const ls__env *env;
    bool bytes_only; /* "bytes": no table below is used but `vocab`, for decoding */
    ls__prefix prefix;
    bool pieces;       /* SentencePiece's form: a word falls apart into characters, not bytes */
    bool replaces;     /* of these: the normalizer writes spaces as "▁" */
    bool joins_words;  /* of these: a token has a letter and then a space */
    bool fuse_unknown; /* unknown characters in a row are one token */
    bool fallback;     /* a character without a token has those of its bytes */
    bool whole_words;  /* a word that is a token is not merged (`ignore_merges`) */
    bool nfc;          /* what is between tokens of the first sort is brought to the form NFC */
    ls__vocab vocab;
    ls__merges merges;
    int64_t listed;       /* rows of the file that have an id, which bound the ids */
    int32_t byte_id[256]; /* of a byte alone; -1: none */
    int32_t unknown_id;   /* of bytes that have none themselves; -1: they are errors */
    int32_t start_id;     /* stands before a text, if the caller puts it there; -1: none */
    ls__added *added;     /* by first byte, and of one first byte the longest first */
    int added_count;
    int added_from[257]; /* those that begin with byte b: added_from[b] to added_from[b + 1] */
    ls__split *splits[LS__SPLITS_MAX]; /* each cuts the pieces of the one before it */
    int split_count;                   /* 0: a text is one word */
};

/* The expressions of a file, in the order in which they cut. */
typedef struct ls__expressions {
    char *text[LS__SPLITS_MAX]; /* free() each */
    int count;
} ls__expressions;

/* ls_tokenizer_new without a runtime. */
ls_status ls__tokenizer_open(const ls__env *env, const char *path, ls_tokenizer **out);
/* json.c, pair.c: these read a file into *t; the caller finishes and frees it. The caller also
 * compiles and frees the splitting expressions, also after a failure. */
ls_status ls__tokenizer_read_json(ls_tokenizer *t, const char *path, ls__expressions *expressions);
/* A copy behind the others. LS_ERR_UNSUPPORTED if there are too many. */
ls_status ls__expressions_add(ls__expressions *e, const char *path, const char *expression);
ls_status ls__tokenizer_read_pair(ls_tokenizer *t, const char *vocab_path, const char *merges_path);
/* table.c: one row of a vocabulary, of the merges, of special tokens; `where` begins the message.
 */
ls_status ls__tokenizer_add_token(ls_tokenizer *t, const char *where, const char *token,
                                  int64_t id);
ls_status ls__tokenizer_add_merge(ls_tokenizer *t, const char *where, const char *left,
                                  const char *right, int64_t rank);
ls_status ls__tokenizer_add_special(ls_tokenizer *t, const char *where, const char *text,
                                    int64_t id, bool second);
/* The text of an added token with a space before it. */
ls_status ls__tokenizer_prefix_special(ls_tokenizer *t, const char *where, ls__added *added);

#define LS__GPT2_EXPRESSION                                                                        \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* ---- encode.c, merge.c ----------------------------------------------------------------------- */

typedef struct ls__symbol { /* of a word: a token that may yet be merged with its neighbour */
    int32_t id;             /* -1: it has been merged into the one before */
    int32_t before, after;  /* -1: none */
} ls__symbol;

typedef struct ls__candidate { /* a pair that could be merged, when it was noted */
    uint32_t rank;
    int32_t at; /* the left symbol */
    int32_t id; /* of both */
} ls__candidate;

typedef struct ls__encoder {
    const ls_tokenizer *t;
    ls__split_match *matches[LS__SPLITS_MAX]; /* of the tokenizer's splits */
    ls__symbol *symbols;                      /* [room] */
    ls__candidate *heap;                      /* [2 * room]: the least first */
    size_t room, heap_count;                  /* the largest word so far needed so many */
    char *padded;                             /* a text with a space before it */
    size_t padded_room;
    size_t offset; /* of the text in a larger one, for messages; set by the caller */
    bool begins;   /* of the text that is encoded now */
    int32_t *ids;  /* the result */
    int64_t count, capacity;
} ls__encoder;

ls_status ls__encoder_init(ls__encoder *encoder, const ls_tokenizer *t);
void ls__encoder_fini(ls__encoder *encoder);
/* The tokens of a text into encoder->ids [encoder->count], which stay until the next call.
 * `begins`: nothing stands before it; else it was cut by ls__tokenizer_cut. */
ls_status ls__encoder_run(ls__encoder *encoder, const char *text, size_t bytes, bool begins);
/* Adds the tokens of a word of at least one byte; `offset` is its place in the text. */
ls_status ls__encoder_word(ls__encoder *encoder, const char *word, size_t bytes, size_t offset);
ls_status ls__encoder_put(ls__encoder *encoder, int32_t id);

/* Where a text may be cut, so that its parts have the tokens of the whole: behind an ASCII letter
 * and before a space or newline, which no expression in use joins, and not within an added token.
 * The first such place from `from` on, which is above 0; where there is none before `last`, the
 * first between two characters from `from` on, which may cost a token more. `bytes` where
 * the text ends before `last`. */
size_t ls__tokenizer_cut(const ls_tokenizer *t, const char *text, size_t bytes, size_t from,
                         size_t last);

#endif
