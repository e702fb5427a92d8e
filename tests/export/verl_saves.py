"""Checkpoints as verl's FSDP backend saves them, made by FSDP and FSDP2 on real processes.

<root>/<name>/latest_checkpointed_iteration.txt, <root>/<name>/global_step_7/actor/...
"""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardedStateDictConfig, ShardingStrategy, StateDictType, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Shard, distribute_tensor

LORA = {"r": 2, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"]}
# name: (family, FSDP version, ranks, sizes and names of the mesh)
FLAT, HYBRID = ("fsdp",), ("ddp", "fsdp")
SAVES = {
    "fsdp1_4": ("qwen2_tied", 1, (4,), FLAT),
    "fsdp2_4": ("llama", 2, (4,), FLAT),
    "fsdp1_hybrid": ("llama", 1, (2, 2), HYBRID),
    "fsdp2_hybrid": ("qwen2_tied", 2, (2, 2), HYBRID),
    "fsdp1_3": ("llama", 1, (3,), FLAT),
    "fsdp2_3": ("qwen2_tied", 2, (3,), FLAT),
    "fsdp1_2": ("llama", 1, (2,), FLAT),
    "fsdp1_2_tied": ("qwen2_tied", 1, (2,), FLAT),
    "fsdp2_2": ("llama", 2, (2,), FLAT),
    "fsdp2_2_tied": ("qwen2_tied", 2, (2,), FLAT),
    "fsdp1_one_gpu": ("llama", 1, (1,), FLAT),
    "fsdp1_one_gpu_tied": ("qwen2_tied", 1, (1,), FLAT),
    "fsdp2_one_gpu": ("qwen2_tied", 2, (1,), FLAT),
}
LORA_SAVES = {
    "lora_fsdp1": ("qwen2_tied", 1, (2,), FLAT),
    "lora_fsdp2": ("llama", 2, (2,), FLAT),
    "lora_one_gpu": ("llama", 1, (1,), FLAT),
}
FOREIGN = ("tensor_parallel", "without_mesh")
RANKS = 4


def with_adapters(model):
    """The model with adapters that have an effect, as peft wraps it."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    wrapped = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **LORA))
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.linspace(-0.3, 0.3, parameter.numel()).reshape(parameter.shape)
    return wrapped


def sharded_state(model, version, mesh, strategy=ShardingStrategy.FULL_SHARD):
    """`model.state_dict()` of a rank after the wrapping that verl does."""
    layers = [module for module in model.modules() if type(module).__name__.endswith("DecoderLayer")]
    if version == 2:
        for layer in (*layers, model):
            fully_shard(layer, mesh=mesh)
        return model.state_dict()
    wrapped = FSDP(
        model,
        device_mesh=mesh,
        use_orig_params=any("lora_" in name for name, _ in model.named_parameters()),
        auto_wrap_policy=ModuleWrapPolicy({type(layers[0])}),
        sharding_strategy=strategy,
        device_id=torch.device("cpu"),
    )
    with FSDP.state_dict_type(wrapped, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=False)):
        return wrapped.state_dict()


def write(state, folder, rank, ranks, version=2):
    """What one rank leaves in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / f"model_world_size_{ranks}_rank_{rank}.pt")
    torch.save({"rng": 1}, folder / f"extra_state_world_size_{ranks}_rank_{rank}.pt")
    if rank == 0:
        (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": version, "world_size": ranks}))


def actor(root, name):
    return Path(root) / name / "global_step_7" / "actor"


def save_all(rank, root):
    """Body of each of the four processes; the first of them are the ranks of the smaller worlds."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for ranks in (4, 3, 2, 1):
        if rank >= ranks:
            return
        store = f"file://{root}/store_{ranks}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
        for name, (family, version, sizes, names) in (SAVES | LORA_SAVES).items():
            if torch.Size(sizes).numel() == ranks:
                model = torch.load(f"{root}/{family}.pt", weights_only=False)
                strategy = ShardingStrategy.HYBRID_SHARD if names == HYBRID else ShardingStrategy.FULL_SHARD
                wrapped = with_adapters(model) if name in LORA_SAVES else model
                mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
                write(sharded_state(wrapped, version, mesh, strategy), actor(root, name), rank, ranks, version)
        if ranks == 4:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
            sharded = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)])
            write({"model.norm.weight": sharded}, actor(root, "tensor_parallel"), rank, ranks)
        if ranks == 2:
            model = torch.load(f"{root}/llama.pt", weights_only=False)
            write(sharded_state(model, 1, None), actor(root, "without_mesh"), rank, ranks, 1)
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    import peft  # noqa: F401, once here rather than once in each process
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    torch.set_num_threads(1)
    torch.multiprocessing.start_processes(save_all, (sys.argv[1],), nprocs=RANKS, start_method="fork")
