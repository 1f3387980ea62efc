// Memory of all PEs and the AXI4 subordinate in front of it (tb/sv/axi_mem.sv calls mem_*, one call a beat).
//
// * Sparse: a PE has regions anywhere in 64 bits, each one lazily committed mapping. Python sees the same bytes.
// * Reads are sampled when their beat is offered. Writes become visible as a whole burst, at a cycle drawn between WLAST
//   and B (commit_delay); same ID in order (nic.md 1). Each visible burst gives a COMMIT record.
// * A beat without any byte in a region answers DECERR. A strobed byte outside every region gives a FAULT record and is
//   dropped; where bytes are missing, reads return 0xEE, also in the lanes that a narrow beat does not use.
// * Watches count write beats into a range, at the cycle they become visible; a count per 4 KiB page keeps all other beats
//   from looking at them.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "svdpi.h"
#include "tb.h"

namespace {

constexpr uint64_t kPage = 4096;
constexpr unsigned kBeat = 64;
constexpr uint8_t kPoison = 0xee;
constexpr unsigned kIds = 16;
enum : uint8_t { kOkay = 0, kSlvErr = 2, kDecErr = 3 };

void* map_lazy(uint64_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}

struct Region {
    uint64_t base, size;
    uint8_t* bytes;
    // per 4 KiB page of the address space that the region touches
    uint64_t first_page, pages;
    uint8_t* dirty;
    uint16_t* watched;
    bool has(uint64_t addr) const { return addr - base < size; }
    bool has(uint64_t addr, uint64_t len) const { return has(addr) && len <= size - (addr - base); }
    uint8_t* at(uint64_t addr) const { return bytes + (addr - base); }
    uint64_t page(uint64_t addr) const { return addr / kPage - first_page; }
};

struct ErrorRange {
    uint64_t addr, len;
    bool read, write;
    uint8_t resp;
    bool hit(uint64_t a, uint64_t n) const { return a < addr + len && addr < a + n; }
};

struct Watch {
    uint32_t id;
    uint64_t addr, len, left;
};

struct ReadBurst {
    uint64_t addr, due;
    uint32_t beat;
    uint8_t id, len, size;
};

struct WriteBurst {
    uint64_t addr, commit_due, b_due;
    uint32_t beats;
    uint8_t id, len, size, resp;
    bool complete, committed;
    uint8_t data[256 * kBeat];
    uint64_t strb[256];
};

// One beat's place: first byte, bytes up to the end of its container, start of its bus word.
struct Lane {
    uint64_t addr, len, word;
};
Lane lane_of(uint64_t addr, uint8_t size, uint32_t beat) {
    const uint64_t bytes = 1ull << size;
    const uint64_t start = beat ? (addr & ~(bytes - 1)) + beat * bytes : addr;
    return {start, bytes - (start & (bytes - 1)), start & ~uint64_t{kBeat - 1}};
}

uint64_t mask_of(uint64_t first, uint64_t len) {  // bits first .. first + len - 1 of 64, len >= 1
    return (len >= 64 ? ~0ull : (1ull << len) - 1) << first;
}

struct PeMemory {
    std::vector<Region> regions;  // by base
    size_t last = 0;
    std::vector<ErrorRange> errors;
    std::vector<Watch> watches;
    std::vector<ReadBurst> reads;  // in order of AR
    std::vector<std::unique_ptr<WriteBurst>> writes, spare;  // in order of AW
    uint64_t last_commit[kIds] = {};
    uint64_t r_free = 0, b_free = 0;  // cycles at which the pause of the channel ends
    TbRandom rng;

