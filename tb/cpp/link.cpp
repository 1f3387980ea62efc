// The link between the NICs: stores whole packets, routes them by destination MAC, delivers them link_latency after their
// first beat, in order per destination. tb/sv/link_port.sv calls link_tx and link_rx, one call a beat.
#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "svdpi.h"
#include "tb.h"

namespace {

constexpr unsigned kBeat = 64;
constexpr size_t kMaxPacket = 16384;  // far above 4096 + headers: more is a NIC that forgot tlast

struct Packet {
    std::vector<uint8_t> bytes;
    unsigned source = 0;
    uint64_t first = 0;   // cycle of its first beat
    uint64_t number = 0;  // on the link, from 1
    uint64_t sent = 0;    // among those of its source, from 0
    uint64_t due = 0;
};

// A packet that a rule holds back until `later` packets behind it have passed, or until a cycle.
struct Held {
    Packet packet;
    uint32_t rule = 0;
    uint64_t later = 0, passed = 0, until = 0;
};

struct Port {
    std::vector<uint8_t> sending;  // beats of the packet that is being sent
    uint64_t first = 0;            // cycle of its first beat
    bool oversize = false;
    uint64_t sent = 0;             // packets sent so far
    std::deque<Packet> arriving;
    std::vector<Held> held;        // oldest first
    size_t offset = 0;             // bytes of the first one that the NIC has
    uint64_t rx_free = 0;          // cycle at which the pause ends
    TbRandom tx_rng, rx_rng, delay_rng;
};

Port g_port[kMaxPes];
std::unordered_map<uint64_t, unsigned> g_route;  // MAC (first byte on the wire is the most significant) -> PE
std::vector<std::vector<uint8_t>> g_spare;
uint64_t g_packets;  // that had a route, since the last seed
uint64_t g_held;     // of all ports

std::vector<uint8_t> buffer() {
    if (g_spare.empty()) return {};
    std::vector<uint8_t> b = std::move(g_spare.back());
    g_spare.pop_back();
    b.clear();
    return b;
}

// The queue keeps the order per destination: a packet that is due waits for those before it.
void enqueue(unsigned pe, Packet&& p, uint64_t delay = 0) {
    Port& port = g_port[pe];
    const TbKnobs& k = g_knobs[pe];
    // latency is that of a beat, as on a wire; but the packet is here as a whole before it goes on
    const uint64_t due = p.first + k.link_latency + port.delay_rng.upto(k.link_latency_jitter) + delay;
    p.due = due > g_tb.cycle ? due : g_tb.cycle + 1;
    if (p.due < g_tb.work_due) g_tb.work_due = p.due;
    port.arriving.push_back(std::move(p));
}

TbLinkPacket name(unsigned destination, const Packet& p) { return {p.number, p.sent, p.source, destination}; }

// Sends on what has been held back long enough: `passed` is the number of a packet that has just been queued (0: none has).
void release(unsigned destination, uint64_t passed) {
    auto& held = g_port[destination].held;
    for (Held& h : held)
        if (h.packet.number < passed) h.passed++;
    for (size_t i = 0; i < held.size(); ++i) {
        Held& h = held[i];
        if (h.passed < h.later && h.until > g_tb.cycle) continue;
        faults_release(h.rule, name(destination, h.packet), h.packet.bytes.data(), h.packet.bytes.size(), h.passed);
        Packet p = std::move(h.packet);
        held.erase(held.begin() + static_cast<ptrdiff_t>(i));
        g_held--;
        const uint64_t number = p.number;
        enqueue(destination, std::move(p));
        // it has in turn passed those that are older: from the start again
        release(destination, number);
        return;
    }
}

void faulty(unsigned destination, Packet&& p) {
    size_t size = p.bytes.size();
    const TbFaultVerdict v = faults_judge(name(destination, p), p.bytes.data(), &size);
    p.bytes.resize(size);
    const uint64_t number = p.number;
    switch (v.action) {
    case kLinkDrop: g_spare.push_back(std::move(p.bytes)); return;
    case kLinkReorder: {
        Held h;
        h.rule = v.rule;
        h.later = v.amount;
        h.until = g_tb.cycle + v.within;
        if (h.until < g_tb.work_due) g_tb.work_due = h.until;
        h.packet = std::move(p);
        g_port[destination].held.push_back(std::move(h));
        g_held++;
        return;
    }
    case kLinkDuplicate:
        for (uint64_t i = 0; i < v.amount; ++i) enqueue(destination, Packet{p});
        break;
    default: break;
    }
    enqueue(destination, std::move(p), v.action == kLinkDelay ? v.amount : 0);
    if (g_held) release(destination, number);
}

// Every packet that a NIC sent and that has a route passes here once: the place of the fault rules (faults.cpp).
void forward(unsigned destination, Packet&& p) {
    p.number = ++g_packets;
    if (__builtin_expect(g_fault_rules || g_held, 0)) faulty(destination, std::move(p));
    else enqueue(destination, std::move(p));
}

void route(Packet&& p) {
    uint64_t mac = 0;
    for (size_t i = 0; i < 6; ++i) mac = mac << 8 | (i < p.bytes.size() ? p.bytes[i] : 0);
    const auto it = g_route.find(mac);
    if (it == g_route.end()) {
        g_tb.link_dropped++;
        rec_fault(p.source, kFaultNoRoute, 0, 0, mac);
        return;
    }
    forward(it->second, std::move(p));
}

}  // namespace

