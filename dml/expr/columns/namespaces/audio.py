"""``col("x").audio`` has functions of columns of sounds, encoded or decoded, and of spectra."""

from __future__ import annotations

from typing import Any

import numpy as np

from dml.base.user_line import door
from dml.errors import PlanError
from dml.expr.columns.literal import whole
from dml.expr.columns.namespaces.image_arguments import finite, interval, is_range, odd, one_of
from dml.expr.columns.namespaces.media import MediaFunctions, MediaNamespace
from dml.expr.columns.value import C, value_text
from dml.kernels.audio.sound_codec import LEAST_RATE, MOST_RATE, MOST_SAMPLES

FLOAT32_MAX = float(np.finfo(np.float32).max)
# Functions whose results are no sounds.
SPECTRA = ("audio.spectrogram", "audio.mel", "audio.random_mask")
WINDOWS = ("hann", "hamming", "ones")
LOGARITHMS = (None, "db", "ln", "log10")
SCALES, NORMS = ("htk", "slaney"), (None, "slaney")
# Most seconds; a year has 31,536,000.
LONGEST = 1 << 32
# Most samples of a window, and most bands of mel.
LONGEST_WINDOW, MOST_BANDS = 1 << 20, 1 << 14


class AudioFunctions(MediaFunctions[C]):
    """Functions of sounds, row by row; null gives null.

    Encoded sounds are bytes of WAV, FLAC, Ogg, MP3 and other formats of libsndfile. Decoded ones
    are tensors (samples,) of float32, or (channels, samples). Functions ``random_...`` draw by
    seed, epoch and row, as ``dml.random`` does. Times are in seconds, ``rate`` in samples a second;
    after ``decode(rate)`` and ``resample(rate)`` it is known.
    """

    __slots__ = ()
    _title, _place = ".audio", "audio"

    # ------------------------------------------------------------------------------------ encoded

    @door
    def decode(
        self,
        rate: int | None = None,
        *,
        mono: bool = True,
        offset: float = 0.0,
        duration: float | None = None,
        max_samples: int = MOST_SAMPLES,
        on_error: str = "raise",
    ) -> AudioFunctions[C]:
        """Decode bytes to float32 (samples,), or (channels, samples) unless ``mono``.

        Samples are from -1 to 1, those of n bits divided by 2**(n - 1).

        Parameters
        ----------
        rate : resample to so many samples a second, by libsoxr ("HQ"); None keeps the file's rate
        mono : give the mean of the channels
        offset, duration : decode this part alone, in seconds, cut before it is resampled
        max_samples : larger sounds are refused before they are decoded
        on_error : "raise" CastError for a sound that cannot be read, or give "null" for it
        """
        return self._made(
            "audio.decode",
            None if rate is None else _rate("rate of decode", rate),
            _flag("mono", mono),
            _seconds("offset", offset),
            None if duration is None else _seconds("duration", duration),
            whole("max_samples", max_samples, 1),
            one_of("on_error", on_error, ("raise", "null")),
        )

    @door
    def info(self, *, on_error: str = "raise") -> C:
        """Return a struct of rate, channels and frames, int64, read from the file's header."""
        return self._plain("audio.info", one_of("on_error", on_error, ("raise", "null")))

    @door
    def duration(self, *, on_error: str = "raise") -> C:
        """Return the length of the encoded sound in seconds, read from its header; float64."""
        info: Any = self.info(on_error=on_error)
        length: C = info.struct.field("frames") / info.struct.field("rate")
        return length

    def length(self) -> C:
        """Return the number of samples of a decoded sound, or of windows of a spectrum; int64."""
        return self._plain("audio.length")

    # --------------------------------------------------------------------------------------- parts

    @door
    def resample(self, rate: int, *, from_rate: int | None = None) -> AudioFunctions[C]:
        """Return the sound with ``rate`` samples a second, by libsoxr in its quality "HQ".

        ``from_rate`` is its rate now, unless that is known.
        """
        given = self._known_rate("resample", from_rate, "from_rate")
        return self._made("audio.resample", given, _rate("rate of resample", rate))

    @door
    def slice(
        self, offset: Any, duration: float | None = None, *, rate: int | None = None
    ) -> AudioFunctions[C]:
        """Return ``duration`` seconds from ``offset`` on, at most to the end of the sound.

        ``offset`` is a number, or a column of float64.
        """
        known = self._known_rate("slice", rate)
        length = None if duration is None else _seconds("duration", duration)
        if isinstance(offset, self._kind):
            return self._made("audio.slice", known, None, length, others=(offset,))
        return self._made("audio.slice", known, _seconds("offset", offset), length)

    @door
    def pad_or_trim(self, duration: float, *, rate: int | None = None) -> AudioFunctions[C]:
        """Return exactly ``duration`` seconds: the first ones, with zeros after a shorter sound."""
        return self._made("audio.pad_or_trim", self._samples("pad_or_trim", duration, rate))

    @door
    def random_slice(
        self, duration: float, *, rate: int | None = None, seed: int | None = None
    ) -> AudioFunctions[C]:
        """Return ``duration`` seconds from a random place on; zeros follow a shorter one."""
        samples = self._samples("random_slice", duration, rate)
        draw = self._draw("random_slice", seed)
        return self._made("audio.random_slice", samples, others=(draw,))

    # ------------------------------------------------------------------------------------- changes

    @door
    def gain(self, decibels: Any) -> AudioFunctions[C]:
        """Make the sound louder by a number or column of ``decibels``; 6 doubles the amplitude."""
        self._sound("gain")
        params, others = self._amount("decibels of gain", decibels)
        return self._made("audio.gain", *params, others=others)

    @door
    def random_gain(self, decibels: Any, *, seed: int | None = None) -> AudioFunctions[C]:
        """Make the sound louder by random decibels, of a range (low, high) or up to a number."""
        low, high = _spread("decibels of random_gain", decibels)
        return self.gain(self._between("gain", low, high, seed))

    @door
    def mix_noise(self, noise: Any, snr: Any = 10.0) -> AudioFunctions[C]:
        """Add the sound of column ``noise``, repeated or cut to the length, ``snr`` dB quieter.

        ``snr`` is the ratio of the powers of both, in decibels: a number or a column of float64.
        Both sounds have one channel or, for ``noise``, one that is added to each. A silent noise
        changes nothing.
        """
        self._sound("mix_noise")
        if not isinstance(noise, self._kind):
            raise PlanError(
                f"noise of mix_noise is {noise!r}",
                why=f"it is of type {type(noise).__name__}",
                try_='a column of sounds, such as col("noise").audio.decode(16000)',
            )
        params, others = self._amount("snr of mix_noise", snr)
        return self._made("audio.mix", *params, others=(noise, *others))

    @door
    def random_noise(
        self, snr: Any = (10.0, 30.0), *, seed: int | None = None
    ) -> AudioFunctions[C]:
        """Add white noise, whose power is a random number of ``snr`` decibels less."""
        self._sound("random_noise")
        low, high = interval("snr of random_noise", snr if is_range(snr) else (snr, snr))
        draw = self._draw("random_noise", seed)
        return self._made("audio.add_noise", low, high, others=(draw,))

    # ------------------------------------------------------------------------------------- spectra

    @door
    def spectrogram(
        self,
        n_fft: int = 400,
        hop_length: int = 160,
        *,
        win_length: int | None = None,
        window: str = "hann",
        center: bool = True,
        power: float = 2.0,
        log: str | None = None,
    ) -> AudioFunctions[C]:
        """Return magnitudes to the power ``power``, float32 (n_fft // 2 + 1, windows).

        As torchaudio's ``Spectrogram``, with other defaults.

        Parameters
        ----------
        n_fft : samples that are transformed at once
        hop_length : samples from one window to the next
        win_length : samples of the window, in the middle of ``n_fft``; None: all
        window : "hann", "hamming" (both periodic) or "ones"
        center : mirror the sound at both ends, so that window i is around sample i * hop_length
        power : 2.0 gives powers, 1.0 magnitudes
        log : None, or the logarithm of at least 1e-10: "db" (10 * log10), "ln" or "log10"
        """
        self._sound("spectrogram")
        windows = _windows(n_fft, hop_length, win_length, window, center)
        form = _form("spectrogram", power, log)
        return self._made("audio.spectrogram", windows, *form)

    @door
    def mel(
        self,
        n_mels: int = 80,
        *,
        rate: int | None = None,
        n_fft: int = 400,
        hop_length: int = 160,
        win_length: int | None = None,
        window: str = "hann",
        center: bool = True,
        power: float = 2.0,
        f_min: float = 0.0,
        f_max: float | None = None,
        mel_scale: str = "htk",
        norm: str | None = None,
        log: str | None = None,
    ) -> AudioFunctions[C]:
        """Return the spectrogram in ``n_mels`` triangular bands, float32 (n_mels, windows).

        As torchaudio's ``MelSpectrogram``, with other defaults; librosa's has ``mel_scale`` and
        ``norm`` "slaney". Other arguments are those of ``spectrogram``.

        Parameters
        ----------
        rate : samples a second, unless that is known
        f_min, f_max : the lowest and highest frequency, in Hz; None: half of the rate
        mel_scale : "htk" or "slaney"
        norm : "slaney" divides each band by its width
        """
        known = self._known_rate("mel", rate)
        bands = (
            whole("n_mels", n_mels, 1, MOST_BANDS),
            known,
            *_frequencies(f_min, f_max, known / 2),
            one_of("mel_scale", mel_scale, SCALES),
            _choice("norm", norm, NORMS),
        )
        windows = _windows(n_fft, hop_length, win_length, window, center)
        return self._made("audio.mel", windows, *_form("mel", power, log), bands)

    @door
    def random_mask(
        self,
        time: int = 0,
        frequency: int = 0,
        *,
        count: int = 1,
        fill: float = 0.0,
        seed: int | None = None,
    ) -> AudioFunctions[C]:
        """Replace random bands of a spectrum by ``fill`` (SpecAugment, Park et al. 2019).

        ``count`` bands of 0 to ``time`` windows, and as many of 0 to ``frequency`` rows.
        """
        params = (
            whole("time of random_mask", time, 0),
            whole("frequency of random_mask", frequency, 0),
            whole("count of random_mask", count, 1, 1000),
            _float32("fill of random_mask", fill),
        )
        return self._made("audio.random_mask", *params, others=(self._draw("mask", seed),))

    # ------------------------------------------------------------------------------------- columns

    def _known_rate(self, verb: str, rate: Any, argument: str = "rate") -> int:
        """Return ``rate``, or that of the function before that decoded or resampled the sound."""
        value = self._sound(verb).value
        if rate is not None:
            return _rate(f"{argument} of {verb}", rate)
        while value.op.startswith("audio."):
            found = {"audio.decode": 0, "audio.resample": 1}.get(value.op)
            if found is not None and value.params[found] is not None:
                return int(value.params[found])
            value = value.args[0]
        raise PlanError(
            f"the rate of the sound is not known to {verb}",
            why="only decode(rate) and resample(rate) in the same expression say it",
            try_=f".audio.decode(16000) before it, or {argument}=16000",
        )

    def _sound(self, verb: str) -> Any:
        """Return the column; raise PlanError if it is a spectrum, whose last axis has windows."""
        if self._given.value.op not in SPECTRA:
            return self._given
        raise PlanError(
            f"{verb} takes a sound",
            why=f"{value_text(self._given.value)} is a spectrum",
            try_=f"{verb} before the spectrum: .audio.pad_or_trim(2.0, rate=16000).mel(80)",
        )

    def _samples(self, verb: str, duration: Any, rate: Any) -> int:
        seconds = _seconds(f"duration of {verb}", duration)
        count = round(seconds * self._known_rate(verb, rate))
        return whole(f"samples of {verb}", count, 1, MOST_SAMPLES)

    def _amount(self, what: str, given: Any) -> tuple[tuple[float, ...], tuple[Any, ...]]:
        """Return a number as a parameter, or a column as a further argument."""
        return ((), (given,)) if isinstance(given, self._kind) else ((finite(what, given),), ())


