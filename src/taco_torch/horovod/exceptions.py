"""The errors of ``taco_torch.horovod``, by the names that programs for Horovod catch."""


class HorovodInternalError(RuntimeError):
    """The job's ranks can do nothing together any more: one is lost or has shut down. What elastic
    training recovers from (``taco_torch.horovod.elastic``)."""


class NotInitializedError(HorovodInternalError, ValueError):
    """There is no job: ``init()`` has not been called, or ``shutdown()`` has been."""


class JobEndedError(RuntimeError):
    """Another rank of an elastic job has come to the end of its program while this one was still in
    ``init()``: this one has run nothing, and there will be no other world."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts were added or removed; ranks are about to meet again in another world.

    Attributes:
        skip_sync: nothing needs to be sent to new ranks, since none came.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts were added or removed")
        self.skip_sync = skip_sync
