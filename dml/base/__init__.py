"""Utilities used everywhere: amounts as text, digests, call sites, the host, value encoding.

from dml.base.amounts import bytes_text
from dml.base.fingerprint import digest
bytes_text(1_500_000), digest("a", 1)   # "1.5 MB"; 16 bytes, equal in every process
"""
