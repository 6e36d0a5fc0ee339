"""Tools for tests of pipelines: the oracle, the stream hash, strategies, simulated clusters."""

from dml.data.stream_hash import stream_hash

__all__ = ["stream_hash"]
