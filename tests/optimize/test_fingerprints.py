"""Test pipeline fingerprints: equal for equal meaning, different for any other meaning."""

from __future__ import annotations

import pytest

import dml
from dml import col
from tests.optimize.tables import flights


def drawn(seed: int) -> dml.Dataset:
    return flights().with_columns(r=dml.random(seed=seed))


LATE, NEAR = col("late") > 0, col("miles") < 50


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (flights().filter(LATE & NEAR), flights().filter(NEAR).filter(LATE)),
        (
            flights().with_columns(a=col("id") + 1, t=col("id") * 9).drop("t"),
            flights().with_columns(a=1 + col("id")),
        ),
        (
            flights().with_columns(a=col("id")).rename({"a": "b"}),
            flights().with_columns(b=col("id")),
        ),
        (flights().take(9).skip(2).filter(LATE), flights().skip(2).take(7).filter(LATE)),
        (flights().batch(4).take(2), flights().take(8).batch(4)),
        (flights().filter(LATE).filter(LATE), flights().filter(LATE)),
        (flights().with_columns(a=dml.lit(2) * 3), flights().with_columns(a=6)),
        (flights().repeat(2).filter(NEAR), flights().filter(NEAR).repeat(2)),
    ],
)
def test_equal_meanings_have_one_name(one: dml.Dataset, other: dml.Dataset) -> None:
    for domain in ("result", "fleet", "shape"):
        assert one.fingerprint(domain) == other.fingerprint(domain)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (flights().take(5).filter(LATE), flights().filter(LATE).take(5)),
        (flights().with_columns(a=col("id") + 1), flights().with_columns(a=col("id") + 1.0)),
        (flights().with_columns(a=col("id")), flights().with_columns(b=col("id"))),
        (flights().select("id", "late"), flights().select("late", "id")),
        (
            flights().filter((col("id") != 0) & ((7 // col("id")).cast("int8") > 1)),
            flights().filter(((7 // col("id")).cast("int8") > 1) & (col("id") != 0)),
        ),
        (flights().shuffle(4, seed=1), flights().shuffle(4, seed=2)),
        (drawn(1), drawn(2)),
        (flights().with_columns(a=100).with_columns(b=col("miles") + col("a")),
         flights().with_columns(a=100).with_columns(b=col("miles") + 100)),
    ],
)  # fmt: skip
def test_other_meanings_have_other_names(one: dml.Dataset, other: dml.Dataset) -> None:
    assert one.fingerprint() != other.fingerprint()


def test_the_default_seed_is_in_the_name_of_what_draws_with_it() -> None:
    def names(ds: dml.Dataset) -> set[str]:
        return {ds.with_options(seed=seed).fingerprint() for seed in (1, 2)}

    assert len(names(flights().with_columns(r=dml.random()))) == 2
    assert len(names(flights().filter(dml.random() < 0.5))) == 2
    assert len(names(flights().shuffle())) == 2
    assert len(names(flights().split([0.5, 0.5])[0])) == 2
    assert len(names(flights().split([0.5, 0.5], stratify="gate")[0])) == 2
    assert len(names(flights().split([0.5, 0.5], stratify="gate", seed=7)[0])) == 1
    assert len(names(flights().shuffle(seed=7))) == 1
    assert len(names(flights().with_columns(r=dml.random(seed=7)))) == 1
    assert len(names(flights().take(3))) == 1


def test_the_fleet_counts_programs_whatever_their_seeds() -> None:
    fleet = {flights().with_columns(r=dml.random(seed=s)).fingerprint("fleet") for s in (1, 2)}
    assert len(fleet) == 1
    assert len({flights().shuffle(4, seed=s).fingerprint("fleet") for s in (1, 2)}) == 1


def test_a_position_fits_one_seed_only() -> None:
    one, other = flights().shuffle(seed=1), flights().shuffle(seed=2)
    it = iter(one.with_options(executor="sync"))
    next(it)
    with pytest.raises(dml.DmlError, match="another pipeline"):
        iter(other.with_options(executor="sync")).load_state_dict(it.state_dict())


def test_functions_whose_types_settle_are_named_by_how(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(row: dict[str, object]) -> dict[str, object]:
        return {"id": str(row)}

    settling = [flights().map(named), flights().flat_map(lambda row: [row] * len(str(row)))]
    others = [flights().map(named, schema={"id": "string"}), flights().map(lambda row: row)]
    pipelines = [*settling, *others]

    def names(domain: str) -> list[str]:
        return [ds.select("id").fingerprint(domain) for ds in pipelines]

    before = names("result"), names("fleet")
    monkeypatch.setattr("dml.optimize.fingerprints.SETTLING_VERSION", 3)
    after = names("result"), names("fleet")
    changed = [one != other for one, other in zip(before[0], after[0], strict=True)]
    assert changed == [True, True, False, False]
    assert before[1] == after[1]
