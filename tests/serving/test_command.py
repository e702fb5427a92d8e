import json
import socket

import pytest
from transformers import LlamaConfig

from dapo_cli.errors import UsageError
from dapo_cli.serving.command import ServeOptions, count_replicas, error_line, find_served, refuse_taken_port


@pytest.fixture
def folder(tmp_path):
    model = tmp_path / "step_5"
    LlamaConfig(hidden_size=64, num_attention_heads=4).save_pretrained(model)
    with (model / "model.safetensors").open("wb") as weights:
        weights.truncate(40 * 10**9)  # a hole: it takes no space
    return model


def test_a_folder_is_served_under_its_name_on_as_few_gpus_as_hold_it(folder):
    served, config = find_served(ServeOptions(str(folder)), [40 * 10**9] * 4)
    assert (served.name, served.folder, served.dtype, served.tensor_parallel) == ("step_5", folder, "auto", 2)
    assert config.num_attention_heads == 4
    named = ServeOptions(str(folder) + "/", served_model="mine", dtype="float32", tensor_parallel=4)
    served, _ = find_served(named, [])
    assert (served.name, served.dtype, served.tensor_parallel) == ("mine", "float32", 4)


def test_a_recipe_serves_its_eval_model_else_its_model_in_its_precision(folder, tmp_path):
    wanted = ("model.path=toy", "model.dtype=bfloat16")
    served, _ = find_served(ServeOptions("demo", (*wanted, f"eval.model={folder}"), tensor_parallel=1), [])
    assert (served.name, served.dtype) == ("step_5", "bfloat16")
    served, _ = find_served(ServeOptions("demo", (f"model.path={folder}",), tensor_parallel=1, dtype="float32"), [])
    assert (served.name, served.dtype) == ("step_5", "float32")


def test_what_cannot_be_served_is_refused(folder, tmp_path):
    with pytest.raises(UsageError, match="--set belongs to a recipe"):
        find_served(ServeOptions(str(folder), ("model.path=x",)), [])
    with pytest.raises(UsageError, match="4 attention heads, which 3 does not divide"):
        find_served(ServeOptions(str(folder), tensor_parallel=3), [])
    with pytest.raises(UsageError, match="do not fit"):
        find_served(ServeOptions(str(folder)), [10**9])
    with pytest.raises(UsageError, match="no such folder"):
        find_served(ServeOptions(str(tmp_path / "nothing")), [])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no config\.json"):
        find_served(ServeOptions(str(tmp_path / "empty")), [])
    (folder / "config.json").write_text(json.dumps({"model_type": "t5", "num_heads": 4}))
    with pytest.raises(UsageError, match="not a decoder"):
        find_served(ServeOptions(str(folder)), [])


def test_replicas_are_counted_from_the_gpus_of_the_cluster():
    # The public evaluation: 64 GPUs, 8 to a replica.
    assert count_replicas(None, 8, 64, "cuda") == 8
    assert count_replicas(2, 1, 0, "cpu") == 2
    for wanted, parallel, gpus in [(3, 4, 8), (None, 8, 4), (1, 1, 0)]:
        with pytest.raises(UsageError, match=f"the cluster has {gpus} GPUs"):
            count_replicas(wanted, parallel, gpus, "cuda")


def test_a_port_that_is_taken_is_found_before_anything_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--port {port}: Address already in use"):
            refuse_taken_port("127.0.0.1", port)
    refuse_taken_port("127.0.0.1", port)


def test_the_reason_of_an_engine_that_does_not_start_is_found():
    pydantic = (
        "pydantic.ValidationError: 1 validation error for ModelConfig\n  Value error, too long [type=value_error]\n"
    )
    assert error_line("Traceback:\n" + pydantic + "    For further information visit a page") == "Value error, too long"
    assert error_line("ValueError: first\nTraceback:\nray.RuntimeError: second\nlogs") == "ray.RuntimeError: second"
    assert error_line("it ended\n\n") == "it ended"
    assert error_line("") == ""
