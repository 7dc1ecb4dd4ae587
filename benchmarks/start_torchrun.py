"""The peer of benchmarks/start.cpp: a DDP program for torchrun, up to the end of its first step."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 64), torch.randint(10, (64,)))
loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    break
if dist.get_rank() == 0:
    print(f"reached {time.clock_gettime(time.CLOCK_MONOTONIC):.6f}", flush=True)
dist.barrier()  # Else a rank that is ahead may abort the other.
dist.destroy_process_group()
