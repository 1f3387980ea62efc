"""WQE slots encoded by hand from device.md 1.2 to 1.5, for the benches around decode and requester."""

import random
from dataclasses import dataclass, field

SEND, WRITE, READ = 0, 1, 2
CAS64, FA64, MCAS64, MFA64, MCAS32, MFA32 = 26, 27, 31, 32, 33, 34
# ds_data_num, msg_len, bytes of the operation (device.md 1.5)
ATOMICS = {
    CAS64: (3, 16, 8),
    FA64: (3, 16, 8),
    MCAS64: (4, 32, 8),
    MFA64: (3, 16, 8),
    MCAS32: (3, 16, 4),
    MFA32: (3, 8, 4),
}
BUILT = (WRITE, READ, *ATOMICS)
# operands from byte 48 on, in the order of the slot; their bytes
OPERANDS = {
    CAS64: (("swap_add", "compare"), 8),
    FA64: (("swap_add", None), 8),
    MCAS64: (("swap_add", "compare", "swap_mask", "compare_mask"), 8),
    MFA64: (("swap_add", "compare"), 8),
    MCAS32: (("swap_add", "compare", "swap_mask", "compare_mask"), 4),
    MFA32: (("swap_add", "compare"), 4),
}


@dataclass
class Wqe:
    """What software posts; `id_error` is added to the right wqe_id."""

    version: int = 2
    index: int = 5
    op: int = WRITE
    ds: int = 2
    msg_len: int = 1024
    r_len: int = 1024
    l_len: int = 1024
    rkey: int = 0xA1A2A3A4
    lkey: int = 0xB1B2B3B4
    raddr: int = 0x1122334455667788
    laddr: int = 0x0000012345678000
    in_line: int = 0
    with_imm: int = 0
    imm: int = 0
    ce: int = 1
    se: int = 0
    fence: int = 0
    id_error: int = 0
    bus: bool = False
    tail: bytes = b""  # from byte 48 on
    dirt: dict[str, int] = field(default_factory=dict)

    def encode(self) -> int:
        """First 80 bytes as an integer, byte 0 lowest; bit numbers of device.md 1.2, by hand."""
        dirt = self.dirt
        word = self.op | self.with_imm << 8 | dirt.get("csum_en", 0) << 9 | self.ds << 11 | self.msg_len << 32
        word |= (self.imm if self.with_imm else dirt.get("imm", 0)) << 64
        word |= (
            self.se << 96 | self.ce << 97 | self.in_line << 98 | self.fence << 99 | dirt.get("mask", 0) << 101
        )
        wqe_id = self.index * 8 + self.id_error
        if self.version == 1:
            word |= wqe_id % (1 << 16) << 16 | dirt.get("rsv", 0) % (1 << 25) << 103
        else:
            word |= (
                wqe_id % (1 << 20) << 108 | dirt.get("rsv1", 0) << 16 | dirt.get("rsv", 0) % (1 << 5) << 103
            )
        word |= (self.r_len | self.rkey << 32 | self.raddr << 64) << 128
        word |= (self.l_len | self.lkey << 32 | self.laddr << 64) << 256
        tail = int.from_bytes(self.tail, "little")
        rest = 8 * (32 - len(self.tail))
        return word | (tail | dirt.get("tail", 0) % (1 << rest) << 8 * len(self.tail)) << 384


def legal(op: int, version: int = 2, index: int = 5, shifted: bool = False, length: int = 1024) -> Wqe:
    """A WQE of opcode `op` that passes every check; `length` bytes of a READ or WRITE."""
    if op not in ATOMICS:
        return Wqe(version, index, op, 1 if op == SEND else 2, length, length, length)
    ds, message, size = ATOMICS[op]
    remote = 2 * size if shifted and op >= MCAS64 else size
    return Wqe(version, index, op, ds, message, remote, size, in_line=1)


def moved(op: int, length: int) -> int:
    """Bytes that a WQE moves: what its CQE will report."""
    return ATOMICS[op][2] if op in ATOMICS else length


def dirt(rng: random.Random) -> dict[str, int]:
    """Random values for everything that the NIC ignores (nic.md 4, device.md 1.6)."""
    bits = {"csum_en": 2, "imm": 32, "mask": 2, "rsv": 25, "rsv1": 16, "tail": 256}
    return {name: rng.getrandbits(width) for name, width in bits.items()}