    Region* find(uint64_t addr) {
        if (last < regions.size() && regions[last].has(addr)) return &regions[last];
        auto it = std::upper_bound(regions.begin(), regions.end(), addr,
                                   [](uint64_t a, const Region& r) { return a < r.base; });
        if (it == regions.begin() || !(--it)->has(addr)) return nullptr;
        last = static_cast<size_t>(it - regions.begin());
        return &*it;
    }
    // whether any byte of [addr, addr + len) lies in a region
    bool any(uint64_t addr, uint64_t len) {
        if (find(addr)) return true;
        for (const Region& r : regions)
            if (r.base - addr < len) return true;
        return false;
    }
    uint8_t error(uint64_t addr, uint64_t len, bool write) const {
        for (const ErrorRange& e : errors)
            if ((write ? e.write : e.read) && e.hit(addr, len)) return e.resp;
        return kOkay;
    }
    void touch(Region* r, uint64_t addr) { r->dirty[r->page(addr)] = 1; }
};

PeMemory g_mem[kMaxPes];
std::vector<uint32_t> g_fired;
uint32_t g_next_watch = 1;

void mark_pages(Region& r, const Watch& w, int delta) {
    const uint64_t lo = std::max(w.addr, r.base);
    const uint64_t hi = std::min(w.addr + (w.len - 1), r.base + (r.size - 1));
    if (lo > hi) return;
    for (uint64_t p = r.page(lo); p <= r.page(hi); ++p) r.watched[p] = static_cast<uint16_t>(r.watched[p] + delta);
}
void mark_pages(PeMemory& m, const Watch& w, int delta) {
    for (Region& r : m.regions) mark_pages(r, w, delta);
}

// A write beat became visible: `strb` of the bus word at `word`.
void count_watches(PeMemory& m, uint64_t word, uint64_t strb) {
    for (size_t i = 0; i < m.watches.size();) {
        Watch& w = m.watches[i];
        const uint64_t end = w.addr + w.len;  // exclusive; 0 at the top of the space
        const uint64_t lo = std::max(word, w.addr);
        const uint64_t hi = std::min(word + kBeat - 1, end - 1);
        const bool hit = lo <= hi && (strb & mask_of(lo - word, hi - lo + 1));
        if (hit && --w.left == 0) {
            g_fired.push_back(w.id);
            tb_attend(kAttnWatch);
            mark_pages(m, w, -1);
            m.watches.erase(m.watches.begin() + static_cast<long>(i));
            continue;
        }
        ++i;
    }
}

uint64_t write_beat(unsigned pe, PeMemory& m, const WriteBurst& b, uint32_t beat) {
    const Lane lane = lane_of(b.addr, b.size, beat);
    const uint64_t strb = b.strb[beat];
    if (!strb) return 0;
    const uint8_t* data = b.data + beat * kBeat;
    Region* r = m.find(lane.word);
    if (__builtin_expect(r && r->has(lane.word, kBeat), 1)) {
        uint8_t* to = r->at(lane.word);
        if (strb == ~0ull) {
            std::memcpy(to, data, kBeat);
        } else {
            for (uint64_t left = strb; left; left &= left - 1) {
                const int i = __builtin_ctzll(left);
                to[i] = data[i];
            }
        }
        m.touch(r, lane.word);
        if (__builtin_expect(r->watched[r->page(lane.word)], 0)) count_watches(m, lane.word, strb);
        return static_cast<uint64_t>(__builtin_popcountll(strb));
    }
    // at the edge of a region: byte by byte
    uint64_t good = 0;
    bool watched = false;
    for (unsigned i = 0; i < kBeat; ++i) {
        if (!(strb >> i & 1)) continue;
        Region* one = m.find(lane.word + i);
        if (!one) continue;
        *one->at(lane.word + i) = data[i];
        m.touch(one, lane.word + i);
        watched |= one->watched[one->page(lane.word + i)] != 0;
        good |= 1ull << i;
    }
    if (good != strb) {
        const bool wild = !m.any(lane.addr, lane.len);
        rec_fault(pe, wild ? kFaultWildWrite : kFaultPartialWrite, lane.word, b.id, strb & ~good);
    }
    if (watched) count_watches(m, lane.word, good);
    return static_cast<uint64_t>(__builtin_popcountll(good));
}

void commit(unsigned pe, PeMemory& m, WriteBurst& b) {
    b.committed = true;
    uint64_t bytes = 0;
    if (b.resp != kSlvErr)
        for (uint32_t i = 0; i < b.beats; ++i) bytes += write_beat(pe, m, b, i);
    TbRecord* r = rec_push(kRecCommit, pe);
    r->id = b.id;
    r->flags = b.resp;
    r->addr = b.addr;
    r->len = static_cast<uint32_t>(bytes);
}

int pause(PeMemory& m, unsigned pe) {
    return static_cast<int>(tb_pause(m.rng, g_knobs[pe].mem_stall, g_knobs[pe].stall_max));
}

}  // namespace

