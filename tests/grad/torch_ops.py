# SPDX-License-Identifier: Apache-2.0
"""Makes torch_ops_numbers.h: values and gradients of PyTorch, for torch_ops.c.

    pip install torch==2.13.0; python3 tests/grad/torch_ops.py >tests/grad/torch_ops_numbers.h
"""

import textwrap

import torch
import torch.nn.functional as F

INF, NAN = float("inf"), float("nan")

# Tensors of f are sin(1.7), sin(3.4), …: the same in torch_ops.c. The gradients are those of
# sum(y * f), so that no two elements weigh the same.


def f(*shape):
    n = torch.Size(shape).numel()
    return torch.sin(torch.arange(1.0, n + 1).double() * 1.7).float().reshape(shape)


def leaf(*shape):
    return f(*shape).requires_grad_()


def put(name, t):
    odd = {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}
    numbers = ", ".join(odd["%.9g" % v] if "%.9g" % v in odd else
                        "%.9gf" % v if "." in "%.9g" % v or "e" in "%.9g" % v else "%.9g" % v
                        for v in t.detach().float().flatten().tolist())
    line = f"static const float torch_{name}[] = {{{numbers}}};"
    print("\n".join(textwrap.wrap(line, 100, subsequent_indent="    ", break_long_words=False)))


def case(name, y, *leaves):
    """The result, then the gradients of the leaves."""
    put(name, y)
    if leaves:
        (y * f(*y.shape)).sum().backward()
    for i, x in enumerate(leaves):
        put(f"{name}_grad{i}", x.grad)


def elements():
    for name in ("sin", "cos"):
        x = leaf(2, 4)
        case(name, getattr(torch, name)(x * 3), x)
    for name in ("maximum", "minimum"):
        a, b = leaf(3, 4), leaf(4)  # the first rows are equal
        case(name, getattr(torch, name)(a, b), a, b)
    a, b = f(3, 4).abs().round(decimals=1), f(4).abs().round(decimals=1)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        case(name, getattr(torch, name)(a, b))
    nan = torch.tensor([1.0, float("nan"), 2.0, float("nan")])
    for name in ("eq", "ne", "lt", "ge"):
        case(name + "_nan", getattr(torch, name)(nan, torch.tensor([1.0, 1.0, float("nan"), float("nan")])))
    case("and", torch.logical_and(a.round(), b.round()))
    case("or", torch.logical_or(a.round(), b.round()))
    case("not", torch.logical_not(a.round()))


def shapes():
    case("arange", torch.arange(-1.0, 2.2, 0.7))
    case("arange_down", torch.arange(5, -4, -3))
    case("linspace", torch.linspace(-1.0, 2.0, 7))
    case("linspace_one", torch.linspace(3.0, 9.0, 1))
    a = leaf(2, 2, 3)
    case("pad", F.pad(a, (1, 2, 0, 1), value=0.5), a)
    a = leaf(2, 4, 3)
    case("pad_cut", F.pad(a, (-1, 1, 2, -3)), a)
    a = leaf(2, 1, 2, 1, 2, 2)
    case("pad_six", F.pad(a, (0, 1, -1, 0, 1, 0, 0, 1, 1, 0, 0, -1), value=2.5), a)
    a, b = leaf(2, 3), leaf(2, 3)
    case("stack", torch.stack((a, b.exp()), 1), a, b)
    a, b = leaf(2, 3), leaf(2, 3)
    case("stack_last", torch.stack((a, b.exp()), -1), a, b)
    a = leaf(2, 1, 3)
    case("expand", a.expand(2, 2, 3), a)
    a = leaf(3, 1)
    case("expand_more", a.expand(2, -1, 2), a)
    case("one_hot", F.one_hot(torch.tensor([[2, 0], [1, 2]]), 3))


