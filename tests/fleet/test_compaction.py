"""Test that compaction moves each run once, whatever runs, ends or breaks at the same time."""

from __future__ import annotations

import json
import os
import stat
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.events import Event, OperatorTotals, RunFinished, RunStarted, Warned
from dml.fleet import compaction
from dml.fleet.collector import LAYOUT, publish
from dml.fleet.compaction import ABANDONED_S, LEASE, LEASE_S, MOST_PARTS, Compacted, compact
from dml.fleet.fleet import Fleet
from dml.fleet.snapshot import commit, event_files, snapshot

pytest.importorskip("duckdb")
NOON = 1_770_000_000.0
DAY = 86_400.0


def events_of_run(name: str, at: float = NOON, rows: int = 5) -> list[Event]:
    return [
        RunStarted(run=name, at=at, job="j", fingerprints={"fleet": "f"}),
        OperatorTotals(run=name, at=at, ordinal=0, operator="Map", rows_out=rows, seconds=0.5),
        OperatorTotals(run=name, at=at, ordinal=1, operator="Batch", rows_out=rows, seconds=0.25),
        Warned(run=name, at=at, name="Slow", text="slow"),
        RunFinished(run=name, at=at, rows=rows, seconds=1.0),
    ]


def record(root: Path, name: str, events: list[Event], at: float = NOON) -> Path:
    return publish(root, name, events, at)


def told(root: Path) -> dict[str, tuple[int | None, int]]:
    """The rows of each run, and the number of its operators."""
    fleet = Fleet(root)
    runs = fleet.runs().to_pylist()
    operators = fleet.operators()["run"].to_pylist()
    assert len({each["run"] for each in runs}) == len(runs)
    return {each["run"]: (each["rows"], operators.count(each["run"])) for each in runs}


def files_of(root: Path, kind: str) -> list[Path]:
    return sorted((root / LAYOUT / kind).rglob("*.parquet"))


def compact_all(root: Path, retain_days: int | None = None, now: float = NOON + DAY) -> Compacted:
    return compact(root, settled_s=-1e12, retain_days=retain_days, now=now)


class StoppedError(Exception):
    """The process was killed here."""


@given(data=st.data())
def test_any_history_of_records_compactions_and_crashes_has_each_run_once(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("fleet")
    record(root, "w-0", [])
    names = [f"r{n}" for n in range(data.draw(st.integers(1, 4)))]
    pending = {name: events_of_run(name, NOON + n * DAY) for n, name in enumerate(names)}
    expected: dict[str, list[Event]] = {}
    for step in range(data.draw(st.integers(1, 10))):
        action = data.draw(st.sampled_from(["record", "record", "compact", "crash"]))
        if action == "record":
            batch: list[Event] = []
            for name in data.draw(st.lists(st.sampled_from(names), unique=True)):
                count = data.draw(st.integers(0, 5))
                expected.setdefault(name, []).extend(pending[name][:count])
                batch += pending[name][:count]
                pending[name] = pending[name][count:]
            record(root, f"w-{step}", batch, NOON + step * DAY)
        elif action == "compact":
            compact_all(root)
        else:
            _crash(root, data.draw(st.integers(0, 12)))
        seen = {name: events for name, events in expected.items() if events}
        rows = {name: 5 if len(each) == 5 else None for name, each in seen.items()}
        operators = {
            name: sum(isinstance(each, OperatorTotals) for each in events)
            for name, events in seen.items()
        }
        assert told(root) == {name: (rows[name], operators[name]) for name in seen}


def _crash(root: Path, after: int) -> None:
    """Compact, and end without a trace after ``after`` calls that change files."""
    left = after

    def counted(real: object) -> object:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise StoppedError
            return real(*args, **kwargs)  # type: ignore[operator]

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("commit", "_remove", "_write", "_leave"):
            patch.setattr(compaction, name, counted(getattr(compaction, name)))
        try:
            compact_all(root)
        except StoppedError:
            assert not (root / LAYOUT / LEASE).exists()


def test_of_two_compactions_of_the_same_files_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, "w-0", events_of_run("a"))

    def other_first(root: Path, made: object) -> bool:
        monkeypatch.setattr(compaction, "commit", commit)
        (root / LAYOUT / LEASE).unlink()
        assert compact_all(root).runs == 1
        return commit(root, made)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction, "commit", other_first)
    assert compact_all(tmp_path).runs == 0
    assert told(tmp_path) == {"a": (5, 2)}
    assert len(files_of(tmp_path, "runs")) == len(files_of(tmp_path, "plans")) == 1


