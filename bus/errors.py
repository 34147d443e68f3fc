"""Every error of swingshift, as one tree.

    SwingshiftError
    ├── ConfigError            a user's configuration or command cannot be followed
    ├── LogError
    │   ├── GapError           entries a reader still needed were trimmed
    │   ├── LogChanged         the log was rolled back, forked, recreated, or is another one
    │   ├── LogMissing         there is no such run on this server
    │   ├── Fenced             a newer incarnation of this service has started
    │   ├── EntryTooLarge      an event is over the size limit
    │   ├── DiskError          a recording's disk takes nothing for the moment
    │   └── LogUnavailable     the server does not answer
    │       └── ServerFull     the server has no memory left for another entry
    ├── CodecError             an entry cannot be read or an event cannot be written
    ├── BlobMissing            a payload is gone or its digest differs
    ├── ServerError            no Redis-compatible server found, or it cannot be used
    │   └── ServerAbsent       nothing answers at the address
    ├── CoreError              a core met a log that breaks its rules
    ├── PolicyFailed           a policy's own code raised when it was asked
    ├── EngineError            an inference engine failed
    ├── LearnerError           training failed (a loss that is not finite, …)
    │   └── CheckpointError    a checkpoint is torn, missing or of another model
    └── WeightsError           published weights are gone or their digest differs
        └── TransferError      they cannot be had straight from the trainer's process; the retained copy is left

A message says what happened, with the values, and what to do.
"""


class SwingshiftError(Exception):
    """Root of all errors that swingshift raises on purpose."""


class ConfigError(SwingshiftError):
    """A user's configuration or command cannot be followed."""


class LogError(SwingshiftError):
    """Something is wrong with a run's log."""


class GapError(LogError):
    """Entries that a reader still needed are no longer in the stream."""


class LogChanged(LogError):
    """The log was rolled back, forked or recreated: what this reader saw is not what is there now."""


class LogMissing(LogError):
    """The server has no log of this run."""


class Fenced(LogError):
    """A newer incarnation of the service holds a higher epoch; this process must end."""


class EntryTooLarge(LogError):
    """An event's body is over the size limit; large data belongs into a blob."""


class DiskError(LogError):
    """A recording cannot be written for the moment: its disk is full or fails, or somebody holds the file. May pass."""


class LogUnavailable(LogError):
    """The server does not answer."""


class ServerFull(LogUnavailable):
    """The server's memory is used up; it throws nothing away and takes nothing more. Passes when somebody makes room."""


class CodecError(SwingshiftError):
    """An entry cannot be read, or an event cannot be written."""


class BlobMissing(SwingshiftError):
    """A payload is gone, or its digest is not the recorded one."""


class ServerError(SwingshiftError):
    """No Redis-compatible server was found, or the one found cannot be used."""


class ServerAbsent(ServerError):
    """Nothing answers at the address, or nothing that is ready: it may come up later."""


class CoreError(SwingshiftError):
    """A core met a log that breaks its rules."""


class PolicyFailed(SwingshiftError):
    """A policy's own code raised when it was asked. What it raised is the cause."""


class EngineError(SwingshiftError):
    """An inference engine failed."""


class LearnerError(SwingshiftError):
    """Training failed."""


class CheckpointError(LearnerError):
    """A checkpoint is torn, missing or of another model."""


class WeightsError(SwingshiftError):
    """Published weights are gone, or their digest is not the recorded one."""


class TransferError(WeightsError):
    """Weights cannot be handed from the trainer's process straight to an engine, which is as it was: the retained copy is left."""
