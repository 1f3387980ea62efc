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
from pymodel.nic.batch_rows import SHORT, Rows, by_group, groups, need
from pymodel.nic.batch_view import Part, View
from pymodel.nic.judge_wqe import spans

#: bytes of a frame head: Ethernet to BTH, made whole to 64-bit words
WIDTH: Final = 56
#: what the judge reads in it
_HEAD: Final = np.dtype(
    {
        "names": ["ip_len", "ip_sum", "dst_ip", "udp_len", "opcode", "flags", "dest", "psn"],
        "formats": [">u2", ">u2", ">u4", ">u2", "u1", "u1", ">u4", ">u4"],
        "offsets": [16, 24, 30, 38, 42, 43, 46, 50],
        "itemsize": WIDTH,
    }
)
#: the fields that differ from frame to frame, and the two bytes behind the head
_VARIES: Final = (16, 17, 24, 25, 38, 39, 42, 43, *range(50, WIDTH))
_KNOWN: Final = np.isin(np.arange(256), list(frames.EXT))
_RESPONSE_GROUP: Final = 1 << 14
_RETH: Final = np.dtype([("va", ">u8"), ("rkey", ">u4"), ("len", ">u4")])


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

    def __len__(self) -> int:
        return int(self.g.size)

    def cut(self, start: int, stop: int) -> Frames:
        """Neighbouring frames, without a copy."""
        part = slice(start, stop)
        return Frames(
            self.rows.cut(start, stop), self.g[part], self.flow[part], self.side[part], self.op[part],
            self.psn[part], self.ack_req[part], self.ext[part], self.size[part],
        )  # fmt: skip