void memory_seed(uint64_t seed) {
    for (unsigned pe = 0; pe < kMaxPes; ++pe) g_mem[pe].rng.seed(seed, 0x100 + pe);
}

// ------------------------------------------------------------------------------------------------ DPI: axi_mem.sv
// Each of mem_ar, mem_aw and mem_w returns for how many cycles the channel is not ready afterwards.
extern "C" int mem_ar(int pe, int id, uint64_t addr, int len, int size) {
    PeMemory& m = g_mem[pe];
    const TbKnobs& k = g_knobs[pe];
    const uint64_t due = g_tb.cycle + k.mem_latency + m.rng.upto(k.mem_latency_jitter);
    m.reads.push_back({addr, due, 0, static_cast<uint8_t>(id), static_cast<uint8_t>(len), static_cast<uint8_t>(size)});
    if (__builtin_expect(g_memory_rules, 0)) {
        const uint64_t bytes = 1ull << size, start = addr & ~(bytes - 1);
        const auto one = static_cast<unsigned>(pe);
        const uint64_t beats = static_cast<uint64_t>(len) + 1;
        m.reads.back().due += memory_faults_stall(one, start, bytes * beats, false, static_cast<uint8_t>(id));
    }
    return pause(m, static_cast<unsigned>(pe));
}

// Offers the next read beat; 0: none this cycle. Called while reads are outstanding and the channel is free.
extern "C" int mem_r(int pe, int* id, svBitVecVal* data, int* resp, int* last) {
    PeMemory& m = g_mem[pe];
    const TbKnobs& k = g_knobs[pe];
    if (m.reads.empty() || g_tb.cycle < m.r_free) return 0;
    size_t pick = 0;
    if (__builtin_expect(m.rng.chance(k.mem_ooo), 0)) {
        // any burst that is the oldest of its ID and due may be next, also between two beats of another one
        uint32_t ids = 0;
        size_t options[kIds], n = 0;
        for (size_t i = 0; i < m.reads.size(); ++i) {
            const uint32_t bit = 1u << m.reads[i].id;
            if (!(ids & bit) && m.reads[i].due <= g_tb.cycle) options[n++] = i;
            ids |= bit;
        }
        if (!n) return 0;
        pick = options[m.rng.upto(n - 1)];
    }
    ReadBurst& b = m.reads[pick];
    if (b.due > g_tb.cycle) return 0;
    const Lane lane = lane_of(b.addr, b.size, b.beat);
    uint8_t* to = reinterpret_cast<uint8_t*>(data);
    uint8_t code = m.errors.empty() ? uint8_t{kOkay} : m.error(lane.addr, lane.len, false);
    if (__builtin_expect(g_memory_rules && code == kOkay, 0))
        code = memory_faults_error(static_cast<unsigned>(pe), lane.addr, false, b.id);
    Region* r = m.find(lane.addr);
    if (__builtin_expect(lane.len == kBeat && r && r->has(lane.addr, kBeat) && code == kOkay, 1)) {
        std::memcpy(to, r->at(lane.addr), kBeat);
    } else {
        std::memset(to, kPoison, kBeat);
        bool any = false;
        for (uint64_t a = lane.addr; a - lane.addr < lane.len; ++a) {
            Region* one = m.find(a);
            if (!one) continue;
            any = true;
            if (code == kOkay) to[a & (kBeat - 1)] = *one->at(a);
        }
        if (!any) {
            code = kDecErr;
            rec_fault(static_cast<unsigned>(pe), kFaultWildRead, lane.addr, b.id, 0);
        }
    }
    *id = b.id;
    *resp = code;
    *last = b.beat == b.len;
    if (*last) m.reads.erase(m.reads.begin() + static_cast<long>(pick));
    else b.beat++;
    const int wait = pause(m, static_cast<unsigned>(pe));
    if (wait) m.r_free = g_tb.cycle + 1 + static_cast<uint64_t>(wait);
    return 1;
}

extern "C" int mem_aw(int pe, int id, uint64_t addr, int len, int size) {
    PeMemory& m = g_mem[pe];
    std::unique_ptr<WriteBurst> b;
    if (m.spare.empty()) {
        b.reset(new WriteBurst);
    } else {
        b = std::move(m.spare.back());
        m.spare.pop_back();
    }
    b->addr = addr;
    b->id = static_cast<uint8_t>(id);
    b->len = static_cast<uint8_t>(len);
    b->size = static_cast<uint8_t>(size);
    b->beats = 0;
    b->resp = kOkay;
    b->complete = b->committed = false;
    m.writes.push_back(std::move(b));
    return pause(m, static_cast<unsigned>(pe));
}

