"""Fork on an object store: another pipeline below the same or another prefix, built from a checkpoint.

Nothing can be renamed there, so the identity of the new pipeline is written last. Until then the place is not a
repository, and no command takes it for one. `fork.json` is written first, by a conditional write: of two forks with the
same name, one is refused before it writes anything else.
"""

from __future__ import annotations

from holdfast.epoch import Attempt, Decision, Facts, Verdict
from holdfast.errors import AlreadyExists
from holdfast.repository import Decisions, History, Identity, Lineage, ObjectRepository
from holdfast.repository.forks import KEY, ForkRecord
from holdfast.repository.lineage import FIRST
from holdfast.repository.probe import probe
from holdfast.repository.stream_records import stream_record_key
from holdfast.repository.topics import StreamTopics
from holdfast.restore import restore_into
from holdfast.rewind.bases import RewindBase
from holdfast.rewind.building import stream_record_of
from holdfast.rewind.own_logs import own_logs
from holdfast.rewind.store_logs import copy_store_log
from holdfast.sparkfiles.places import spark_key


def built_fork(  # noqa: PLR0917 - from where, and to where
    repository: ObjectRepository,
    lineage: Lineage,
    base: RewindBase,
    new: ObjectRepository,
    name: str,
    facts: dict[str, Facts],
) -> Identity:
    """Write the repository of a fork. Nothing of the original is changed.

    1. Refuse a place that is not empty, and a bucket that cannot hold a repository.  2. Claim it.  3. Copy Spark's
    files on the server's side, and write the base decision of each stream.  4. Copy the event logs between streams up
    to the checkpoint.  5. Write the history.  6. Write the identity.
    """
    if new.flat():  # 1
        do = "choose another name or another root; if an earlier fork was interrupted there, delete what it has left"
        raise AlreadyExists(what=f"a place {new.where} with objects in it", do=do)
    probe(new)
    origin = lineage.identity
    record = ForkRecord(pipeline=origin.pipeline, uid=origin.uid, base=base.to, manifest=base.digest)
    if not new.put_if_absent(KEY, record.sealed()).won:  # 2
        raise AlreadyExists(what=f"a fork at {new.where}, which was begun at the same moment")
    for stream, found in facts.items():  # 3
        cut = base.manifest.streams[stream]
        restore_into(repository, base.restore, stream, new, spark_key(stream, FIRST))
        new.put_new(stream_record_key(stream, FIRST), stream_record_of(repository, stream, base))
        attempt = Attempt(stream=stream, timeline=FIRST, epoch=cut.epoch, attempt=1)
        Decisions(new).close(Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=found.plain()))
        StreamTopics(repository, stream).copy_to(new, lineage, cut.epoch, FIRST)
    logs = tuple(own_logs(repository.where, base))
    for each in logs:  # 4
        copy_store_log(each.path, f"{new.where}/{each.inside}", each.tail)
    epochs = {stream: base.manifest.streams[stream].epoch for stream in facts}
    about = {"origin": origin.pipeline, "uid": origin.uid, "epochs": epochs, "logs": [each.stream for each in logs]}
    History(new).add("fork", f"from {base.to} of pipeline {origin.pipeline}", about)  # 5
    return Identity.create(new, name)  # 6
