# SPDX-License-Identifier: Apache-2.0
"""Compares ids with the `tokenizers` package on random texts: tokenizer_ids.py BUILD COUNT [SEED]."""

import ctypes
import json
import pathlib
import random
import sys
import tempfile
import time
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "unit/tokenizer"
sys.path[:0] = [str(FIXTURES)]
import fuzz_texts


class Ours:
    def __init__(self, build):
        self.c = ctypes.CDLL(str(pathlib.Path(build) / "src/liblockstep.so"))
        self.c.ls_error_message.restype = ctypes.c_char_p
        self.c.ls_tokenizer_new.restype = ctypes.c_void_p
        self.c.ls_bytes_free.argtypes = [ctypes.c_void_p]
        self.must(self.c.ls_init(None))

    def must(self, status):
        if status < 0:
            sys.exit(self.c.ls_error_message().decode())

    def open(self, path):
        handle = self.c.ls_tokenizer_new(str(path).encode())
        self.must(0 if handle else self.c.ls_error_status())
        return ctypes.c_void_p(handle)

    def encode(self, handle, data):
        ids, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_int64()
        self.must(self.c.ls_tokenizer_encode(handle, data, ctypes.c_size_t(len(data)),
                                             ctypes.byref(ids), ctypes.byref(count)))
        out = ids[:count.value]
        self.c.ls_bytes_free(ids)
        return out


def check(ours, path, package, texts):
    handle, seconds = ours.open(path), [0.0, 0.0]
    for text in texts:
        data = text.encode()
        begin = time.perf_counter()
        got = ours.encode(handle, data)
        middle = time.perf_counter()
        want = package.encode(text, add_special_tokens=False).ids
        seconds[0] += middle - begin
        seconds[1] += time.perf_counter() - middle
        if got != want:
            sys.exit(f"{path}: {text!r} ({data.hex()})\nours     {got}\npackage  {want}")
    tokens = sum(len(ours.encode(handle, t.encode())) for t in texts[:100])
    print(f"{path.name}: {len(texts)} texts alike, {tokens} tokens in the first 100; "
          f"{seconds[0]:.2f} s and {seconds[1]:.2f} s")


# ---- the forms of tokenizer.json in use -------------------------------------------------------

def split(expression):
    return pre_tokenizers.Split(Regex(expression), "isolated")


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def sequence(*steps):
    return pre_tokenizers.Sequence(list(steps))


QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
STRIPPED = [AddedToken("<mask>", lstrip=True, normalized=False, special=True),
            AddedToken("<|im_sep|>", lstrip=True, rstrip=True, normalized=False, special=True),
            AddedToken("<|end|>", rstrip=True, normalized=True)]

# Name -> normalizer, pre-tokenizer, added tokens.
FORMS = {
    "Qwen2.5": (normalizers.NFC(), sequence(split(QWEN), byte_level(False)), []),
    "GPT-NeoX": (normalizers.NFC(), byte_level(True), [AddedToken(" " * n, normalized=True) for n in (2, 3, 8)]),
    "ModernBERT": (normalizers.NFC(), byte_level(True), STRIPPED[:1]),
    "Step": (normalizers.Sequence([]), sequence(split(r"\p{N}{1,3}"), byte_level(True)), []),
    "NFC in a sequence": (normalizers.Sequence([normalizers.NFC()]), byte_level(True), STRIPPED),
    "DeepSeek": (normalizers.Sequence([]), sequence(
        split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
        pre_tokenizers.Digits(individual_digits=True), byte_level(False)), []),
    "DeepSeek V3": (normalizers.Sequence([]), sequence(
        split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), byte_level(False)), []),
    "RoBERTa": (None, byte_level(True), STRIPPED[:1]),
    "Phi-4": (None, sequence(split(QWEN), byte_level(False)), STRIPPED),
    "StarCoder": (None, sequence(pre_tokenizers.Digits(individual_digits=True), byte_level(True)), []),
    "digits together": (None, sequence(pre_tokenizers.Digits(individual_digits=False), byte_level(True)), []),
    "a literal": (None, sequence(pre_tokenizers.Split("a.[b", "isolated"), byte_level(True)), []),
}

