"""Compare the tables of names for users of other libraries with the names of dml.

Every public name of a library is in its table once; the names are committed beside the tests. All
code in the tables is parsed, and must call a public function of dml with valid arguments.
"""

from __future__ import annotations

import inspect
import re

import pytest

import dml
from dml.expr.columns.namespaces.audio import Audio
from dml.expr.columns.namespaces.images import Images
from dml.expr.columns.namespaces.video import Video
from tests.peer_tables import CODE, DOCS, NAMESPACES, Table, checked

TABLES = {
    "tf.data": Table("coming-from.md", "tf.data", "tf_data"),
    "Ray Data": Table("coming-from.md", "Ray Data", "ray_data"),
    "torch": Table("coming-from/torch.md", "torch.utils.data", "torch"),
    "DataLoader": Table("coming-from/torch.md", "DataLoader", "torch_data_loader"),
    "torchvision": Table(
        "coming-from/torchvision.md", "torchvision.transforms.v2", "torchvision_transforms", Images
    ),
    "torchaudio": Table(
        "coming-from/torchaudio.md", "torchaudio.transforms", "torchaudio_transforms", Audio
    ),
    "Hugging Face": Table("coming-from/huggingface.md", "datasets", "huggingface"),
    "Grain": Table("coming-from/grain.md", "MapDataset and IterDataset", "grain_datasets"),
    "Grain's iterators": Table(
        "coming-from/grain.md", "Iterators and DataLoader", "grain_iterators"
    ),
    "Grain's transforms": Table(
        "coming-from/grain.md", "Transforms, samplers, sharding, sources", "grain_transforms"
    ),
    "Grain's experiments": Table("coming-from/grain.md", "Experimental", "grain_experimental"),
    "Polars": Table("coming-from/polars.md", "LazyFrame", "polars_frames"),
    "Polars' columns": Table(
        "coming-from/polars.md", "Expressions", "polars_expressions", dml.Column
    ),
    "Polars' namespaces": Table(
        "coming-from/polars.md", "Namespaces", "polars_namespaces", dml.Column
    ),
}
# Here hardly a name is refused, and each that is has a workaround that runs.
COMPLETE = ("tf.data", "Ray Data")
REFUSAL = re.compile(r"no, because [^;]+; .*`.+`.*")


@pytest.mark.parametrize("peer", TABLES)
def test_every_public_name_is_in_the_table(peer: str) -> None:
    assert sorted(TABLES[peer].told()) == sorted(TABLES[peer].committed())


@pytest.mark.parametrize("peer", TABLES)
def test_what_the_tables_name_is_there_and_takes_what_it_is_given(peer: str) -> None:
    table = TABLES[peer]
    wrong = [
        f"{names}: {each}" for names, text in table.rows() for each in checked(text, table.owner)
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("`bath(n)`", "no bath of Dataset"),
        ("`batch(n, drop_lats=...)`", "unexpected keyword"),
        ("`batch()`", "missing a required"),
        ("`take(size)`", "take calls size n"),
        ("`take(n).gone()`", "no gone of Dataset"),
        ("`dml.gone`", "no gone of dml"),
        ('`col("x").str.gone()`', "no gone of Strings"),
        ("`group_by(key).gone`", "no gone of Groups"),
        ("`with_options(gone=1)`", "no option gone"),
        ("`to_torch(gone=1)`", "no option gone"),
        ("`batch(n)`, or `gone=`", "gone= is of none of ['batch']"),
        ("`sum(ds.gone)`", "no gone of Dataset"),
        ("`batch n`", "invalid syntax"),
    ],
)
def test_what_is_not_there_is_found(code: str, why: str) -> None:
    (said,) = checked(code, dml.Dataset)
    assert why in said


