"""Functions of sounds: encoded ones are bytes, decoded ones tensors (samples,) of float32.

With several channels they are (channels, samples). Spectra have frequencies before windows. Lists
of float32 are sounds, too.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from dml.base.open_tensors import OpenTensor
from dml.errors import SchemaError
from dml.kernels.audio.sound_codec import MOST_SAMPLES, libraries
from dml.kernels.audio.spectra import Windows
from dml.kernels.functions.function import Function, Kinds, Params, Rest, always
from dml.kernels.functions.images import is_encoded
from dml.kernels.functions.row_chain import RowChain, alone

INFO = pa.struct([(name, pa.int64()) for name in ("rate", "channels", "frames")])


def _axes(kind: pa.DataType) -> tuple[int | None, ...]:
    """Return the axes of lists and tensors of float32, None where rows differ; () for others."""
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not listed and not isinstance(kind, OpenTensor | pa.FixedShapeTensorType):
        return ()
    if kind.value_type != pa.float32():
        return ()
    return (None,) if listed else tuple(kind.shape)


ENCODED = Kinds("encoded sounds, which are bytes", is_encoded)
SOUND = Kinds("decoded sounds, f4[?] or f4[?,?]", lambda kind: len(_axes(kind)) in (1, 2))
SINGLE = Kinds("sounds of one channel, f4[?]", lambda kind: len(_axes(kind)) == 1)
EITHER = Kinds("decoded sounds or spectra, f4[?]", lambda kind: len(_axes(kind)) in (1, 2, 3))
SPECTRUM = Kinds("spectra, f4[80,?]", lambda kind: len(_axes(kind)) in (2, 3))


def sound_type(*shape: int | None) -> pa.DataType:
    """Return the type of tensors of float32 with these axes, None where rows differ."""
    value = pa.float32()
    return OpenTensor(value, shape) if None in shape else pa.fixed_shape_tensor(value, shape)


def _decoded(_kind: pa.DataType, params: Params) -> pa.DataType:
    return sound_type(None) if params[1] else sound_type(None, None)


def _other_length(kind: pa.DataType, _params: Params) -> pa.DataType:
    return sound_type(*_axes(kind)[:-1], None)


def _of_length(kind: pa.DataType, params: Params) -> pa.DataType:
    return sound_type(*_axes(kind)[:-1], params[0])


def _like(kind: pa.DataType, _params: Params) -> pa.DataType:
    return sound_type(*_axes(kind))


def _windowed(kind: pa.DataType, windows: Windows, rows: int) -> pa.DataType:
    samples = _axes(kind)[-1]
    if samples is not None and not windows.windows(samples):
        raise SchemaError(
            f"a window of {windows.fft} samples does not fit",
            why=f"the sound has {samples}",
            try_="a smaller n_fft, or .audio.pad_or_trim(...) before",
        )
    count = None if samples is None else windows.windows(samples)
    return sound_type(*_axes(kind)[:-1], rows, count)


def _spectrum(kind: pa.DataType, params: Params) -> pa.DataType:
    windows = Windows(*params[0])
    return _windowed(kind, windows, windows.fft // 2 + 1)


def _mel(kind: pa.DataType, params: Params) -> pa.DataType:
    return _windowed(kind, Windows(*params[0]), params[3][0])


def _chain() -> type[RowChain]:
    from dml.kernels.audio.sound_rows import SoundRows  # noqa: PLC0415 - few programs have sounds

    return SoundRows


DRAW, DECIBELS = pa.float64(), pa.float64()
UNREADABLE = ("", ".audio.decode(on_error='null'), and drop_nulls after it")
NO_HEADER = ("", "on_error='null', and drop_nulls after it")
ODD = ("", "a filter on .audio.info() before")
REFUSALS = {"audio.decode": UNREADABLE, "audio.info": NO_HEADER}


def _audio(
    op: str,
    gives: Callable[[pa.DataType, Params], pa.DataType] = _like,
    *,
    takes: Kinds = SOUND,
    rest: Callable[[pa.DataType], Rest] | None = None,
    fails: Callable[[Params], bool] = lambda _: False,
    usual: Params = (),
) -> Function:
    return Function(
        f"audio.{op}",
        takes,
        gives,
        alone(f"audio.{op}", _chain, gives),
        rest,
        fails,
        REFUSALS.get(f"audio.{op}", ODD),
        vectors=True,
        tool=libraries,
        usual=usual,
    )


def _draw(_kind: pa.DataType) -> pa.DataType:
    return DRAW


def _noise(_kind: pa.DataType) -> tuple[Kinds | pa.DataType, ...]:
    return SINGLE, DECIBELS


FUNCTIONS = (
    _audio(
        "decode",
        _decoded,
        takes=ENCODED,
        fails=lambda params: params[5] != "null",
        usual=(True, 0.0, None, MOST_SAMPLES, "raise"),
    ),
    _audio(
        "info",
        always(INFO),
        takes=ENCODED,
        fails=lambda params: params[0] != "null",
        usual=("raise",),
    ),
    _audio("length", always(pa.int64()), takes=EITHER),
    _audio("resample", _other_length, fails=lambda _: True),
    _audio("slice", _other_length, rest=_draw, fails=lambda params: params[1] is None),
    _audio("pad_or_trim", _of_length),
    _audio("random_slice", _of_length, rest=_draw),
    _audio("gain", rest=_draw),
    _audio("mix", rest=_noise),
    _audio("add_noise", rest=_draw),
    _audio("spectrogram", _spectrum),
    _audio("mel", _mel),
    _audio("random_mask", _like, takes=SPECTRUM, rest=_draw),
)
BY_NAME = {function.name: function for function in FUNCTIONS}
