"""Torch: one process per device, gradients averaged by DistributedDataParallel (gloo on CPU, NCCL on GPU)."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from kmgpu.backends import common, torch_random
from kmgpu.backends.adapter import Place, State, StepResult
from kmgpu.backends.torch_devices import AllSum, lost_peer, start
from kmgpu.data.loader import Batch
from kmgpu.recipe import Recipe

keras = common.import_keras("torch")

PATIENCE = datetime.timedelta(days=7)

__all__ = ["Adapter", "lost_peer", "start"]


class _Loss(torch.nn.Module):
    """Model and loss in one module, so that all that DDP must synchronise happens inside its forward."""

    def __init__(self, model: Any, plan: common.Plan):
        super().__init__()
        self.model, self.plan = model, plan

    def forward(self, x: Any, y: Any, sample_weight: Any) -> torch.Tensor:
        return common.local_loss(self.model, self.plan, (x, y, sample_weight), training=True)


class Adapter:
    """DistributedDataParallel on the first ``devices`` processes."""

    tools = common
    words = torch_random
    one_process_per_device = True
    not_in_callbacks: tuple[str, ...] = ()

    def __init__(self, place: Place, devices: int):
        self.devices = self.processes = devices
        self.process = place.process
        self.device_kind = place.device_kind
        self.policy = common.Policy(devices)
        self._device = "cuda:0" if place.device_kind == "gpu" else "cpu"
        self._group = dist.new_group(list(range(devices))) if place.processes > 1 else None
        # The others wait here for what process 0 does alone, such as a callback that takes its time.
        self._waiting = dist.new_group(list(range(devices)), PATIENCE, "gloo") if place.processes > 1 else None
        self._wrapped: tuple[Any, Any] | None = None

    def facts(self) -> dict[str, Any]:
        name = torch.cuda.get_device_name(0) if self._device != "cpu" else "cpu"
        precision = common.precision_facts(self.model, torch.backends.cuda.matmul.allow_tf32)
        return (
            common.model_facts(self.model)
            | precision
            | {
                "framework": f"torch {torch.__version__}",
                "devices": [f"{name} (process {process})" for process in range(self.devices)],
                "deterministic": torch.are_deterministic_algorithms_enabled(),
                "compiled": False,
                "threads": torch.get_num_threads(),
            }
        )

    def reset(self, seed: int, precision: str) -> None:
        keras.backend.clear_session()
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        common.set_precision(precision)
        keras.utils.set_random_seed(seed)

    def scope(self) -> Any:
        return contextlib.nullcontext()

    def prepare(self, recipe: Recipe, sample: Sequence[Batch], options: dict[str, Any]) -> list[str]:
        self.model = recipe.model
        self.policy = common.Policy(self.devices, recipe.batch_norm, recipe.gradient_reduction)
        self._copies = common.build(self.model, sample[0], scored="predicted" not in options)
        self._all_variables = [*self.model.variables, *self.model.optimizer.variables]
        self.plan = common.make_plan(
            self.model, sample[0].x, options["loss_gather"], recipe.accumulate, sample[0]
        )
        self.track = options["track"]
        if self.track == "as-shipped":
            self.plan = common.Plan((), ())
        else:
            pieces = common.check_pieces(self, sample) if len(sample) > 1 else []
            common.check(
                self, sample, options["sizes"], options["evaluated"], options.get("predicted", ()),
                options.get("validation"),
            )  # fmt: skip
            return [*pieces, *self.plan.notes(self.devices)]
        return self.plan.notes(self.devices)

    def shares(self, update: Sequence[Any]) -> bool:
        return any(sharding.count > 1 for sharding, _ in update)

    def put(self, batch: Batch) -> Any:
        def tensor(array: np.ndarray | None) -> torch.Tensor | None:
            if array is None:
                return None
            value = torch.from_numpy(common.as_keras(array))
            # From pinned memory the copy goes on while the step before is computed; unverified on GPU.
            return value if self._device == "cpu" else value.pin_memory().to(self._device, non_blocking=True)

        trees = [keras.tree.map_structure(tensor, tree) for tree in (batch.x, batch.y, batch.sample_weight)]
        return self.policy.on(self._sharding(batch)), trees

    def _sharding(self, batch: Batch) -> common.Sharding:
        if self.devices == 1 or batch.rows == batch.size:
            return common.unshared(batch.size, batch.update_size, self.devices, self.process, batch.offset)
        if self.track == "as-shipped":
            return common.as_shipped(batch.rows, self.devices)
        return common.Sharding(
            self.devices, self.process, batch.first, batch.rows, batch.size, batch.update_size,
            offset=batch.offset, all_sum=self._all_sum,
        )  # fmt: skip

    def _all_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return AllSum.apply(tensor, self._group)

    def _module(self, update: Sequence[Any]) -> Any:
        """Return the module to call; wrapped again when layers were frozen, unfrozen or added."""
        key = tuple(id(variable) for variable in self.model.trainable_variables)
        if self._wrapped is None or self._wrapped[0] != key:
            module: Any = _Loss(self.model, self.plan)
            if self.devices > 1:
                module = DistributedDataParallel(
                    module,
                    device_ids=None if self._device == "cpu" else [0],
                    process_group=self._group,
                    find_unused_parameters=self._has_unused(module, update),
                )
                if self.devices > 2:  # DDP lays out its buckets after a first step, and with them the order of sums
                    self._drop_step(module, update)
            self._wrapped = (key, module)
        return self._wrapped[1]

    def _has_unused(self, module: Any, update: Sequence[Any]) -> bool:
        """Whether some weights have no part in the loss, which DDP must be told; found by one step without DDP."""
        unused = self._drop_step(module, update)
        return bool(self.gather(np.array(unused)).any())

    def _drop_step(self, module: Any, update: Sequence[Any]) -> bool:
        """Take a step that leaves no trace; return whether some weights got no gradient in it."""
        devices = [] if self._device == "cpu" else [0]
        with common.restored(common.assigned(self.model)), torch.random.fork_rng(devices):
            self._backward(module, update)
        unused = any(variable.value.grad is None for variable in self.model.trainable_variables)
        self.model.zero_grad()
        return unused

    def _backward(self, module: Any, update: Sequence[Any]) -> torch.Tensor:
        """Leave the gradient of an update in the weights; returns a loss whose mean over the processes is that of it.

        A gradient in the weights is the part of this process, or, of batches that all processes compute, a whole one of
        which DDP takes the mean. What comes after another of the other kind is brought to the same.
        """
        self.model.zero_grad()
        totals = self._denominators(update) if self.plan.counts and len(update) > 1 else None
        parts: list[torch.Tensor] = []
        whole = False
        for number, (sharding, trees) in enumerate(update, 1):
            known = None if totals is None else common.Denominators(totals)
            later = number < len(update) and isinstance(module, DistributedDataParallel)
            rows = common.use(dataclasses.replace(sharding, denominators=known))
            alike = self.devices > 1 and common.same(self.plan, sharding) > 1
            if alike and not whole and parts:
                self._multiply_gradients(self.devices)
            assert alike or not whole, "shared batches come first, since they are larger"
            whole = alike
            with rows, module.no_sync() if later else contextlib.nullcontext():
                loss = module(*trees)
                self.model.optimizer.scale_loss(loss).backward()
            parts.append(loss.detach() * (1 if alike else self.devices))
        # DDP takes the mean over the processes, but parts add up. The factors are not on the loss, where float16 would
        # overflow sooner on more devices, and a backward pass that is not linear would not be that of one device.
        self._multiply_gradients((1 if whole else self.devices) * update[0][0].gradient_scale)
        return torch.stack(parts).sum()

    def _multiply_gradients(self, factor: int) -> None:
        grads = [variable.value.grad for variable in self.model.trainable_variables]
        if factor != 1:
            torch._foreach_mul_([grad for grad in grads if grad is not None], factor)

    def _denominators(self, update: Sequence[Any]) -> list[torch.Tensor]:
        """Count what the losses of all batches of an update divide by, in a forward pass over each."""
        recorded = []
        with torch.no_grad(), common.restored(common.assigned(self.model)):
            for sharding, trees in update:
                counts = common.Denominators()
                with common.use(dataclasses.replace(sharding, denominators=counts)):
                    common.local_loss(self.model, self.plan, trees, training=True)
                recorded.append(counts.recorded)
        return [torch.stack(counts).sum() for counts in zip(*recorded, strict=True)]

    def train_step(self, update: Sequence[Any]) -> Any:
        loss = self._backward(self._module(update), update)
        values = [variable.value for variable in self.model.trainable_variables]
        grads = [torch.zeros_like(v) if v.grad is None else v.grad for v in values]
        with torch.no_grad():
            self.model.optimizer.apply(grads, self.model.trainable_variables)
        return loss

    def fresh_result(self, update: Sequence[Any], training: bool) -> StepResult:
        if not training:
            with common.restored(common.assigned_weights(self.model) + self.model.non_trainable_variables):
                loss = self.losses([self.evaluate_step(update[0])])[0]
            return StepResult(loss, [], [], self.metrics())
        return self._step_result(_Loss(self.model, self.plan), update)

    def fresh_outputs(self, batch: Any) -> Any:
        with common.restored(common.assigned(self.model)):
            return self.predict(batch)

    def step_result(self, update: Sequence[Any]) -> StepResult:
        return self._step_result(self._module(update), update)

    def _step_result(self, module: Any, update: Sequence[Any]) -> StepResult:
        states = self.model.non_trainable_variables
        with common.restored([*common.assigned_weights(self.model), *states]):
            loss = self.losses([self._backward(module, update)])[0]
            values = [variable.value for variable in self.model.trainable_variables]
            gradients = [common.to_numpy(torch.zeros_like(v) if v.grad is None else v.grad) for v in values]
            self.model.zero_grad()
            after = [common.to_numpy(variable.value) for variable in states]
        if not isinstance(module, DistributedDataParallel):  # which has done that already, or is found not to have
            gradients = [self.gather(gradient).mean(axis=0) for gradient in gradients]
        return StepResult(loss, gradients, after, self.metrics())

    def operations(self, update: Sequence[Any]) -> int | None:
        # torch 2.13 has no formula for the fused attention of a CPU; as matrix products it is counted like any other.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            self.step_result(update)
        return counter.get_total_flops()

    def layer_outputs(self, batch: Any) -> dict[str, np.ndarray]:
        sharding, (x, _, _) = batch
        kept = common.restored(common.assigned(self.model))
        with torch.no_grad(), common.use(sharding), common.watched_layers(), kept:
            names: list[str] = []
            outputs = common.layer_outputs(self.model, x, names)
            return dict(zip(names, map(common.to_numpy, outputs), strict=True))

    def apply(self, gradients: Sequence[np.ndarray]) -> None:
        tensors = [torch.from_numpy(np.array(gradient)).to(self._device) for gradient in gradients]
        with torch.no_grad():
            self.model.optimizer.apply(tensors, self.model.trainable_variables)

    def state(self) -> State:
        return common.state(self.model)

    def states(self) -> list[np.ndarray]:
        return [common.to_numpy(variable.value) for variable in self.model.non_trainable_variables]

    def load_state(self, state: State) -> None:
        common.load_state(self.model, state)

    def metric_parts(self) -> list[np.ndarray]:
        states = [self.gather(common.to_numpy(variable.value)) for variable in self.model.metrics_variables]
        return common.parts(states, self.plan.of_all_rows)

    def load_metric_parts(self, parts: Sequence[np.ndarray]) -> None:
        values = common.of_device(parts, self.plan.of_all_rows, self.devices, self.process)
        for variable, value in zip(self.model.metrics_variables, values, strict=True):
            variable.assign(value)

    def random_state(self) -> dict[str, np.ndarray]:
        state = common.random_state() | {"torch": torch.get_rng_state().numpy()}
        if self._device != "cpu":
            state["torch_cuda"] = torch.cuda.get_rng_state().numpy()
        return state

    def load_random_state(self, state: dict[str, np.ndarray]) -> None:
        common.load_random_state(state)
        torch.set_rng_state(torch.from_numpy(state["torch"].copy()))
        if self._device != "cpu" and "torch_cuda" in state:
            torch.cuda.set_rng_state(torch.from_numpy(state["torch_cuda"].copy()))

    def evaluate_step(self, batch: Any) -> Any:
        sharding, trees = batch
        with torch.no_grad(), common.use(sharding):
            loss = common.local_loss(self.model, self.plan, trees, training=False)
        return loss * (self.devices // common.same(self.plan, sharding))

    def losses(self, handles: Sequence[Any]) -> list[float]:
        local = torch.stack(list(handles)).cpu().numpy().astype(np.float64)
        return self.gather(local).mean(axis=0).tolist()

    def metrics(self, reset: bool = True) -> dict[str, float]:
        results = common.metric_results(self.model, [part.sum(axis=0) for part in self.metric_parts()])
        if reset:
            self.model.reset_metrics()
        return results

    def predict(self, batch: Any) -> Any:
        sharding, (x, _, _) = batch
        with torch.no_grad(), common.use(sharding):
            return keras.tree.map_structure(common.to_numpy, common.predict(self.model, self.plan, x))

    def gather(self, values: np.ndarray) -> np.ndarray:
        values = np.asarray(values, order="C")
        if self.devices == 1:
            return values[None]
        local = torch.from_numpy(values.reshape(-1).view(np.uint8).copy()).to(self._device)
        parts = [torch.empty_like(local) for _ in range(self.devices)]
        dist.all_gather(parts, local, group=self._group)
        return np.stack([part.cpu().numpy().view(values.dtype).reshape(values.shape) for part in parts])

    def broadcast(self, data: bytes) -> bytes:
        if self.devices == 1:
            return data
        size = torch.tensor([len(data)])
        dist.broadcast(size, 0, group=self._waiting)
        content = torch.zeros(int(size), dtype=torch.uint8)
        if self.process == 0:
            content.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else content)
        if len(content):
            dist.broadcast(content, 0, group=self._waiting)
        return content.numpy().tobytes()

    def lend(self) -> None:
        self._lent = [(variable.value, variable.value._version) for variable in self._all_variables]

    def changed(self) -> list[int]:
        now = [variable.value for variable in self._all_variables]
        pairs = enumerate(zip(now, self._lent, strict=True))
        return [n for n, (value, (lent, version)) in pairs if value is not lent or value._version != version]

    def share(self, changed: Sequence[int]) -> None:
        if self.devices > 1:
            for number in changed:
                dist.broadcast(self._all_variables[number].value.detach(), 0, group=self._group)

    def rebuild(self) -> None:
        self._wrapped = None

    def variables(self) -> list[tuple[str, list[np.ndarray]]]:
        return [(variable.path, [common.to_numpy(variable.value)]) for variable in self.model.weights]

    def assign(self, values: Sequence[np.ndarray]) -> None:
        common.assign(self.model, values, self._copies)

    def peak_bytes(self) -> int | None:
        return None if self._device == "cpu" else torch.cuda.max_memory_allocated()

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
