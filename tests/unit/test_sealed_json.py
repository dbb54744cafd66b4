import json

import pytest

from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.errors import RecordCorrupt, UnsupportedVersion
from holdfast.formats.sealed_json import SealBroken, digest_of, seal
from support import cuts, flips

FIELDS = {"b": 1, "a": {"deep": [1, 2, None, "é"]}, "text": 'quo"te'}


@pytest.mark.parametrize("one_line", [False, True])
def test_every_flip_and_cut_breaks_the_seal(one_line: bool) -> None:
    text = seal(FIELDS, one_line=one_line)
    assert len(digest_of(text)) == 64
    assert json.loads(text) == {"digest": digest_of(text), **FIELDS}
    assert (b"\n" in text) is not one_line
    for _, damaged in [*flips(text), *cuts(text)]:
        with pytest.raises(SealBroken):
            digest_of(damaged)
    with pytest.raises(SealBroken):
        digest_of(text + b" ")


def decision() -> Decision:
    return Decision(
        attempt=Attempt(stream="orders", timeline=1, epoch=41, attempt=2),
        verdict=Verdict.COMMIT,
        lease=7,
        facts={"rows": 5, "offsets": ["{}"]},
    )


def test_records_come_back_and_name_themselves_when_they_are_damaged() -> None:
    text = decision().sealed()
    assert Decision.unsealed(text, "epochs/41.2.json") == decision()
    with pytest.raises(RecordCorrupt, match=r"epochs/41\.2\.json"):
        Decision.unsealed(text.replace(b"commit", b"abort "), "epochs/41.2.json")


def test_a_record_of_the_wrong_form_or_a_newer_version_is_refused() -> None:
    fields = json.loads(decision().sealed())
    fields.pop("digest")
    with pytest.raises(RecordCorrupt, match="verdict"):
        Decision.unsealed(seal({**fields, "verdict": "maybe"}), "x")
    with pytest.raises(UnsupportedVersion, match="version 2"):
        Decision.unsealed(seal({"version": 2}), "x")
    with pytest.raises(RecordCorrupt):
        Decision.unsealed(b"{}", "x")
