"""Kernels of video: the frames of encoded videos."""
