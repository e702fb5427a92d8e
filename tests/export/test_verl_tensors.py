"""Whole tensors from parts, at the sizes where parts are uneven, empty or do not fit."""

from pathlib import Path

import pytest
import torch

from dapo_cli.errors import UsageError
from dapo_cli.export import verl_tensors
from dapo_cli.export.verl_files import VerlCheckpoint
from dapo_cli.export.verl_mesh import Mesh
from dapo_cli.export.verl_pickle import Part


def whole(monkeypatch, locals_, shape, dim=0, mesh=None):
    """What becomes of one tensor with these parts, rank by rank."""
    mesh = mesh or Mesh((tuple(range(len(locals_))),))
    files = [{"a": Part(local, shape, dim, mesh)} for local in locals_]
    monkeypatch.setattr(verl_tensors, "read_rank_file", lambda path: files[int(path.stem.rpartition("_")[2])])
    checkpoint = VerlCheckpoint(Path("actor"), len(locals_), None)
    return verl_tensors.verl_tensors(checkpoint, lambda note: None)["a"]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize("dim", [0, 1])
def test_chunks_become_the_whole_again(monkeypatch, rows, dim):
    tensor = torch.randn(rows, 4) if dim == 0 else torch.randn(4, rows)
    chunks = list(torch.chunk(tensor, 4, dim))
    chunks += [torch.empty(0)] * (4 - len(chunks))  # a short tensor leaves ranks without any
    found = whole(monkeypatch, chunks, tuple(tensor.shape), dim)
    assert torch.equal(found.read(), tensor)
    assert (found.shape, found.dtype) == (tuple(tensor.shape), torch.float32)


def test_parts_are_ordered_by_the_mesh_not_by_rank(monkeypatch):
    parts = [torch.full((1,), float(rank)) for rank in range(4)]
    found = whole(monkeypatch, parts, (2,), mesh=Mesh(((2, 0), (1, 3))))
    assert found.read().tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    ("locals_", "shape", "mesh", "message"),
    [
        ([(2, 3), (1, 3)], (4, 3), None, r"its parts are \[2, 1\] long, the whole has 4"),
        ([(2, 3), (2, 2)], (4, 3), None, "a part of shape"),
        ([(2, 3), (2, 3)], (4, 3), Mesh(((0, 1, 2),)), "but its name says 2"),
        ([(2, 3), (2, 3)], (4, 3), Mesh(((1,), (0,))), "rank 0 is not in the first replica"),
    ],
)
def test_parts_that_do_not_fit_are_refused(monkeypatch, locals_, shape, mesh, message):
    with pytest.raises(UsageError, match=message):
        whole(monkeypatch, [torch.zeros(each) for each in locals_], shape, mesh=mesh)


def test_ranks_that_differ_in_dtype_are_refused(monkeypatch):
    with pytest.raises(UsageError, match="the ranks say different things"):
        whole(monkeypatch, [torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16)], (2,))
