# SPDX-License-Identifier: Apache-2.0
"""Writes vit.safetensors and vit_logits.safetensors beside this script: a small vision transformer of
torchvision with random weights, and the logits that it computes.

    python make_vit.py             needs torch, torchvision, pillow and safetensors
"""

import pathlib

import safetensors.torch
import torch

# The wheel of another build of PyTorch lacks its compiled operators; the model needs none of them.
torch._C._dispatch_has_kernel_for_dispatch_key = lambda *_: True
torch.library.Library.impl = lambda *_, **__: None
torch.library._register_fake = torch.library.register_fake = lambda *_, **__: lambda f: f
torch.library.register_autograd = lambda *_, **__: None
import torchvision

FOLDER = pathlib.Path(__file__).resolve().parent

model = torchvision.models.VisionTransformer(
    image_size=8, patch_size=4, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=20, num_classes=5)
generator = torch.Generator().manual_seed(1)
with torch.no_grad():
    for name, value in model.named_parameters():
        middle = 1.0 if value.ndim == 1 and name.endswith("weight") else 0.0
        value.copy_(middle + 0.3 * torch.randn(value.shape, generator=generator))
model.eval()
images = torch.randn(2, 3, 8, 8, generator=generator)
with torch.no_grad():
    logits = model(images)
safetensors.torch.save_file(model.state_dict(), FOLDER / "vit.safetensors")
safetensors.torch.save_file({"images": images, "logits": logits}, FOLDER / "vit_logits.safetensors",
                            metadata={"torch": torch.__version__, "torchvision": torchvision.__version__})