LLAMA = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def metaspace(scheme, split):
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)


# The same for SentencePiece's form, and what the model does with unknown characters.
SPACED = {
    "Llama 2": (LLAMA, None, [], {}),
    "Llama, first files": (LLAMA, None, [AddedToken("<s>", normalized=True), AddedToken("<|end|>", normalized=True)], {}),
    "without bytes": (LLAMA, None, STRIPPED[:2], {"byte_fallback": False}),
    "unknown one by one": (LLAMA, None, [], {"byte_fallback": False, "fuse_unk": False}),
    "Replace alone": (normalizers.Replace(" ", "▁"), None, [AddedToken("a b", normalized=True)], {}),
    "whole words": (None, metaspace("always", True), STRIPPED, {"ignore_merges": True}),
    "Mistral": (None, metaspace("first", False), STRIPPED, {}),
    "never": (None, metaspace("never", True), STRIPPED[:2], {}),
}
PIECES = ["<mask>", "<|im_sep|>", "<|end|>", "  ", "   ", "        ", "\t", "\u00a0", "\u3000", "\u2009", "\u0085",
          "\n", "e\u0301", "\u00e9", "a\u0323\u0307", "\u1100\u1161\u11a8", "\uac01", "\u212b", "\u0344", "\u0958",
          "\u0f73\u0f71", "12", "٣", "Ⅷ", "²", "中文", "ひら", "한국", "a.[b", "a.b", "▁", "<s>", "</s>", "<0x0A>", "a b", "word", " the", "'ll", "!?", "🙂"]


def random_texts(count, seed):
    """Pieces that these forms treat in their own ways, and any characters that Unicode 13 has."""
    draw = random.Random(seed)
    letters = [chr(c) for c in range(0x20, 0x30000) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]
    return ["".join(draw.choice(PIECES) if draw.random() < 0.7 else draw.choice(letters)
                    for _ in range(draw.randrange(12))) for _ in range(count)]


def check_forms(ours, fixture, count, seed):
    texts = random_texts(count, seed)
    with tempfile.TemporaryDirectory(prefix="lockstep-tokenizers-") as folder:
        for name, (normalizer, pre_tokenizer, added) in FORMS.items():
            package = Tokenizer.from_file(str(fixture / "json/tokenizer.json"))
            if normalizer is not None:
                package.normalizer = normalizer
            package.pre_tokenizer = pre_tokenizer
            package.add_tokens(added)
            path = pathlib.Path(folder) / name
            package.save(str(path))
            check(ours, path, package, texts)
        for name, (normalizer, pre_tokenizer, added, model) in SPACED.items():
            whole = json.loads((fixture / "pieces/tokenizer.json").read_text())
            whole["model"].update(model)
            whole["normalizer"] = None
            package = Tokenizer.from_str(json.dumps(whole))
            if normalizer is not None:
                package.normalizer = normalizer
            if pre_tokenizer is not None:
                package.pre_tokenizer = pre_tokenizer
            package.add_tokens(added)
            path = pathlib.Path(folder) / name
            package.save(str(path))
            check(ours, path, package, texts)


def main():
    build, count = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 20240520
    texts = fuzz_texts.texts(count, seed)
    ours = Ours(build)
    fixture = FIXTURES / "fixture"
    for name in ("json", "split", "one_word", "pieces"):
        package = Tokenizer.from_file(str(fixture / name / "tokenizer.json"))
        check(ours, fixture / name, package, texts)
        if name == "json":
            check(ours, fixture / "gpt2", package, texts)
    check_forms(ours, fixture, count // 3, seed)


main()
