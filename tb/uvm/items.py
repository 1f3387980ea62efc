"""What travels between the components."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pyuvm import uvm_sequence_item

from tb.sim.records import Kind


@dataclass(frozen=True)
class Batch:
    """Records of one drain in the order of the stream, and the side buffer that holds their bytes.

    The bytes are valid until the next drain: subscribers look at them inside `write()` or copy them.
    """

    records: npt.NDArray[np.void]
    side: npt.NDArray[np.uint8]

    @cached_property
    def counts(self) -> list[int]:
        """Number of records by kind, counted once for all subscribers."""
        return np.bincount(self.records["kind"], minlength=max(Kind) + 1).tolist()

    def of(self, *kinds: int, ids: tuple[int, ...] | None = None) -> npt.NDArray[np.void]:
        """The records of some kinds, where asked for of some AXI IDs."""
        hit = np.isin(self.records["kind"], kinds)
        if ids is not None:
            hit &= np.isin(self.records["id"], ids)
        return self.records[hit]


class DoorbellItem(uvm_sequence_item):
    """One 64-bit write to the BAR of a PE."""

    def __init__(self, name: str, pe: int, addr: int, data: int, strobe: int = 0xFF) -> None:
        super().__init__(name)
        self.pe, self.addr, self.data, self.strobe = pe, addr, data, strobe


class StoreItem(uvm_sequence_item):
    """One store into the memory of a PE, recorded like a program's."""

    def __init__(self, name: str, pe: int, addr: int, data: bytes | npt.NDArray[np.uint8]) -> None:
        super().__init__(name)
        self.pe, self.addr, self.data = pe, addr, data


class KnobItem(uvm_sequence_item):
    """One knob of memory or link; pe None: of all PEs."""

    def __init__(self, name: str, knob: str, value: int, pe: int | None = None) -> None:
        super().__init__(name)
        self.knob, self.value, self.pe = knob, value, pe
