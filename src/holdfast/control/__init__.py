"""Requests of other processes to a running pipeline: checkpoint, savepoint, stop, cancel and prune.

A request is a small file in the pipeline's folder, addressed to the lease of the driver that runs it. Any process that
may write to the folder may ask. The driver looks for requests every second, during a checkpoint too. It carries out
each at most once, and never after the asker has withdrawn it or its deadline has passed.
"""

from holdfast.control.asking import AskPhase, AskProgress
from holdfast.control.observing import running_driver
from holdfast.control.pipeline_requests import request_cancel, request_checkpoint, request_savepoint, request_stop
from holdfast.control.prune_requests import answer_requests, request_prune
from holdfast.control.results import CheckpointCancelled, CheckpointTaken, PipelineStopped

__all__ = [
    "AskPhase",
    "AskProgress",
    "CheckpointCancelled",
    "CheckpointTaken",
    "PipelineStopped",
    "answer_requests",
    "request_cancel",
    "request_checkpoint",
    "request_prune",
    "request_savepoint",
    "request_stop",
    "running_driver",
]
