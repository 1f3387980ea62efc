// State that all parts of the C++ testbench share: control block, knobs, seeds.
#include <cstring>

#include "tb.h"

TbControl g_tb;
TbKnobs g_knobs[kMaxPes];

void TbRandom::seed(uint64_t run_seed, uint64_t stream) {
    state = run_seed * 0xd1342543de82ef95ull + stream;
    next();
    state ^= next() + stream;
}

void tb_update_work() {
    uint64_t due = ~0ull, work = 0;
    for (unsigned pe = 0; pe < kMaxPes; ++pe)
        if (mailbox_has_work(pe) | link_has_work(pe, g_tb.cycle, &due)) work |= 1ull << pe;
    g_tb.work = work;
    // while something is there the flag is computed anew each cycle; else when the next packet is due
    g_tb.work_due = work ? g_tb.cycle + 1 : due;
}

TB_API void tb_seed(uint64_t seed) {
    memory_seed(seed);
    memory_faults_seed(seed);
    link_seed(seed);
    mailbox_seed(seed);
}

// Sets a knob by name for one PE or (pe < 0) for all; false: no such knob.
TB_API bool tb_set_knob(int pe, const char* name, uint32_t value) {
    struct Entry {
        const char* name;
        uint32_t TbKnobs::* member;
    };
    static constexpr Entry kEntries[] = {
        {"mem_latency", &TbKnobs::mem_latency},
        {"mem_latency_jitter", &TbKnobs::mem_latency_jitter},
        {"mem_stall", &TbKnobs::mem_stall},
        {"mem_ooo", &TbKnobs::mem_ooo},
        {"commit_delay", &TbKnobs::commit_delay},
        {"link_latency", &TbKnobs::link_latency},
        {"link_latency_jitter", &TbKnobs::link_latency_jitter},
        {"link_stall_tx", &TbKnobs::link_stall_tx},
        {"link_stall_rx", &TbKnobs::link_stall_rx},
        {"axil_gap", &TbKnobs::axil_gap},
        {"axil_skew", &TbKnobs::axil_skew},
        {"stall_max", &TbKnobs::stall_max},
    };
    for (const Entry& e : kEntries) {
        if (std::strcmp(e.name, name)) continue;
        for (int i = 0; i < static_cast<int>(kMaxPes); ++i)
            if (pe < 0 || pe == i) g_knobs[i].*e.member = value;
        return true;
    }
    return false;
}
