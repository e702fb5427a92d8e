"""One Ray session and one cluster for all tests of this folder."""

import pytest
from small_cluster import cluster_recipe, running
from vllm_tiny import write_model


@pytest.fixture(scope="session")
def tied_folder(tmp_path_factory):
    """A tiny model with a tied head."""
    return write_model(tmp_path_factory.mktemp("tied"))


@pytest.fixture(scope="session")
def ray_session():
    """Ray on this machine, for every cluster of the tests."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def cluster(tied_folder, ray_session):
    """Two FSDP2 ranks over gloo and one vLLM replica."""
    with running(cluster_recipe(2), tied_folder) as backend:
        yield backend
