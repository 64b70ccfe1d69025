"""Compares ids with the `tokenizers` package on random texts: tokenizer_ids.py BUILD COUNT [SEED]."""

import ctypes
import pathlib
import sys
import time

from tokenizers import Tokenizer

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


def main():
    build, count = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 20240520
    texts = fuzz_texts.texts(count, seed)
    ours = Ours(build)
    fixture = FIXTURES / "fixture"
    for name in ("json", "split", "one_word"):
        package = Tokenizer.from_file(str(fixture / name / "tokenizer.json"))
        check(ours, fixture / name, package, texts)
        if name == "json":
            check(ours, fixture / "gpt2", package, texts)


main()
