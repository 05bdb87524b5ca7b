"""Orchard's exceptions and warnings; their messages are written for people."""


class UserError(Exception):
    """The configuration or the data are wrong; raised before anything is trained (exit code 2)."""


class NoUsableCheckpoint(UserError):
    """An interrupted run has no checkpoint to resume from; a new run can replace it."""


class RunFailed(Exception):
    """A run started but could not continue; what it saved is kept (exit code 1)."""


class ServerFailed(RunFailed):
    """The server's part of a run raised an error; errors of clients are reported in the exchange."""


class Stopped(Exception):
    """A run was asked to stop, and stopped after a round (exit code 130)."""


class DataWarning(UserWarning):
    """The data can be used, but people should know something about them."""


class ModelWarning(UserWarning):
    """The network can be trained, but its results cannot be repeated in every way that others can."""


class ResumeWarning(UserWarning):
    """A run is resumed, but people should know something about it."""


class ClusterWarning(UserWarning):
    """Something of a cluster was lost, or differs; the run goes on, but people should know."""
