"""The methods against a second implementation of them: NumPy, float64, a linear model, gradients by hand.

Several rounds with momentum, decay, unequal clients and last batches that are smaller. First models, data, the order
of samples and the choice of what to download are Orchard's; what is done with them is written from the equations.
"""

import math

import numpy as np
import pytest

from orchard.methods.apfl import APFLClient
from orchard.methods.apple import AppleClient, core_of
from orchard.methods.fedfomo import FedFomoClient, model_of
from orchard.methods.graft import GraftServer
from orchard.methods.heurfedamp import HeurFedAMPServer
from orchard.methods.scaffold import ScaffoldServer
from reference import DECAY, LR, MOMENTUM, ROUNDS, clients_of, equal, federation, loss, numbers, slope


@pytest.mark.parametrize("changed", [{}, {"initial": "shared"}, {"steps": "full"}])
@pytest.mark.parametrize("scheduler", ["cos", "exp"])
@pytest.mark.parametrize("budget", [None, 1, 2])
def test_apple(budget: int | None, scheduler: str, changed: dict[str, str]) -> None:
    eta, mu, length = 0.05, 2.0, int(ROUNDS * 0.7)
    own = {"relationship_lr": eta, "mu": mu, "scheduler": scheduler, "scheduler_fraction": 0.7, "budget": budget}
    small = federation("apple", **own, **changed)
    clients, n = clients_of(small), 5
    first = small.federation.initial_model() if "initial" in changed else None
    cores = [(small.federation.initial_core(j) if first is None else first).numpy().copy() for j in range(n)]
    copies = [list(cores) for _ in range(n)]
    p = [clients.shares.copy() for _ in range(n)]
    for r in range(ROUNDS):
        fading = (math.cos(math.pi * r / length) + 1) / 2 if scheduler == "cos" else 10 ** (-3 * r / length)
        strength = mu * fading if r < length else 0.0
        for i, client in enumerate(small.clients):
            selected = client.select(r)
            copies[i] = [cores[j] if core_of(j) in selected else copies[i][j] for j in range(n)]
        trained = []
        for i in range(n):
            core, core_velocity, p_velocity = copies[i][i], np.zeros(21), np.zeros(n)
            for x, y in clients.batches(i, r):
                models = np.stack([core if j == i else copies[i][j] for j in range(n)])
                g = slope(p[i] @ models, x, y)
                core_velocity = MOMENTUM * core_velocity + (1 if "steps" in changed else p[i][i]) * g
                p_velocity = MOMENTUM * p_velocity + models @ g + strength * (p[i] - clients.shares)
                core = core - LR * DECAY**r * core_velocity
                p[i] = p[i] - eta * DECAY**r * p_velocity
            copies[i][i] = core
            trained.append(core)
        cores = trained
        updates = small.round(r)
        equal(numbers(update.upload["core"] for update in updates), cores)
        equal(numbers(client.relationships for client in small.clients if isinstance(client, AppleClient)), p)
        equal(small.models().numpy(), [p[i] @ np.stack(copies[i]) for i in range(n)])


@pytest.mark.parametrize("budget", [None, 2])
def test_fedfomo(budget: int | None) -> None:
    small = federation("fedfomo", budget=budget)
    clients, n = clients_of(small), 5
    start = small.federation.initial_model().numpy().copy()
    base, models, affinity = [start] * n, [start] * n, 0.1 * np.eye(n)
    worse, fallbacks = 0, 0
    for r in range(ROUNDS):
        for i, client in enumerate(small.clients):
            if r == 0:
                continue
            worth = np.zeros(n)
            selected = client.select(r)
            for j in (*(j for j in range(n) if model_of(j) in selected), i):
                gain = loss(base[i], *clients.validation[i]) - loss(models[j], *clients.validation[i])
                worth[j] = gain / (np.linalg.norm(models[j] - base[i]) + 1e-8)
            affinity[i] += worth / abs(worth.sum())
            worse += int((worth < 0).sum())
            positive = worth.clip(min=0)
            fallbacks += not positive.any()
            if positive.any():
                base[i] = positive / positive.sum() @ np.stack(models)
        models = [clients.local_sgd(base[i], i, r) for i in range(n)]
        small.round(r)
        equal(small.models().numpy(), models)
        for client, row in zip(small.clients, affinity, strict=True):
            assert isinstance(client, FedFomoClient)
            if budget:
                equal(client.affinity, row)
    assert worse, "else nobody would notice if what is worse than the base counted for nothing"
    assert fallbacks, "else nobody would notice if they did not go back to their base"