bool link_has_work(unsigned pe, uint64_t cycle, uint64_t* due) {
    const Port& port = g_port[pe];
    if (__builtin_expect(g_held != 0, 0)) {
        release(pe, 0);
        for (const Held& h : port.held)
            if (h.until < *due) *due = h.until;
    }
    if (port.arriving.empty()) return false;
    const uint64_t at = port.offset ? cycle : port.arriving.front().due;
    if (at <= cycle) return true;
    if (at < *due) *due = at;
    return false;
}

void link_seed(uint64_t seed) {
    g_packets = 0;
    faults_seed(seed);
    for (unsigned pe = 0; pe < kMaxPes; ++pe) {
        g_port[pe].tx_rng.seed(seed, 0x200 + pe);
        g_port[pe].rx_rng.seed(seed, 0x210 + pe);
        g_port[pe].delay_rng.seed(seed, 0x220 + pe);
    }
}

// ------------------------------------------------------------------------------------------------ DPI: link_port.sv
// A beat from the NIC; returns for how many cycles the link is not ready afterwards.
extern "C" int link_tx(int pe, const svBitVecVal* data, uint64_t keep, int last) {
    Port& port = g_port[pe];
    const size_t n = static_cast<size_t>(__builtin_popcountll(keep));
    const uint8_t* from = reinterpret_cast<const uint8_t*>(data);
    if (port.sending.empty()) port.first = g_tb.cycle;
    if (port.sending.size() + n <= kMaxPacket) {
        port.sending.insert(port.sending.end(), from, from + n);
    } else if (!port.oversize) {
        port.oversize = true;
        rec_fault(static_cast<unsigned>(pe), kFaultOversize, 0, 0, port.sending.size());
    }
    if (last) {
        Packet p;
        p.bytes = std::exchange(port.sending, buffer());
        p.source = static_cast<unsigned>(pe);
        p.first = port.first;
        p.sent = port.sent++;
        if (!port.oversize) route(std::move(p));
        port.oversize = false;
    }
    return static_cast<int>(tb_pause(port.tx_rng, g_knobs[pe].link_stall_tx, g_knobs[pe].stall_max));
}

// Offers the next beat to the NIC; 0: none this cycle.
extern "C" int link_rx(int pe, svBitVecVal* data, uint64_t* keep, int* last) {
    Port& port = g_port[pe];
    if (port.arriving.empty() || g_tb.cycle < port.rx_free) return 0;
    Packet& p = port.arriving.front();
    if (p.due > g_tb.cycle) return 0;
    const size_t left = p.bytes.size() - port.offset;
    const size_t n = left < kBeat ? left : kBeat;
    uint8_t* to = reinterpret_cast<uint8_t*>(data);
    std::memcpy(to, p.bytes.data() + port.offset, n);
    if (n < kBeat) std::memset(to + n, 0, kBeat - n);
    *keep = n == kBeat ? ~0ull : (1ull << n) - 1;
    *last = left <= kBeat;
    port.offset += n;
    if (*last) {
        g_spare.push_back(std::move(p.bytes));
        port.arriving.pop_front();
        port.offset = 0;
    }
    const uint32_t wait = tb_pause(port.rx_rng, g_knobs[pe].link_stall_rx, g_knobs[pe].stall_max);
    if (wait) port.rx_free = g_tb.cycle + 1 + wait;
    return 1;
}

// A reset of a NIC loses the packet it was sending and receiving; stored packets stay on the link.
extern "C" void link_reset(int pe) {
    Port& port = g_port[pe];
    port.sending.clear();
    port.oversize = false;
    if (port.offset) port.arriving.pop_front();
    port.offset = 0;
}

// --------------------------------------------------------------------------------------------------- for Python
TB_API void tb_set_mac(unsigned pe, uint64_t mac) {
    for (auto it = g_route.begin(); it != g_route.end();) it = it->second == pe ? g_route.erase(it) : std::next(it);
    g_route[mac] = pe;
}

// A frame from outside to the port of `pe`, whatever its destination MAC says. False: empty or too long.
TB_API bool tb_inject(unsigned pe, const uint8_t* bytes, uint64_t len) {
    if (!len || len > kMaxPacket) return false;
    Packet p;
    p.bytes = buffer();
    p.bytes.assign(bytes, bytes + len);
    p.source = pe;
    p.first = g_tb.cycle;
    enqueue(pe, std::move(p));
    return true;
}

// Packets on their way to `pe`, the one in delivery and those that are held back included.
TB_API uint64_t tb_link_pending(unsigned pe) { return g_port[pe].arriving.size() + g_port[pe].held.size(); }
