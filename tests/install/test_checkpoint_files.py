# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is read by a few lines of Python: manifest, hashes, safetensors, parts of tensors."""

import hashlib
import json
import math
import pathlib
import struct
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, Skip, command, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-files-")
RANKS = 3
FORMATS = {"F32": "f", "F64": "d", "I64": "q", "I32": "i"}


def saved():
    """The folder of a checkpoint that three ranks made; large enough to be cut."""
    folder = pathlib.Path(SCRATCH.name) / "run"
    if not folder.exists():
        command(BUILD / "lockstep", "run", "-n", RANKS, BUILD / "programs/train_gpt", "--data",
                SOURCE / "LICENSE", "--steps", 2, "--batch", 2, "--context", 32, "--dim", 96,
                "--layers", 2, "--save", folder)
    return folder / "step-00000002"


def manifest():
    return json.loads((saved() / "manifest.json").read_text())


def safetensors(path):
    """{name: (dtype, shape, bytes)} as the format's documentation says."""
    data = path.read_bytes()
    length, = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8:8 + length]), data[8 + length:]
    header.pop("__metadata__", None)
    ends = sorted(entry["data_offsets"] for entry in header.values())
    assert [a for a, _ in ends] == [0] + [b for _, b in ends[:-1]], "holes between tensors"
    assert ends[-1][1] == len(body)
    return {name: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])])
            for name, e in header.items()}


def put_together(tensor, name, files):
    """All values of a tensor, from its pieces: boxes of whole rows, so their places are counted."""
    shape, values = tensor["shape"], {}
    for piece in tensor["pieces"]:
        key = f"{name}#{piece['key']}" if "key" in piece else name
        dtype, dims, data = files[piece["file"]][key]
        assert dtype == tensor["dtype"] and dims == piece["shape"]
        first = 0
        for start, size in zip(piece["start"], shape):
            first = first * size + start
        read = struct.unpack(f"<{math.prod(dims)}{FORMATS[dtype]}", data)
        for at, value in enumerate(read, first):
            assert at not in values, "two pieces hold one element"
            values[at] = value
    assert len(values) == math.prod(shape), f"{name}: elements are missing"
    return values


@test
def every_file_has_the_hash_of_the_manifest():
    for name, entry in manifest()["files"].items():
        data = (saved() / name).read_bytes()
        assert len(data) == entry["bytes"]
        assert hashlib.sha256(data).hexdigest() == entry["hash"], name


@test
def tensors_are_put_together_from_the_files_of_all_ranks():
    files = {name: safetensors(saved() / name) for name in manifest()["files"]
             if name.endswith(".safetensors")}
    assert len(files) == RANKS
    cut = 0
    for name, tensor in manifest()["tensors"].items():
        values = put_together(tensor, name, files)
        assert all(math.isfinite(value) for value in values.values()), name
        cut += len(tensor["pieces"]) > 1
    assert cut >= 8, f"only {cut} tensors were cut"


@test
def pieces_of_a_tensor_in_one_file_are_found_by_their_keys():
    folder = SOURCE / "tests/dist/checkpoint/corpus/version-3/step-00000007"
    listed = json.loads((folder / "manifest.json").read_text())
    files = {name: safetensors(folder / name) for name in listed["files"] if name != "scalars.json"}
    assert listed["version"] == 3 and len(listed["tensors"]) == 4
    for layer in range(4):
        name = f"layer.{layer}"
        values = put_together(listed["tensors"][name], name, files)
        assert values == {i: 100 * layer + i for i in range(12)}, values


@test
def all_ranks_write_as_much():
    sizes = [entry["bytes"] for name, entry in manifest()["files"].items()
             if name.endswith(".safetensors")]
    assert max(sizes) < 1.02 * min(sizes), sizes


@test
def the_reference_implementation_reads_every_file():
    try:
        from safetensors import safe_open
    except ImportError as missing:
        raise Skip("no safetensors package for Python") from missing
    for path in saved().glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            ours = safetensors(path)
            assert set(file.keys()) == set(ours)
            for name in file.keys():
                tensor = file.get_tensor(name)
                assert list(tensor.shape) == ours[name][1]
                assert tensor.tobytes() == ours[name][2]


run()
