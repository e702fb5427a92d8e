"""Every failure a user can cause, with its exit code: 1 run failed, 2 bad recipe or arguments, 3 a verification failed.

Messages follow one pattern, *where: what, got, what to do*; the CLI prints them without a traceback.
"""


class DapoError(Exception):
    """A run failed for a reason the user can act on (exit code 1).

    `hint` is the next thing to do, printed on its own line.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type["DapoError"], tuple[str, str | None]]:
        return type(self), (self.message, self.hint)


class UsageError(DapoError, ValueError):
    """Bad arguments, a bad recipe, or input that is refused before any work starts (exit code 2)."""

    exit_code = 2


class VerificationError(DapoError):
    """Something was produced and then found not to be what it claims (exit code 3)."""

    exit_code = 3
