"""Agents: thin. Drivers turn items into calls of the testbench library, monitors pass on batches."""

from __future__ import annotations

from typing import Any

from pyuvm import ConfigDB, uvm_agent, uvm_analysis_port, uvm_driver, uvm_sequencer, uvm_subscriber

from tb.sim.records import Kind
from tb.uvm.items import Batch, DoorbellItem, KnobItem, StoreItem

#: cycles between two tries of a write that met a full mailbox
MAILBOX_RETRY = 32


class LibDriver(uvm_driver):
    """Serves items by calls of the testbench library; a subclass says which."""

    def build_phase(self) -> None:
        """Find the library."""
        self.lib: Any = ConfigDB().get(self, "", "LIB")

    async def run_phase(self) -> None:
        """Serve items for ever."""
        while True:
            item = await self.seq_item_port.get_next_item()
            await self.drive(item)
            self.seq_item_port.item_done()

    async def drive(self, item: Any) -> None:
        """Carry out one item."""
        raise NotImplementedError


class DoorbellDriver(LibDriver):
    """Posts BAR writes, waiting while the mailbox is full."""

    async def drive(self, item: DoorbellItem) -> None:
        """Post one write."""
        while not self.lib.mmio_write(item.pe, item.addr, item.data, item.strobe):
            await self.lib.cycles(MAILBOX_RETRY)


class MemoryDriver(LibDriver):
    """Stores, and the knobs of the memory model."""

    async def drive(self, item: StoreItem | KnobItem) -> None:
        """Store, or set a knob; both take no time."""
        if isinstance(item, KnobItem):
            self.lib.set_knob(item.knob, item.value, item.pe)
        else:
            self.lib.store(item.pe, item.addr, item.data)


class LinkDriver(LibDriver):
    """The knobs of the link."""

    async def drive(self, item: KnobItem) -> None:
        """Set a knob."""
        self.lib.set_knob(item.knob, item.value, item.pe)


class BatchMonitor(uvm_subscriber):
    """Takes batches, counts its kinds and passes on each batch that holds some: one write() per batch."""

    kinds: tuple[int, ...] = ()

    def build_phase(self) -> None:
        """Analysis port."""
        self.ap = uvm_analysis_port("ap", self)
        #: records of each kind so far
        self.seen = dict.fromkeys(self.kinds, 0)

    def write(self, batch: Batch) -> None:
        """One drained batch."""
        found = 0
        for kind in self.kinds:
            count = batch.counts[kind]
            self.seen[kind] += count
            found += count
        if found:
            self.ap.write(batch)


class DoorbellMonitor(BatchMonitor):
    """BAR accesses and the event line."""

    kinds = (Kind.MMIO_W, Kind.MMIO_R, Kind.EVENT)


class MemoryMonitor(BatchMonitor):
    """Stores and all AXI traffic."""

    kinds = (Kind.STORE, Kind.AXI_R, Kind.AXI_W, Kind.AXI_B, Kind.COMMIT)


class LinkMonitor(BatchMonitor):
    """Packets in both directions."""

    kinds = (Kind.TXPKT, Kind.RXPKT)


class Agent(uvm_agent):
    """Sequencer, driver, monitor of one kind of interface, for all PEs."""

    driver: type[LibDriver]
    monitor: type[BatchMonitor]

    def build_phase(self) -> None:
        """Driver and sequencer only where the agent is active."""
        super().build_phase()
        self.mon = self.monitor("mon", self)
        if self.active():
            self.sequencer = uvm_sequencer("sequencer", self)
            self.drv = self.driver("drv", self)

    def connect_phase(self) -> None:
        """Driver to sequencer."""
        if self.active():
            self.drv.seq_item_port.connect(self.sequencer.seq_item_export)


class DoorbellAgent(Agent):
    """BAR of all NICs."""

    driver, monitor = DoorbellDriver, DoorbellMonitor


class MemoryAgent(Agent):
    """Memory of all PEs."""

    driver, monitor = MemoryDriver, MemoryMonitor


class LinkAgent(Agent):
    """Link ports of all NICs."""

    driver, monitor = LinkDriver, LinkMonitor