def test_a_lease_keeps_others_away_until_it_is_old(tmp_path: Path) -> None:
    record(tmp_path, "w-0", events_of_run("a"))
    lease = tmp_path / LAYOUT / LEASE
    lease.touch()
    os.utime(lease, (NOON, NOON))
    assert compact(tmp_path, settled_s=-1e12, now=NOON + LEASE_S - 1) == Compacted(busy=True)
    assert compact(tmp_path, settled_s=-1e12, now=NOON - 1) == Compacted(busy=True)
    assert compact(tmp_path, settled_s=-1e12, now=NOON + LEASE_S + 1).runs == 1
    assert not lease.exists()


def test_fresh_files_and_runs_that_go_on_wait(tmp_path: Path) -> None:
    first, *rest = events_of_run("a")
    path = record(tmp_path, "w-0", [first, *events_of_run("b")])
    other = record(tmp_path, "v-0", events_of_run("c"))
    for each in (path, other):
        os.utime(each, (NOON, NOON))
    assert compact(tmp_path, settled_s=60, now=NOON + 59) == Compacted()
    assert compact(tmp_path, settled_s=60, now=NOON + 61).runs == 1  # not b: a is in its file
    (left,) = event_files(tmp_path)
    assert left.endswith("w-0.jsonl")
    record(tmp_path, "w-1", rest)  # a fresh file with the end of a
    assert compact(tmp_path, settled_s=60, now=NOON + 3600) == Compacted()
    assert compact_all(tmp_path).runs == 2
    assert event_files(tmp_path) == []
    assert told(tmp_path) == {"a": (5, 2), "b": (5, 2), "c": (5, 2)}


def test_a_run_in_several_files_is_compacted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SLICE_BYTES", 1)
    for name in ("a", "b"):
        for n, event in enumerate(events_of_run(name)):
            record(tmp_path, f"{name}-{n}", [event])
    assert compact_all(tmp_path).runs == 2
    assert told(tmp_path) == {"a": (5, 2), "b": (5, 2)}


def test_a_file_that_cannot_be_read_now_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, *rest = events_of_run("a")
    record(tmp_path, "w-0", [start])
    record(tmp_path, "w-1", rest)
    record(tmp_path, "v-0", events_of_run("b"))
    real = Path.read_text

    def failing(path: Path, *args: str, **kwargs: str) -> str:
        if path.name == "w-0.jsonl":
            raise OSError(5, "Input/output error")
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", failing)
        assert compact_all(tmp_path).runs == 1
        assert "Input/output error" in Fleet(tmp_path).warnings[0]
    assert len(event_files(tmp_path)) == 2
    assert compact_all(tmp_path).runs == 1
    assert told(tmp_path) == {"a": (5, 2), "b": (5, 2)}


def test_files_that_another_process_has_folded_are_not_folded_again(tmp_path: Path) -> None:
    record(tmp_path, "w-0", events_of_run("a"))
    (name,) = event_files(tmp_path)
    content = (tmp_path / LAYOUT / name).read_bytes()
    assert compact_all(tmp_path).runs == 1
    last = max((tmp_path / LAYOUT / "snapshots").iterdir())
    state = json.loads(last.read_text())
    last.write_text(json.dumps({**state, "folded": [name]}))
    (tmp_path / LAYOUT / name).write_bytes(content)  # as if it had not been removed yet
    assert compaction._fold(tmp_path, [name]) == Compacted()
    assert told(tmp_path) == {"a": (5, 2)}
    assert compact_all(tmp_path).runs == 0
    assert event_files(tmp_path) == []


def test_a_commit_that_comes_very_late_fails(tmp_path: Path) -> None:
    record(tmp_path, "w-0", events_of_run("a"))
    late = snapshot(tmp_path).next(())
    for n in range(6):
        record(tmp_path, f"v-{n}", events_of_run(f"b{n}"))
        compact_all(tmp_path)
    assert not commit(tmp_path, late)
    assert len(told(tmp_path)) == 7


