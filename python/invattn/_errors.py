"""What the library raises. Every message says what was expected, what it got, and the next step."""

__all__ = ["DataError", "Error", "InvattnWarning", "NotConvergedError", "UsageError"]


class Error(Exception):
    """Every error of the library."""


class UsageError(Error, ValueError):
    """A wrong argument, option, shape, dtype or device."""


class NotConvergedError(Error, RuntimeError):
    """A solver gave up where the caller asked to be told by an exception, or a gradient could not be computed."""


class DataError(Error):
    """A file is missing, unreadable, damaged or from another release."""


class InvattnWarning(UserWarning):
    """Something that would not do what it seems to."""