class Audio(AudioFunctions[C], MediaNamespace[C]):
    """The namespace ``.audio`` of a column."""

    __slots__ = ()


def _rate(what: str, given: Any) -> int:
    if type(given) is int and LEAST_RATE <= given <= MOST_RATE:
        return given
    raise odd(what, given, "samples a second, such as 16000")


def _flag(what: str, given: Any) -> bool:
    if isinstance(given, bool):
        return given
    raise odd(what, given, "True or False")


def _seconds(what: str, given: Any) -> float:
    found = finite(what, given)
    if not 0 <= found <= LONGEST:
        raise odd(what, given, f"seconds from 0 to {LONGEST}")
    return found


def _float32(what: str, given: Any) -> float:
    found = finite(what, given)
    if abs(found) > FLOAT32_MAX:
        raise odd(what, given, "a number that float32 can hold")
    return found


def _spread(what: str, given: Any) -> tuple[float, float]:
    if is_range(given):
        return interval(what, given)
    most = finite(what, given)
    return -abs(most), abs(most)


def _choice(what: str, given: Any, names: tuple[str | None, ...]) -> str | None:
    """Return ``given``; raise PlanError unless it is one of ``names``, of which one is None."""
    if given is None or (isinstance(given, str) and given in names):
        return given
    raise odd(what, given, f"one of {', '.join(map(repr, names))}")


def _windows(
    n_fft: Any, hop_length: Any, win_length: Any, window: Any, center: Any
) -> tuple[int, int, int, str, bool]:
    size = whole("n_fft", n_fft, 2, LONGEST_WINDOW)
    return (
        size,
        whole("hop_length", hop_length, 1),
        size if win_length is None else whole("win_length", win_length, 1, size),
        one_of("window", window, WINDOWS),
        _flag("center", center),
    )


def _frequencies(f_min: Any, f_max: Any, most: float) -> tuple[float, float]:
    low = finite("f_min", f_min)
    high = most if f_max is None else finite("f_max", f_max)
    if 0 <= low < high <= most:
        return low, high
    raise odd("f_min and f_max", (low, high), f"frequencies from 0 to {most:g} Hz")


def _form(verb: str, power: Any, log: Any) -> tuple[float, str | None]:
    found = finite(f"power of {verb}", power)
    if found <= 0:
        raise odd(f"power of {verb}", power, "2.0 for powers, 1.0 for magnitudes")
    return found, _choice(f"log of {verb}", log, LOGARITHMS)