def test_a_fleet_that_is_open_keeps_its_files(tmp_path: Path) -> None:
    for n in range(MOST_PARTS):
        record(tmp_path, f"w-{n}", events_of_run(f"a{n}"))
        compact_all(tmp_path)
    fleet = Fleet(tmp_path)
    record(tmp_path, "w-9", events_of_run("a9"))
    compact_all(tmp_path)  # merges the files of the day
    assert fleet.runs().num_rows == MOST_PARTS
    assert fleet.warnings == ()
    assert len(files_of(tmp_path, "runs")) == MOST_PARTS + 2
    compact(tmp_path, settled_s=-1e12, now=time.time() + 2 * DAY)
    assert len(files_of(tmp_path, "runs")) == 1
    assert len(told(tmp_path)) == MOST_PARTS + 1


def test_a_full_disk_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, "w-0", events_of_run("a"))

    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "commit", full)
        with pytest.raises(OSError, match="No space"):
            compact_all(tmp_path)
    assert [files_of(tmp_path, kind) for kind in ("runs", "plans")] == [[], []]
    assert told(tmp_path) == {"a": (5, 2)}
    assert compact_all(tmp_path).runs == 1


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"RunStarted","run":"x","at":1.77e12}',
        '{"kind":"RunStarted","run":"x","at":1e18}',
        '{"kind":"RunStarted","run":"x","at":1,"pipeline":"\\ud800"}',
        '{"kind":"RunStarted","run":"x","at":-5}',
    ],
)
def test_a_line_that_no_table_can_have_is_damage(tmp_path: Path, line: str) -> None:
    path = record(tmp_path, "w-0", events_of_run("a"))
    path.write_text(path.read_text() + line + "\n")
    assert told(tmp_path) == {"a": (5, 2)}
    assert len(Fleet(tmp_path).warnings) == 1
    done = compact_all(tmp_path)
    assert (done.runs, len(done.damaged)) == (1, 1)
    assert told(tmp_path) == {"a": (5, 2)}
    assert (tmp_path / LAYOUT / "damaged" / "w-0.jsonl").exists()


def test_plans_that_no_run_has_any_more_go(tmp_path: Path) -> None:
    for n, plain in enumerate(["secret", "open"]):
        at = NOON + 9 * n * DAY
        event = OperatorTotals(run=f"r{n}", at=at, ordinal=0, operator="Map", name=plain)
        record(tmp_path, f"w-{n}", [event, RunFinished(run=f"r{n}", at=at)], at)
    compact_all(tmp_path, now=NOON + 20 * DAY)
    compact_all(tmp_path, retain_days=12, now=NOON + 20 * DAY)
    found = Fleet(tmp_path).query("SELECT name FROM plans")
    assert found["name"].to_pylist() == ["open"]


def test_names_of_folders_are_no_columns(tmp_path: Path) -> None:
    root = tmp_path / "job=77" / "run=5" / "team=x"
    record(root, "w-0", events_of_run("a"))
    compact_all(root)
    (row,) = Fleet(root).runs().to_pylist()
    assert (row["run"], row["job"], "team" in row) == ("a", "j", False)


def test_a_killed_run_is_compacted_without_an_end_after_a_week(tmp_path: Path) -> None:
    record(tmp_path, "w-0", events_of_run("a")[:2])
    assert compact_all(tmp_path, now=NOON + ABANDONED_S - 1).runs == 0
    assert compact_all(tmp_path, now=NOON + ABANDONED_S + 1).runs == 1
    assert told(tmp_path) == {"a": (None, 1)}


def test_old_days_go_and_many_files_of_a_day_become_one(tmp_path: Path) -> None:
    for n in range(MOST_PARTS + 2):
        record(tmp_path, f"w-{n}", events_of_run(f"a{n}"))
        record(tmp_path, f"v-{n}", events_of_run(f"b{n}", NOON + 5 * DAY), NOON + 5 * DAY)
        compact_all(tmp_path)
    assert len(files_of(tmp_path, "plans")) == 1  # a plan is stored once
    days = Counter(each.day for each in snapshot(tmp_path).of("runs"))
    assert max(days.values()) <= MOST_PARTS
    assert len(told(tmp_path)) == 2 * (MOST_PARTS + 2)
    assert compact_all(tmp_path, retain_days=3, now=NOON + 6 * DAY).expired >= 3
    assert {name[0] for name in told(tmp_path)} == {"b"}
    compact(tmp_path, settled_s=-1e12, now=time.time() + 2 * DAY)  # what left the store goes
    named = {tmp_path / LAYOUT / each.path for each in snapshot(tmp_path).parts}
    kinds = ("runs", "operators", "notes", "plans")
    assert named == {path for kind in kinds for path in files_of(tmp_path, kind)}


