"""One rank of bench/compare_torch_backend.py: DDP training steps over one backend; rank 0 prints the
milliseconds of each, after five that warm up."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--backend", required=True)
parser.add_argument("--width", type=int, required=True)
parser.add_argument("--steps", type=int, default=20)
options = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group(options.backend)
torch.manual_seed(0)
width = options.width
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
    torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(16, width), torch.randint(0, 10, (16,))
for step in range(5 + options.steps):
    dist.barrier()
    begin = time.perf_counter()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    longest = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    if step >= 5 and dist.get_rank() == 0:
        print(f"step_ms {longest.item() * 1e3:.3f}", flush=True)
dist.destroy_process_group()
