"""Sharded checkpoints in one process: the moment they hold, what they refuse, and how a failed save is told."""

import shutil
import threading

import pytest
import torch
from ranks import CPU, batch_of, one_rank, read_policy_tensors, recipe_of, state
from tiny import tiny_policy
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from dapo_cli.errors import DapoError
from dapo_cli.policy import fsdp
from dapo_cli.policy.partition import shares
from dapo_cli.policy.sharded_checkpoint import load_sharded, save_sharded, start_saving
from dapo_cli.policy.sharded_load import load_sharded_policy
from dapo_cli.policy.update import make_optimizer, update

pytestmark = pytest.mark.distributed


def train(policy, optimizer):
    recipe = recipe_of()
    update(policy, optimizer, shares(batch_of("many"), 1, recipe.train)[0], 1e-2, recipe)


@pytest.fixture
def trained():
    """A policy that is not sharded and its optimizer after one update."""
    policy = tiny_policy()
    optimizer = make_optimizer(policy, recipe_of().train)
    train(policy, optimizer)
    return policy, optimizer


@pytest.fixture
def fresh():
    """Another policy of the same shapes, whose optimizer never stepped."""
    policy = tiny_policy(seed=1)
    return policy, make_optimizer(policy, recipe_of().train)


def assert_same(left, right):
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], tensor) for key, tensor in right.items())


def test_without_ranks_a_checkpoint_is_restored_bit_for_bit(trained, fresh, tmp_path):
    save_sharded(tmp_path, *trained)
    load_sharded(tmp_path, *fresh, recipe_of().train)
    assert_same(state(*fresh), state(*trained))
    train(*trained)
    train(*fresh)
    assert_same(state(*fresh), state(*trained))


def test_an_optimizer_that_never_stepped_is_restored_as_one(trained, fresh, tmp_path):
    save_sharded(tmp_path, *fresh)
    load_sharded(tmp_path, *trained, recipe_of().train)
    assert not trained[1].state
    assert_same(state(*trained), state(*fresh))


def test_betas_epsilon_and_weight_decay_stay_the_recipes(trained, fresh, tmp_path):
    save_sharded(tmp_path, *trained)
    changed = recipe_of().train.model_copy(update={"adam_beta1": 0.5, "adam_epsilon": 1e-3, "weight_decay": 0.25})
    load_sharded(tmp_path, *fresh, changed)
    group = fresh[1].param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.5, changed.adam_beta2), 1e-3, 0.25)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_save_in_the_background_holds_the_moment_it_began(trained, tmp_path, monkeypatch, sharded):
    """Writing waits until the weights have changed: were they not copied, the changed ones would be written."""
    may_write, write = threading.Event(), FileSystemWriter.write_data

    def held(*arguments):
        assert may_write.wait(timeout=60)
        return write(*arguments)

    monkeypatch.setattr(FileSystemWriter, "write_data", held)
    policy, optimizer = trained
    if not sharded:
        assert_changes_are_left_out(policy, optimizer, tmp_path, may_write)
        return
    policy.save_pretrained(tmp_path / "model")
    for _ in range(2):  # the second process group's saves do not use what the first one's left behind
        may_write.clear()
        with one_rank() as mesh:
            policy = load_sharded_policy(tmp_path / "model", recipe_of(), mesh, CPU)
            optimizer = make_optimizer(policy, recipe_of().train)
            train(policy, optimizer)
            assert_changes_are_left_out(policy, optimizer, tmp_path / "saved", may_write)
        shutil.rmtree(tmp_path / "saved")


def assert_changes_are_left_out(policy, optimizer, folder, may_write):
    began = state(policy, optimizer)
    finish = start_saving(folder, policy, optimizer)
    train(policy, optimizer)
    may_write.set()
    finish()
    changed = state(policy, optimizer)
    assert all(not torch.equal(changed[key], tensor) for key, tensor in began.items())
    load_sharded(folder, policy, optimizer, recipe_of().train)
    assert_same(state(policy, optimizer), began)


@pytest.mark.parametrize("save", [save_sharded, lambda *arguments: start_saving(*arguments)()])
def test_a_save_that_fails_is_an_os_error_in_one_line(trained, tmp_path, save):
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(OSError, match=r"^\[Errno 20\] Not a directory: .*policy'$"):
        save(tmp_path / "taken", *trained)


def test_a_checkpoint_of_another_model_is_refused_by_name(trained, tmp_path):
    save_sharded(tmp_path, *trained)
    other = tiny_policy()
    other.lm_head = torch.nn.Linear(16, 48, bias=False)
    with pytest.raises(DapoError, match=r"not a checkpoint of this model: .*lm_head\.weight"):
        load_sharded(tmp_path, other, make_optimizer(other, recipe_of().train), recipe_of().train)
    tied = tiny_policy()
    tied.config.tie_word_embeddings = True
    tied.tie_weights()
    with pytest.raises(DapoError, match=r"not a checkpoint of this model: .*lm_head\.weight"):
        load_sharded(tmp_path, tied, make_optimizer(tied, recipe_of().train), recipe_of().train)


def halve(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGE = {
    "no folder": (shutil.rmtree, r"No such file .*policy/\.metadata"),
    "half of the metadata": (lambda folder: halve(folder / ".metadata"), "cannot be read: "),
    "other metadata": (lambda folder: (folder / ".metadata").write_bytes(b"xx"), "cannot be read: "),
    "no tensors": (lambda folder: (folder / "__0_0.distcp").unlink(), r"No such file .*__0_0\.distcp"),
    "half of the tensors": (lambda folder: halve(folder / "__0_0.distcp"), "cannot be read: "),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_refused_in_one_line(trained, fresh, tmp_path, damage):
    save_sharded(tmp_path, *trained)
    change, message = DAMAGE[damage]
    change(tmp_path / "policy")
    for read in (lambda: load_sharded(tmp_path, *fresh, recipe_of().train), lambda: read_policy_tensors(tmp_path)):
        with pytest.raises(DapoError, match=message) as caught:
            read()
        assert str(tmp_path / "policy") in str(caught.value)
        assert "\n" not in str(caught.value)


def test_saves_in_the_background_have_a_group_of_their_own():
    assert fsdp.background_group() is None
    with one_rank():
        group = fsdp.background_group()
        assert group is not None
        assert group is fsdp.background_group()
        assert group is not torch.distributed.group.WORLD
