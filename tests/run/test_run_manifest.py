import json
import platform
import subprocess

import numpy as np

from dapo_cli.run import manifest
from dapo_cli.run.files import next_free, write_atomic


def test_manifest_holds_what_a_run_was_made_from():
    content = manifest.build_manifest(
        model={"path": "toy", "sha256": "ab"},
        data={"train_sha256": "cd"},
        first_prompt={"text": "<s>hi"},
        contaminated=True,
        forked_from=None,
    )
    assert json.loads(json.dumps(content)) == content
    assert content["versions"]["python"] == platform.python_version()
    assert content["versions"]["numpy"] == np.__version__
    assert set(content["versions"]) == {"python", "dapo", "torch", "transformers", "numpy"}
    assert content["machine"]["cpus"] >= content["machine"]["usable_cpus"] >= 1
    assert content["machine"]["memory_bytes"] > 2**27
    assert (content["model"]["path"], content["first_prompt"], content["contaminated"]) == (
        "toy",
        {"text": "<s>hi"},
        True,
    )
    assert content["created"].endswith("+00:00")


def test_a_missing_package_is_null(monkeypatch):
    monkeypatch.setattr(manifest, "PACKAGES", ("no-such-package-here",))
    assert manifest.versions()["no-such-package-here"] is None


def test_commit_only_of_the_checkout_that_tracks_the_package(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *identity, "-C", tmp_path, *arguments], check=True, capture_output=True)

    for name in ("ours", "installed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    git("init")
    git("add", "ours")
    git("commit", "-m", "x")
    found = manifest.git_commit(tmp_path / "ours")
    assert len(found["commit"]) == 40
    assert found["uncommitted_changes"] is False
    (tmp_path / "ours" / "__init__.py").write_text("changed")
    assert manifest.git_commit(tmp_path / "ours") == {"commit": found["commit"], "uncommitted_changes": True}
    assert manifest.git_commit(tmp_path / "installed") == {"commit": None, "uncommitted_changes": None}


def test_write_atomic_keeps_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    assert write_atomic(path, "é") == 2

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    try:
        write_atomic(path, "new")
    except OSError:
        pass
    else:
        raise AssertionError("the error was swallowed")
    assert path.read_text() == "é"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_lone_surrogate_is_written_as_its_json_escape(tmp_path):
    write_atomic(tmp_path / "a.json", json.dumps("\udc80", ensure_ascii=False))
    assert json.loads((tmp_path / "a.json").read_text()) == "\udc80"


def test_next_free_counts_from_one(tmp_path):
    assert next_free(tmp_path, "x.{}").name == "x.1"
    (tmp_path / "x.1").mkdir()
    assert next_free(tmp_path, "x.{}").name == "x.2"
