"""A repository on an object store that is in memory, for tests that need no S3 server."""

from __future__ import annotations

import pytest

from holdfast.repository import Identity, ObjectRepository

obstore = pytest.importorskip("obstore", reason="needs the extra s3")


def store_repository(monkeypatch: pytest.MonkeyPatch) -> ObjectRepository:
    """Return the repository of a new pipeline `orders`."""
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    made = ObjectRepository("s3://bucket/orders")
    store = obstore.store.MemoryStore()
    monkeypatch.setattr(made.bucket, "_reads", store)
    monkeypatch.setattr(made.bucket, "_writes", store)
    Identity.create(made, "orders")
    return made
