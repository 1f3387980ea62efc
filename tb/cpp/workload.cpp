// Runs a recorded workload (tb/sim/workload.py) without Python: what `sim --bare FILE` and the benchmarks compare with.
//
// File: "CAMHILW1", then operations of six little-endian u64 {op, pe, a, b, c, bytes}, each followed by `bytes` bytes padded
// to a multiple of 8. Operations run in file order; AT and WAIT hold back the ones that follow.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tb.h"

TB_API int tb_add_region(unsigned pe, uint64_t base, uint64_t size, uint8_t fill);
TB_API void* tb_pointer(unsigned pe, uint64_t addr, uint64_t len);
TB_API void tb_stored(unsigned pe, uint64_t addr, uint64_t len);
TB_API uint32_t tb_watch(unsigned pe, uint64_t addr, uint64_t len, uint64_t hits);
TB_API uint64_t tb_fired(uint32_t* out, uint64_t max);
TB_API bool tb_mmio_write(unsigned pe, uint32_t addr, uint64_t data, uint8_t strb);
TB_API uint64_t tb_mmio_read(unsigned pe, uint32_t addr);
TB_API void tb_set_mac(unsigned pe, uint64_t mac);
TB_API bool tb_set_knob(int pe, const char* name, uint32_t value);

uint64_t g_workload_due;

namespace {

enum Op : uint64_t {
    kAt = 1,      // a: cycle
    kReset = 2,   // a: rst_n, b: active PEs
    kRegion = 3,  // a: base, b: size, c: fill
    kStore = 4,   // a: address, bytes: the data
    kWrite = 5,   // a: BAR address, b: data, c: strobe
    kRead = 6,    // a: BAR address
    kMac = 7,     // a: MAC of the PE
    kKnob = 8,    // pe: PE or ~0 for all, a: value, bytes: name
    kWatch = 9,   // a: address, b: length, c: hits
    kWait = 10,   // until every watch of this file so far has fired
    kSeed = 11,   // a: seed
};

struct Header {
    uint64_t op, pe, a, b, c, bytes;
};

std::vector<uint8_t> g_file;
size_t g_pos;
uint64_t g_open_watches;

[[noreturn]] void bad(const char* what, size_t at) {
    std::fprintf(stderr, "error: workload: %s at byte %zu\n", what, at);
    std::exit(2);
}

}  // namespace

bool workload_open(const char* path) {
    std::FILE* f = std::fopen(path, "rb");
    if (!f) {
        std::fprintf(stderr, "error: workload %s cannot be read\n", path);
        return false;
    }
    std::fseek(f, 0, SEEK_END);
    g_file.resize(static_cast<size_t>(std::ftell(f)));
    std::fseek(f, 0, SEEK_SET);
    const size_t got = std::fread(g_file.data(), 1, g_file.size(), f);
    std::fclose(f);
    if (got != g_file.size() || got < 8 || std::memcmp(g_file.data(), "CAMHILW1", 8)) {
        std::fprintf(stderr, "error: %s is not a workload\n", path);
        return false;
    }
    g_pos = 8;
    return true;
}

bool workload_step() {
    uint32_t ids[64];
    g_workload_due = g_tb.cycle + 1;
    while (uint64_t n = tb_fired(ids, 64)) g_open_watches -= n;
    while (g_pos < g_file.size()) {
        Header h;
        if (g_file.size() - g_pos < sizeof h) bad("truncated operation", g_pos);
        std::memcpy(&h, g_file.data() + g_pos, sizeof h);
        const uint8_t* bytes = g_file.data() + g_pos + sizeof h;
        if (g_file.size() - g_pos - sizeof h < (h.bytes + 7) / 8 * 8) bad("truncated data", g_pos);
        const unsigned pe = static_cast<unsigned>(h.pe);
        if (h.op != kKnob && pe >= kMaxPes) bad("PE out of range", g_pos);
        switch (h.op) {
        case kAt:
            if (g_tb.cycle < h.a) {
                g_workload_due = h.a;
                return true;
            }
            break;
        case kWait:
            if (g_open_watches) {
                g_workload_due = ~0ull;  // the last watch raises attention
                return true;
            }
            break;
        case kReset:
            g_tb.rst_n = h.a;
            g_tb.active = h.b;
            break;
        case kRegion:
            if (tb_add_region(pe, h.a, h.b, static_cast<uint8_t>(h.c))) bad("region refused", g_pos);
            break;
        case kStore: {
            void* to = tb_pointer(pe, h.a, h.bytes);
            if (!to) bad("store outside regions", g_pos);
            std::memcpy(to, bytes, h.bytes);
            tb_stored(pe, h.a, h.bytes);
            break;
        }
        case kWrite:
            // mailbox full: again next cycle
            if (!tb_mmio_write(pe, static_cast<uint32_t>(h.a), h.b, static_cast<uint8_t>(h.c))) return true;
            break;
        case kRead:
            if (!tb_mmio_read(pe, static_cast<uint32_t>(h.a))) return true;
            break;
        case kMac: tb_set_mac(pe, h.a); break;
        case kKnob: {
            const std::string name(reinterpret_cast<const char*>(bytes), h.bytes);
            if (!tb_set_knob(static_cast<int>(static_cast<int64_t>(h.pe)), name.c_str(), static_cast<uint32_t>(h.a)))
                bad("unknown knob", g_pos);
            break;
        }
        case kWatch:
            if (tb_watch(pe, h.a, h.b, h.c)) g_open_watches++;
            break;
        case kSeed: tb_seed(h.a); break;
        default: bad("unknown operation", g_pos);
        }
        g_pos += sizeof h + (h.bytes + 7) / 8 * 8;
    }
    return false;
}
