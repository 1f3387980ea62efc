// The one totally ordered stream of records of all PEs, with their bytes in a side buffer. Python drains both
// (tb/sim/lib.py). Attention is raised at three quarters; what does not fit is counted as overflow, which fails the test.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "tb.h"

namespace {

constexpr uint64_t kRecords = 1u << 15;
constexpr uint64_t kSideBytes = 1u << 24;
constexpr size_t kScratchBytes = 1u << 21;  // larger than any single request for bytes

template <typename T>
T* map_zeroed(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) std::abort();
    return static_cast<T*>(p);
}

TbRecord* g_ring = map_zeroed<TbRecord>(kRecords * sizeof(TbRecord));
uint8_t* g_side = map_zeroed<uint8_t>(kSideBytes);
uint8_t* g_scratch = map_zeroed<uint8_t>(kScratchBytes);
TbRecord g_lost;

}  // namespace

TbRecord* rec_push(uint8_t kind, unsigned pe) {
    const uint64_t used = g_tb.rec_head - g_tb.rec_tail;
    TbRecord* r = &g_lost;
    if (__builtin_expect(used >= kRecords, 0)) {
        if (!g_tb.overflow++) tb_attend(kAttnRing);
    } else {
        r = &g_ring[g_tb.rec_head % kRecords];
        g_tb.rec_head++;
        if (__builtin_expect(used + 1 == kRecords / 4 * 3, 0)) tb_attend(kAttnRing);
    }
    std::memset(r, 0, sizeof *r);
    r->time = g_tb.cycle;
    r->kind = kind;
    r->pe = static_cast<uint8_t>(pe);
    return r;
}

uint8_t* rec_bytes(size_t len, uint64_t* off) {
    uint64_t start = g_tb.side_head;
    const uint64_t room = kSideBytes - start % kSideBytes;
    if (room < len) start += room;  // bytes of one record are contiguous
    const uint64_t end = start + len;
    if (__builtin_expect(end - g_tb.side_tail > kSideBytes || len > kSideBytes, 0)) {
        if (!g_tb.overflow++) tb_attend(kAttnRing);
        *off = 0;
        if (len > kScratchBytes) std::abort();  // callers split what is longer
        return g_scratch;
    }
    constexpr uint64_t kMark = kSideBytes / 4 * 3;
    if (__builtin_expect(g_tb.side_head - g_tb.side_tail < kMark && end - g_tb.side_tail >= kMark, 0)) tb_attend(kAttnRing);
    g_tb.side_head = end;
    *off = start;
    return g_side + start % kSideBytes;
}

// --------------------------------------------------------------------------------------------------- for Python
TB_API TbControl* tb_control() { return &g_tb; }
TB_API void* tb_records() { return g_ring; }
TB_API uint64_t tb_record_count() { return kRecords; }
TB_API void* tb_side() { return g_side; }
TB_API uint64_t tb_side_size() { return kSideBytes; }
TB_API void tb_note(unsigned pe, uint64_t data, uint64_t aux0, uint64_t aux1) {
    TbRecord* r = rec_push(kRecNote, pe);
    r->data = data;
    r->aux0 = aux0;
    r->aux1 = aux1;
}
