"""AXI4-Lite driver and command helper for the benches around host_front (csr_bench.sv)."""

import random

from cocotb.triggers import FallingEdge, Timer

CMD, STATUS, STAGE = 0x1_0000, 0x1_0008, 0x1_0100
COUNTERS = 0x1000
SET, MODIFY, RESET, QUERY = 1, 2, 3, 4
QP, CQ, MR = 1, 2, 3
MASK64 = (1 << 64) - 1


def doorbell_page(qpn: int) -> int:
    """Address of the doorbell page of a QP (nic.md section 1)."""
    return 0x0800_0000 + 4096 * qpn


async def cycles(dut, n: int) -> None:
    """Wait n cycles, to a falling edge."""
    for _ in range(n):
        await FallingEdge(dut.clk_i)


class Host:
    """Drives s_axil_* of the bench at falling edges; every answer must be OKAY."""

    def __init__(self, dut, *, gaps: bool = False) -> None:
        self.dut = dut
        self.gaps = gaps  # random waits before valid and ready
        self.b_cycles = 0  # cycles of the last write, from both handshakes offered to B

    async def start(self) -> None:
        """Inputs to 0, reset."""
        dut = self.dut
        for name in (
            "s_axil_awvalid",
            "s_axil_awaddr",
            "s_axil_awprot",
            "s_axil_wvalid",
            "s_axil_wdata",
            "s_axil_wstrb",
            "s_axil_bready",
            "s_axil_arvalid",
            "s_axil_araddr",
            "s_axil_arprot",
            "s_axil_rready",
            "drain_busy_i",
            "mr_drain_busy_i",
            "retire_valid_i",
            "retire_qpi_i",
            "retire_idx_i",
            "db_cq_ready_i",
            "db_cq_rsp_valid_i",
            "db_cq_rsp_i",
            "err_comp_valid_i",
            "err_comp_qpi_i",
            "err_resp_valid_i",
            "err_resp_qpi_i",
            "async_comp_valid_i",
            "async_comp_kind_i",
            "async_comp_number_i",
            "async_resp_valid_i",
            "async_resp_kind_i",
            "async_resp_number_i",
            "cnt_i",
            "cq_event_set_valid_i",
            "cq_event_set_cqn_i",
        ):
            getattr(dut, name).value = 0
        dut.rst_ni.value = 0
        await Timer(10, "ns")
        await FallingEdge(dut.clk_i)
        dut.rst_ni.value = 1
        await FallingEdge(dut.clk_i)

    async def _gap(self) -> None:
        if self.gaps:
            for _ in range(random.choice((0, 0, 1, 3))):
                await FallingEdge(self.dut.clk_i)

    async def write(self, addr: int, data: int, strb: int = 0xFF) -> None:
        """One write, up to its answer."""
        dut = self.dut
        lead = random.choice(("aw", "w", "both")) if self.gaps else "both"
        todo = {"aw", "w"}
        offered = {"aw", "w"} if lead == "both" else {lead}
        dut.s_axil_awaddr.value = addr
        dut.s_axil_wdata.value = data & MASK64
        dut.s_axil_wstrb.value = strb
        await self._gap()
        for _ in range(2000):
            for name in offered & todo:
                getattr(dut, f"s_axil_{name}valid").value = 1
            taken = {name for name in offered & todo if getattr(dut, f"s_axil_{name}ready").value}
            await FallingEdge(dut.clk_i)
            for name in taken:
                getattr(dut, f"s_axil_{name}valid").value = 0
            todo -= taken
            if not todo:
                break
            if random.random() < 0.5 or not offered & todo:
                offered = {"aw", "w"}
        else:
            raise AssertionError(f"write to {addr:#x} never taken")
        await self._gap()
        dut.s_axil_bready.value = 1
        for self.b_cycles in range(2000):
            valid = bool(dut.s_axil_bvalid.value)
            if valid:
                assert int(dut.s_axil_bresp.value) == 0
            await FallingEdge(dut.clk_i)
            if valid:
                break
        else:
            raise AssertionError(f"write to {addr:#x} never answered")
        dut.s_axil_bready.value = 0

    async def read(self, addr: int) -> int:
        """One read."""
        dut = self.dut
        await self._gap()
        dut.s_axil_araddr.value = addr
        dut.s_axil_arvalid.value = 1
        for _ in range(2000):
            taken = bool(dut.s_axil_arready.value)
            await FallingEdge(dut.clk_i)
            if taken:
                break
        else:
            raise AssertionError(f"read of {addr:#x} never taken")
        dut.s_axil_arvalid.value = 0
        await self._gap()
        dut.s_axil_rready.value = 1
        for _ in range(2000):
            valid, data = bool(dut.s_axil_rvalid.value), int(dut.s_axil_rdata.value)
            if valid:
                assert int(dut.s_axil_rresp.value) == 0
            await FallingEdge(dut.clk_i)
            if valid:
                break
        else:
            raise AssertionError(f"read of {addr:#x} never answered")
        dut.s_axil_rready.value = 0
        return data

    async def counters(self) -> dict[int, int]:
        """Counters that are not 0."""
        values = {n: await self.read(COUNTERS + 8 * n) for n in range(51)}
        return {n: value for n, value in values.items() if value}

    async def stage(self, words: list[int]) -> None:
        """Write staging words."""
        for i, word in enumerate(words):
            await self.write(STAGE + 8 * i, word)

    async def staged(self) -> list[int]:
        """Read all staging words."""
        return [await self.read(STAGE + 8 * i) for i in range(16)]

    async def command(
        self, op: int, obj: int, index: int, words: list[int] | None = None, polls: int = 200
    ) -> int:
        """Run a command and return its code."""
        if words is not None:
            await self.stage(words)
        await self.write(CMD, index << 8 | obj << 4 | op)
        for _ in range(polls):
            status = await self.read(STATUS)
            if not status & 1:
                return status >> 8
        raise AssertionError("command does not end")


def cq_words(
    base: int = 0x1000, depth: int = 16, stride: int = 64, ignore: int = 0, start: int = 0
) -> list[int]:
    """Staging words of a CQ."""
    return [base, depth | stride << 32 | ignore << 40, start]


def qp_words(
    version: int = 2,
    mtu: int = 5,
    depth: int = 16,
    cqs: tuple[int, int] = (0, 0),
    start: int = 0,
    sq_base: int = 0x8000,
    rq_base: int = 0,
    rq_depth: int = 0,
    w0: int = 0,
    rd: tuple[int, int] = (16, 16),
) -> list[int]:
    """Staging words of a QP."""
    return [
        (version == 2) | mtu << 1 | w0,
        0x0A00_0002 << 32 | 77,
        0x0200_0000_0002,
        0xABCDEF << 32 | 0x123456,
        sq_base,
        rq_base,
        start,
        cqs[0] | cqs[1] << 16 | rd[0] << 32 | rd[1] << 40,
        0,
        depth | rq_depth << 32,
    ]


def mr_words(
    base: int, length: int, rights: int = 0b1111, ltag: int = 1, rtag: int = 2, valid: int = 1
) -> list[int]:
    """Staging words of an MR; rights: local write, remote write, read, atomic from bit 0."""
    return [base, length & MASK64, length >> 64 | rights << 1 | ltag << 8 | rtag << 16 | valid << 24]
