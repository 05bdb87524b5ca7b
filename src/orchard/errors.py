"""The ways in which Orchard says that something is wrong, each with a message for people."""


class Refusal(Exception):
    """Bad configuration or data, refused before anything is trained (exit code 2)."""


class NothingToGoOnFrom(Refusal):
    """An interrupted run that nobody can go on with; a new one can take its place."""


class RunFailed(Exception):
    """A run that began and could not go on; what was saved stays (exit code 1)."""


class ServerFailed(RunFailed):
    """A run whose server half ended in an error; what clients fail in, an exchange says."""


class Stopped(Exception):
    """A run that was asked to stop, and did so after a round (exit code 130)."""


class DataWarning(UserWarning):
    """Something about the data that people should know, though it can be used."""


class ResumeWarning(UserWarning):
    """Something that people should know about a run that goes on."""
