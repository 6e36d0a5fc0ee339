"""What tests of pipelines need: the oracle, the stream hash, strategies, simulated clusters."""
