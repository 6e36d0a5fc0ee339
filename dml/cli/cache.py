"""The command ``dml cache``: entries of a store, why a pipeline misses them, and cleaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from dml.api.catalog import Catalog, why_miss
from dml.api.dataset import Dataset
from dml.base.amounts import bytes_text, count_text, counted, seconds_text
from dml.cache.eviction.catalogue import Entry
from dml.cli.output import Output, guest_output, json_option
from dml.cli.target import load
from dml.errors import DmlError

FAULT = 1
SHOWN = 12  # letters of a fingerprint in a list: enough to identify it

STORE = (
    click.option("--root", metavar="PATH", help="The store; without it, the user's."),
    click.option("--namespace", default="default", show_default=True, help="Whose part of it."),
)


def in_store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a store, and ``--json``, to ``command``."""
    made: Callable[..., Any] = click.pass_obj(command)
    for option in reversed((*STORE, json_option)):
        made = option(made)
    return made


@click.group()
def cache() -> None:
    """Inspect and clean the cached rows that outlive a process."""


@cache.command()
@in_store
def ls(output: Output, *, root: str | None, namespace: str) -> None:
    """List every entry: parts, rows, bytes, what computing it cost, uses, and its last operator."""
    catalog = Catalog(root, namespace)
    entries = list(catalog)
    value = {"root": catalog.path, "namespace": namespace, "entries": [*map(entry_json, entries)]}
    output.answer(value, lambda: "\n".join(listed(entries, _place(catalog))))


@cache.command()
@click.argument("fingerprint")
@in_store
def show(output: Output, *, fingerprint: str, root: str | None, namespace: str) -> None:
    """Show one entry: the operators that made it, one by one, and how it is used."""
    entry = Catalog(root, namespace).entry(fingerprint)
    output.answer(entry_json(entry), lambda: "\n".join(detailed(entry)))


@cache.command()
@click.argument("target", metavar="FILE.py:NAME")
@click.argument("other", metavar="[FILE.py:NAME | FINGERPRINT]", required=False)
@in_store
def why(
    output: Output, *, target: str, other: str | None, root: str | None, namespace: str
) -> None:
    """Show the first difference between a pipeline and a cache entry, or another pipeline.

    Without a second argument, compare with the entry that has most in common with the pipeline.
    """
    one = _pipeline(target)
    with guest_output():
        if other is not None and ":" in other:
            found = why_miss(one, _pipeline(other))
        else:
            found = Catalog(root, namespace).why_miss(one, other)
    value = {"target": target, "other": other, **dataclasses.asdict(found), "what": found.what}
    output.answer(value, lambda: str(found))


@cache.command()
@click.option("--grace", type=float, default=600.0, show_default=True, metavar="SECONDS")
@in_store
def gc(output: Output, *, grace: float, root: str | None, namespace: str) -> None:
    """Remove garbage that dead processes left; files younger than the grace are left alone."""
    done = Catalog(root, namespace).gc(grace_s=grace)
    files = counted(done.temporary, "temporary file", "temporary files")
    names = counted(done.names, "name", "names")
    blobs = f"{counted(done.blobs, 'blob', 'blobs')} of {bytes_text(done.nbytes)}"
    text = f"cleared away {files}, {names} of what has ended, {blobs}"
    output.answer(dataclasses.asdict(done), lambda: text)


@cache.command()
@click.argument("fingerprint")
@click.option("--undo", is_flag=True, help="Let it be evicted again.")
@in_store
def pin(output: Output, *, fingerprint: str, undo: bool, root: str | None, namespace: str) -> None:
    """Protect an entry from eviction, whatever the quota."""
    catalog = Catalog(root, namespace)
    (catalog.unpin if undo else catalog.pin)(fingerprint)
    text = f"{fingerprint} is {'no longer pinned' if undo else 'pinned'}"
    output.answer({"fingerprint": fingerprint, "pinned": not undo}, lambda: text)