def test_damage_is_told_and_all_else_is_there(tmp_path: Path) -> None:
    for n in range(10):
        record(tmp_path, f"w-{n}", events_of_run(f"a{n}", NOON + n * DAY))
        compact_all(tmp_path)
    path = record(tmp_path, "w-10", events_of_run("b"))
    path.write_text(path.read_text() + '{"kind":')
    runs = files_of(tmp_path, "runs")
    for n, each in enumerate(runs[:9]):  # 90 % of the files, one way or another
        content = bytearray(each.read_bytes())
        if n % 3 == 0:
            each.unlink()
        elif n % 3 == 1:
            each.write_bytes(content[: len(content) // 2])
        else:
            content[4:-8] = bytes(len(content) - 12)
            each.write_bytes(content)
    fleet = Fleet(tmp_path)
    assert {each["run"] for each in fleet.runs().to_pylist()} in ({"b", f"a{n}"} for n in range(10))
    assert len(fleet.warnings) == 10
    done = compact_all(tmp_path)
    assert len(done.damaged) == 1
    assert "w-10" in done.damaged[0]


def test_a_damaged_snapshot_gives_way_to_the_one_before(tmp_path: Path) -> None:
    for n in range(3):
        record(tmp_path, f"w-{n}", events_of_run(f"a{n}"))
        compact_all(tmp_path)
    last = max((tmp_path / LAYOUT / "snapshots").iterdir())
    last.write_text('{"parts": [["../../etc/passwd", "runs", "", 1, 1, ""]], "folded": []}')
    assert set(told(tmp_path)) == {"a0", "a1"}
    assert Fleet(tmp_path).warnings == ("the last snapshot is damaged: runs may be missing",)
    record(tmp_path, "w-3", events_of_run("a3"))
    assert compact_all(tmp_path).runs == 1  # under the next number
    assert set(told(tmp_path)) == {"a0", "a1", "a3"}


def test_all_files_are_private(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        record(tmp_path / "t", "w-0", [*events_of_run("a"), RunStarted(run="b", at=NOON)])
        compact_all(tmp_path / "t")
    finally:
        os.umask(umask)
    modes = {
        (each.is_dir(), stat.S_IMODE(each.stat().st_mode)) for each in (tmp_path / "t").rglob("*")
    }
    assert modes == {(True, 0o700), (False, 0o600)}


def test_a_store_that_is_compacted_while_it_is_opened_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dml.fleet import fleet as module

    for n in range(3):
        record(tmp_path, f"w-{n}", events_of_run(f"a{n}"))

    def late(root: Path) -> object:
        found = snapshot(root)
        monkeypatch.setattr(module, "snapshot", snapshot)
        compact_all(root)
        return found

    monkeypatch.setattr(module, "snapshot", late)
    assert set(told(tmp_path)) == {"a0", "a1", "a2"}
    assert dml.fleet.open(tmp_path).warnings == ()


def test_files_of_other_versions_have_fewer_or_more_columns(tmp_path: Path) -> None:
    for n in range(MOST_PARTS + 1):
        record(tmp_path, f"w-{n}", events_of_run(f"a{n}"))
        compact_all(tmp_path)
        old, *_ = files_of(tmp_path, "operators")
        if n == 0:
            table = pq.read_table(old).drop_columns(["job", "cache_hits"])
            pq.write_table(table.append_column("later", pa.array([7, 7])), old)
            last = max((tmp_path / LAYOUT / "snapshots").iterdir())
            parts = json.loads(last.read_text())
            for part in parts["parts"]:
                part[4] = (tmp_path / LAYOUT / part[0]).stat().st_size
                part[5] = "of another version"
            last.write_text(json.dumps(parts))
            found = Fleet(tmp_path).operators("a0").to_pylist()
            assert [(row["later"], row["job"], row["cache_hits"]) for row in found] == [
                (7, None, None),
                (7, None, None),
            ]
    assert len(snapshot(tmp_path).of("operators")) == 1  # merged
    found = Fleet(tmp_path).operators().to_pylist()
    assert {(row["run"], row["later"], row["job"]) for row in found} == {
        ("a0", 7, None), *((f"a{n}", None, "j") for n in range(1, MOST_PARTS + 1))
    }  # fmt: skip