extern "C" int mem_w(int pe, const svBitVecVal* data, uint64_t strb) {
    PeMemory& m = g_mem[pe];
    const TbKnobs& k = g_knobs[pe];
    for (auto& p : m.writes) {
        WriteBurst& b = *p;
        if (b.complete) continue;
        const Lane lane = lane_of(b.addr, b.size, b.beats);
        std::memcpy(b.data + b.beats * kBeat, data, kBeat);
        b.strb[b.beats] = strb;
        uint8_t code = m.errors.empty() ? uint8_t{kOkay} : m.error(lane.addr, lane.len, true);
        if (__builtin_expect(g_memory_rules && code == kOkay, 0))
            code = memory_faults_error(static_cast<unsigned>(pe), lane.addr, true, b.id);
        if (!m.any(lane.addr, lane.len)) code = kDecErr;
        b.resp = std::max(b.resp, code);
        if (b.beats++ < b.len) break;
        b.complete = true;
        const uint64_t now = g_tb.cycle;
        uint64_t& order = m.last_commit[b.id];
        order = b.commit_due = std::max(order, now + 1 + m.rng.upto(k.commit_delay));
        b.b_due = std::max(b.commit_due, now + k.mem_latency + m.rng.upto(k.mem_latency_jitter));
        if (__builtin_expect(g_memory_rules, 0)) {
            const uint64_t bytes = 1ull << b.size, start = b.addr & ~(bytes - 1);
            b.b_due += memory_faults_stall(static_cast<unsigned>(pe), start, bytes * b.beats, true, b.id);
        }
        break;
    }
    return pause(m, static_cast<unsigned>(pe));
}

// Makes due writes visible and, if `take`, offers the next response; 0: none. Called each cycle while writes are open.
extern "C" int mem_b(int pe, int take, int* id, int* resp) {
    PeMemory& m = g_mem[pe];
    const uint64_t now = g_tb.cycle;
    for (auto& p : m.writes)
        if (p->complete && !p->committed && p->commit_due <= now) commit(static_cast<unsigned>(pe), m, *p);
    if (!take || now < m.b_free || m.writes.empty()) return 0;
    size_t pick = 0;
    if (__builtin_expect(m.rng.chance(g_knobs[pe].mem_ooo), 0)) {
        uint32_t ids = 0;
        size_t options[kIds], n = 0;
        for (size_t i = 0; i < m.writes.size(); ++i) {
            const WriteBurst& b = *m.writes[i];
            if (!(ids >> b.id & 1) && b.committed && b.b_due <= now) options[n++] = i;
            ids |= 1u << b.id;
        }
        if (!n) return 0;
        pick = options[m.rng.upto(n - 1)];
    }
    WriteBurst& b = *m.writes[pick];
    if (!b.committed || b.b_due > now) return 0;
    *id = b.id;
    *resp = b.resp;
    m.spare.push_back(std::move(m.writes[pick]));
    m.writes.erase(m.writes.begin() + static_cast<long>(pick));
    const int wait = pause(m, static_cast<unsigned>(pe));
    if (wait) m.b_free = now + 1 + static_cast<uint64_t>(wait);
    return 1;
}

// A reset of the NIC drops what its memory port had outstanding.
extern "C" void mem_reset(int pe) {
    PeMemory& m = g_mem[pe];
    m.reads.clear();
    for (auto& p : m.writes) m.spare.push_back(std::move(p));
    m.writes.clear();
    m.r_free = m.b_free = 0;
}

