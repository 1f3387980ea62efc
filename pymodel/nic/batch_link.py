"""Batch engine, link: frames taken apart, and every byte judged that no order of packets decides.

A frame that arrives is looked at only as far as it differs from the one that was sent: where both lie in the
batch and are byte for byte alike, what was proved of one holds for the other.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from pymodel.formats.arrays import I64, U8, U32, U64, Bools
from pymodel.formats.packet import EXT_BYTES, IS_RESPONSE
from pymodel.nic import judge_frames as frames
from pymodel.nic.batch_rows import SHORT, Rows, by_group, groups, need, true
from pymodel.nic.batch_view import Part, View
from pymodel.nic.judge_wqe import spans

#: bytes of a frame head: Ethernet to RETH, made whole to 64-bit words
WIDTH: Final = 72
_ACK_BYTES: Final = frames.BASE + frames.AETH + frames.ICRC
#: what the judge reads in it
_HEAD: Final = np.dtype(
    {
        "names": [
            "ip_len", "ip_sum", "dst_ip", "udp_len", "opcode", "flags", "dest", "psn", "aeth", "va", "rkey",
            "size",
        ],
        "formats": [">u2", ">u2", ">u4", ">u2", "u1", "u1", ">u4", ">u4", ">u4", ">u8", ">u4", ">u4"],
        "offsets": [16, 24, 30, 38, 42, 43, 46, 50, 54, 54, 62, 66],
        "itemsize": WIDTH,
    }
)  # fmt: skip
#: the fields that differ from frame to frame, and what follows the BTH
_VARIES: Final = (16, 17, 24, 25, 38, 39, 42, 43, *range(50, WIDTH))
_KNOWN: Final = np.isin(np.arange(256), list(frames.EXT))
_RESPONSE_GROUP: Final = 1 << 14
#: uint64[WIDTH + 1, words]: the first n bytes of a head
_FIRST: Final[U64] = (
    np.where(np.arange(WIDTH) < np.arange(WIDTH + 1)[:, None], 0xFF, 0).astype(np.uint8).view(np.uint64)
)


@dataclass
class Frames:
    """Packets of one direction, sorted by QP, then position."""

    rows: Rows
    g: I64  # QP that sent it, or that it came to
    flow: I64  # QP that sent it
    side: I64  # side offset of the frame
    op: I64
    psn: I64
    ack_req: I64
    ext: I64  # bytes of extended headers
    size: I64  # bytes of payload
    head: U8  # uint8[n, WIDTH]; behind a short frame anything

    def __len__(self) -> int:
        return int(self.g.size)

    def cut(self, start: int, stop: int) -> Frames:
        """Neighbouring frames, without a copy."""
        part = slice(start, stop)
        return Frames(
            self.rows.cut(start, stop), self.g[part], self.flow[part], self.side[part], self.op[part],
            self.psn[part], self.ack_req[part], self.ext[part], self.size[part], self.head[part],
        )  # fmt: skip


class Link(Part):
    """All frames of a batch."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        flows = self.s.flow_rows
        rows = np.zeros((flows.rows.shape[0], WIDTH), np.uint8)
        rows[:, : frames.BASE] = flows.rows[:, : frames.BASE]
        rows[:, list(_VARIES)] = 0
        self._rows: U64 = rows.view(np.uint64)
        mask = np.full(WIDTH, 0xFF, np.uint8)
        mask[list(_VARIES)] = 0
        self._mask: U64 = mask.view(np.uint64)

    # ------------------------------------------------------------------ both directions
    def _take_apart(self, r: Rows, sending: bool) -> tuple[Frames, int, I64]:
        """Frames, requests before responses; how many requests; pad bytes."""
        s = self.s
        need(r.len >= frames.BASE + frames.ICRC, "short frame")
        side = self.view.place(r.off)
        head = self.view.gather(side, WIDTH)
        fields = head.view(_HEAD)[:, 0]
        dest = fields["dest"].astype(np.int64) & 0xFFFFFF
        if sending:
            key = (r.pe << 56 | fields["dst_ip"].astype(np.int64) << 24 | dest).view(np.uint64)
            at = s.tx_keys.searchsorted(key)
            need(at < s.tx_keys.size, "destination")
            need(s.tx_keys[at] == key, "destination")
            g = s.tx_order[at]
        else:
            g = self.view.qp(r.pe, dest)
        self.view.usable(g, "QP of a frame")
        back = IS_RESPONSE[fields["opcode"]]
        order = by_group(np.where(back, g + _RESPONSE_GROUP, g))
        r, g, side = r.take(order), g[order], side[order]
        head = head.view(np.uint64).take(order, axis=0).view(np.uint8)
        fields = head.view(_HEAD)[:, 0]
        flow = g if sending else s.q_peer[g]
        need(flow >= 0, "peer")
        op = fields["opcode"].astype(np.int64)
        word = fields["psn"].astype(np.int64)
        ext = EXT_BYTES[op].astype(np.int64)
        pad = fields["flags"].astype(np.int64) >> 4 & 3
        size = r.len - (frames.BASE + frames.ICRC) - ext - pad
        need(_KNOWN[op] & (size >= 0), "frame length")
        f = Frames(r, g, flow, side, op, word & 0xFFFFFF, word >> 31, ext, size, head)
        return f, len(f) - int(np.count_nonzero(back)), pad

    def _judge(self, f: Frames, pad: I64, which: I64 | None) -> None:
        """Every header byte but opcode, PSN and AckReq, which depend on what is due, and the ICRC."""
        s = self.s
        words, flow, length, size = f.head.view(np.uint64), f.flow, f.rows.len, f.size
        op, side = f.op, f.side
        if which is not None:
            words = words.take(which, axis=0)
            flow, length, size, pad, op, side = (x[which] for x in (flow, length, size, pad, op, side))
        head = words.view(np.uint8)
        need(words & self._mask == self._rows.take(flow, axis=0), "headers")
        fields = head.view(_HEAD)[:, 0]
        total = s.flow_rows.ip_sum[flow] + length - frames.ETH
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        good = (fields["ip_len"] == length - frames.ETH) & (fields["udp_len"] == length - frames.ETH - 20)
        good &= (fields["ip_sum"] == (~total & 0xFFFF)) & (fields["flags"] == (0x40 | pad << 4))
        good &= (pad == (-size & 3)) & (fields["psn"] & np.uint32(0x7F000000) == 0)
        need(good, "headers")
        acks, rest = true(op == frames.ACK), true(op != frames.ACK)
        if acks.size:
            need(length[acks] == _ACK_BYTES, "ACK length")
            whole = words.take(acks, axis=0).view(np.uint8)
            stored = whole[:, _ACK_BYTES - frames.ICRC : _ACK_BYTES].copy().view("<u4")[:, 0]
            need(s.flow_rows.ack_crcs(flow[acks], whole) == stored, "ACK ICRC")
        if rest.size:
            side, length = side[rest], length[rest]
            stored = self.view.gather(side + length - frames.ICRC, 4).view("<u4")[:, 0]
            state = s.flow_rows.head_crcs(flow[rest], words.take(rest, axis=0).view(np.uint8))
            need(self._bodies(side, length, state) == stored, "ICRC")

    def _bodies(self, side: I64, length: I64, state: U32) -> U32:
        """CRC over what follows the BTH, from a state on, by zlib (wire.md 4)."""
        crc = zlib.crc32
        size = length - (frames.BASE + frames.ICRC)
        out: U32 = np.empty(side.size, np.uint32)
        loop = np.ones(side.size, np.bool_)
        for n, some in groups(size, size <= SHORT):
            bodies = self.view.gather(side[some] + frames.BASE, n).view(f"V{n}")[:, 0].tolist()
            out[some] = list(map(crc, bodies, state[some].tolist()))
            loop[some] = False
        rest = true(loop)
        if rest.size:
            view = memoryview(self.view.side)  # type: ignore[arg-type]
            starts = side[rest] + frames.BASE
            out[rest] = [
                crc(view[a:b], h)
                for a, b, h in zip(
                    starts.tolist(), (starts + size[rest]).tolist(), state[rest].tolist(), strict=True
                )
            ]
        return out

    # ------------------------------------------------------------------ sent
    def sent(self, r: Rows) -> tuple[Frames, Frames]:
        """(requests, responses) as they leave their NICs."""
        f, requests, pad = self._take_apart(r, True)
        if len(f):
            self._judge(f, pad, None)
            padded = true(pad > 0)
            if padded.size:
                tail = self.view.gather(f.side[padded] + f.rows.len[padded] - 8, 4)
                inside = np.arange(4) >= 4 - pad[padded][:, None]
                need(~inside | (tail == 0), "pad")
        self._sent = f.cut(0, requests), f.cut(requests, len(f))
        return self._sent

    # ------------------------------------------------------------------ received
    def received(self, r: Rows) -> tuple[Frames, Frames]:
        """(requests, responses) as they arrive; after `sent`."""
        f, requests, pad = self._take_apart(r, False)
        parts = f.cut(0, requests), f.cut(requests, len(f))
        new = [~self._alike(part, sent) for part, sent in zip(parts, self._sent, strict=True)]
        which = true(np.concatenate(new))
        if which.size:
            self._judge(f, pad, which)
        return parts

    def _alike(self, f: Frames, sent: Frames) -> Bools:
        """Frames that are byte for byte those of the batch that were sent to them."""
        out = np.zeros(len(f), np.bool_)
        if not len(sent) or not len(f):
            return out
        # frames of a QP arrive in order: from the first on that is the first sent one, both go together
        name, named = f.op << 24 | f.psn, sent.op << 24 | sent.psn
        start, _ = spans(f.flow)
        begin = np.unique(start)
        flow, count = f.flow[begin], np.bincount(start, minlength=len(f))[begin]
        low, high = (sent.flow.searchsorted(flow, side=side) for side in ("left", "right"))
        here = np.arange(len(f))
        match = name == np.repeat(named[np.minimum(low, len(sent) - 1)], count)
        first = np.minimum.reduceat(np.where(match, here, len(f)), begin)
        at = here + np.repeat(low - first, count)
        pair = true((at >= np.repeat(low, count)) & (at < np.repeat(high, count)))
        at = at[pair]
        length = f.rows.len[pair]
        same = (name[pair] == named[at]) & (length == sent.rows.len[at])
        ours, theirs = f.head.view(np.uint64), sent.head.view(np.uint64)
        differs = ours.take(pair, axis=0) ^ theirs.take(at, axis=0)
        if length.size and length.min() < WIDTH:
            differs &= _FIRST.take(np.minimum(length, WIDTH), axis=0)
        if differs.any():
            same &= ~differs.any(axis=1)
        if not same.all():
            pair, at, length = pair[same], at[same], length[same]
        out[pair] = True
        # ---- what is longer than a head
        rest = length - WIDTH
        a, b = f.side[pair] + WIDTH, sent.side[at] + WIDTH
        loop = rest > 0
        for n, some in groups(rest, loop & (rest <= SHORT)):
            loop[some] = False
            equal = self.view.gather(a[some], n) == self.view.gather(b[some], n)
            if not equal.all():
                out[pair[some]] = equal.all(axis=1)
        long = true(loop)
        view = memoryview(self.view.side)  # type: ignore[arg-type]
        out[pair[long]] = [
            view[x : x + n].tobytes() == view[y : y + n].tobytes()
            for x, y, n in zip(a[long].tolist(), b[long].tolist(), rest[long].tolist(), strict=True)
        ]
        return out

    # ------------------------------------------------------------------ extended headers
    @staticmethod
    def reth(f: Frames, which: I64) -> tuple[U64, I64, I64]:
        """(VA, R_Key, DMA length) of the RETHs of some frames; atomics begin with the same VA and R_Key."""
        fields = f.head.view(_HEAD)
        va, rkey, size = (fields[name][which, 0] for name in ("va", "rkey", "size"))
        return va.astype(np.uint64), rkey.astype(np.int64), size.astype(np.int64)

    @staticmethod
    def aeth(f: Frames, which: I64) -> tuple[I64, I64]:
        """(syndrome, MSN) of the AETHs of some frames."""
        word = f.head.view(_HEAD)["aeth"][which, 0].astype(np.int64)
        return word >> 24, word & 0xFFFFFF

    def operands(self, f: Frames, which: I64) -> U64:
        """Operands of atomics, uint64[4, n]: swap or add, compare or boundary, swap and compare mask."""
        out: U64 = np.zeros((4, which.size), np.uint64)
        ops = f.op[which]
        for op in np.unique(ops).tolist():
            mine = true(ops == op)
            size, count = frames.OPERANDS[op]
            at = f.side[which[mine]] + frames.BASE + 12
            out[:count, mine] = self.view.gather(at, size * count).view(f">u{size}").T
        return out
