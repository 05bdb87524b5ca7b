"""Averages that a dishonest minority cannot move far, and mixtures that leave out what spoils them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import orchard
from helpers import SmallFederation, method, small_arrays, small_experiment, small_run
from orchard.core.federation import capped
from orchard.core.training import NotFinite, local_sgd
from orchard.errors import RunFailed, Stopped, UserError
from orchard.methods.apple import Apple, AppleClient, AppleServer
from orchard.methods.fedavg import weighted_mean
from orchard.methods.registry import BUILT_IN, method_settings
from orchard.methods.robust import geometric_median, nearest_mixing, robust_mean, squared_distances
from orchard.methods.screening import spoilers
from orchard.runs.figures import mean_over_clients

EQUAL = [10] * 100


def numbers(*values: float) -> dict[int, Tensor]:
    return {i: torch.tensor([value]) for i, value in enumerate(values)}


# --- Averages ---


def test_what_is_far_from_all_does_not_count() -> None:
    """Each of 0, 1 and 2 is nearest to these three, whose mean is 1; 100's three nearest are 1, 2 and itself."""
    assert robust_mean(numbers(0, 1, 2, 100), EQUAL).item() == pytest.approx(1, abs=1e-5)
    squares = squared_distances(list(numbers(0, 1, 2, 100).values()))
    mixing = nearest_mixing(squares, torch.ones(4, dtype=torch.float64))
    third = 1 / 3
    assert mixing[:3].tolist() == [pytest.approx([third, third, third, 0])] * 3
    assert mixing[3].tolist() == pytest.approx([0, third, third, third])


def test_the_geometric_median_of_three_points_with_a_wide_angle_is_the_one_in_the_middle() -> None:
    points = torch.tensor([[0.0, 0.0], [3.0, 0.0], [-3.0, 1.0]])
    shares = geometric_median(squared_distances(list(points)), torch.ones(3, dtype=torch.float64))
    assert (shares @ points.double()).tolist() == pytest.approx([0, 0], abs=1e-3)


def test_the_geometric_median_of_a_triangle_sees_its_sides_under_equal_angles() -> None:
    """Fermat's point of (0,0), (4,0), (2,3): on the axis of symmetry, at 2/√3 above the base."""
    points = torch.tensor([[0.0, 0.0], [4.0, 0.0], [2.0, 3.0]])
    shares = geometric_median(squared_distances(list(points)), torch.ones(3, dtype=torch.float64))
    assert (shares @ points.double()).tolist() == pytest.approx([2, 2 / 3**0.5], abs=1e-4)


def test_two_vectors_give_their_mean_and_one_itself() -> None:
    assert robust_mean(numbers(1, 3), EQUAL).item() == pytest.approx(2)
    assert robust_mean(numbers(7), EQUAL).item() == 7
    assert robust_mean(numbers(5, 5, 5, 5), EQUAL).item() == 5


def test_nobody_counts_for_more_than_the_median_client() -> None:
    assert capped([10, 300, 20, 2**40]) == [10, 20, 20, 20]
    assert capped([5, 7]) == [5, 5]
    small = robust_mean(numbers(0, 1, 2, 100), [10, 10, 10, 2**40])
    assert torch.equal(small, robust_mean(numbers(0, 1, 2, 100), EQUAL))


