"""A pipeline is presented to PyTorch as a checkpointable IterableDataset that yields tensors.

Tensors share memory with the arrays that dml delivers; the caller owns this memory. The arrays of
a pipeline that is iterated directly can also be converted by ``torch.from_dlpack``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dml.errors import NullValueError, PlanError
from dml.interop.handover import (
    Convert,
    ConvertedElements,
    Element,
    Handover,
    Resumable,
    batched,
)

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ModuleNotFoundError as missing:
    raise PlanError(
        "to_torch needs PyTorch", why=str(missing), try_="pip install torch, or dml[torch]"
    ) from None

RAGGED, STRINGS = ("list", "pad", "nested"), ("list", "error")


def to_torch(
    source: Any,
    *,
    batch_size: int | None = None,
    drop_last: bool = False,
    ragged: str = "list",
    strings: str = "list",
    dtypes: Mapping[str, Any] | None = None,
    device: Any = None,
) -> TensorDataset:
    """Convert the elements of ``source``, a Dataset or a rank of a ``streaming_split``, to tensors.

    Numbers, booleans and times become tensors without a copy; times are int64 (NaT: the minimum).

    Parameters
    ----------
    batch_size, drop_last : as in ``source.batch(batch_size, drop_last=drop_last)``
    ragged : lists of numbers of differing lengths: "list" gives a list of tensors, "pad" one tensor
        padded with zeros and the lengths as ``<name>_length``, "nested" a jagged nested tensor
    strings : values that have no tensor (text, bytes, objects): "list" gives a list, "error" raises
    dtypes : types by column, ``{"x": torch.float32}``
    device : where the tensors go; for CUDA, the next element is copied ahead on another stream

    Raises PlanError for unknown options, an absent device, and inside a worker of a DataLoader: dml
    has its own workers, so use ``DataLoader(dataset, batch_size=None)`` with ``num_workers=0``.
    """
    for name, value, known in (("ragged", ragged, RAGGED), ("strings", strings, STRINGS)):
        if value not in known:
            raise PlanError(
                f"{name}={value!r} has no meaning",
                why=f"it is one of {', '.join(known)}",
                try_=f"{name}={known[0]!r}",
            )
    source = batched(source, batch_size, drop_last=drop_last)
    types = {name: _dtype(name, kind) for name, kind in (dtypes or {}).items()}
    return TensorDataset(source, Conversion(ragged, strings, types), _device(device))


def _dtype(name: str, kind: Any) -> torch.dtype:
    found = getattr(torch, kind, None) if isinstance(kind, str) else kind
    if not isinstance(found, torch.dtype):
        raise PlanError(
            f"dtypes[{name!r}]={kind!r} is no type of tensors",
            why=f"it is of type {type(kind).__name__}",
            try_=f'dtypes={{{name!r}: torch.float32}}, or "float32"',
        )
    return found


def _device(device: Any) -> torch.device | None:
    try:
        found = None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise PlanError(
            f"device={device!r} is no device",
            why=str(error).partition("\n")[0],
            try_='device="cpu", or "cuda"',
        ) from None
    if found is not None and found.type == "cuda" and not torch.cuda.is_available():
        raise PlanError(
            f"device={str(device)!r} is not there",
            why="torch.cuda.is_available() is False",
            try_="leave device out, and a build of PyTorch with CUDA on a machine that has it",
        )
    return found


@dataclasses.dataclass(frozen=True)
class Conversion:
    """The options that control how arrays become tensors."""

    ragged: str
    strings: str
    dtypes: dict[str, torch.dtype]

    def of(self, element: Element) -> Element:
        """Convert the arrays of an element to tensors; Python values of rows stay unchanged."""
        out: Element = {}
        self._check(element)
        for name, value in element.items():
            if not isinstance(value, np.ndarray):
                out[name] = value
            elif value.dtype.kind == "O":
                out.update(self._objects(element, name))
            else:
                out[name] = self._tensor(name, value)
        return out

    def _tensor(self, name: str, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array.view("i8") if array.dtype.kind in "mM" else array)
        kind = self.dtypes.get(name)
        return tensor if kind is None else tensor.to(kind)

    def _check(self, element: Element) -> None:
        absent = self.dtypes.keys() - element.keys()
        if absent:
            raise PlanError(
                f"dtypes= names {min(absent)!r}, which is no column",
                why=f"there are {', '.join(element)}",
                try_=f"one of them, or .rename(...) to {min(absent)!r} before",
            )

    def _objects(self, element: Element, name: str) -> Element:
        values = element[name].tolist()
        if not any(isinstance(value, np.ndarray) for value in values):
            if self.strings == "error":
                raise PlanError(
                    f"column {name!r} has no tensor",
                    why=f"it holds values of type {type(values[0]).__name__}",
                    try_=f'.drop({name!r}), a number for it, or strings="list"',
                )
            return {name: values}
        tensors = [self._tensor(name, v) if isinstance(v, np.ndarray) else v for v in values]
        if self.ragged == "list":
            return {name: tensors}
        if not all(isinstance(each, torch.Tensor) for each in tensors):
            raise NullValueError(
                f"column {name!r} has a null, which {self.ragged} tensors cannot show",
                why="a list is null, or a number in it",
                try_='.filter(...) before, or ragged="list"',
            )
        return self._joined(element, name, tensors)

    def _joined(self, element: Element, name: str, tensors: list[torch.Tensor]) -> Element:
        """Return ``tensors`` as one nested tensor, or as one padded tensor and their lengths."""
        if self.ragged == "nested":
            return {name: torch.nested.nested_tensor(tensors, layout=torch.jagged)}
        lengths = f"{name}_length"
        if lengths in element:
            raise PlanError(
                f"lists of {name!r} are padded, and their lengths have no name",
                why=f"there is a column {lengths!r} already",
                try_=f'.rename({{{lengths!r}: ...}}), or ragged="nested"',
            )
        padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
        return {name: padded, lengths: torch.tensor([len(each) for each in tensors])}


class Mover:
    """Moves elements to a device in two steps, so that a subclass can overlap copy and training.

    This class moves without overlap: to the CPU, or to a device without pinned memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def sent(self, element: Element) -> Any:
        """Start to move an element and return the handle that ``arrived`` takes."""
        return element

    def arrived(self, sent: Any) -> Element:
        """Return the element on the device; ``sent`` is the handle that ``self.sent`` returned."""
        return _each(sent, lambda tensor: tensor.to(self.device))


