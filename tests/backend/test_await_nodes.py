"""Waiting for the nodes of a cluster."""

import pytest

from dapo_cli.backend import await_nodes
from dapo_cli.backend.await_nodes import await_hosts


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(await_nodes.time, "sleep", lambda seconds: None)


def test_it_asks_until_all_are_there():
    answers = [[], ["a"], ["a", "b.domain"]]
    assert await_hosts(["a", "b"], lambda: answers.pop(0), 60) == []
    assert answers == []


def test_hosts_that_do_not_come_are_named():
    assert await_hosts(["a", "b", "c"], lambda: ["b"], 0.0) == ["a", "c"]
