# SPDX-License-Identifier: Apache-2.0
"""What src/comm/nccl/abi.h declares of CUDA's driver and NCCL, and src/cuda/dnn.c of cuDNN, beside their headers, where these are."""

import glob
import os
import pathlib
import re
import shutil
import sys
import sysconfig

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, Skip, none_of, run, test

ABI = (SOURCE / "src/comm/nccl/abi.h").read_text()
DNN = (SOURCE / "src/cuda/dnn.c").read_text()
# What a type of an argument is passed as.
POINTERS = {"CUcontext", "CUstream", "CUevent", "ncclComm_t", "cudaStream_t", "ls__cuda_context", "ls__cuda_stream",
            "ls__cuda_event", "ls__nccl_comm", "cudnnHandle_t", "cudnnTensorDescriptor_t", "cudnnFilterDescriptor_t",
            "cudnnConvolutionDescriptor_t"}
WORDS = {"size_t", "CUdeviceptr", "ls__cuda_pointer", "CUdeviceptr_v2"}


def header(name, *folders):
    """The text of a header without comments; skips where it is not installed."""
    for folder in folders:
        for path in sorted(glob.glob(f"{folder}/{name}")):
            text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
            return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    raise Skip(f"no {name}")


def cuda_header():
    nvcc = shutil.which("nvcc")
    beside = pathlib.Path(nvcc).resolve().parent.parent / "include" if nvcc else "/nowhere"
    return header("cuda.h", os.environ.get("CUDA_INCLUDE", "/nowhere"), beside, "/usr/local/cuda*/include")


def nccl_header():
    return header("nccl.h", os.environ.get("NCCL_INCLUDE", "/nowhere"),
                  f"{sysconfig.get_path('purelib')}/nvidia/nccl/include", "/usr/include", "/usr/local/cuda*/include")


def dnn_header():
    """All of cuDNN's: functions of convolutions, of tensors, and the types of both."""
    folders = (os.environ.get("CUDNN_INCLUDE", "/nowhere"), f"{sysconfig.get_path('purelib')}/nvidia/cudnn/include", "/usr/include",
               "/usr/include/*-linux-gnu", "/usr/local/cuda*/include")
    text = "".join(header(f"cudnn_{part}.h", *folders) for part in ("graph", "ops", "cnn"))
    return re.sub(r"\bCUDNN_DEPRECATED\w*|\bCUDNNWINAPI\b", "", text)


def shape(arguments):
    """One letter for each argument: p pointer, q 64 bits, b 8 bits, u an id, f a format, t a type, m a mathematics, i 32 bits."""
    shapes = []
    for argument in arguments.split(","):
        words = argument.replace("*", " * ").split()
        if words in ([], ["void"]):
            continue
        shapes.append("p" if "*" in words or POINTERS & set(words) else
                      "q" if WORDS & set(words) else
                      "b" if "char" in words else
                      "u" if {"ncclUniqueId", "ls__nccl_id"} & set(words) else
                      "f" if {"cudnnTensorFormat_t", "format"} & set(words) else
                      "t" if {"cudnnDataType_t", "type"} & set(words) else
                      "m" if {"cudnnMathType_t", "math"} & set(words) else "i")
    return "".join(shapes)


def declared(table):
    """Symbol and arguments of each row of a table of abi.h."""
    text = ABI[ABI.index(f"#define {table}(X)"):].split("\n\n")[0].replace("\\\n", " ")
    text = re.sub(r"LS__NCCL_ROOTED", "(const void *, void *, size_t, ls__nccl_type, int, int, ls__nccl_comm, ls__cuda_stream)", text)
    return re.findall(r"X\(\w+, (\w+),\s*\(([^()]*)\)\)", text)


def different(rows, text):
    for symbol, arguments in rows:
        plain = symbol if symbol.startswith("cudnn") else re.sub(r"_v\d+$", "", symbol)
        found = re.search(rf"\b{plain}\s*\(([^)]*)\)\s*;", text)
        renamed = re.search(rf"#define\s+{plain}\s+(?:__CUDA_API_PT\w+\()?(\w+)", text)
        if found is None:
            yield f"{symbol}: not in the header"
        elif shape(found[1]) != shape(arguments):
            yield f"{symbol}({arguments}): the header has ({' '.join(found[1].split())})"
        elif (renamed[1] if renamed else plain) != symbol:
            yield f"{symbol}: the header calls {renamed[1] if renamed else plain}"


