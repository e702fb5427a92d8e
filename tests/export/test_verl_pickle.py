"""Files of ranks are read as data: whatever else they name is refused and not run."""

import os
import shutil
import zipfile

import pytest
import torch
from torch.serialization import get_safe_globals
from verl_saves import actor

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.export.verl import convert_verl
from dapo_cli.export.verl_mesh import mesh_of
from dapo_cli.export.verl_pickle import read_rank_file


class Runs:
    """Pickled as a call."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("function", "arguments", "named"),
    [
        (os.mkdir, ("ran",), "mkdir"),
        (eval, ("__import__('os').mkdir('ran')",), "eval"),
        (shutil.copytree, (".", "ran"), "shutil.copytree"),
        (torch.load, ("other.pt",), "torch.serialization.load"),
    ],
)
def test_a_file_that_asks_for_a_call_is_refused_and_nothing_runs(
    verl_copy, tmp_path, monkeypatch, function, arguments, named
):
    folder = verl_copy("fsdp1_one_gpu")
    monkeypatch.chdir(tmp_path)
    file = folder / "model_world_size_1_rank_0.pt"
    torch.save({"model.norm.weight": torch.ones(16), "other": Runs(function, *arguments)}, file)
    before = set(get_safe_globals())
    with pytest.raises(UsageError, match=rf"rank_0\.pt: asks to load .*{named}.*; nothing of the file was run"):
        convert_verl(folder, tmp_path / "out", "float32", lambda note: None)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()
    assert set(get_safe_globals()) == before


def test_what_was_allowed_before_is_allowed_after_and_never_while_reading(verl_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(get_safe_globals())
    torch.save({"a": Runs(os.mkdir, "ran")}, tmp_path / "model.pt")
    torch.serialization.add_safe_globals([os.mkdir])
    try:
        with pytest.raises(UsageError, match="mkdir"):
            read_rank_file(tmp_path / "model.pt")
        read_rank_file(actor(verl_root, "fsdp2_2") / "model_world_size_2_rank_0.pt")
        assert set(get_safe_globals()) == before | {os.mkdir}
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(list(before))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": 3}, "a: not a tensor but int"),
        ({}, "holds no tensors by name"),
        ([torch.ones(1)], "holds no tensors by name"),
    ],
)
def test_other_content_is_refused(tmp_path, state, message):
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(UsageError, match=message):
        read_rank_file(tmp_path / "model.pt")


def rewritten(file, change):
    """A copy of the archive with its pickle changed."""
    other = file.with_name(f"other_{file.name}")
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(other, "w", zipfile.ZIP_STORED) as copy:
        for name in archive.namelist():
            data = archive.read(name)
            copy.writestr(name, change(data) if name.endswith("data.pkl") else data)
    return other


def of_a_gpu(pickle):
    return pickle.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")


def of_torch_2_4(pickle):
    for new, old in (
        (b"ctorch.distributed.tensor\nDTensor\n", b"ctorch.distributed._tensor.api\nDTensor\n"),
        (b"ctorch.distributed.tensor.placement_types\n", b"ctorch.distributed._tensor.placement_types\n"),
        (b"ctorch.distributed.tensor._dtensor_spec\n", b"ctorch.distributed._tensor._dtensor_spec\n"),
    ):
        assert new in pickle
        pickle = pickle.replace(new, old)
    return pickle


@pytest.mark.parametrize("change", [of_a_gpu, of_torch_2_4])
@pytest.mark.parametrize("name", ["fsdp2_hybrid", "fsdp1_hybrid"])
def test_files_of_gpus_and_of_older_versions_read_alike(verl_copy, change, name):
    file = verl_copy(name) / "model_world_size_4_rank_1.pt"
    expected = read_rank_file(file)
    found = read_rank_file(rewritten(file, change))
    assert found.keys() == expected.keys()
    for tensor, part in expected.items():
        assert torch.equal(found[tensor].local, part.local)
        assert found[tensor].local.device.type == "cpu"
        assert (found[tensor].shape, found[tensor].shard_dim) == (part.shape, 0)
        assert found[tensor].mesh.replicas == ((0, 1), (2, 3))


def test_a_sharding_that_is_not_understood_is_refused(verl_copy):
    file = verl_copy("fsdp2_2") / "model_world_size_2_rank_0.pt"
    other = rewritten(file, lambda pickle: pickle.replace(b"_rank_map", b"_rank_mop"))
    with pytest.raises(UsageError, match="sharded in a way that is not known: KeyError"):
        read_rank_file(other)


def flip(file, position):
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def flip_a_value(file):
    with zipfile.ZipFile(file) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
    flip(file, largest.header_offset + 2000)


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_value,
        lambda file: file.write_bytes(file.read_bytes()[:-1000]),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"torn"),
    ],
)
def test_a_damaged_file_is_named(verl_copy, tmp_path, damage):
    folder = verl_copy("fsdp2_2")
    damage(folder / "model_world_size_2_rank_1.pt")
    with pytest.raises(DapoError, match=r"model_world_size_2_rank_1\.pt: damaged"):
        convert_verl(folder, tmp_path / "out", "float32", lambda note: None)
    assert not (tmp_path / "out").exists()


def test_meshes_of_older_versions():
    old = {"mesh": torch.tensor([[0, 1], [2, 3]]), "mesh_dim_names": ("ddp", "fsdp"), "device_type": "cuda"}
    assert mesh_of(old, "x").replicas == ((0, 1), (2, 3))
    assert mesh_of({"mesh": torch.tensor([0, 1, 2]), "mesh_dim_names": ("fsdp",)}, "x").replicas == ((0, 1, 2),)


@pytest.mark.parametrize("names", [("dp", "tp"), ("fsdp", "sp"), None])
def test_other_meshes_are_refused_by_name(names):
    with pytest.raises(UsageError, match=r"x: sharded over the mesh \((dp, tp|fsdp, sp|without names)\), a layout"):
        mesh_of({"mesh": torch.tensor([[0, 1]]), "mesh_dim_names": names}, "x")
