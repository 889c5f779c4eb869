"""Everything that can go wrong for a user. Each message says what was found, where, what was
expected and what to do; the command line prints it as one line and exits with `exit_code`."""


class Llama3JitError(Exception):
    """The base of all errors that this package raises on purpose."""

    exit_code = 1


class InvalidArgumentError(Llama3JitError, ValueError):
    """An argument or an option that cannot be used."""

    exit_code = 2


class ModelFormatError(Llama3JitError):
    """A model file that is broken, cut short, or not a model file."""


class UnsupportedError(Llama3JitError):
    """A sound model file that needs something not built: an architecture, a tensor type."""


class ModelNotFoundError(Llama3JitError, ValueError):
    """No model of that name or path."""


class DownloadError(Llama3JitError):
    """A model that could not be fetched."""


class TemplateError(Llama3JitError):
    """A chat template that is missing, wrong, or refuses the messages."""


class ContextOverflowError(Llama3JitError, ValueError):
    """More tokens than the context holds."""


class SessionError(Llama3JitError):
    """A session that is closed or in the middle of a turn; a session's file that is broken, cannot
    be read or written, or is not for this model."""


class MemoryLimitError(Llama3JitError):
    """A model that needs more memory than there is."""


class NumericsError(Llama3JitError):
    """NaN or infinity where numbers were expected."""


class CompileError(Llama3JitError):
    """A kernel that does not compile, or compiled code that does not load."""


class DeviceError(Llama3JitError):
    """A device that is missing, or failed."""


class CancelledError(Llama3JitError):
    """The work was cancelled before it was done."""
