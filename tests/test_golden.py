"""The same experiment gives the same result as when RESULTS_VERSION was last raised."""

import json
from typing import Any

import numpy as np
import pytest

from golden import FILE, VARIANTS, cnn_losses, figures, run_variant
from orchard.runs.environment import RESULTS_VERSION

ADVICE = "results have changed: if that is meant, raise RESULTS_VERSION and write tests/golden.json anew"


@pytest.fixture(scope="module")
def golden() -> Any:
    return json.loads(FILE.read_text("utf-8"))


def test_golden_results_are_of_this_version(golden: Any) -> None:
    assert golden["results_version"] == RESULTS_VERSION, ADVICE
    assert golden["small"].keys() == VARIANTS.keys()


@pytest.mark.parametrize("name", VARIANTS)
def test_every_method_gives_its_golden_result(name: str, golden: Any) -> None:
    now = figures(run_variant(name))
    for figure, then in golden["small"][name].items():
        np.testing.assert_allclose(now[figure], then, rtol=1e-5, atol=1e-6, err_msg=f"{name}, {figure}: {ADVICE}")


def test_the_papers_network_gives_its_golden_result(golden: Any) -> None:
    np.testing.assert_allclose(cnn_losses(), golden["cnn"], rtol=1e-4, err_msg=ADVICE)
