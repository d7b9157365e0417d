"""One tree of errors.

    FreerunError
    ├── ConfigError     the user's file or command line contradicts itself or names what is not there
    ├── DataError       the user's data cannot be used
    ├── RewardError     the user's reward cannot judge
    ├── EngineError     an engine refused or failed a request; expected, retried, counted
    │   └── EngineLost  the engine is gone, with all that it was asked for: another one is asked instead
    ├── WeightsError    a version of the weights is missing, torn or out of order
    ├── TrainerError    a training step failed
    │   └── TrainerLost its process is gone, or in no state to go on: it is started again, if that can be
    └── ProcessDied     a process of the run ended before it should
        └── MachineLost so did all that ran on a machine, which is gone or cut off

A user's mistake (`is_users`) ends the command with one line and exit code 2, everything else with code 1. The message
is the whole error (so every one pickles); `detail` may hold a traceback or the tail of a log to show below it.
"""


class FreerunError(Exception):
    """The root. `str(error)` is one line that names the fix."""

    is_users = False

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message, detail)
        self.message = message
        self.detail = detail

    def __str__(self) -> str:
        return self.message


class ConfigError(FreerunError):
    is_users = True


class DataError(FreerunError):
    is_users = True


class RewardError(FreerunError):
    is_users = True


class EngineError(FreerunError):
    pass


class EngineLost(EngineError):
    pass


class WeightsError(FreerunError):
    pass


class TrainerError(FreerunError):
    pass


class TrainerLost(TrainerError):
    pass


class ProcessDied(FreerunError):
    pass


class ProcessKilled(ProcessDied):
    """By kill -9: somebody's, or the kernel's for want of memory. It has not failed by itself."""


class MachineLost(ProcessDied):
    pass