class Pinned(Mover):
    """Copies to a CUDA device from pinned memory, on a stream that training does not use."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.stream = torch.cuda.Stream(device)

    def sent(self, element: Element) -> tuple[Element, torch.cuda.Event]:
        """Enqueue the copies; return them with an event that occurs when they are complete."""
        with torch.cuda.stream(self.stream):
            return _each(element, self._copied), self.stream.record_event()

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_nested:  # has no single piece of memory to pin
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def arrived(self, sent: tuple[Element, torch.cuda.Event]) -> Element:
        """Return the copies; the current stream waits for them, and their memory is kept for it."""
        element, event = sent
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)

        def record_use(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.is_nested:
                return tensor.to(self.device)
            tensor.record_stream(current)
            return tensor

        return _each(element, record_use)


def _each(element: Element, change: Callable[[torch.Tensor], Any]) -> Element:
    """Return the element with ``change`` applied to every tensor."""
    out: Element = {}
    for name, value in element.items():
        if isinstance(value, torch.Tensor):
            out[name] = change(value)
        elif isinstance(value, list):
            out[name] = [change(v) if isinstance(v, torch.Tensor) else v for v in value]
        else:
            out[name] = value
    return out


class MovedTensors(ConvertedElements):
    """An iteration that moves the next element to a device while the current one is in use."""

    def __init__(self, elements: Resumable, convert: Convert, mover: Mover) -> None:
        super().__init__(elements, convert)
        self._mover = mover
        self._state: dict[str, Any] | None = None
        self._coming: tuple[Any, dict[str, Any]] | Exception | None = None

    def __next__(self) -> Element:
        coming, self._coming = self._coming or self._sent(), None
        if isinstance(coming, StopIteration):
            self._state = None
        if isinstance(coming, Exception):
            raise coming
        sent, self._state = coming
        self._coming = self._sent()
        return self._mover.arrived(sent)

    def _sent(self) -> tuple[Any, dict[str, Any]] | Exception:
        """Start to move the next element; return its handle and the state after it, or an error."""
        try:
            sent = self._mover.sent(super().__next__())
        except Exception as error:  # noqa: BLE001 - raised by the next ``__next__``
            return error
        return sent, super().where()

    def where(self) -> dict[str, Any]:
        """Return the state after the last element received, excluding the prefetched element."""
        return self._state or super().where()


class TensorDataset(Handover, IterableDataset):
    """The elements of a pipeline as tensors; every iteration is the next epoch.

    It has the interface that ``StatefulDataLoader`` of ``torchdata`` requires of a dataset.
    """

    def __init__(self, source: Any, conversion: Conversion, device: torch.device | None) -> None:
        super().__init__(source, conversion.of)
        self.conversion, self.device = conversion, device

    def __iter__(self) -> Iterator[Element]:
        if get_worker_info() is not None:
            raise PlanError(
                "to_torch inside a worker of a DataLoader",
                why="each worker would read every row; dml has workers of its own",
                try_="DataLoader(dataset, batch_size=None, num_workers=0), and"
                " .with_options(num_workers=...) of the pipeline",
            )
        return super().__iter__()

    def _begun(self) -> ConvertedElements:
        if self.device is None:
            return super()._begun()
        mover = Pinned(self.device) if self.device.type == "cuda" else Mover(self.device)
        return MovedTensors(iter(self.source), self.convert, mover)
