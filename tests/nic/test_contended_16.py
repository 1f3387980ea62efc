"""16 NICs on one word; see test_contended_atomics.py.

Sweep, stimulus, checks: those of test_contended_atomics.py, with two words, on PEs 0 and 1, that all others
work on. Timing: only in that operations of different issuers do mix. Not proved: a word on each of 16 PEs.
"""

from __future__ import annotations

import cocotb
import pytest

from tests.nic.test_contended_atomics import fetch_adds, one_serial_order

PES = 16


@cocotb.test()
@pytest.mark.long
@pytest.mark.sim_timeout(1200)
async def test_one_serial_order_of_16(dut) -> None:
    """15 issuers to each word."""
    await one_serial_order(dut, 1, 12, (1, 2), 2)


@cocotb.test()
@pytest.mark.long
@pytest.mark.sim_timeout(1200)
async def test_fetch_adds_of_16(dut) -> None:
    """15 QPs to each word."""
    await fetch_adds(dut, 1, 40, 2)
