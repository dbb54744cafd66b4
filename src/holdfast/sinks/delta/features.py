"""Tables that DeltaSink must not write, found before the first epoch: delta-rs would accept some of them.

Rules:
- A feature that is not in the list of those that were tried is refused by its name.
- A feature that a table lists but does not use, such as constraints without a constraint, is no obstacle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import NotSupported

APPEND_ONLY = "delta.appendOnly"
# Writing to a table with these needs nothing, unless a setting or a column uses them: those are checked below.
_HARMLESS = {
    *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "identityColumns"),
    *("timestampNtz", "variantType", "vacuumProtocolCheck", "allowColumnDefaults", "domainMetadata"),
    "columnMapping",
}
_SETTINGS = {  # a setting, the value that is harmless, and what it turns on
    "delta.enableDeletionVectors": (
        "false",
        "deletion vectors",
        "purge them, then drop the feature: REORG TABLE … APPLY (PURGE); ALTER TABLE … DROP FEATURE deletionVectors",
    ),
    "delta.columnMapping.mode": ("none", "column mapping", "write to a new table without it"),
    "delta.enableRowTracking": ("false", "row tracking", "turn it off, or write to a new table"),
    "delta.enableInCommitTimestamps": ("false", "in-commit timestamps", "turn it off, or write to a new table"),
    "delta.enableIcebergCompatV1": ("false", "Iceberg compatibility", "turn it off, or use IcebergSink"),
    "delta.enableIcebergCompatV2": ("false", "Iceberg compatibility", "turn it off, or use IcebergSink"),
}
_IN_COLUMNS = {
    "delta.invariants": "an invariant on column {}",
    "delta.generationExpression": "the generated column {}",
    "delta.identity.start": "the identity column {}",
    "delta.identity.step": "the identity column {}",
    "CURRENT_DEFAULT": "a default for column {}",
}


def refuse_features(table: str, features: Sequence[str], settings: Mapping[str, str | None], columns: str) -> None:
    """Raise `NotSupported` for the first feature of a table that cannot be written."""
    for what, do in _obstacles(features, settings, json.loads(columns)):
        raise NotSupported(what=f"writing to the Delta table {table}", why=f"it has {what}", do=do)


def _obstacles(
    features: Sequence[str], settings: Mapping[str, str | None], schema: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    catalog = [each for each in features if each.startswith("catalog")]
    if catalog:
        yield f"the feature {catalog[0]}: a catalog decides its commits", "write to a table that no catalog manages"
    if "deletionVectors" in features:
        yield "deletion vectors", _SETTINGS["delta.enableDeletionVectors"][2]
    for name, (harmless, what, do) in _SETTINGS.items():
        if (settings.get(name) or harmless).lower() != harmless:
            yield what, do
    constraints = [name for name in settings if name.startswith("delta.constraints.")]
    if constraints:
        what = f"the constraint {constraints[0].removeprefix('delta.constraints.')}, which delta-rs does not check"
        yield what, "drop the constraint, and filter the rows in the stream"
    for field in schema["fields"]:
        for name, text in _IN_COLUMNS.items():
            if name in field.get("metadata", {}):
                yield text.format(field["name"]), "write to a table without it, and compute the values in the stream"
    others = sorted(each for each in features if each not in _HARMLESS)
    if others:
        yield f"the feature {others[0]}, which DeltaSink does not support", "write to a table without it"
