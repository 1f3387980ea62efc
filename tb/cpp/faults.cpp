// Fault rules of the link: which packets are lost, doubled, late, out of order or damaged (docs/faults.md). Rules come
// compiled from tb/sim/fault_rule.py; link.cpp asks for every packet, before it is queued, and does what the verdict says.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <vector>

#include "tb.h"

bool g_fault_rules;

namespace {

// Offsets in a RoCEv2 frame without VLAN and IP options (wire.md 1).
constexpr size_t kEthernet = 14, kIpEnd = 34, kBthStart = 42, kBthEnd = 54, kIcrcBytes = 4;
constexpr uint32_t kPsnMask = 0xffffff;
constexpr uint8_t kAcknowledge = 0x11;
constexpr uint64_t kMaxLog = 1u << 20;

struct Rule {
    TbFaultRule r{};
    uint64_t seen = 0, used = 0;  // packets that met the fixed conditions; faults so far
    uint64_t holds = 0;           // bit per destination to which it holds a packet back
    TbRandom choose, detail;
};

std::vector<Rule> g_rules;
std::deque<TbFaultEntry> g_log;
uint64_t g_log_lost;
uint64_t g_seed = 1;

// What a rule looks at in a frame.
struct Frame {
    bool roce = false;
    uint8_t opcode = 0, syndrome = 0;
    uint32_t qp = 0, psn = 0;
    size_t size = 0, payload = 0, payload_end = 0, icrc = 0, end = 0;
};

uint32_t be24(const uint8_t* b) { return static_cast<uint32_t>(b[0] << 16 | b[1] << 8 | b[2]); }

// Bytes between BTH and payload (wire.md 2 and 3).
size_t extended(uint8_t opcode) {
    switch (opcode) {
    case 0x03: case 0x05: case 0x09: return 4;              // ImmDt
    case 0x06: case 0x0a: case 0x0c: return 16;             // RETH
    case 0x0b: return 20;                                   // RETH, ImmDt
    case 0x0d: case 0x0f: case 0x10: case 0x11: return 4;   // AETH
    case 0x12: return 12;                                   // AETH, AtomicAckETH
    case 0x13: case 0x14: case 0xc1: case 0xc2: return 28;  // AtomicETH, masked operations
    case 0xc0: return 44;
    case 0xc3: return 20;
    default: return 0;
    }
}

Frame look(const uint8_t* b, size_t size) {
    Frame f;
    f.size = size;
    if (size < kBthEnd + kIcrcBytes || b[12] != 0x08 || b[13] != 0x00 || b[14] != 0x45 || b[23] != 17) return f;
    if ((b[36] << 8 | b[37]) != 4791) return f;
    f.roce = true;
    f.opcode = b[kBthStart];
    f.qp = be24(b + kBthStart + 5);
    f.psn = be24(b + kBthStart + 9);
    const size_t by_ip = kEthernet + static_cast<size_t>(b[16] << 8 | b[17]);
    f.end = by_ip >= kBthEnd + kIcrcBytes && by_ip <= size ? by_ip : size;
    f.icrc = f.end - kIcrcBytes;
    f.payload = std::min(kBthEnd + extended(f.opcode), f.icrc);
    f.payload_end = std::max(f.payload, f.icrc - (b[kBthStart + 1] >> 4 & 3));
    f.syndrome = f.icrc > kBthEnd ? b[kBthEnd] : 0;
    return f;
}

// First byte and the one behind the last; empty where the frame has no such part.
std::pair<size_t, size_t> region(uint8_t where, const Frame& f) {
    if (where == kInAnywhere) return {0, f.size};
    if (!f.roce) return {0, 0};
    switch (where) {
    case kInHeader: return {0, f.payload};
    case kInEthernet: return {0, kEthernet};
    case kInIp: return {kEthernet, kIpEnd};
    case kInUdp: return {kIpEnd, kBthStart};
    case kInBth: return {kBthStart, kBthEnd};
    case kInExtended: return {kBthEnd, f.payload};
    case kInPayload: return {f.payload, f.payload_end};
    default: return {f.icrc, f.end};
    }
}

bool in(uint64_t value, uint64_t low, uint64_t high) { return low <= value && value <= high; }

// Whether the action can be done on this frame at all; one on which it cannot does not meet the rule.
bool possible(const Rule& rule, const TbLinkPacket& p, const Frame& f) {
    const TbFaultRule& r = rule.r;
    switch (r.action) {
    case kLinkCorrupt: {
        const auto [from, to] = region(r.region, f);
        return from < to;
    }
    case kLinkTruncate:
        return r.cut == kCutAnywhere ? f.size > 1 : r.amount > 0 && r.amount < f.size;
    // one packet at a time: where all were held back none would pass
    case kLinkReorder: return !(rule.holds >> p.destination & 1);
    default: return true;
    }
}

bool meets(Rule& rule, const TbLinkPacket& p, const Frame& f) {
    const TbFaultRule& r = rule.r;
    const uint32_t c = r.conditions;
    if (r.limit && rule.used >= r.limit) return false;
    if (r.source >= 0 && static_cast<unsigned>(r.source) != p.source) return false;
    if (r.destination >= 0 && static_cast<unsigned>(r.destination) != p.destination) return false;
    if (c & (kIfQp | kIfPsn | kIfOpcode) && !f.roce) return false;
    if (c & kIfQp && !in(f.qp, r.qp_low, r.qp_high)) return false;
    if (c & kIfPsn && ((f.psn - r.psn_low) & kPsnMask) > ((r.psn_high - r.psn_low) & kPsnMask)) return false;
    if (c & kIfOpcode) {
        if (f.opcode == kAcknowledge) {
            if (!(r.syndromes >> (f.syndrome >> 5) & 1)) return false;
        } else if (!(r.opcodes[f.opcode >> 6] >> (f.opcode & 63) & 1)) {
            return false;
        }
    }
    if (c & kIfSize && !in(f.size, r.size_low, r.size_high)) return false;
    if (c & kIfTime && !in(g_tb.cycle, r.time_low, r.time_high)) return false;
    if (c & kIfPacket && !in(p.number, r.packet_low, r.packet_high)) return false;
    if (!possible(rule, p, f)) return false;
    // from here on the order matters: counted, then drawn
    rule.seen++;
    if (c & kIfNth && !in(rule.seen, r.nth_low, r.nth_high)) return false;
    if (c & kIfEveryNth && rule.seen % r.every) return false;
    if (c & kIfRandom && rule.choose.next() % r.chance_of >= r.chance) return false;
    return true;
}

void corrupt(Rule& rule, const Frame& f, uint8_t* bytes, TbFaultEntry& e) {
    const TbFaultRule& r = rule.r;
    const auto [from, to] = region(r.region, f);
    const size_t places = (to - from) * (r.bytes ? 1 : 8);
    const size_t count = std::min<size_t>({r.amount, places, kFaultEdits});
    std::array<size_t, kFaultEdits> taken{};
    for (size_t n = 0; n < count;) {
        const size_t place = rule.detail.upto(places - 1);
        const auto end = taken.begin() + static_cast<ptrdiff_t>(n);
        if (std::find(taken.begin(), end, place) != end) continue;
        taken[n++] = place;
        const size_t at = from + (r.bytes ? place : place / 8);
        const uint8_t mask = r.bytes ? static_cast<uint8_t>(1 + rule.detail.upto(254)) : static_cast<uint8_t>(1u << place % 8);
        bytes[at] ^= mask;
        e.edit[e.edits++] = static_cast<uint32_t>(at << 8 | mask);
    }
    e.amount = count;
}

size_t truncated(Rule& rule, size_t size) {
    const TbFaultRule& r = rule.r;
    if (r.cut == kCutTo) return r.amount;
    if (r.cut == kCutBy) return size - r.amount;
    return 1 + rule.detail.upto(size - 2);
}

TbFaultEntry entry(uint8_t action, uint32_t rule, const TbLinkPacket& p, const Frame& f) {
    TbFaultEntry e{};
    e.time = g_tb.cycle;
    e.record = g_tb.rec_head;
    e.packet = p.number;
    e.sent = p.sent;
    e.rule = rule;
    e.size = static_cast<uint32_t>(f.size);
    e.qp = f.qp;
    e.psn = f.psn;
    e.action = action;
    e.source = static_cast<uint8_t>(p.source);
    e.destination = static_cast<uint8_t>(p.destination);
    e.opcode = f.opcode;
    e.roce = f.roce;
    return e;
}

void log(const TbFaultEntry& e) {
    if (g_log.size() >= kMaxLog) g_log_lost++;
    else g_log.push_back(e);
}

void start(Rule& rule) {
    rule.seen = rule.used = 0;
    // by its place: what other rules draw does not matter
    const auto place = static_cast<uint64_t>(&rule - g_rules.data());
    rule.choose.seed(g_seed, 0x1000 + 2 * place);
    rule.detail.seed(g_seed, 0x1001 + 2 * place);
}

}  // namespace

