"""Torch: the device of a process, the group of all processes, and a sum over them."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kmgpu.backends import common
from kmgpu.backends.adapter import Place
from kmgpu.errors import MissingEnvironment


def start(place: Place) -> None:
    """Initialise this process's device and join the group of all processes."""
    torch.set_num_threads(place.threads)
    torch.backends.cudnn.benchmark = not place.deterministic  # autotuning may choose another kernel in another run
    torch.backends.cudnn.deterministic = place.deterministic
    torch.use_deterministic_algorithms(place.deterministic)
    if place.device_kind == "gpu":
        if not torch.cuda.is_available():
            raise MissingEnvironment("torch sees no GPU; install a CUDA build of torch or use --device-kind cpu")
        torch.cuda.set_device(0)  # the launcher shows each process its own device alone
    if place.processes > 1:
        dist.init_process_group(
            "nccl" if place.device_kind == "gpu" else "gloo",
            init_method=f"file://{place.rendezvous}",
            rank=place.process,
            world_size=place.processes,
            timeout=timedelta(minutes=10),
        )


def stock(place: Place) -> tuple[Any, Any, str]:
    """Start the device, there is one; return Keras as shipped, an idle context, and the framework."""
    keras = common.stock_keras("torch")
    start(place)
    return keras, contextlib.nullcontext(), f"torch {torch.__version__}"


def lost_peer(error: BaseException) -> bool:
    """Whether a collective failed because another process went away."""
    return isinstance(error, RuntimeError) and "connection" in str(error).lower() and "peer" in str(error).lower()


class AllSum(torch.autograd.Function):
    """Sum over the processes of a group; the gradient is summed in the same way."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None
