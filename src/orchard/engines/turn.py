"""One client's turn in a round: the same steps wherever the client is."""

from collections.abc import Callable

from torch import Tensor

from orchard.contract import Answer, Client, Reply, Upload, refuse_changes_in_place, versions_kept_by
from orchard.experiment import Moment
from orchard.training import Scores, Site, evaluate

Keep = Callable[[Moment, Tensor], None]
"""Is shown every model that is measured, while the network still has the statistics it was measured with."""


def take_turn(client: Client, site: Site, reply: Reply, keep: Keep = lambda moment, model: None) -> Answer:
    """Receive, evaluate what was exchanged, train, evaluate what was trained, and answer.

    The reply after the last round is for evaluation only. Whatever goes wrong, the client is then as it was before
    its turn; so it is after an evaluation. (Halves replace their state and never change it in place.)
    """
    before, versions = dict(vars(client)), versions_kept_by(client)
    finished = False
    try:
        answer = _steps(client, site, reply, keep)
        refuse_changes_in_place(client, versions)
        if reply.round < site.experiment.rounds:
            client.check_kept(before)
            finished = True
        return answer
    finally:
        if not finished:
            vars(client).clear()
            vars(client).update(before)


def _steps(client: Client, site: Site, reply: Reply, keep: Keep) -> Answer:
    def measured(moment: Moment, model: Tensor) -> Scores:
        keep(moment, model)
        scores = evaluate(site, model)
        client.measured(moment, scores)
        return scores

    client.receive(site, reply)
    exchanged = tuned = None
    if reply.round > 0:
        exchanged = measured("exchanged", client.personalised())
        statistics = site.network.buffers()
        copy = client.fine_tuned(site, reply.round)
        if copy is not None:
            tuned = measured("tuned", copy)
            site.network.load_buffers(statistics)  # the copy is discarded, and what it did to them too
    if reply.round == site.experiment.rounds:
        return Answer(None, (), None, None, exchanged, tuned)
    loss = client.train(site, reply.round)
    trained = measured("trained", client.personalised())
    vector = client.upload()
    upload = None if vector is None else Upload(reply.round, vector)
    return Answer(upload, client.wants(reply.round + 1), loss, trained, exchanged, tuned)
