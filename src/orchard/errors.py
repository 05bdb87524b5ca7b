"""The two ways a run ends badly, each with a message for people."""


class Refusal(Exception):
    """Bad configuration or data, refused before anything is trained (exit code 2)."""


class DataWarning(UserWarning):
    """Something about the data that people should know, though it can be used."""


class RunFailed(Exception):
    """A run that began and could not go on; what was saved stays (exit code 1)."""