@pytest.mark.parametrize("peer", TABLES)
def test_a_name_in_brackets_is_the_same_verb(peer: str) -> None:
    """`verb` (`alias`): the name that is known there, of the same function or one that says so."""
    table = TABLES[peer]
    for names, text in table.rows():
        for of, main, alias in re.findall(r"`(dml\.)?(\w+)[^`]*` \(`(?:dml\.)?(\w+)`", text):
            owner = dml if of else table.owner
            assert alias in [name.rpartition(".")[2] for name in names], text
            door = getattr(owner, alias)
            assert door == getattr(owner, main) or main in door.__doc__, text


@pytest.mark.parametrize("peer", TABLES)
def test_a_verb_under_its_own_name_is_told(peer: str) -> None:
    """Where dml has the very name, the table says so or says what is different."""
    table = TABLES[peer]
    for full, text in table.told().items():
        place, _, name = full.rpartition(".")
        owner = NAMESPACES.get(place, table.owner)
        if callable(getattr(owner, name, None)) and (place != "arr"):
            assert re.search(rf"\b{name}\b", " ".join(CODE.findall(text))), full


@pytest.mark.parametrize("peer", TABLES)
def test_a_refusal_gives_its_reason_and_what_to_write_instead(peer: str) -> None:
    for name, text in TABLES[peer].told().items():
        assert not re.match("(?i)(no|not)\\b", text) or REFUSAL.fullmatch(text), name


@pytest.mark.parametrize("peer", COMPLETE)
def test_hardly_anything_is_refused(peer: str) -> None:
    told = TABLES[peer].told()
    refused = [name for name, text in told.items() if text.startswith("no, because ")]
    assert 10 * len(refused) <= len(told), refused


def test_nothing_is_put_off() -> None:
    pages = [DOCS / "coming-from.md", *(DOCS / "coming-from").glob("*.md")]
    assert not [
        page.name for page in pages if re.search("(?i)not yet|not there yet", page.read_text())
    ]


def arguments() -> list[tuple[str, str, str]]:
    """Verb, argument and text of each entry of the table of arguments."""
    section = Table("coming-from.md", "Arguments", "").section()
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", section, re.MULTILINE)
    found = [(names, text) for names, text in rows if names != "argument"]
    return [
        (*re.fullmatch(r"(\w+)\((\w+)=\)", each).groups(), text)  # type: ignore[union-attr]
        for names, text in found
        for each in CODE.findall(names)
    ]


def test_arguments_that_are_told_are_not_there_and_what_is_told_is() -> None:
    assert len(arguments()) > 50
    for verb, argument, text in arguments():
        owners = [owner for owner in (dml.Dataset, Images, Video, dml) if verb in dir(owner)]
        found = getattr(owners[0], verb)
        assert argument not in inspect.signature(found).parameters
        assert not [*checked(text, dml.Dataset)], f"{verb}({argument}=)"


def test_names_from_elsewhere_are_not_there_and_what_is_told_is() -> None:
    section = Table("coming-from.md", "pandas and others", "").section()
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", section, re.MULTILINE)
    wrong, owners = list[str](), {"DataFrame": dml.Dataset, "Series": dml.Column}
    for names, text in rows:
        for full in CODE.findall(names):
            place, _, name = full.rpartition(".")
            first, _, room = place.partition(".")
            owner = NAMESPACES[room] if room else owners[first]
            wrong += [full] if hasattr(owner, name) else []
        wrong += [f"{names}: {each}" for each in checked(text, dml.Dataset)]
    assert not wrong
    assert len(rows) > 30


def test_the_ways_in_are_there() -> None:
    """What the last table names exists."""
    section = Table("coming-from.md", "Ways in", "").section()
    told = [text for _, text in re.findall(r"^\| (`.*`) \| (.*) \|$", section, re.MULTILINE)]
    named = {name for text in told for name in re.findall(r"`dml\.(\w+)", text)}
    assert not [name for name in named if not hasattr(dml, name)]
    assert len(named) > 20
    assert not [each for text in told for each in checked(text, dml.Dataset)]
