"""Checkpoints of a made-up pipeline: files as Spark would write them, held and recorded as a coordinator does."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import NotFound
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import StreamCut
from holdfast.formats.sealed_json import digest_of
from holdfast.formats.sidecar import pack_states
from holdfast.repository import Checkpoints, HeldFile, Identity, Repository, TimelineRecord
from holdfast.repository.lineage import begin_timeline

UID = "0123456789abcdef0123456789abcdef"


class Fabricated:
    """A repository with a pipeline's identity, and a way to take checkpoints that share most of their files."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.checkpoints = Checkpoints(repository)
        self.parent: str | None = None
        try:
            self.identity = Identity.load(repository)
        except NotFound:
            self.identity = Identity.create(repository, "orders")

    def take(self, *contents: str, lease: int = 1, **fields: Any) -> Manifest:
        """Take a checkpoint of one stream, `orders`, whose files have these contents."""
        number = self.checkpoints.claim(fields.get("timeline", 1), lease)
        return self.finish(number, {"orders": list(contents)}, lease=lease, **fields)

    def finish(
        self,
        number: int,
        streams: Mapping[str, list[str]],
        *,
        cuts: Mapping[str, dict[str, Any]] | None = None,
        states: Mapping[str, bytes] | None = None,
        **fields: Any,
    ) -> Manifest:
        """Hold the files and write the manifest of an id that is taken."""
        fields = {"timeline": 1, "timestamp_ms": number * 1000, "parent": self.parent, "lease": 1, **fields}
        place = self.checkpoints.place(fields["timeline"], number, fields.get("savepoint"))
        found = {}
        for stream, contents in streams.items():
            digest, listed = self.checkpoints.put_files(place, self.hold(contents, place.objects))
            given = {
                "timeline": fields["timeline"],
                "epoch": number,
                "rows": number * 10,
                **(cuts or {}).get(stream, {}),
            }
            found[stream] = StreamCut(
                **{"files": digest, "file_count": len(listed.files), "file_bytes": listed.bytes, **given}
            )
        packed = pack_states(states or {}, threshold=16)
        manifest = Manifest(
            checkpoint_id=number,
            epoch=number,
            pipeline="orders",
            uid=self.identity.uid,
            streams=found,
            operator_states=packed.entries,
            state_checksum=packed.checksum,
            **fields,
        )
        self.parent = self.checkpoints.put(manifest, packed.sidecar)
        return manifest

    def rewind(self, checkpoint: int | None, timeline: int = 2, parent: int = 1) -> None:
        """Begin a timeline after a checkpoint, as a rewind of the stream `orders` does."""
        base = 0 if checkpoint is None else self.checkpoints.read(checkpoint).streams["orders"].epoch
        record = TimelineRecord(timeline=timeline, parent=parent, bases={"orders": base}, checkpoint=checkpoint)
        begin_timeline(self.repository, record)

    def hold(self, contents: list[str], folder: str) -> list[HeldFile]:
        """Hold made-up files of a stream, `metadata` among them."""
        with tempfile.TemporaryDirectory() as name:
            spark = Path(name)
            texts = {"metadata": json.dumps({"id": UID})}
            texts |= {
                f"state/0/{n}/{hashlib.sha256(text.encode()).hexdigest()[:8]}.delta": text
                for n, text in enumerate(contents)
            }
            paths = [spark / path for path in texts]
            for path, text in zip(paths, texts.values(), strict=True):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            held = self.repository.hold_all(paths, folder)
        return [HeldFile(path, each.size, each.sha256) for path, each in zip(texts, held, strict=True)]

    def digest(self, checkpoint: int | str) -> str:
        """Return the digest of a manifest."""
        return digest_of(self.repository.read(self.checkpoints.find(checkpoint)[0].manifest))

    def objects(self) -> set[str]:
        """Return the digests of all objects."""
        return {name for top in self.repository.list("objects") for name in self.repository.list(f"objects/{top[:2]}")}


def flip(repository: Repository, key: str) -> None:
    """Damage a value in place, as a disk does: a file that was linked is damaged under all its names."""
    data = bytearray(repository.read(key))
    data[len(data) // 2] ^= 1
    repository.put(key, bytes(data))
