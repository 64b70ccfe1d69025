# SPDX-License-Identifier: Apache-2.0
"""Tensors as the library takes them: addresses, counts, dtypes, and flat memory behind lists."""

import contextlib
import threading

import torch
import torch.distributed as dist

from .. import _core
from .._core import make_error

DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3, torch.int8: 4,
           torch.uint8: 5, torch.int32: 6, torch.int64: 7, torch.bool: 8, torch.int16: 9}
# Types that older versions of PyTorch lack.
DTYPES.update({getattr(torch, name): number
               for name, number in (("uint16", 10), ("uint32", 11), ("uint64", 12))
               if hasattr(torch, name)})
OPERATORS = {"SUM": 0, "PRODUCT": 1, "MIN": 2, "MAX": 3, "AVG": 4, "BAND": 5, "BOR": 6, "BXOR": 7,
             "PREMUL_SUM": 8}


# ---- memory -------------------------------------------------------------------------------------


class _Here(threading.local):
    kind = "cpu"  # of the devices whose tensors the calling thread's operation takes


_here = _Here()


@contextlib.contextmanager
def of_device(device):
    before, _here.kind = _here.kind, device.type
    try:
        yield
    finally:
        _here.kind = before


def check_tensor(what, tensor):
    if tensor.device.type != _here.kind or tensor.layout != torch.strided:
        raise make_error(-1, f"{what}: a {tensor.layout} tensor on {tensor.device}; the lockstep "
                             "backend takes strided tensors on the CPU, or all of a call on devices "
                             "from which elements can be copied: give tensor.cpu()")
    return tensor


def only_one(what, tensors):
    if len(tensors) != 1:
        raise make_error(-1, f"{what}: {len(tensors)} tensors; a rank gives exactly one")
    return check_tensor(what, tensors[0])


def number_of(what, tensor):
    number = DTYPES.get(tensor.dtype)
    if number is None:
        raise make_error(-1, f"{what}: no sums of {tensor.dtype}; there are those of "
                             f"{', '.join(str(d)[6:] for d in DTYPES)}")
    return number


def summed(what, tensor, opts):
    """(count, dtype, operator) for operations that combine elements; a complex one is two floats."""
    operator = operator_of(what, opts)
    if not tensor.is_complex():
        return tensor.numel(), number_of(what, tensor), operator
    if operator not in (OPERATORS["SUM"], OPERATORS["AVG"], OPERATORS["PREMUL_SUM"]):
        raise make_error(-1, f"{what}: {opts.reduceOp} of {tensor.dtype}; complex numbers can be "
                             "added up (SUM, AVG, PREMUL_SUM)")
    return 2 * tensor.numel(), DTYPES[tensor.real.dtype], operator


def moved(tensor):
    """(count, dtype) for operations that only move elements: of any dtype, as bytes if need be."""
    number = DTYPES.get(tensor.dtype)
    if number is None:
        return tensor.numel() * tensor.element_size(), _core.BYTES
    return tensor.numel(), number


def operator_of(what, opts):
    op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
    for name, number in OPERATORS.items():
        if op == getattr(dist.ReduceOp, name, None):
            return number
    raise make_error(-1, f"{what}: {op} is not one of {', '.join(OPERATORS)}")


def factor_of(opts):
    """Of PREMUL_SUM; 1 without."""
    op = getattr(opts, "reduceOp", None)
    if op is None or op == dist.ReduceOp.SUM or op != getattr(dist.ReduceOp, "PREMUL_SUM", None):
        return 1.0
    if not hasattr(op, "factor"):
        raise make_error(-9, "PREMUL_SUM: this PyTorch does not tell its factor; multiply before a "
                             "SUM, or use PyTorch 2")
    return float(op.factor.item() if isinstance(op.factor, torch.Tensor) else op.factor)


def adjacent(tensors):
    """One flat tensor over these, if they are contiguous and lie one behind the other."""
    first = tensors[0]
    at = first.data_ptr()
    for tensor in tensors:
        if (not tensor.is_contiguous() or tensor.data_ptr() != at or tensor.dtype != first.dtype
                or tensor.numel() != first.numel()):
            return None
        at += tensor.numel() * tensor.element_size()
    left = first.untyped_storage().nbytes() if hasattr(first, "untyped_storage") else (
        first.storage().nbytes())
    if at - first.data_ptr() > left - first.storage_offset() * first.element_size():
        return None  # neighbours by chance, of different storages
    return first.as_strided((len(tensors) * first.numel(),), (1,), first.storage_offset())


