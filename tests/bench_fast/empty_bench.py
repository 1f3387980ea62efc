"""A test that does nothing, in a file that imports nothing else: the price of one process."""

import cocotb


@cocotb.test()
async def empty(dut: object) -> None:
    """Nothing."""