// --------------------------------------------------------------------------------------------------- for Python
// 0: done; 1: empty or beyond 2^64; 2: overlaps a region; 3: no memory.
TB_API int tb_add_region(unsigned pe, uint64_t base, uint64_t size, uint8_t fill) {
    PeMemory& m = g_mem[pe];
    const uint64_t top = base + (size - 1);
    if (!size || top < base) return 1;
    for (const Region& r : m.regions)
        if (r.base <= top && base <= r.base + (r.size - 1)) return 2;
    Region r{};
    r.base = base;
    r.size = size;
    r.first_page = base / kPage;
    r.pages = top / kPage - r.first_page + 1;
    r.bytes = static_cast<uint8_t*>(map_lazy(size));
    r.dirty = static_cast<uint8_t*>(map_lazy(r.pages));
    r.watched = static_cast<uint16_t*>(map_lazy(r.pages * sizeof(uint16_t)));
    if (!r.bytes || !r.dirty || !r.watched) return 3;
    if (fill) std::memset(r.bytes, fill, size);
    auto it = std::upper_bound(m.regions.begin(), m.regions.end(), base,
                               [](uint64_t a, const Region& x) { return a < x.base; });
    for (const Watch& w : m.watches) mark_pages(r, w, 1);
    m.regions.insert(it, r);
    return 0;
}

// Bytes of [addr, addr + len), or null where that is not inside one region.
TB_API void* tb_pointer(unsigned pe, uint64_t addr, uint64_t len) {
    Region* r = g_mem[pe].find(addr);
    return r && r->has(addr, len) ? r->at(addr) : nullptr;
}

// Python has written [addr, addr + len) through its view: record and dirty bits.
TB_API void tb_stored(unsigned pe, uint64_t addr, uint64_t len) {
    constexpr uint64_t kPiece = 1u << 20;
    PeMemory& m = g_mem[pe];
    Region* r = m.find(addr);
    if (!r || !len) return;
    for (uint64_t p = r->page(addr); p <= r->page(addr + len - 1); ++p) r->dirty[p] = 1;
    for (uint64_t done = 0; done < len; done += kPiece) {
        const uint64_t n = std::min(kPiece, len - done);
        uint64_t off;
        std::memcpy(rec_bytes(n, &off), r->at(addr + done), n);
        TbRecord* rec = rec_push(kRecStore, pe);
        rec->addr = addr + done;
        rec->len = static_cast<uint32_t>(n);
        rec->off = off;
    }
}

// Base addresses of pages written since the last call with clear; returns their number, of which at most max are stored.
TB_API uint64_t tb_dirty(unsigned pe, uint64_t* out, uint64_t max, bool clear) {
    uint64_t n = 0;
    for (Region& r : g_mem[pe].regions) {
        const uint8_t* p = r.dirty;
        const uint8_t* const end = r.dirty + r.pages;
        while ((p = static_cast<const uint8_t*>(std::memchr(p, 1, static_cast<size_t>(end - p))))) {
            if (n < max) out[n] = (r.first_page + static_cast<uint64_t>(p - r.dirty)) * kPage;
            n++;
            p++;
        }
        if (clear && n <= max) std::memset(r.dirty, 0, r.pages);
    }
    return n;
}

// A watch is one-shot: it is gone when its hits are counted. Returns its id, 0 for an empty range or no hits.
TB_API uint32_t tb_watch(unsigned pe, uint64_t addr, uint64_t len, uint64_t hits) {
    if (!len || !hits) return 0;
    PeMemory& m = g_mem[pe];
    const Watch w{g_next_watch++, addr, len, hits};
    m.watches.push_back(w);
    mark_pages(m, w, 1);
    return w.id;
}

// True: the watch was still armed.
TB_API bool tb_unwatch(uint32_t id) {
    for (PeMemory& m : g_mem) {
        for (size_t i = 0; i < m.watches.size(); ++i) {
            if (m.watches[i].id != id) continue;
            mark_pages(m, m.watches[i], -1);
            m.watches.erase(m.watches.begin() + static_cast<long>(i));
            return true;
        }
    }
    return false;
}

TB_API uint64_t tb_fired(uint32_t* out, uint64_t max) {
    const uint64_t n = std::min<uint64_t>(max, g_fired.size());
    std::copy_n(g_fired.begin(), n, out);
    g_fired.erase(g_fired.begin(), g_fired.begin() + static_cast<long>(n));
    return n;
}

// Accesses that touch the range answer resp (2 SLVERR, 3 DECERR); a write with SLVERR changes nothing.
TB_API void tb_add_error(unsigned pe, uint64_t addr, uint64_t len, bool read, bool write, uint8_t resp) {
    g_mem[pe].errors.push_back({addr, len, read, write, resp});
}
TB_API void tb_clear_errors(unsigned pe) { g_mem[pe].errors.clear(); }