class Link(Part):
    """All frames of a batch."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        flows = self.s.flow_rows
        self._rows: U8 = np.ascontiguousarray(flows.rows[:, :WIDTH])
        self._rows[:, list(_VARIES)] = 0
        mask = np.full(WIDTH, 0xFF, np.uint8)
        mask[list(_VARIES)] = 0
        self._mask: U64 = mask.view(np.uint64)

    # ------------------------------------------------------------------ both directions
    def _take_apart(self, r: Rows, sending: bool) -> tuple[Frames, U8, I64]:
        """Frames with requests before responses, their heads uint8[n, WIDTH], pad bytes."""
        s = self.s
        need(r.len >= frames.BASE + frames.ICRC, "short frame")
        side = self.view.place(r.off)
        head = self.view.gather(side, WIDTH)
        fields = head.view(_HEAD)[:, 0]
        dest = fields["dest"].astype(np.int64) & 0xFFFFFF
        if sending:
            key = (r.pe << 56 | fields["dst_ip"].astype(np.int64) << 24 | dest).view(np.uint64)
            at = np.searchsorted(s.tx_keys, key)
            need(at < s.tx_keys.size, "destination")
            need(s.tx_keys[at] == key, "destination")
            g = s.tx_order[at]
        else:
            g = self.view.qp(r.pe, dest)
        self.view.usable(g, "QP of a frame")
        order = by_group(np.where(IS_RESPONSE[fields["opcode"]], g + _RESPONSE_GROUP, g))
        r, g, side = r.take(order), g[order], side[order]
        head = head.view(f"V{WIDTH}")[order].view(np.uint8)
        fields = head.view(_HEAD)[:, 0]
        flow = g if sending else s.q_peer[g]
        need(flow >= 0, "peer")
        op = fields["opcode"].astype(np.int64)
        word = fields["psn"].astype(np.int64)
        ext = EXT_BYTES[op].astype(np.int64)
        pad = fields["flags"].astype(np.int64) >> 4 & 3
        size = r.len - (frames.BASE + frames.ICRC) - ext - pad
        need(_KNOWN[op] & (size >= 0), "frame length")
        return Frames(r, g, flow, side, op, word & 0xFFFFFF, word >> 31, ext, size), head, pad

    def _judge(self, f: Frames, head: U8, pad: I64, which: I64 | None) -> None:
        """Every header byte but opcode, PSN and AckReq, which depend on what is due, and the ICRC."""
        s = self.s
        flow, length, size, side, op = f.flow, f.rows.len, f.size, f.side, f.op
        if which is not None:
            head, flow, length, size = head[which], flow[which], length[which], size[which]
            side, op, pad = side[which], op[which], pad[which]
        fixed = head.view(np.uint64) & self._mask
        need(fixed == self._rows.view(np.uint64)[flow], "headers")
        fields = head.view(_HEAD)[:, 0]
        total = s.flow_rows.ip_sum[flow] + length - frames.ETH
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        good = (fields["ip_len"] == length - frames.ETH) & (fields["udp_len"] == length - frames.ETH - 20)
        good &= (fields["ip_sum"] == (~total & 0xFFFF)) & (fields["flags"] == (0x40 | pad << 4))
        good &= (pad == (-size & 3)) & (fields["psn"] & np.uint32(0x7F000000) == 0)
        need(good, "headers")
        self._icrcs(flow, head, side, length, op == frames.ACK)

    def _icrcs(self, flow: I64, head: U8, side: I64, length: I64, is_ack: Bools) -> None:
        """ICRC over head and what follows, by zlib or by tables made with it (wire.md 4)."""
        s, view = self.s, self.view
        stored = view.gather(side + length - frames.ICRC, 4).view("<u4")[:, 0]
        acks, rest = np.flatnonzero(is_ack), np.flatnonzero(~is_ack)
        if acks.size:
            whole = view.gather(side[acks], frames.BASE + frames.AETH)
            need(length[acks] == frames.BASE + frames.AETH + frames.ICRC, "ACK length")
            need(s.flow_rows.ack_crcs(flow[acks], whole) == stored[acks], "ACK ICRC")
        if rest.size:
            state = s.flow_rows.head_crcs(flow[rest], head[rest])
            need(self._bodies(side[rest], length[rest], state) == stored[rest], "ICRC")

    def _bodies(self, side: I64, length: I64, state: U32) -> U32:
        """CRC over what follows the BTH, from a state on."""
        crc = zlib.crc32
        size = length - (frames.BASE + frames.ICRC)
        out: U32 = np.empty(side.size, np.uint32)
        loop = np.ones(side.size, np.bool_)
        for n, some in groups(size, size <= SHORT):
            bodies = self.view.gather(side[some] + frames.BASE, n).view(f"V{n}")[:, 0].tolist()
            out[some] = list(map(crc, bodies, state[some].tolist()))
            loop[some] = False
        rest = np.flatnonzero(loop)
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
        f, head, pad = self._take_apart(r, True)
        if len(f):
            self._judge(f, head, pad, None)
            padded = np.flatnonzero(pad)
            if padded.size:
                tail = self.view.gather(f.side[padded] + f.rows.len[padded] - 8, 4)
                inside = np.arange(4) >= 4 - pad[padded][:, None]
                need(~inside | (tail == 0), "pad")
        self._sent = f
        return self._split(f)

    # ------------------------------------------------------------------ received
    def received(self, r: Rows) -> tuple[Frames, Frames]:
        """(requests, responses) as they arrive; after `sent`."""
        f, head, pad = self._take_apart(r, False)
        if len(f):
            which = np.flatnonzero(~self._alike(f))
            if which.size:
                self._judge(f, head, pad, which)
        return self._split(f)

    @staticmethod
    def _split(f: Frames) -> tuple[Frames, Frames]:
        requests = int(np.searchsorted(IS_RESPONSE[f.op], True))
        return f.cut(0, requests), f.cut(requests, len(f))

    def _alike(self, f: Frames) -> Bools:
        """Frames that are byte for byte those of the batch that were sent to them."""
        sent = self._sent
        out = np.zeros(len(f), np.bool_)
        if not len(sent):
            return out
        # frames of a QP arrive in order: from the first on that is the first sent one, both go together
        ours = np.where(IS_RESPONSE[f.op], f.flow + _RESPONSE_GROUP, f.flow)
        theirs = np.where(IS_RESPONSE[sent.op], sent.flow + _RESPONSE_GROUP, sent.flow)
        name, named = f.op << 24 | f.psn, sent.op << 24 | sent.psn
        low, high = np.searchsorted(theirs, ours, side="left"), np.searchsorted(theirs, ours, side="right")
        here = np.arange(len(f))
        start, _ = spans(ours)
        begins = np.where((low < high) & (name == named[np.minimum(low, len(sent) - 1)]), here, len(f))
        first = np.minimum.reduceat(begins, np.flatnonzero(start == here))
        at = low + here - first[np.cumsum(start == here) - 1]
        pair = np.flatnonzero((at >= low) & (at < high))
        at = at[pair]
        length = f.rows.len[pair]
        same = (name[pair] == named[at]) & (length == sent.rows.len[at])
        pair, at, length = pair[same], at[same], length[same]
        a, b = f.side[pair], sent.side[at]
        loop = np.ones(pair.size, np.bool_)
        for n, some in groups(length, length <= SHORT):
            loop[some] = False
            equal = self.view.gather(a[some], n) == self.view.gather(b[some], n)
            out[pair[some[equal.all(axis=1)]]] = True
        rest = np.flatnonzero(loop)
        view = memoryview(self.view.side)  # type: ignore[arg-type]
        out[pair[rest]] = [
            view[x : x + n].tobytes() == view[y : y + n].tobytes()
            for x, y, n in zip(a[rest].tolist(), b[rest].tolist(), length[rest].tolist(), strict=True)
        ]
        return out

    # ------------------------------------------------------------------ extended headers
    def reth(self, f: Frames, which: I64) -> tuple[U64, I64, I64]:
        """(VA, R_Key, DMA length) of the RETHs of some frames."""
        words = self.view.gather(f.side[which] + frames.BASE, frames.RETH).view(_RETH)[:, 0]
        return words["va"].astype(np.uint64), words["rkey"].astype(np.int64), words["len"].astype(np.int64)

    def operands(self, f: Frames, which: I64) -> U64:
        """Operands of atomics, uint64[4, n]: swap or add, compare or boundary, swap and compare mask."""
        out: U64 = np.zeros((4, which.size), np.uint64)
        ops = f.op[which]
        for op in np.unique(ops).tolist():
            mine = np.flatnonzero(ops == op)
            size, count = frames.OPERANDS[op]
            at = f.side[which[mine]] + frames.BASE + 12
            out[:count, mine] = self.view.gather(at, size * count).view(f">u{size}").T
        return out

    def aeth(self, f: Frames, which: I64) -> tuple[I64, I64]:
        """(syndrome, MSN) of the AETHs of some frames."""
        word = self.view.gather(f.side[which] + frames.BASE, frames.AETH).view(">u4")[:, 0].astype(np.int64)
        return word >> 24, word & 0xFFFFFF
