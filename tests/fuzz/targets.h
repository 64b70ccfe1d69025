/* SPDX-License-Identifier: Apache-2.0 */
/* What is fuzzed: parsers of what anybody may have written into a file or sent to a port. Each
 * target parses the bytes, then uses everything the parser accepted, as load would, so that a wrong
 * acceptance is a read out of bounds which a sanitizer sees. Returns whether the input was
 * accepted.
 *
 *     make fuzz                      # clang, libFuzzer, ASan and UBSan; a minute a target
 *     replay                         # a plain test: good-… is accepted, bad-… refused
 */
#ifndef FUZZ_TARGETS_H
#define FUZZ_TARGETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool fuzz_safetensors(const uint8_t *data, size_t bytes);
/* The manifest's own hash is put right first: else nothing would get past it. */
bool fuzz_manifest(const uint8_t *data, size_t bytes);

/* What a link reads before its peer has proved anything; the first byte chooses the side (client if
 * odd) and how the rest is cut. Nonces and the secret are fixed, so that a good proof exists. */
bool fuzz_handshake(const uint8_t *data, size_t bytes);

/* Files of data sets: .npy, token shards, CIFAR-10, IDX. */
bool fuzz_npy(const uint8_t *data, size_t bytes);
bool fuzz_shard(const uint8_t *data, size_t bytes);
bool fuzz_cifar(const uint8_t *data, size_t bytes);
bool fuzz_idx(const uint8_t *data, size_t bytes); /* of images [N,H,W] or [N,C,H,W] */

/* A tokenizer.json; and vocab.json, a form feed, merges.txt. */
bool fuzz_tokenizer(const uint8_t *data, size_t bytes);
bool fuzz_merges(const uint8_t *data, size_t bytes);

/* A pipeline schedule; accepted: the verifier accepts it. */
bool fuzz_schedule(const uint8_t *data, size_t bytes);

bool fuzz_profile(const uint8_t *data, size_t bytes); /* of the parts of a model */
bool fuzz_plan(const uint8_t *data, size_t bytes);    /* the file of lockstep/plan.h */

/* What --cluster and --device of lockstep sim and lockstep plan auto read. */
bool fuzz_cluster(const uint8_t *data, size_t bytes);
bool fuzz_device(const uint8_t *data, size_t bytes);

#endif
