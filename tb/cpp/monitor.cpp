// What tb/sv/nic_monitor.sv sees at the ports of a NIC becomes records (tb/sim/records.py), one call a beat or handshake.
#include <cstring>
#include <deque>
#include <vector>

#include "svdpi.h"
#include "tb.h"

namespace {

constexpr unsigned kBeat = 64;
constexpr unsigned kIds = 16;
constexpr unsigned kIdAtomic = 2;
constexpr unsigned kIdCqe = 4;
constexpr size_t kMaxPacket = 16384;

struct PacketInFlight {
    std::vector<uint8_t> bytes;
    uint64_t first = 0;
};
struct Read {
    uint64_t addr, at;
    uint32_t beats;
    uint8_t resp, size;
};
struct Write {
    uint64_t addr;
    uint8_t id;
};
struct NicMonitor {
    PacketInFlight tx, rx;
    std::deque<Read> reads[kIds];
    std::deque<Write> writes;
    uint32_t w_beats = 0;
    uint64_t w_first_strb = 0, w_bytes = 0;
    uint8_t w_first[kBeat];
    std::deque<uint32_t> mmio_aw, mmio_ar;
    std::deque<std::pair<uint64_t, uint8_t>> mmio_w;
};

NicMonitor g_mon[kMaxPes];

void packet_beat(unsigned pe, PacketInFlight& p, uint8_t kind, const svBitVecVal* data, uint64_t keep, bool last) {
    if (p.bytes.empty()) p.first = g_tb.cycle;
    const size_t n = static_cast<size_t>(__builtin_popcountll(keep));
    const uint8_t* from = reinterpret_cast<const uint8_t*>(data);
    if (p.bytes.size() + n <= kMaxPacket) p.bytes.insert(p.bytes.end(), from, from + n);
    if (!last) return;
    uint64_t off;
    std::memcpy(rec_bytes(p.bytes.size(), &off), p.bytes.data(), p.bytes.size());
    TbRecord* r = rec_push(kind, pe);
    r->len = static_cast<uint32_t>(p.bytes.size());
    r->off = off;
    r->aux0 = p.first;
    p.bytes.clear();
}

void mmio_write(unsigned pe, NicMonitor& m) {
    if (m.mmio_aw.empty() || m.mmio_w.empty()) return;
    TbRecord* r = rec_push(kRecMmioW, pe);
    r->addr = m.mmio_aw.front();
    r->data = m.mmio_w.front().first;
    r->flags = m.mmio_w.front().second;
    m.mmio_aw.pop_front();
    m.mmio_w.pop_front();
}

}  // namespace

extern "C" void mon_tx(int pe, const svBitVecVal* data, uint64_t keep, int last) {
    packet_beat(static_cast<unsigned>(pe), g_mon[pe].tx, kRecTxPkt, data, keep, last);
}
extern "C" void mon_rx(int pe, const svBitVecVal* data, uint64_t keep, int last) {
    packet_beat(static_cast<unsigned>(pe), g_mon[pe].rx, kRecRxPkt, data, keep, last);
}

extern "C" void mon_mmio_aw(int pe, int addr) {
    g_mon[pe].mmio_aw.push_back(static_cast<uint32_t>(addr));
    mmio_write(static_cast<unsigned>(pe), g_mon[pe]);
}
extern "C" void mon_mmio_w(int pe, uint64_t data, int strb) {
    g_mon[pe].mmio_w.emplace_back(data, static_cast<uint8_t>(strb));
    mmio_write(static_cast<unsigned>(pe), g_mon[pe]);
}
extern "C" void mon_mmio_ar(int pe, int addr) { g_mon[pe].mmio_ar.push_back(static_cast<uint32_t>(addr)); }
extern "C" void mon_mmio_r(int pe, uint64_t data, int resp) {
    NicMonitor& m = g_mon[pe];
    TbRecord* r = rec_push(kRecMmioR, static_cast<unsigned>(pe));
    r->data = data;
    r->flags = static_cast<uint8_t>(resp);
    if (m.mmio_ar.empty()) return;  // an answer without a request: the protocol assertions name it
    r->addr = m.mmio_ar.front();
    m.mmio_ar.pop_front();
}

extern "C" void mon_ar(int pe, int id, uint64_t addr, int size) {
    g_mon[pe].reads[id & 15].push_back({addr, g_tb.cycle, 0, 0, static_cast<uint8_t>(size)});
}
extern "C" void mon_r(int pe, int id, int resp, int last) {
    auto& queue = g_mon[pe].reads[id & 15];
    if (queue.empty()) return;
    Read& b = queue.front();
    b.beats++;
    if (resp > b.resp) b.resp = static_cast<uint8_t>(resp);
    if (!last) return;
    TbRecord* r = rec_push(kRecAxiR, static_cast<unsigned>(pe));
    r->id = static_cast<uint8_t>(id);
    r->flags = b.resp;
    r->addr = b.addr;
    r->len = b.beats;
    r->data = uint64_t{1} << b.size;
    r->aux0 = b.at;
    queue.pop_front();
}

extern "C" void mon_aw(int pe, int id, uint64_t addr) { g_mon[pe].writes.push_back({addr, static_cast<uint8_t>(id)}); }
extern "C" void mon_w(int pe, const svBitVecVal* data, uint64_t strb, int last) {
    NicMonitor& m = g_mon[pe];
    if (m.w_beats++ == 0) {
        m.w_first_strb = strb;
        std::memcpy(m.w_first, data, kBeat);
    }
    m.w_bytes += static_cast<uint64_t>(__builtin_popcountll(strb));
    if (!last) return;
    if (!m.writes.empty()) {
        const Write w = m.writes.front();
        m.writes.pop_front();
        uint64_t off = 0;
        if (w.id == kIdCqe || w.id == kIdAtomic) std::memcpy(rec_bytes(kBeat, &off), m.w_first, kBeat);
        TbRecord* r = rec_push(kRecAxiW, static_cast<unsigned>(pe));
        r->id = w.id;
        r->addr = w.addr;
        r->len = m.w_beats;
        r->off = off;
        r->aux0 = m.w_first_strb;
        r->aux1 = m.w_bytes;
    }
    m.w_beats = 0;
    m.w_bytes = 0;
}
extern "C" void mon_b(int pe, int id, int resp) {
    TbRecord* r = rec_push(kRecAxiB, static_cast<unsigned>(pe));
    r->id = static_cast<uint8_t>(id);
    r->flags = static_cast<uint8_t>(resp);
}

extern "C" void mon_event(int pe, int level) {
    TbRecord* r = rec_push(kRecEvent, static_cast<unsigned>(pe));
    r->flags = static_cast<uint8_t>(level);
    if (level && g_tb.event_wakes) tb_attend(kAttnEvent);
}

extern "C" void mon_reset(int pe) { g_mon[pe] = NicMonitor{}; }
