"""One FSDP2 rank of the policy: a plain class that the cluster backend runs as an actor.

Every method from `start` on is a collective: it is called on all ranks at once, with equal arguments but for the share.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dapo_cli.backend.addresses import free_address
from dapo_cli.recipe.schema import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from dapo_cli.policy.partition import Share


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a process runs; ranks are numbered in this order, so that neighbours share a node."""

    node_ip: str
    gpu: int
    """-1 without one."""
    node_id: str


class PolicyRank:
    """Holds a shard of the policy and of the optimizer."""

    def __init__(self, recipe: Recipe, resolved_model: str) -> None:
        self.recipe = recipe
        self.resolved_model = resolved_model
        self._perturbed = ExitStack()
        self._finish_saving: Callable[[], None] | None = None

    def place(self) -> Place:
        """Where this process runs and on which GPU."""
        import ray

        context = ray.get_runtime_context()
        gpus = ray.get_gpu_ids()
        return Place(ray.util.get_node_ip_address(), int(gpus[0]) if gpus else -1, context.get_node_id())

    def free_address(self) -> str:
        """An address on this node at which the ranks can meet."""
        host, port = free_address()
        return f"tcp://{host}:{port}"

    def start(self, rank: int, num_ranks: int, address: str) -> dict[str, Any]:
        """Join the other ranks, load this rank's shard and make its optimizer; returns what is worth telling.

        Raises:
            UsageError: the model cannot be loaded or trained packed.
        """
        import torch

        from dapo_cli.backend.local import set_threads
        from dapo_cli.policy import fsdp, lora
        from dapo_cli.policy.sharded_load import load_sharded_policy, local_model_folder
        from dapo_cli.policy.update import make_optimizer

        recipe = self.recipe
        self.rank, self.num_ranks = rank, num_ranks
        on_gpu = recipe.backend.gpus_per_node > 0
        self.device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
        if not on_gpu:
            torch.set_num_threads(1)
        fsdp.init_ranks(rank, num_ranks, address, self.device.type, recipe.backend.timeout_seconds)
        mesh = fsdp.make_mesh(num_ranks, recipe.backend.ranks_per_shard_group, self.device.type)
        folder = local_model_folder(self.resolved_model, recipe.model.revision)
        self.policy = load_sharded_policy(folder, recipe, mesh, self.device)
        self.optimizer = make_optimizer(self.policy, recipe.train)
        parameters = sum(parameter.numel() for parameter in self.policy.parameters())
        threads = set_threads(recipe.backend, parameters, num_ranks)
        trained = sum(parameter.numel() for parameter in self.policy.parameters() if parameter.requires_grad)
        return {
            "threads": threads,
            "summary": lora.trainable_summary(self.policy),
            "trained_parameters": trained,
        }

    def connect(self, engines: Sequence[Any]) -> None:
        """Get ready to send weights to `engines`, the actors of the vLLM replicas."""
        from dapo_cli.backend.weight_sync import RayEngineClient, WeightSync, transport_for

        recipe = self.recipe
        client = RayEngineClient(engines, recipe.rollout.tensor_parallel, recipe.backend.timeout_seconds)
        transport = transport_for(recipe.backend.placement, self.device.type)
        self.sync = WeightSync(self.policy, recipe, transport, client, self.rank)

    def logprobs(self, parts: Sequence[Share]) -> list[npt.NDArray[np.float32]]:
        """Log-probs of the response tokens of this rank's share of each minibatch."""
        from dapo_cli.policy.forward import share_logprobs

        return [share_logprobs(self.policy, share, self.recipe) for share in parts]

    def update(self, share: Share, learning_rate: float) -> dict[str, float]:
        """One optimizer step; the metrics are of the whole minibatch, the same on every rank."""
        from dapo_cli.policy import fsdp
        from dapo_cli.policy.update import update

        rests = self.device.type == "cuda" and self.recipe.backend.offload == ("optimizer",)
        if rests:
            fsdp.move_optimizer(self.optimizer, self.device)
        metrics = update(self.policy, self.optimizer, share, learning_rate, self.recipe)
        if rests:
            fsdp.move_optimizer(self.optimizer, "cpu")
        return metrics

    def send_weights(self, policy_version: int, everything: bool) -> None:
        """Send the policy to the engines; with LoRA possibly its adapters alone."""
        self.sync.send(policy_version, everything=everything)

    def perturb(self) -> None:
        """Change every weight by a few percent until `restore`; for the canary."""
        from dapo_cli.backend.probe import perturbed

        self._perturbed.enter_context(perturbed(self.policy))

    def restore(self) -> None:
        """Undo `perturb`, bit for bit."""
        self._perturbed.close()

    def probe_logprobs(self, sequences: Sequence[npt.NDArray[np.int32]]) -> list[npt.NDArray[np.float32]]:
        """The policy's log-probs of tokens 1.. of each sequence."""
        from dapo_cli.backend.probe import policy_logprobs

        return policy_logprobs(self.policy, sequences, self.recipe)

    def save(self, folder: Path) -> None:
        """Write this rank's shard; with `checkpoint.asynchronous` only begin to."""
        from dapo_cli.policy import sharded_checkpoint

        if self.recipe.checkpoint.asynchronous:
            self._finish_saving = sharded_checkpoint.start_saving(folder, self.policy, self.optimizer)
        else:
            sharded_checkpoint.save_sharded(folder, self.policy, self.optimizer)

    def finish_saving(self) -> None:
        """Wait for the end of a save in the background.

        Raises:
            OSError: it failed.
        """
        finish, self._finish_saving = self._finish_saving, None
        if finish is not None:
            finish()

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, on any number of ranks."""
        from dapo_cli.policy import sharded_checkpoint

        sharded_checkpoint.load_sharded(folder, self.policy, self.optimizer, self.recipe.train)

    def finish(self) -> None:
        """Leave the other ranks; without it a process may abort at exit."""
        from dapo_cli.policy import fsdp

        fsdp.close_ranks()
