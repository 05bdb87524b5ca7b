"""The round loop: the same for every method and every engine."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor

from orchard.contract import (
    Answer,
    Failure,
    Federation,
    Notes,
    Reply,
    Server,
    refuse_changes_in_place,
    versions_kept_by,
)
from orchard.engines import Engine
from orchard.errors import Refusal, ServerFailed
from orchard.experiment import Experiment
from orchard.vector import give_memory_back


@dataclass(frozen=True)
class Exchange:
    """What one exchange of messages brought."""

    round: int
    seconds: float
    answers: Mapping[int, Answer | Failure]
    bytes_down: Mapping[int, int]
    bytes_up: Mapping[int, int]
    notes: Sequence[Notes]
    wants: Mapping[int, tuple[int, ...]]
    """What each client asks for in the next round."""

    def failures(self) -> list[Failure]:
        """Return what went wrong."""
        return [answer for answer in self.answers.values() if isinstance(answer, Failure)]


def form_federation(experiment: Experiment, engine: Engine) -> Federation:
    """Ask the clients what they bring, and make sure that it fits together."""
    enrolments = engine.enrol()
    kinds = {(e.shape, e.classes) for e in enrolments}
    if len(kinds) != 1:
        raise Refusal(f"clients differ in the shape of samples or the number of classes: {sorted(kinds)}")
    shape, classes = kinds.pop()
    return Federation(experiment, tuple(e.samples for e in enrolments), shape, classes)


def run_rounds(
    federation: Federation, server: Server, engine: Engine, wants: Mapping[int, tuple[int, ...]], first: int = 0
) -> Iterator[Exchange]:
    """Run all rounds, and one more exchange in which the clients only evaluate what the last round gave.

    `wants` is what each client asks for in the first of these rounds.
    """
    for r in range(first, federation.experiment.rounds + 1):
        exchange = _exchanged(r, server, engine, wants)
        wants = exchange.wants
        yield exchange


def _exchanged(r: int, server: Server, engine: Engine, wants: Mapping[int, tuple[int, ...]]) -> Exchange:
    """Run one exchange. What it gives holds no models, so that nobody keeps a round's alive into the next."""
    began = time.perf_counter()
    before = {name: value for name, value in vars(server).items() if name not in server.keeps}
    versions = versions_kept_by(server)
    with _server_named(r):
        replies = {i: Reply(r, server.reply(i, wanted)) for i, wanted in wants.items()}
        bytes_down = {i: sum(map(_size, reply.models.values())) for i, reply in replies.items()}
    answers = engine.exchange(replies)
    del replies
    give_memory_back()  # now that nobody has the models of the last round any more, and before there are new ones
    good = {i: answer for i, answer in answers.items() if isinstance(answer, Answer)}
    uploads = {i: answer.upload for i, answer in good.items() if answer.upload is not None}
    with _server_named(r):
        if uploads:
            server.collect(uploads)
        server.check_kept(before)
        refuse_changes_in_place(server, versions)
    return Exchange(
        round=r,
        seconds=time.perf_counter() - began,
        answers={**answers, **{i: replace(answer, upload=None) for i, answer in good.items()}},
        bytes_down=bytes_down,
        bytes_up={i: _size(upload.vector) for i, upload in uploads.items()},
        notes=engine.notes(),
        wants={**wants, **{i: answer.wants for i, answer in good.items()}},
    )


@contextmanager
def _server_named(r: int) -> Iterator[None]:
    """Say of an error of the server half whose it is and when, as an engine does of a client's."""
    try:
        yield
    except Exception as error:
        raise ServerFailed(f"server, round {r}: {type(error).__name__}: {error}") from error


def _size(vector: Tensor) -> int:
    return vector.numel() * vector.element_size()