def same_sizes(what, tensors, like):
    for tensor in tensors:
        check_tensor(what, tensor)
        if tensor.numel() != like.numel() or tensor.dtype != like.dtype:
            raise make_error(-1, f"{what}: a tensor of {tensor.dtype} {tuple(tensor.shape)} in the "
                                 f"list, beside one of {like.dtype} {tuple(like.shape)}; give all "
                                 "the same dtype and number of elements")


def joined(what, tensors, like):
    """A flat input over a list, copied unless the tensors are adjacent."""
    same_sizes(what, tensors, like)
    flat = adjacent(tensors)
    return flat if flat is not None else torch.cat([t.detach().reshape(-1) for t in tensors])


class Outputs:
    """A flat output for a list of tensors; `finish` brings it to them, where it is a buffer."""

    def __init__(self, what, tensors, like):
        same_sizes(what, tensors, like)
        self.tensors, self.flat = tensors, adjacent(tensors)
        self.copied, self.length = self.flat is None, like.numel()
        if self.copied:
            self.flat = torch.empty(len(tensors) * like.numel(), dtype=like.dtype, device=like.device)

    def finish(self, _):
        if self.copied:
            for tensor, part in zip(self.tensors, self.flat.split(self.length)):
                put(tensor, part.view(tensor.shape))


def put(tensor, values, non_blocking=False):
    """Brings a result to the caller's tensor, on whatever thread."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.copy_(values, non_blocking)


def dense(tensor):
    """Every element of a block of memory once: what channels_last and transposed tensors are."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((st, sz) for st, sz in zip(tensor.stride(), tensor.shape) if sz > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def in_place(tensor):
    """(memory to work on, what brings it back). Dense tensors are taken as they lie in memory,
    which ranks whose tensors have equal strides agree about."""
    if dense(tensor):
        return tensor, None
    copy = tensor.detach().contiguous()

    return copy, lambda _: put(tensor, copy)


def both(*finishes):
    finishes = [f for f in finishes if f is not None]
    if not finishes:
        return None

    def finish(work):
        for function in finishes:
            function(work)
    return finish


# ---- arguments ----------------------------------------------------------------------------------


def as_list(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def in_place_output(tensor):
    """(contiguous memory for a result, what brings it to the tensor)"""
    check_tensor("out", tensor)
    if tensor.is_contiguous():
        return tensor.detach(), None
    out = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return out, lambda _: put(tensor, out)


def some(what, tensors):
    if len(tensors) == 0:
        raise make_error(-1, f"{what}: a list without tensors; give at least one")
    return tensors


def first_of(what, rows, size):
    """The tensors for all ranks: PyTorch gives a list of them, or a list that holds that list."""
    row = rows if len(rows) > 0 and isinstance(rows[0], torch.Tensor) else some(what, rows)[0]
    count_is(what, row, size)
    return list(row)


def count_is(what, tensors, size):
    if len(tensors) != size:
        raise make_error(-1, f"{what}: a list of {len(tensors)} tensors; give one for each of the "
                             f"{size} ranks")


def sizes_fit(what, whole, share, size):
    check_tensor(what, whole), check_tensor(what, share)
    if whole.numel() != share.numel() * size or whole.dtype != share.dtype:
        raise make_error(-1, f"{what}: {whole.dtype} {tuple(whole.shape)} for all and {share.dtype} "
                             f"{tuple(share.shape)} for one of {size} ranks do not fit")


def splits(what, splits, tensor, size):
    """Elements for each rank, of splits along the first dimension; equal shares without any."""
    rows = tensor.shape[0] if tensor.dim() > 0 else 1
    if not splits:
        if rows % size != 0:
            raise make_error(-1, f"{what}: {rows} rows cannot be shared out to {size} ranks; give "
                                 "split sizes")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise make_error(-1, f"{what}: split sizes {list(splits)} for {rows} rows and {size} ranks; "
                             "give one for each rank, together all rows")
    row = tensor.numel() // rows if rows else 0
    return [s * row for s in splits]