def orders():
    for name, descending in (("sort", False), ("sort_down", True)):
        a = leaf(3, 5)
        y, i = a.sort(1, descending=descending)
        case(name, y, a)
        case(name + "_index", i)
        a = leaf(4, 2, 2)
        y, i = a.sort(0, descending=descending)
        case(name + "_first", y, a)
        case(name + "_first_index", i)
    case("argsort", torch.tensor([3.0, float("nan"), -1.0, 3.0, -0.0, 0.0]).argsort(stable=True))
    case("argsort_down",
         torch.tensor([3.0, float("nan"), -1.0, 3.0, -0.0, 0.0]).argsort(descending=True, stable=True))
    floats = [3.0, float("nan"), -1.0, 3.0, -0.0, 0.0, float("inf"), -float("inf"), 0.5]
    signed = [3.0, -5.0, 0.0, 3.0, 127.0, -128.0, 0.0, -5.0, 64.0]
    unsigned = [3.0, 255.0, 0.0, 3.0, 128.0, 127.0, 0.0, 255.0, 64.0]
    truths = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    for name, values in (("float64", floats), ("float16", floats), ("bfloat16", floats), ("int8", signed),
                         ("int16", signed), ("int32", signed), ("int64", signed), ("uint8", unsigned),
                         ("uint16", unsigned), ("uint32", unsigned), ("uint64", unsigned), ("bool", truths)):
        x = torch.tensor(values).to(getattr(torch, name))
        for way, descending in (("up", False), ("down", True)):
            y, i = x.sort(descending=descending, stable=True)
            case(f"sort_{name}_{way}", y)
            case(f"sort_{name}_{way}_index", i)
    for name, largest in (("topk", True), ("topk_least", False)):
        a = leaf(2, 7)
        y, i = a.topk(3, 1, largest=largest)
        case(name, y, a)
        case(name + "_index", i)


def images():
    size = {"nearest": ("nearest", None), "bilinear": ("bilinear", False), "corners": ("bilinear", True)}
    for name, (mode, align) in size.items():
        x = leaf(1, 2, 2, 3)
        case("up_" + name, F.interpolate(x, size=(4, 5), mode=mode, align_corners=align), x)
        x = leaf(1, 1, 5, 4)
        case("down_" + name, F.interpolate(x, size=(2, 3), mode=mode, align_corners=align), x)
        x = leaf(2, 1, 2, 2)
        case("scaled_" + name, F.interpolate(x, scale_factor=(1.5, 2.5), mode=mode, align_corners=align), x)
    x, w, b = leaf(2, 2, 7), leaf(4, 2, 3), leaf(4)
    case("conv1d", F.conv1d(x, w, b), x, w, b)
    x, w = leaf(1, 4, 9), leaf(2, 2, 3)
    case("conv1d_options", F.conv1d(x, w, None, stride=2, padding=3, dilation=2, groups=2), x, w)
    x, w, b = leaf(2, 2, 2, 3), leaf(2, 3, 2, 2), leaf(3)
    case("transposed", F.conv_transpose2d(x, w, b), x, w, b)
    x, w, b = leaf(1, 4, 3, 2), leaf(4, 1, 3, 2), leaf(2)
    case("transposed_options", F.conv_transpose2d(x, w, b, stride=(2, 3), padding=(1, 0), dilation=(1, 2),
                                                  output_padding=(1, 2), groups=2), x, w, b)


