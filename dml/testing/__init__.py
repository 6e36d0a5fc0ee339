"""What tests of pipelines need: the oracle, the stream hash, strategies, simulated clusters."""

from dml.testing.stream_hash import stream_hash

__all__ = ["stream_hash"]
