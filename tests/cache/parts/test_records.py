"""Test records of parts: written records are read back, damaged or newer ones are not used."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cache.parts.records import PartRecord, Unread, checked, read, unchecked, written

RECORDS = st.builds(
    PartRecord,
    blob=st.uuids().map(lambda each: f"blobs/{each.hex}.arrow"),
    size=st.integers(0, 1 << 40),
    rows=st.integers(0, 1 << 40),
    digest=st.text("0123456789abcdef", max_size=32),
    schema=st.text("0123456789abcdef", max_size=32),
    cost_s=st.floats(0, 1e9),
)
ONE = PartRecord(f"blobs/{'ab' * 16}.arrow", 1000, 10, "ab" * 16, "cd" * 16, 0.25)


@pytest.mark.law
@given(RECORDS)
def test_a_record_reads_back(record: PartRecord) -> None:
    assert read(written(record)) == record


def test_no_flipped_bit_and_no_cut_is_read() -> None:
    text = written(ONE)
    for place in range(len(text)):
        assert read(text[:place]) is Unread.DAMAGED
        for bit in range(8):
            flipped = bytearray(text)
            flipped[place] ^= 1 << bit
            assert read(bytes(flipped)) is Unread.DAMAGED


@pytest.mark.law
@given(st.one_of(st.binary(max_size=200), st.text(max_size=99).map(str.encode)))
def test_garbage_is_damaged(text: bytes) -> None:
    assert read(text) is Unread.DAMAGED


@pytest.mark.law
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda each: st.lists(each) | st.dictionaries(st.text(max_size=9), each),
    )
)
def test_other_json_is_not_a_record(body: object) -> None:
    text = json.dumps(body).encode()
    assert isinstance(read(text), Unread)
    if isinstance(body, dict) and "check" not in body:
        assert isinstance(read(checked(body)), Unread)


def test_what_a_later_version_wrote_is_newer() -> None:
    body = unchecked(written(ONE))
    assert isinstance(body, dict)
    assert read(checked({**body, "v": 2})) is Unread.NEWER
    assert read(checked({**body, "hash": "blake9"})) is Unread.NEWER
    assert read(checked({**body, "more": 1})) == ONE


@pytest.mark.law
@given(st.text(max_size=20))
def test_a_record_names_a_blob_and_no_other_file(name: str) -> None:
    for blob in (name, f"blobs/{name}", f"blobs/../{name}.arrow"):
        assert read(written(dataclasses.replace(ONE, blob=blob))) is Unread.DAMAGED
