"""Kernels of audio: decoding, resampling, spectra, and the sequence of functions of one sound.

Sounds are float32 arrays (samples,), or (channels, samples).
"""
