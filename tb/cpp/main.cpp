// The simulation main: makes the clock, runs cocotb through VPI with the semantics of cocotb's own main, and does no VPI
// work at all in the half cycles in which nothing waits.
//
// One time step of cocotb's main (share/lib/verilator/verilator.cpp) is, in this order: next-time callbacks, timed
// callbacks, then { evaluate, inertial puts, value changes } until stable, read-write callbacks and again until stable,
// read-only callbacks. cocotb's clock toggles by an inertial put from a timed callback, so it takes effect after the first
// evaluation, and a task that waits for the edge runs before the design sees it. step() below does exactly that with the
// clock made here. Where no callback is due and none waits for a value, step() reduces to toggle and evaluate: fast_step().
//
// Usage: sim [--trace-file F [--trace-from PS] [--trace-to PS]] [--max-cycles N] [--pes N] [--seed N] [--bare WORKLOAD [--digest 1]]
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>

#include "Vtop.h"
#include "tb.h"
#include "verilated.h"
#include "verilated_vpi.h"
#include "vpi_hook.h"
#if VM_TRACE_FST
#include "verilated_fst_c.h"
using Trace = VerilatedFstC;
#elif VM_TRACE
#include "verilated_vcd_c.h"
using Trace = VerilatedVcdC;
#endif
#if VM_COVERAGE
#include "verilated_cov.h"
#endif

#define TB_STR2(x) #x
#define TB_STR(x) TB_STR2(x)

extern "C" void vlog_startup_routines_bootstrap(void);