def norms_and_losses():
    x, w, b = leaf(2, 4, 3), leaf(4), leaf(4)
    case("group_norm", F.group_norm(x, 2, w, b), x, w, b)
    x = leaf(2, 2, 1, 3)
    case("group_norm_plain", F.group_norm(x, 1), x)
    for name, loss in {
        "l1": F.l1_loss,
        "huber": lambda x, y: F.huber_loss(x, y, delta=0.4),
        "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, beta=0.3),
        "smooth_l1_0": lambda x, y: F.smooth_l1_loss(x, y, beta=0.0),
    }.items():
        x, y = leaf(3, 4), f(24)[12:].reshape(3, 4).clone().requires_grad_()
        case(name, loss(x, y), x, y)
    for reduction in ("mean", "sum", "none", "batchmean"):
        x, y = leaf(2, 3), f(3, 2).T.contiguous().requires_grad_()
        case("kl_" + reduction, F.kl_div(x.log_softmax(1), y.softmax(1), reduction=reduction), x, y)
        x, y = leaf(2, 3), f(3, 2).T.contiguous().requires_grad_()
        case("kl_log_" + reduction,
             F.kl_div(x.log_softmax(1), y.log_softmax(1), reduction=reduction, log_target=True), x, y)
    case("kl_zero", F.kl_div(f(3).log_softmax(0), torch.tensor([0.0, 0.25, 0.75]), reduction="sum"))


def sums_and_weights():
    x = leaf(2, 4)
    case("leaky_relu", F.leaky_relu(x, 0.1), x)
    x = leaf(2, 3, 2)
    case("logsumexp", (x * 3).logsumexp(1), x)
    x = leaf(3, 4)
    case("logsumexp_keep", x.logsumexp(-1, keepdim=True), x)
    x = torch.tensor([[-INF, -INF], [INF, 1.0], [1000.0, 1000.0], [-INF, 2.0], [NAN, 1.0], [-1000.0, -1001.0]])
    case("logsumexp_odd", x.logsumexp(1))
    x = torch.tensor([[-INF, 2.0], [1000.0, 999.0]]).requires_grad_()
    case("logsumexp_large", x.logsumexp(1), x)
    a, b = leaf(4, 3), leaf(3, 3)
    case("index_add", a.index_add(0, torch.tensor([2, 0, 2]), b.exp()), a, b)
    a, b = leaf(2, 3, 2), leaf(2, 4, 2)
    case("index_add_middle", a.index_add(1, torch.tensor([0, 0, 2, 0]), b), a, b)
    weights = f(3).abs() + 0.2
    target = torch.tensor([2, 0, -100, 1, 2])
    for name, smoothing in (("weighted", 0.0), ("weighted_smooth", 0.3)):
        x = leaf(5, 3)
        case(name, F.cross_entropy(x, target, weights, label_smoothing=smoothing), x)
    case("weighted_sum", weights[target[target >= 0]].sum())


def integers():
    a = torch.tensor([-7, 7, -8, 3, 0, 9, -9, 1]).reshape(2, 4)
    b = torch.tensor([2, -2, 3, 5])
    for name, y in {"add": a + b, "sub": a - b, "mul": a * b, "max": torch.maximum(a, b), "min": torch.minimum(a, b),
                    "floor": a.div(b, rounding_mode="floor"), "rest": a.remainder(b), "sum": a.sum(),
                    "sum_dim": a.sum(1, keepdim=True), "sum_dims": a.reshape(2, 2, 2).sum((0, 2)),
                    "cumsum": a.cumsum(0), "cumsum_last": a.cumsum(1)}.items():
        case("int_" + name, y)
    case("int_wraps", (a.to(torch.int8) * 20).to(torch.int8) + torch.tensor(100, dtype=torch.int8))
    case("truths", (f(3, 4) > 0.3).sum())
    case("truths_dim", (f(3, 4) > 0.3).sum(0))
    case("nonzero", (f(3, 4) > 0.3).nonzero())
    case("nonzero_floats", torch.tensor([0.0, -0.0, float("nan"), 2.0]).nonzero())
    case("bincount", torch.bincount(torch.tensor([3, 0, 3, 1, 3]), minlength=6))


print("/* Made by torch_ops.py with PyTorch", torch.__version__.split("+")[0] + ". */")
print("#ifndef TEST_GRAD_TORCH_OPS_NUMBERS_H\n#define TEST_GRAD_TORCH_OPS_NUMBERS_H\n\n/* clang-format off */")
for part in (elements, shapes, orders, images, norms_and_losses, sums_and_weights, integers):
    part()
print("\n#endif")
