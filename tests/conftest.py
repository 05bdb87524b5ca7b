import gc
from collections.abc import Iterator

import hypothesis
import pytest
import torch
from torch import Tensor

from helpers import SmallFederation
from ray_cluster import _nodes, nodes  # noqa: F401  fixtures of more than one file

# How long an example takes depends on the machine's load, and says nothing of the code.
hypothesis.settings.register_profile("orchard", deadline=None)
hypothesis.settings.load_profile("orchard")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tests compare bit for bit, so what they compute themselves runs on one thread as workers do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _own_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests trust is not remembered for whoever runs them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def alone() -> Tensor:
    """What three rounds of separate training give."""
    return SmallFederation(method="separate").run(3).models()


def pytest_collection_finish() -> None:
    """Let collections of garbage skip what was imported: engines collect after every round."""
    gc.collect()
    gc.freeze()