@settings(max_examples=60, deadline=None)
@given(
    honest=st.integers(3, 9),
    share=st.floats(0, 1),
    scale=st.floats(-6, 8),
    seed=st.integers(0, 1000),
    together=st.booleans(),
)
def test_a_quarter_of_all_cannot_carry_it_away(
    honest: int, share: float, scale: float, seed: int, together: bool
) -> None:
    """Wherever they are, alone or together, and whatever counts they claim."""
    bad = int(share * (honest // 3))  # at most a quarter of all
    draw = np.random.default_rng(seed)
    good = torch.from_numpy(draw.normal(size=(honest, 5)))
    direction = draw.normal(size=(1 if together else bad, 5))
    evil = torch.from_numpy(np.broadcast_to(10**scale * direction, (bad, 5)).copy())
    rows = dict(enumerate([*good, *evil]))
    counts = [*draw.integers(5, 50, size=honest).tolist(), *[2**40] * bad]
    found = robust_mean(rows, counts)
    spread = (good - good.mean(0)).norm(dim=1).max()
    assert (found - good.mean(0)).norm() <= 2 * spread
    if bad and scale > 3:
        assert (weighted_mean(rows, counts) - good.mean(0)).norm() > 10 * spread


@given(st.permutations(range(5)))
@settings(max_examples=20, deadline=None)
def test_the_order_of_clients_does_not_matter(order: list[int]) -> None:
    vectors = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 4)))
    counts = [3, 1, 4, 1, 5]
    shuffled = robust_mean({i: vectors[j] for i, j in enumerate(order)}, [counts[j] for j in order])
    assert torch.allclose(shuffled, robust_mean(dict(enumerate(vectors)), counts), atol=1e-7)


def test_a_huge_vector_does_not_drown_the_differences_of_the_others() -> None:
    assert robust_mean(numbers(0, 1, 2, 1e8), EQUAL).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", [name for name in BUILT_IN if method_settings(name).withstands])
def test_methods_with_a_defence_run_with_it(name: str) -> None:
    result = small_run(method=name, robust=True, rounds=2, epochs=1)
    assert len(result.rounds) == 2
    assert not any(entry.failures for entry in result.rounds)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "cfl", "mocha"])
def test_methods_without_a_defence_say_so(name: str) -> None:
    with pytest.raises(
        UserError, match=f"robust = true: {name} has no defence against dishonest clients; methods that"
    ):
        small_run(method=name, robust=True)


def test_fedavg_takes_the_robust_average_in_place_of_the_mean() -> None:
    federation = SmallFederation(method="fedavg", robust=True)
    updates = federation.round(0)
    uploads = {i: update.upload["model"] for i, update in enumerate(updates)}
    assert torch.equal(federation.global_model(), robust_mean(uploads, federation.federation.samples))
    assert not torch.equal(federation.global_model(), weighted_mean(uploads, federation.federation.samples))


# --- Mixtures ---


def poisoned(factor: float, robust: bool) -> SmallFederation:
    """A federation after a round, of which the server then holds a poisoned core of client 2."""
    federation = SmallFederation(method="apple", robust=robust, rounds=6).run(1)
    assert isinstance(federation.server, AppleServer)
    cores = federation.server.cores
    federation.server.cores = [factor * core if j == 2 else core for j, core in enumerate(cores)]
    return federation


def test_a_poisoned_core_ends_the_others_training() -> None:
    federation = poisoned(-1e4, robust=False)
    with pytest.raises(NotFinite):
        federation.round(1)


@pytest.mark.parametrize("factor", [-1e4, -4, float("nan"), float("inf")])
def test_a_poisoned_core_is_left_out_by_all_who_say_whose_it_was(factor: float) -> None:
    federation = poisoned(factor, robust=True)
    federation.clients[2] = federation.experiment.method.client(2, federation.federation)  # whose own is as it was
    for i in (0, 1, 3):
        update = federation._client_round(i, federation.download(i, 1))
        assert update.loss is not None
        client = federation.clients[i]
        assert isinstance(client, AppleClient)
        assert client.diagnostics()["left_out"] == [0, 0, 1, 0]
        assert client.relationships.isfinite().all()


def test_without_poison_nothing_is_left_out() -> None:
    plain, robust = (SmallFederation(method="apple", robust=robust).run(3) for robust in (False, True))
    for one, other in zip(plain.clients, robust.clients, strict=True):
        assert isinstance(one, AppleClient)
        assert isinstance(other, AppleClient)
        assert other.left_out == []
        assert "left_out" not in one.diagnostics()


