"""One client's turn in a round: the same steps wherever the client is."""

from orchard.contract import Answer, Client, Reply, Upload
from orchard.training import Site, evaluate


def take_turn(client: Client, site: Site, reply: Reply) -> Answer:
    """Receive, evaluate what was exchanged, train, evaluate what was trained, and answer.

    The reply after the last round is for evaluation only.
    """
    client.receive(site, reply)
    exchanged = tuned = None
    if reply.round > 0:
        exchanged = evaluate(site, client.personalised())
        copy = client.fine_tuned(site, reply.round)
        tuned = None if copy is None else evaluate(site, copy)
    if reply.round == site.experiment.rounds:
        return Answer(None, (), None, None, exchanged, tuned)
    loss = client.train(site, reply.round)
    trained = evaluate(site, client.personalised())
    vector = client.upload()
    upload = None if vector is None else Upload(reply.round, vector)
    return Answer(upload, client.wants(reply.round + 1), loss, trained, exchanged, tuned)