namespace {

constexpr uint64_t kHalfPeriodPs = 1000;  // K: period 2 ns (nic.md 1)
constexpr uint64_t kNever = ~0ull;

VerilatedContext* g_ctx;
Vtop* g_top;
volatile std::sig_atomic_t g_signal;
uint64_t g_now;
uint64_t g_next_edge = kHalfPeriodPs;
uint64_t g_max_cycles = kNever;
uint64_t g_deadline = kNever;  // earliest timed callback; only Python changes it, so it is read after steps that ran Python

// ------------------------------------------------------------------------------------------------- outputs of a run
#if VM_TRACE
Trace* g_trace;
uint64_t g_trace_from, g_trace_to = kNever;
void trace_dump() {
    if (g_trace && g_now >= g_trace_from && g_now <= g_trace_to) g_trace->dump(g_now);
}
#else
inline void trace_dump() {}
#endif

// Every way out of the process comes by here once: waves are closed and coverage is written.
void close_outputs() {
    static bool done = false;
    if (done) return;
    done = true;
#if VM_TRACE
    if (g_trace) g_trace->close();
#endif
#if VM_COVERAGE
    VerilatedCov::write();  // file from +verilator+coverage+file+
#endif
}

void end_of_simulation() {
    static bool done = false;
    if (done) return;
    done = true;
    VerilatedVpi::callCbs(cbEndOfSimulation);
}

void on_signal(int number) {
    if (g_signal) _exit(128 + number);  // the second one does not wait
    g_signal = number;
}

// ------------------------------------------------------------------------------------------------------ time steps
inline bool settle() {
    bool called = false;
    while (VerilatedVpi::callValueCbs()) called = true;
    return called;
}

// Inputs that the C++ side owns, applied with the falling edge, far from the sampling edge.
inline void drive_low_phase() {
#ifdef TB_NIC
    g_top->rst_ni = static_cast<uint8_t>(g_tb.rst_n);
    g_top->active_i = static_cast<std::remove_reference_t<decltype(g_top->active_i)>>(g_tb.active);
#endif
}

inline void drive_before_rise() {
    g_tb.cycle++;
    if (__builtin_expect(g_tb.cycle >= g_tb.deadline, 0)) {
        g_tb.deadline = kNever;
        tb_attend(kAttnDeadline);
    }
#ifdef TB_NIC
    if (__builtin_expect(g_tb.cycle >= g_tb.work_due, 0)) tb_update_work();
    g_top->work_i = static_cast<std::remove_reference_t<decltype(g_top->work_i)>>(g_tb.work);
#endif
}

inline void toggle_clock() {
#ifdef TB_CLOCK
    const bool rise = !g_top->TB_CLOCK;
    if (rise) drive_before_rise();
    else drive_low_phase();
    g_top->TB_CLOCK = rise;
#endif
}

// What ends every step in which callbacks ran.
inline void end_step() {
    g_top->eval_end_step();
    VerilatedVpi::callCbs(cbReadOnlySynch);
    trace_dump();
    g_deadline = VerilatedVpi::cbNextDeadline();
}

// Wakes Python where the C side has something for it. Returns true if anything ran.
inline bool attend() {
#ifdef TB_EVT
    if (__builtin_expect(g_tb.attention == 0, 1)) return false;
    g_top->TB_EVT = !g_top->TB_EVT;
    g_tb.wakeups++;
    g_tb.reasons |= g_tb.attention;
    g_tb.attention = 0;
    return settle();
#else
    g_tb.attention = 0;
    return false;
#endif
}

// One time step with every callback that is due; `edge`: the clock toggles in it.
void step(bool edge, bool first = false) {
    g_ctx->time(g_now);
    g_vpi.phase = false;
    if (!first) {
        VerilatedVpi::callCbs(cbNextSimTime);
        settle();
        VerilatedVpi::callTimedCbs();
        settle();
    }
    do {
        bool again;
        do {
            g_top->eval_step();
            VerilatedVpi::clearEvalNeeded();
            if (edge) toggle_clock();
            again = edge;
            edge = false;
            VerilatedVpi::doInertialPuts();
            settle();
            attend();
        } while (again || VerilatedVpi::evalNeeded());
        VerilatedVpi::callCbs(cbReadWriteSynch);
        VerilatedVpi::doInertialPuts();
        settle();
    } while (VerilatedVpi::evalNeeded());
    end_step();
}

// The same step where nothing is due and no value is watched. Returns true when Python has to run in this step after all.
inline bool fast_step() {
    g_ctx->time(g_now);
    toggle_clock();
    g_top->eval_step();
    return g_tb.attention != 0;
}

// Rest of a step whose evaluation raised attention: the value-change region and what follows it.
void finish_step() {
    VerilatedVpi::clearEvalNeeded();
    attend();
    while (true) {
        while (VerilatedVpi::evalNeeded()) {
            g_top->eval_step();
            VerilatedVpi::clearEvalNeeded();
            VerilatedVpi::doInertialPuts();
            settle();
            attend();
        }
        VerilatedVpi::callCbs(cbReadWriteSynch);
        VerilatedVpi::doInertialPuts();
        settle();
        if (!VerilatedVpi::evalNeeded()) break;
    }
    end_step();
}

uint64_t design_deadline() {
#if VM_TIMING
    return g_top->eventsPending() ? g_top->nextTimeSlot() : kNever;
#else
    return kNever;
#endif
}

// Once per step that ran Python or once per block of fast steps. Returns false when the run has to end.
bool housekeeping() {
    if (g_signal) {
        std::fprintf(stderr, "error: simulation stopped by signal %d at cycle %lu\n", static_cast<int>(g_signal), g_tb.cycle);
        return false;
    }
    if (g_tb.cycle >= g_max_cycles) {
        std::fprintf(stderr, "error: simulation stopped after --max-cycles %lu\n", g_max_cycles);
        return false;
    }
    return true;
}

// Watchdog: no record, no callback for stall_limit cycles. First Python is told (SimLib raises SimStalled there); when
// that changes nothing for as long again, the run ends.
bool watchdog() {
    static uint64_t seen_records, seen_registrations, told;
    if (g_tb.rec_head != seen_records || g_vpi.registrations != seen_registrations) {
        seen_records = g_tb.rec_head;
        seen_registrations = g_vpi.registrations;
        g_tb.moved = g_tb.cycle;
        told = 0;
        return true;
    }
    if (!g_tb.stall_limit || g_tb.cycle - g_tb.moved < g_tb.stall_limit) return true;
    if (!told) {
        told = 1;
        g_tb.moved = g_tb.cycle;
        tb_attend(kAttnStall);
        return true;
    }
    std::fprintf(stderr, "error: watchdog: nothing happened for %lu cycles (cycle %lu)\n", g_tb.stall_limit, g_tb.cycle);
    return false;
}

// ------------------------------------------------------------------------------------------------------------- loops
#ifdef TB_CLOCK
constexpr unsigned kBlock = 4096;  // half cycles between two looks at signals and watchdog

bool run_clocked_block() {
    for (unsigned i = 0; i < kBlock; ++i) {
        const uint64_t next = std::min<uint64_t>(g_deadline, design_deadline());
        if (__builtin_expect(next < g_next_edge, 0)) {
            g_now = std::max(next, g_now);
            step(false);
        } else {
            const bool due = g_vpi.phase | (g_vpi.values != 0) | (next == g_next_edge);
            g_now = g_next_edge;
            g_next_edge += kHalfPeriodPs;
            if (__builtin_expect(due, 0)) {
                step(true);
            } else if (__builtin_expect(fast_step(), 0)) {
                finish_step();
            } else {
                trace_dump();
            }
        }
        if (__builtin_expect(g_ctx->gotFinish(), 0)) return false;
    }
    return watchdog();
}
#else
// A bench without a clock from C++: time moves from event to event, as in cocotb's main.
bool run_events_block() {
    for (unsigned i = 0; i < 4096; ++i) {
        const uint64_t next = std::min<uint64_t>(g_deadline, design_deadline());
        if (next == kNever) return false;
        g_now = next;
        step(false);
        if (g_ctx->gotFinish()) return false;
    }
    return true;
}
#endif

double cpu_seconds() {
    rusage use;
    getrusage(RUSAGE_SELF, &use);
    return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec)
           + 1e-6 * static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

// Order-dependent sum over the records, equal to tb.sim.records.digest(): proves that a bare run did the same work.
bool g_bare_digest;
uint64_t g_digest;
void digest_records() {
    const TbRecord* ring = static_cast<const TbRecord*>(tb_records());
    for (uint64_t i = g_tb.rec_tail; i < g_tb.rec_head; ++i) {
        uint64_t words[8], sum = 0;
        std::memcpy(words, &ring[i % tb_record_count()], sizeof words);
        for (unsigned k = 0; k < 8; ++k) sum += words[k] * (2 * k + 1);
        g_digest += sum * (2 * i + 1);
    }
}

void drop_records() {
    if (g_bare_digest) digest_records();
    g_tb.rec_tail = g_tb.rec_head;
    g_tb.side_tail = g_tb.side_head;
}

// The yardstick: the same model and the same work in a bare loop, without VPI and Python.
int run_bare(const char* workload) {
#ifdef TB_CLOCK
    if (!workload_open(workload)) return 2;
    const double cpu = cpu_seconds();
    const auto wall = std::chrono::steady_clock::now();
    bool more = workload_step();
    drive_low_phase();
    g_top->eval();
    while (more && !g_ctx->gotFinish()) {
        g_now += kHalfPeriodPs;
        g_ctx->time(g_now);
        toggle_clock();
        g_top->eval();
        if (__builtin_expect((g_tb.cycle >= g_workload_due) | (g_tb.attention != 0), 0)) {
            g_tb.attention = 0;
            more = workload_step();
            drop_records();
        }
        g_now += kHalfPeriodPs;
        g_ctx->time(g_now);
        toggle_clock();
        g_top->eval();
    }
    drop_records();
    const double used = cpu_seconds() - cpu;
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count();
    std::printf("{\"cycles\": %lu, \"cpu_s\": %.6f, \"wall_s\": %.6f, \"records\": %lu, \"digest\": %lu}\n", g_tb.cycle, used,
                elapsed, g_tb.rec_head, g_digest);
    return g_ctx->errorCount() > 0 || g_ctx->gotFinish();
#else
    (void)workload;
    std::fprintf(stderr, "error: --bare needs a bench whose clock main.cpp makes\n");
    return 2;
#endif
}

const char* option(int argc, char** argv, const char* name) {
    for (int i = 1; i + 1 < argc; ++i)
        if (!std::strcmp(argv[i], name)) return argv[i + 1];
    return nullptr;
}

uint64_t number(int argc, char** argv, const char* name, uint64_t fallback) {
    const char* text = option(argc, argv, name);
    return text ? std::strtoull(text, nullptr, 0) : fallback;
}

}  // namespace