// The first rule that the packet meets acts.
TbFaultVerdict faults_judge(const TbLinkPacket& p, uint8_t* bytes, size_t* size) {
    TbFaultVerdict v;
    if (g_rules.empty()) return v;
    const Frame f = look(bytes, *size);
    for (Rule& rule : g_rules) {
        if (!meets(rule, p, f)) continue;
        const TbFaultRule& r = rule.r;
        rule.used++;
        g_tb.link_faults++;
        TbFaultEntry e = entry(r.action, r.id, p, f);
        e.amount = r.amount;
        switch (r.action) {
        case kLinkCorrupt: corrupt(rule, f, bytes, e); break;
        case kLinkTruncate: e.amount = *size = truncated(rule, *size); break;
        case kLinkReorder: rule.holds |= 1ull << p.destination; [[fallthrough]];
        default: v = {r.action, r.id, r.amount, r.within};
        }
        log(e);
        break;
    }
    return v;
}

void faults_release(uint32_t rule, const TbLinkPacket& p, const uint8_t* bytes, size_t size, uint64_t passed) {
    for (Rule& mine : g_rules)
        if (mine.r.id == rule) mine.holds &= ~(1ull << p.destination);
    TbFaultEntry e = entry(kLinkRelease, rule, p, look(bytes, size));
    e.amount = passed;
    log(e);
}

void faults_seed(uint64_t seed) {
    g_seed = seed;
    for (Rule& rule : g_rules) start(rule);
}

// --------------------------------------------------------------------------------------------------- for Python
// These rules in place of all others; they start anew. Packets that are held back stay so.
TB_API void tb_set_faults(const TbFaultRule* rules, uint64_t count) {
    g_rules.assign(count, Rule{});
    for (uint64_t i = 0; i < count; ++i) {
        g_rules[i].r = rules[i];
        start(g_rules[i]);
    }
    g_fault_rules = count != 0;
}

// Moves up to `max` log entries to `out`; returns how many. Null: returns how many there are.
TB_API uint64_t tb_fault_log(TbFaultEntry* out, uint64_t max) {
    if (!out) return g_log.size();
    const uint64_t n = std::min<uint64_t>(max, g_log.size());
    std::copy_n(g_log.begin(), n, out);
    g_log.erase(g_log.begin(), g_log.begin() + static_cast<ptrdiff_t>(n));
    return n;
}

// Entries that found the log full.
TB_API uint64_t tb_fault_log_lost() { return g_log_lost; }
TB_API uint64_t tb_fault_sizes() { return sizeof(TbFaultRule) << 32 | sizeof(TbFaultEntry); }
