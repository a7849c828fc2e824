"""Two processes with DistributedDataParallel, over gloo."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import invattn


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        invattn.InvertibleAttention(4, kind="dot-product", bottleneck=1),
        invattn.ActNorm(4),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


def gradients(rank, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    own, alone = network(), network()
    together = DistributedDataParallel(own)
    guards = [invattn.Guard(net, fraction=1, target=1e-2) for net in (own, alone)]
    worst = 0.0
    for step in range(3):
        x = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        if step == 0:  # the same start as the network over processes has, which is of the first rank's batch
            first = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0))
            with torch.no_grad():
                inner = alone[1](alone[0](first))
                alone[2](inner)
        for net, run, guard in ((own, together, guards[0]), (alone, alone, guards[1])):
            net.zero_grad()
            (run(x).square().mean() + guard.penalty()).backward()
        for one, other in zip(own.parameters(), alone.parameters()):
            gradient = other.grad.clone()
            dist.all_reduce(gradient)
            worst = max(worst, (one.grad - gradient / 2).abs().max().item())
    shift = own[2].shift.detach().clone()
    shifts = [torch.zeros_like(shift) for _ in range(2)]
    dist.all_gather(shifts, shift)
    flow = invattn.Flow(channels=3, height=4, width=4, pixels="none", blocks=[1], hidden=4, attention="none", attention_blocks=[])
    flow.load_state_dict({key: value for key, value in flow.state_dict().items()})
    flow.log_prob(torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(rank)))
    scales = torch.cat([norm.shift.detach().flatten() for norm in flow.modules() if isinstance(norm, invattn.ActNorm)])
    both = [torch.zeros_like(scales) for _ in range(2)]
    dist.all_gather(both, scales)
    torch.save({"worst": worst, "apart": (shifts[0] - shifts[1]).abs().max().item(), "flow": (both[0] - both[1]).abs().max().item()}, f"{folder}/{rank}")
    dist.destroy_process_group()


def test_gradients_are_averaged_and_actnorm_starts_together(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(gradients, args=(port, str(tmp_path)), nprocs=2)
    for rank in range(2):
        found = torch.load(tmp_path / str(rank))
        assert found["worst"] < 1e-5 and found["apart"] == 0 and found["flow"] == 0, found
