"""FedDyn, Per-FedAvg and pFedMe against a second implementation in NumPy, as in test_reference."""

import numpy as np
import pytest

from orchard.methods.feddyn import FedDynServer
from reference import DECAY, EPOCHS, LR, MOMENTUM, ROUNDS, Array, clients_of, equal, federation, slope


@pytest.mark.parametrize("absent", [None, 2])
def test_feddyn(absent: int | None) -> None:
    alpha, n = 0.4, 5
    small = federation("feddyn", alpha=alpha)
    clients = clients_of(small)
    theta, h, terms = small.federation.initial_model().numpy().copy(), np.zeros(21), np.zeros((n, 21))
    for r in range(ROUNDS):
        present = [i for i in range(n) if i != absent or r == 0]
        copies = []
        for i in present:
            w, velocity = theta, np.zeros(21)
            for x, y in clients.batches(i, r):
                velocity = MOMENTUM * velocity + slope(w, x, y) - terms[i] + alpha * (w - theta)
                w = w - LR * DECAY**r * velocity
            terms[i] -= alpha * (w - theta)
            copies.append(w)
        uploads = {}
        for i in present:
            small.clients[i].receive(small.contexts[i], small.download(i, r))
            small.clients[i].train(small.contexts[i], r)
            uploads[i] = small.clients[i].upload()
        equal([uploads[i]["model"].numpy() for i in present], copies)
        small.server.aggregate(uploads)
        h = h - alpha * sum(w - theta for w in copies) / n
        theta = sum(copies) / len(present) - h / alpha
        assert isinstance(small.server, FedDynServer)
        equal(small.server.h.numpy(), h)
        equal(small.global_model().numpy(), theta)


@pytest.mark.parametrize("alpha", [None, 0.1])
def test_per_fedavg(alpha: float | None) -> None:
    small = federation("per-fedavg", alpha=alpha, adaptation_epochs=EPOCHS)
    clients = clients_of(small)
    shared = small.federation.initial_model().numpy().copy()
    for r in range(ROUNDS):
        rate = DECAY**r * (LR if alpha is None else alpha)
        copies = []
        for i, client in enumerate(small.clients):
            adapted, w, velocity = shared, shared, np.zeros(21)
            for x, y in clients.batches(i, r):
                adapted = adapted - rate * slope(adapted, x, y)
                half = len(y) // 2
                ahead = w - rate * (slope(w, x[:half], y[:half]) if half > 1 else slope(w, x, y))
                later = slope(ahead, x[half:], y[half:]) if half > 1 else slope(ahead, x, y)
                velocity = MOMENTUM * velocity + later
                w = w - LR * DECAY**r * velocity
            copies.append(w)
            client.receive(small.contexts[i], small.download(i, r))
            tuned = client.finetune(small.contexts[i], r)
            assert tuned is not None
            equal(tuned.numpy(), adapted)
        shared = clients.shares @ np.stack(copies)
        small.round(r)
        equal(small.models().numpy(), copies)
        equal(small.global_model().numpy(), shared)


@pytest.mark.parametrize("inner_lr", [None, 0.1])
def test_pfedme(inner_lr: float | None) -> None:
    lam, steps, beta, n = 4.0, 3, 0.7, 5
    small = federation("pfedme", lam=lam, inner_steps=steps, inner_lr=inner_lr, beta=beta)
    clients = clients_of(small)
    shared = small.federation.initial_model().numpy().copy()
    for r in range(ROUNDS):
        eta, gamma = LR * DECAY**r, DECAY**r * (LR if inner_lr is None else inner_lr)
        copies: list[Array] = []
        personal: list[Array] = []
        for i in range(n):
            w = theta = shared
            for x, y in clients.batches(i, r):
                for _ in range(steps):
                    theta = theta - gamma * (slope(theta, x, y) + lam * (theta - w))
                w = w - eta * lam * (w - theta)
            copies.append(w)
            personal.append(theta)
        shared = (1 - beta) * shared + beta * (clients.shares @ np.stack(copies))
        small.round(r)
        equal(small.models().numpy(), personal)
        equal(small.global_model().numpy(), shared)
