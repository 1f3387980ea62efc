// What waits in VPI, known exactly and for free: the simulation loop asks it on every half cycle.
//
// Verilator's own hasCbs() does not see pending next-time callbacks and cannot tell a watch on the attention signal from
// any other value-change callback. Our vpi_register_cb and vpi_remove_cb stand in front of Verilator's (build.py renames
// those when it compiles verilated_vpi.cpp) and keep the counts.
#pragma once
#include <cstdint>

struct VpiPending {
    // a next-time, read-write or read-only callback was registered since the flag was cleared
    bool phase = false;
    // value-change callbacks on signals other than the attention signal
    uint32_t values = 0;
    // registrations so far: a measure of Python activity for the watchdog
    uint64_t registrations = 0;
};

extern VpiPending g_vpi;

// The input of the top that only the main changes: its watchers need no look at each evaluation.
void vpi_hook_attention_signal(const char* top, const char* name);