int main(int argc, char** argv) {
    g_ctx = Verilated::threadContextp();
    g_ctx->commandArgs(argc, argv);
    g_ctx->fatalOnError(false);  // $error ends the run at the end of its time step, results and coverage are written
    g_ctx->fatalOnVpiError(false);
    g_max_cycles = number(argc, argv, "--max-cycles", kNever);
    g_tb.active = (1ull << number(argc, argv, "--pes", 1)) - 1;
    g_tb.deadline = kNever;
    tb_seed(number(argc, argv, "--seed", 1));
    std::signal(SIGTERM, on_signal);
    std::signal(SIGINT, on_signal);

#if VM_TRACE
    const char* trace_file = option(argc, argv, "--trace-file");
    if (trace_file) g_ctx->traceEverOn(true);
#endif
    // leaked on purpose: cocotb's threads and exit handlers may still look at it while the process ends
    g_top = new Vtop{""};
#if VM_TRACE
    if (trace_file) {
        g_trace_from = number(argc, argv, "--trace-from", 0);
        g_trace_to = number(argc, argv, "--trace-to", kNever);
        g_trace = new Trace;
        g_top->trace(g_trace, 99);
        g_trace->open(trace_file);
    }
#endif
    // inputs start with values drawn from the seed; ours do not
#ifdef TB_CLOCK
    g_top->TB_CLOCK = 0;
#endif
#ifdef TB_EVT
    g_top->TB_EVT = 0;
    vpi_hook_attention_signal(TB_STR(TB_TOP), TB_STR(TB_EVT));
#endif
    drive_low_phase();
    Verilated::addExitCb([](void*) { end_of_simulation(); close_outputs(); }, nullptr);

    if (const char* workload = option(argc, argv, "--bare")) {
        g_bare_digest = number(argc, argv, "--digest", 0) != 0;
        const int code = run_bare(workload);
        g_top->final();
        close_outputs();
        std::fflush(nullptr);
        return code;
    }

    vlog_startup_routines_bootstrap();
    VerilatedVpi::callCbs(cbStartOfSimulation);
    settle();
    step(false, true);
    while (!g_ctx->gotFinish() && housekeeping()) {
#ifdef TB_CLOCK
        if (!run_clocked_block()) break;
#else
        if (!run_events_block()) break;
#endif
    }
    g_top->final();
    end_of_simulation();
    close_outputs();
    const bool failed = g_ctx->errorCount() > 0 || g_signal;
    std::fflush(nullptr);
    return failed ? 1 : 0;
}
