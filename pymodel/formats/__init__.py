"""Codecs of everything that crosses an interface: WQE, CQE, doorbell, packet, ICRC.

All codecs work on arrays of n items at once. Written by hand from spec/device.md and spec/wire.md.
"""
