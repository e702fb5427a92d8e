"""Which folders are checkpoints of verl, and which files must be there."""

import json

import pytest
import torch
from verl_saves import actor, write

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.export.verl import convert_verl
from dapo_cli.export.verl_files import find_verl_checkpoint
from dapo_cli.export.verl_lora import is_lora


def save(folder, ranks=2):
    for rank in range(ranks):
        write({"a": torch.ones(1)}, folder, rank, ranks)


def test_the_latest_step_is_the_one_that_verl_names(tmp_path):
    for step in (5, 10):
        save(tmp_path / f"global_step_{step}" / "actor", step)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5\n")
    found = find_verl_checkpoint(tmp_path)
    assert (found.step, found.ranks) == (5, 5)
    assert found.rank_file(3).is_file()
    assert find_verl_checkpoint(tmp_path / "global_step_10").ranks == 10


def test_files_right_in_the_step_folder_are_found(tmp_path):
    save(tmp_path / "global_step_3")
    assert find_verl_checkpoint(tmp_path / "global_step_3").step == 3
    save(tmp_path / "elsewhere")
    assert find_verl_checkpoint(tmp_path / "elsewhere").step is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no file model_world_size_W_rank_R.pt"),
        (lambda path: (path / "dist_ckpt").mkdir(), "dist_ckpt: a checkpoint of verl's Megatron backend"),
        (lambda path: (path / "actor" / "dist_ckpt").mkdir(parents=True), "Megatron"),
        (lambda path: (path / ".metadata").write_text(""), "a distributed checkpoint of torch"),
        (lambda path: (path / "global_step_9").mkdir(), "no latest_checkpointed_iteration.txt says which step"),
        (lambda path: (path / "latest_checkpointed_iteration.txt").write_text("x"), "holds no number, got 'x'"),
        (lambda path: (path / "latest_checkpointed_iteration.txt").write_text("4"), "global_step_4: no such folder"),
    ],
)
def test_other_folders_are_refused_by_name(tmp_path, make, message):
    make(tmp_path)
    with pytest.raises(DapoError, match=message):
        find_verl_checkpoint(tmp_path)


def test_a_critic_and_a_path_that_is_not_there_are_refused(tmp_path):
    save(tmp_path / "critic")
    with pytest.raises(UsageError, match="a critic, which is no language model"):
        find_verl_checkpoint(tmp_path / "critic")
    with pytest.raises(UsageError, match="no such folder"):
        find_verl_checkpoint(tmp_path / "nowhere")


def test_files_of_two_world_sizes_need_the_config_that_tells_them_apart(tmp_path):
    save(tmp_path, 4)
    save(tmp_path, 2)
    assert find_verl_checkpoint(tmp_path).ranks == 2
    (tmp_path / "fsdp_config.json").unlink()
    with pytest.raises(UsageError, match=r"files of 2 and of 4 ranks, and no fsdp_config\.json says which"):
        find_verl_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"world_size": 8}', "world_size 8, but the files"),
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
    ],
)
def test_a_config_that_does_not_fit_is_named(tmp_path, text, message):
    save(tmp_path)
    (tmp_path / "fsdp_config.json").write_text(text)
    with pytest.raises(DapoError, match=rf"fsdp_config\.json: {message}"):
        find_verl_checkpoint(tmp_path)


def refused(folder, tmp_path):
    with pytest.raises(DapoError) as caught:
        convert_verl(folder, tmp_path / "out", "float32", lambda note: None)
    assert not (tmp_path / "out").exists()
    return caught.value.message


@pytest.mark.parametrize("rank", [0, 1])
def test_the_missing_file_of_a_rank_is_named(verl_copy, tmp_path, rank):
    folder = verl_copy("fsdp2_2")
    (folder / f"model_world_size_2_rank_{rank}.pt").unlink()
    assert f"model_world_size_2_rank_{rank}.pt: no such file" in refused(folder, tmp_path)


def test_the_second_replica_is_not_needed(verl_copy, tmp_path):
    folder = verl_copy("fsdp2_hybrid")
    for rank in (2, 3):
        (folder / f"model_world_size_4_rank_{rank}.pt").unlink()
    convert_verl(folder, tmp_path / "out", "float32", lambda note: None)


def test_missing_config_and_tokenizer_are_named(verl_copy, tmp_path):
    folder = verl_copy("fsdp2_2")
    (folder / "huggingface" / "tokenizer.json").unlink()
    assert "huggingface: no tokenizer (tokenizer.json" in refused(folder, tmp_path)
    (folder / "huggingface" / "config.json").unlink()
    assert "huggingface/config.json: no such file" in refused(folder, tmp_path)


def test_a_value_head_is_refused_by_its_name(verl_copy, tmp_path):
    folder = verl_copy("fsdp2_2")
    config = folder / "huggingface" / "config.json"
    values = json.loads(config.read_text()) | {"architectures": ["LlamaForTokenClassification"]}
    config.write_text(json.dumps(values))
    assert "LlamaForTokenClassification: not a language model" in refused(folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensor_parallel", "model.norm.weight: sharded over the mesh (fsdp, tp), a layout that is not read"),
        ("without_mesh", "holds ShardedTensor of FSDP without a device mesh, a layout that is not read"),
    ],
)
def test_real_files_of_other_layouts_are_refused_by_name(verl_root, tmp_path, name, message):
    assert message in refused(actor(verl_root, name), tmp_path)


def test_files_of_different_saves_are_refused(verl_copy, tmp_path):
    folder = verl_copy("fsdp2_2")
    torch.save({"a": torch.ones(1)}, folder / "model_world_size_2_rank_1.pt")
    assert "rank_1.pt: not of the same save as model_world_size_2_rank_0.pt" in refused(folder, tmp_path)


def test_plain_tensors_of_several_ranks_must_be_copies(verl_copy, tmp_path):
    folder = verl_copy("fsdp1_one_gpu")
    state = torch.load(folder / "model_world_size_1_rank_0.pt")
    write(state, folder, 0, 2)
    write(state, folder, 1, 2)
    convert_verl(folder, tmp_path / "fine", "float32", lambda note: None)
    state["model.norm.weight"] = state["model.norm.weight"] * 2
    write(state, folder, 1, 2)
    assert "model.norm.weight: not sharded, and yet different on each rank" in refused(folder, tmp_path)


def test_names_alone_tell_adapters():
    assert is_lora({"base_model.model.x.lora_A.default.weight": None})
    assert not is_lora({"model.layers.0.self_attn.q_proj.weight": None})
