"""A request that cannot be answered."""

from freerun.core import EngineError


class Refused(EngineError):
    """A request that cannot be answered. The message names the fix; `param` and `code` are OpenAI's."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