def test_a_core_of_ordinary_length_that_spoils_the_mixture_is_left_out() -> None:
    federation = SmallFederation(lr=0.2, epochs=10)
    context = federation.contexts[0]
    own, _ = local_sgd(context, 0, federation.federation.initial_model())
    models = [own, torch.zeros_like(own), own, -2 * own]
    assert spoilers(context, torch.tensor([0.5, 0, 0.5, 0]), models, 0) == []
    assert spoilers(context, torch.tensor([0.5, 0, 0.5, 1.0]), models, 0) == [3]


def test_leaving_out_works_under_a_budget() -> None:
    result = small_run(method=method("apple", budget=1), robust=True)
    assert len(result.rounds) == 3


# --- Who diverges ---


class Wild(AppleClient):
    """Diverges from a round on, if it is one of those named."""

    since, who = 1, (2,)

    def train(self, context, round):  # type: ignore[no-untyped-def]
        if round >= self.since and self.index in self.who:
            raise NotFinite("the loss or a gradient is not finite at step 1 of epoch 1")
        return super().train(context, round)


def wild(monkeypatch: pytest.MonkeyPatch, since: int, *who: int) -> None:
    kind = type("Wilder", (Wild,), {"since": since, "who": who})
    monkeypatch.setattr(Apple, "client", lambda self, index, federation: kind(self, index, federation))


def test_a_client_that_diverges_later_keeps_its_last_good_state_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wild(monkeypatch, 1, 2)
    result = small_run(method=method("apple", mu=0.0), rounds=4)
    said = "the loss or a gradient is not finite at step 1 of epoch 1"
    assert [entry.failures for entry in result.rounds] == [
        {},
        *({2: f"client 2, round {r}: {said}"} for r in (2, 3, 4)),
    ]
    shorter = small_run(method=method("apple", mu=0.0), rounds=1)
    assert torch.equal(result.models[2][0], shorter.models[2][0])
    assert not torch.equal(result.models[0][0], shorter.models[0][0])
    assert result.bmcta == result.scores()[:, [0, 1, 3]].mean(axis=1).max()


def test_a_run_in_which_a_client_diverged_resumes_to_the_same_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also the model of a client that has failed before the interruption and fails after it."""
    wild(monkeypatch, 1, 2)
    whole = small_run(rounds=4)
    with pytest.raises(Stopped):
        small_run_until(2, tmp_path / "run", rounds=4)
    resumed = orchard.resume(tmp_path / "run", small_arrays())
    assert [entry.failures for entry in resumed.rounds] == [entry.failures for entry in whole.rounds]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(resumed.models, whole.models, strict=True))


def small_run_until(rounds_done: int, out: Path, **changes: object) -> None:
    """Stop a small run after so many rounds."""
    asked: list[None] = []

    def stop() -> bool:  # asked once before the first round
        asked.append(None)
        return len(asked) > rounds_done

    orchard.run(small_experiment(**changes), small_arrays(), out=out, stop=stop)


def test_means_leave_out_who_lacks_most_figures() -> None:
    nan = np.nan
    scores = np.array([[0.5, 0.9, 0.2], [0.7, nan, nan], [0.8, 0.9, nan], [nan, nan, nan]])
    assert np.allclose(mean_over_clients(scores), [0.7, nan, 0.85, nan], equal_nan=True)
    assert np.isnan(mean_over_clients(np.full((2, 3), nan))).all()


def test_if_most_diverge_the_run_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    wild(monkeypatch, 1, 1, 2)
    with pytest.raises(RunFailed, match=r"client 1, round 2 \(and 1 more\): the loss or a gradient is not finite"):
        small_run()


def test_who_diverges_at_once_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    wild(monkeypatch, 0, 2)
    with pytest.raises(RunFailed, match="client 2, round 1: the loss"):
        small_run()
