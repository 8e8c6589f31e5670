"""The errors that end a launch with a text for the user."""


class LaunchError(Exception):
    """The text says what is wrong, with the value, and what to do. The command prints it and
    exits with ``status``."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


class HostError(LaunchError):
    """A host is of no use to the job, which an elastic one can do without."""

    def __init__(self, host: str, text: str) -> None:
        super().__init__(text)
        self.host = host


class HostGone(LaunchError):
    """The connection to a host has ended, which is an event of its own too."""
