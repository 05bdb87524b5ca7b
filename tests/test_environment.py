"""Which code decides a result: a run is reused only by the same."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import small_experiment
from orchard.experiment import Experiment, RunOptions
from orchard.methods.registry import BUILT_IN, method_settings
from orchard.runs.environment import RESULTS_VERSION, environment, own_code

METHOD = '''"""A method of another package."""

from typing import Literal

from orchard.methods import Averaging


class Elsewhere(Averaging):
    """Averages."""

    name: Literal["elsewhere"] = "elsewhere"

    def check(self, experiment):
        """Look."""
        assert experiment.rounds < 1000
'''
MODEL = "from torch import nn\n\ndef model():\n    return nn.Linear(6, 3)\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of another package, which can be imported."""
    (tmp_path / "elsewhere_method.py").write_text(METHOD)
    (tmp_path / "elsewhere_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("elsewhere_method", "elsewhere_model"):
        sys.modules.pop(name, None)


@pytest.fixture
def elsewhere(package: Path) -> Experiment:
    """An experiment with the other package's method."""
    from elsewhere_method import Elsewhere  # type: ignore[import-not-found]

    return small_experiment(method=Elsewhere())


@pytest.mark.parametrize("name", BUILT_IN)
def test_orchards_own_methods_and_models_have_no_code_of_their_own(name: str) -> None:
    settings = method_settings(name).model_validate({"name": name})
    for model in ("cnn", "mlp"):
        assert own_code(small_experiment(method=settings, model=model)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Elsewhere", "# A comment.\nclass Elsewhere"),
        ("assert experiment.rounds < 1000", "assert experiment.rounds < 1000  # plenty"),
        ("assert experiment.rounds < 1000", "assert (experiment.rounds < 1000)\n"),
        ("A method of another package.", "The method of another package,\n\nexplained."),
        ("Averages.", "Averages all."),
        ('"""Look."""', "'Look twice.'"),
        ('        """Look."""\n', ""),
    ],
)
def test_comments_and_docstrings_are_no_code(package: Path, elsewhere: Experiment, old: str, new: str) -> None:
    before = own_code(elsewhere)
    assert before is not None
    assert old in METHOD
    (package / "elsewhere_method.py").write_text(METHOD.replace(old, new))
    assert own_code(elsewhere) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("< 1000", "< 1001"),
        ("< 1000", "<= 1000"),
        ("        assert experiment.rounds < 1000\n", "        pass\n"),
        ("class Elsewhere", "LIMIT = 3\n\n\nclass Elsewhere"),
        ('= "elsewhere"', '= ("elsewhere")  # noqa\n    moment = "after_aggregation"'),
    ],
)
def test_changed_code_is_other_code(package: Path, elsewhere: Experiment, old: str, new: str) -> None:
    before = own_code(elsewhere)
    assert old in METHOD
    (package / "elsewhere_method.py").write_text(METHOD.replace(old, new))
    assert own_code(elsewhere) != before


def test_a_model_of_ones_own_is_code_too(package: Path) -> None:
    experiment = small_experiment(model="elsewhere_model:model")
    before = own_code(experiment)
    assert before is not None
    (package / "elsewhere_model.py").write_text(f"# A comment.\n{MODEL}")
    assert own_code(experiment) == before
    (package / "elsewhere_model.py").write_text(MODEL.replace("3", "3, bias=False"))
    assert own_code(experiment) != before


def test_both_are_in_the_record(elsewhere: Experiment) -> None:
    about = environment(elsewhere, RunOptions())
    assert (about["results_version"], about["own_code"]) == (RESULTS_VERSION, own_code(elsewhere))