@test
def functions_of_cuda_are_as_in_its_header():
    rows = declared("LS__CUDA_FUNCTIONS")
    assert len(rows) > 15, rows
    none_of(different(rows, cuda_header()), "abi.h and cuda.h")


@test
def functions_of_nccl_are_as_in_its_header():
    rows = declared("LS__NCCL_FUNCTIONS")
    assert len(rows) > 20, rows
    none_of(different(rows, nccl_header()), "abi.h and nccl.h")


@test
def values_of_nccl_are_as_in_its_header():
    text = nccl_header()
    ours = dict(re.findall(r"LS__NCCL_(INT8|UINT8|INT32|UINT32|INT64|UINT64|FLOAT16|FLOAT32|FLOAT64|BFLOAT16|SUM|PROD|MAX|MIN|AVG) = (\d+)", ABI))
    theirs = {name.upper(): value for name, value in re.findall(r"\bnccl(\w+)\s*=\s*(\d+)", text)}
    none_of((f"{name} = {value}, not {theirs.get(name)}" for name, value in ours.items() if theirs.get(name) != value), "abi.h and nccl.h")
    fields = re.search(r"typedef struct ncclConfig\w*\s*\{(.*?)\}", text, re.DOTALL)[1]
    names = re.findall(r"(\w+);", fields)
    assert names[:9] == ["size", "magic", "version", "blocking", "cgaClusterSize", "minCTAs", "maxCTAs", "netName", "splitShare"], names


def of_dnn():
    """Result, symbol and arguments of each function that dnn.c finds."""
    text = DNN.replace("\\\n", " ")
    macros = dict(re.findall(r"#define ([A-Z]+)\s+\(([^()]*)\)\n", text))
    rows = re.findall(r"X\(([^,]+), (cudnn\w+),\s*(?:\(([^()]*)\)|([A-Z]+))\)", text)
    return [(result, symbol, arguments or macros[macro]) for result, symbol, arguments, macro in rows]


@test
def functions_of_cudnn_are_as_in_its_header():
    rows, text = of_dnn(), dnn_header()
    assert len(rows) > 20, rows
    none_of(different([row[1:] for row in rows], text), "dnn.c and cudnn.h")
    results = {"int": "cudnnStatus_t"}
    none_of((f"{symbol}: not of {result}" for result, symbol, _ in rows
             if not re.search(rf"{re.escape(results.get(result, result))}\s*{symbol}\s*\(", text)), "results of dnn.c and cudnn.h")


@test
def values_of_cudnn_are_as_in_its_header():
    text = dnn_header()
    for name, theirs in {"NHWC": "TENSOR_NHWC", "FLOAT32": "DATA_FLOAT", "BFLOAT16": "DATA_BFLOAT16", "TENSOR_OP_MATH": "TENSOR_OP_MATH",
                         "FMA_MATH": "FMA_MATH", "DETERMINISTIC": "DETERMINISTIC", "CROSS_CORRELATION": "CROSS_CORRELATION"}.items():
        ours, value = re.search(rf"\b{name} = (\d+)", DNN)[1], re.search(rf"\bCUDNN_{theirs}\s*=\s*(\d+)", text)[1]
        assert ours == value, (name, ours, value)
    assert re.search(r"CUDNN_STATUS_NOT_SUPPORTED\s*=\s*3000\b", text) and "NOT_SUPPORTED 3 " in DNN
    layouts = {tuple(re.findall(r"(\w+)\s+(\w+(?:\[3\])?);", fields))
               for fields in re.findall(r"typedef struct cudnnConvolution\w+AlgoPerfStruct\s*\{(.*?)\}", text, re.DOTALL)}
    assert len(layouts) == 3, layouts
    for fields in layouts:
        assert [name for _, name in fields] == ["algo", "status", "time", "memory", "determinism", "mathType", "reserved[3]"], fields
        assert dict((name, kind) for kind, name in fields)["time"] == "float" and ("size_t", "memory") in fields, fields


run()