def test_heurfedamp_until_its_pull_has_grown_twice() -> None:
    rounds, n, sigma, lam = 62, 5, 3.0, 200.0
    small = federation("heurfedamp", sigma=sigma, lam=lam, self_weight=0.3, rounds=rounds)
    clients = clients_of(small)
    models = np.stack([small.federation.initial_model().numpy()] * n)
    for r in range(rounds):
        starts = models
        if r:
            unit = models / np.linalg.norm(models, axis=1, keepdims=True)
            weights = np.exp(sigma * unit @ unit.T)
            np.fill_diagonal(weights, 0)
            weights *= 0.7 / weights.sum(1, keepdims=True)
            np.fill_diagonal(weights, 0.3)
            assert isinstance(small.server, HeurFedAMPServer)
            equal(small.server.weights.numpy(), weights)
            starts = weights @ models
        pull = lam / (1e4 * 0.1 ** (r // 30))
        models = np.stack([clients.local_sgd(starts[i], i, r, starts[i], pull) for i in range(n)])
        small.round(r)
        equal(small.models().numpy(), models)


def test_apfl() -> None:
    small = federation("apfl")
    clients, n = clients_of(small), 5
    shared = small.federation.initial_model().numpy().copy()
    private, alpha = [shared] * n, [0.5] * n
    for r in range(ROUNDS):
        lr, copies = LR * DECAY**r, []
        for i in range(n):
            w, v, w_velocity, v_velocity = shared, private[i], np.zeros(21), np.zeros(21)
            used = alpha[i]
            for step, (x, y) in enumerate(clients.batches(i, r)):
                g = slope(used * v + (1 - used) * w, x, y)
                moved = float(np.clip(used - lr * (v - w) @ g, 0, 1)) if step == 0 else used
                w_velocity = MOMENTUM * w_velocity + slope(w, x, y)
                v_velocity = MOMENTUM * v_velocity + used * g
                w, v, used = w - lr * w_velocity, v - lr * v_velocity, moved
            copies.append(w)
            private[i], alpha[i] = v, used
        shared = clients.shares @ np.stack(copies)
        small.round(r)
        equal([client.alpha.item() for client in small.clients if isinstance(client, APFLClient)], alpha)
        equal(small.models().numpy(), [alpha[i] * private[i] + (1 - alpha[i]) * copies[i] for i in range(n)])
        equal(small.global_model().numpy(), shared)


@pytest.mark.parametrize(("name", "mu"), [("fedavg-ft", 0.0), ("fedprox-ft", 0.7)])
def test_fedavg_and_fedprox_with_tuning(name: str, mu: float) -> None:
    small, twin = (federation(name, **({"mu": mu} if mu else {})) for _ in range(2))
    clients, n = clients_of(small), 5
    shared = small.federation.initial_model().numpy().copy()
    for r in range(ROUNDS):
        for i, client in enumerate(twin.clients):  # which never train
            client.receive(small.contexts[i], small.download(i, r))
            tuned = client.finetune(small.contexts[i], r)
            assert tuned is not None
            equal(tuned.numpy(), clients.local_sgd(shared, i, r))
        copies = np.stack([clients.local_sgd(shared, i, r, shared, mu) for i in range(n)])
        shared = clients.shares @ copies
        small.round(r)
        equal(small.models().numpy(), copies)
        equal(small.global_model().numpy(), shared)


def test_fedprox() -> None:
    small, mu = federation("fedprox", mu=0.7), 0.7
    clients, n = clients_of(small), 5
    shared = small.federation.initial_model().numpy().copy()
    for r in range(ROUNDS):
        shared = clients.shares @ np.stack([clients.local_sgd(shared, i, r, shared, mu) for i in range(n)])
        small.round(r)
        equal(small.global_model().numpy(), shared)


def test_separate() -> None:
    small = federation("separate")
    clients, n = clients_of(small), 5
    models = [small.federation.initial_model().numpy().copy()] * n
    for r in range(ROUNDS):
        models = [clients.local_sgd(models[i], i, r) for i in range(n)]
        small.round(r)
        equal(small.models().numpy(), models)


def test_ditto() -> None:
    lam = 0.4
    small = federation("ditto", lam=lam)
    clients, n = clients_of(small), 5
    shared = small.federation.initial_model().numpy().copy()
    personal = [shared] * n
    for r in range(ROUNDS):
        personal = [clients.local_sgd(personal[i], i, r, shared, lam) for i in range(n)]
        shared = clients.shares @ np.stack([clients.local_sgd(shared, i, r) for i in range(n)])
        small.round(r)
        equal(small.models().numpy(), personal)
        equal(small.global_model().numpy(), shared)


def test_fedper() -> None:
    small = federation("fedper", private=["bias"])
    clients, n = clients_of(small), 5
    models = [small.federation.initial_model().numpy().copy()] * n
    for r in range(ROUNDS):
        models = [clients.local_sgd(models[i], i, r) for i in range(n)]
        small.round(r)
        equal(small.models().numpy(), models)
        body = clients.shares @ np.stack(models)[:, :18]
        models = [np.concatenate([body, model[18:]]) for model in models]


def test_scaffold() -> None:
    global_lr = 0.8
    small = federation("scaffold", global_lr=global_lr)
    clients, n = clients_of(small), 5
    x, c, own = small.federation.initial_model().numpy().copy(), np.zeros(21), np.zeros((5, 21))
    for r in range(ROUNDS):
        lr, copies, changes = LR * DECAY**r, [], []
        for i in range(n):
            y, steps = x, 0
            for batch in clients.batches(i, r):
                y, steps = y - lr * (slope(y, *batch) - own[i] + c), steps + 1
            changes.append((x - y) / (steps * lr) - c)
            copies.append(y)
        own = own + np.stack(changes)
        x, c = x + global_lr * (clients.shares @ np.stack(copies) - x), c + np.mean(changes, axis=0)
        small.round(r)
        equal(small.models().numpy(), copies)
        assert isinstance(small.server, ScaffoldServer)
        equal(small.server.model.numpy(), x)
        equal(small.server.control.numpy(), c)


@pytest.mark.parametrize("opposition", [-0.2, 0.0, 0.2])
def test_graft(opposition: float) -> None:
    small = federation("graft", opposition=opposition)
    clients, n = clients_of(small), 5
    cores = pools = np.stack([small.federation.initial_model().numpy()] * n)
    pooled, together, lengths = np.ones((n, n), dtype=bool), np.zeros((n, n)), np.zeros((n, n))
    lowest, kept = [math.inf] * n, 0
    for r in range(ROUNDS):
        stock = np.zeros(n)
        for i, (x, y) in enumerate(clients.train if r > 0 else []):
            if (now := loss(pools[i], x, y)) < lowest[i]:
                lowest[i] = now
            else:
                guess = -np.log((np.bincount(y, minlength=3)[y] + 1) / (len(y) + 3)).mean()
                stock[i] = min(1, loss(cores[i], x, y) / guess)
                kept += 1
        starts = pools + stock[:, None] * (cores - pools)
        cores = np.stack([clients.local_sgd(starts[i], i, r) for i in range(n)])
        moves = cores - pools
        if r > 0:
            for i, j in np.argwhere(pooled):
                together[i, j] += moves[i] @ moves[j]
                lengths[i, j] += moves[i] @ moves[i]
            rho = together / np.sqrt(lengths * lengths.T)
            rows = np.array([[a @ b / np.sqrt(a @ a * (b @ b)) for a in rho] for b in rho])
            pooled = np.linalg.matrix_power(np.maximum(rho, rows) >= opposition - 1e-12, n)
        weights = pooled * clients.shares
        weights /= weights.sum(1, keepdims=True)
        pools = weights @ cores
        small.round(r)
        assert isinstance(small.server, GraftServer)
        equal(small.models().numpy(), cores)
        equal(numbers(small.server.pools), pools)
        for i, client in enumerate(small.clients if r == 0 else []):  # after which no pool was better before
            state = client.state()
            client.receive(small.contexts[i], small.download(i, 1))
            equal(client.personalised().numpy(), (cores[i] + pools[i]) / 2)
            client.restore(state)
    assert not pooled.all()  # somebody was separated
    assert kept or opposition >= 0  # and somebody kept a stock
