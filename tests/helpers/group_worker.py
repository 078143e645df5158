"""One process of three, of which the last two share a group; run by `test_distributed`."""

import sys

import torch

from softadlib import functional as F
from softadlib import gather_losses

LOSSES = torch.tensor([1.0, 4.0, 2.0, 3.0, 9.0])
PARTS = {1: slice(0, 3), 2: slice(3, 5)}


def main(rank: int, folder: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3
    )
    group = torch.distributed.new_group([1, 2])
    result = None
    if rank:
        losses = LOSSES[PARTS[rank]].requires_grad_()
        value = F.cvar(gather_losses(losses, group), 0.4)
        value.backward()
        infinite = F.cvar(gather_losses(torch.tensor([torch.inf]), group), 0.4)
        result = value.detach(), losses.grad / 2, infinite  # DDP divides by the two processes
    torch.save(result, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