@cache.command()
@click.argument("fingerprint", required=False)
@in_store
def verify(output: Output, *, fingerprint: str | None, root: str | None, namespace: str) -> int:
    """Read and check all stored bytes; damaged parts are removed, and the exit code is then 1."""
    catalog = Catalog(root, namespace)
    found = catalog.verify(fingerprint)
    lines = [f"{name}  part {part} was damaged and is gone" for name, part in found.damaged]
    whole = found.parts - len(found.damaged)
    read, kept = counted(found.parts, "part", "parts"), bytes_text(found.nbytes)
    lines.append(f"{read} read, {count_text(whole)} of {kept} whole in {_place(catalog)}")
    if found.newer:
        left = counted(found.newer, "part", "parts")
        lines.append(f"{left} of a later version of dml not read")
    output.answer(dataclasses.asdict(found), lambda: "\n".join(lines))
    return FAULT if found.damaged else 0


@cache.command()
@click.argument("fingerprints", nargs=-1, required=True, metavar="FINGERPRINT...")
@in_store
def rm(output: Output, *, fingerprints: tuple[str, ...], root: str | None, namespace: str) -> int:
    """Evict entries; their rows are computed again when they are needed."""
    catalog = Catalog(root, namespace)
    gone = {name: catalog.evict(name) for name in fingerprints}
    lines = [f"{name}  {'is gone' if done else 'was not there'}" for name, done in gone.items()]
    output.answer({"evicted": gone}, lambda: "\n".join(lines))
    return 0 if all(gone.values()) else FAULT


# ------------------------------------------------------------------------------------------ as text


def entry_json(entry: Entry) -> dict[str, Any]:
    """Return an entry as a JSON object."""
    found = {each.name: getattr(entry, each.name) for each in dataclasses.fields(entry)}
    about: Mapping[str, Any] = found.pop("about")
    kept = ("operators", "schema", "dml", "created", "tier")
    return found | {name: about[name] for name in kept if name in about}


def listed(entries: Sequence[Entry], place: str) -> list[str]:
    """Return a line for each entry, and a last one with their sum and the store."""
    lines = []
    for entry in entries:
        cells = [
            entry.fingerprint[:SHOWN],
            f"{parts_of(entry):>11}",
            f"{count_text(entry.rows):>10} rows",
            f"{bytes_text(entry.nbytes):>9}",
            f"made in {seconds_text(entry.cost_s)}",
            f"{entry.uses:.1f} uses",
            *(["pinned"] if entry.pinned else []),
            *(["QUARANTINED"] if entry.quarantined else []),
            *titles(entry)[-1:],
        ]
        lines.append("  ".join(cells))
    whole = bytes_text(sum(entry.nbytes for entry in entries))
    return [*lines, f"{counted(len(entries), 'entry', 'entries')}, {whole} in {place}"]


def detailed(entry: Entry) -> list[str]:
    """Return all details of an entry, as lines."""
    used = "not known" if entry.used_s is None else f"{seconds_text(entry.used_s)} ago"
    lines = [
        f"fingerprint  {entry.fingerprint}",
        f"parts        {parts_of(entry)}, {count_text(entry.rows)} rows",
        f"bytes        {bytes_text(entry.nbytes)}",
        f"made in      {seconds_text(entry.cost_s)}",
        f"used         {entry.uses:.1f} times, each counting half after six hours; last {used}",
        f"pinned       {'yes' if entry.pinned else 'no'}",
    ]
    if entry.quarantined:
        lines.append(f"quarantined  {entry.quarantined}; dml cache rm lets it be kept again")
    about = [name for name in ("tier", "created", "dml", "schema") if name in entry.about]
    lines += [f"{name:<12} {entry.about[name]}" for name in about]
    return [*lines, *(f"  {title}" for title in titles(entry))]


def parts_of(entry: Entry) -> str:
    """Return as text how many parts of an entry are stored, and of how many."""
    whole = "?" if entry.of is None else count_text(entry.of)
    return f"{count_text(entry.parts)} of {whole}"


def titles(entry: Entry) -> list[str]:
    """Return the titles of the operators that made an entry, source first; [] if not recorded."""
    rows = entry.about.get("operators")
    rows = rows if isinstance(rows, list) else []
    return [str(row[0]) for row in rows if isinstance(row, list) and row]


def _place(catalog: Catalog) -> str:
    """Return the store and the namespace of a command, as text."""
    whose = f", namespace {catalog.namespace}" if catalog.namespace != "default" else ""
    return f"{catalog.path}{whose}"


def _pipeline(target: str) -> Dataset:
    found = load(target)
    if not isinstance(found, Dataset):
        raise DmlError(f"{target} is no Dataset", why=f"it is a {type(found).__name__}")
    return found
