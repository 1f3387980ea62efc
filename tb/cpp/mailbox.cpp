// AXI-Lite requests of Python, in order per PE; tb/sv/axil_mgr.sv takes them, one call a request.
#include <cstring>
#include <deque>
#include <unordered_map>

#include "tb.h"

namespace {

constexpr size_t kDepth = 256;  // requests that wait; more are refused, which blocks the program (programs.md 1)

struct Request {
    bool read;
    uint8_t strb;
    uint32_t addr;
    uint64_t data, ticket;
};
struct Answer {
    uint64_t data;
    uint32_t resp;
};
struct Mailbox {
    std::deque<Request> waiting;
    std::deque<uint64_t> tickets;  // of the reads on the bus
    uint64_t next_at = 0;          // cycle before which the gap lasts
    uint64_t writes_open = 0;      // writes on the bus without their response
    uint64_t bad_resp = 0;         // write responses that were not OKAY
    bool refused = false;
    TbRandom rng;
};

Mailbox g_box[kMaxPes];
std::unordered_map<uint64_t, Answer> g_answers;
uint64_t g_next_ticket = 1;

bool push(unsigned pe, const Request& r) {
    Mailbox& b = g_box[pe];
    if (b.waiting.size() >= kDepth) {
        b.refused = true;
        return false;
    }
    b.waiting.push_back(r);
    g_tb.work_due = 0;
    return true;
}

}  // namespace

bool mailbox_has_work(unsigned pe) { return !g_box[pe].waiting.empty(); }

void mailbox_seed(uint64_t seed) {
    for (unsigned pe = 0; pe < kMaxPes; ++pe) g_box[pe].rng.seed(seed, 0x300 + pe);
}

// ------------------------------------------------------------------------------------------------ DPI: axil_mgr.sv
// Next request: 0 none now, 1 write, 2 read. `idle`: no request is on the bus; a read waits for that.
// aw_wait and w_wait: cycles that each channel of a write holds back.
extern "C" int mbx_pop(int pe, int idle, int* addr, uint64_t* data, int* strb, int* aw_wait, int* w_wait) {
    Mailbox& b = g_box[pe];
    const TbKnobs& k = g_knobs[pe];
    if (b.waiting.empty() || g_tb.cycle < b.next_at) return 0;
    const Request& r = b.waiting.front();
    if (r.read && !idle) return 0;
    *addr = static_cast<int>(r.addr);
    *data = r.data;
    *strb = r.strb;
    *aw_wait = *w_wait = 0;
    if (!r.read && b.rng.chance(k.axil_skew)) {
        const int apart = 1 + static_cast<int>(b.rng.upto(k.stall_max ? k.stall_max - 1 : 0));
        (b.rng.next() & 1 ? *aw_wait : *w_wait) = apart;
    }
    if (k.axil_gap) b.next_at = g_tb.cycle + 1 + b.rng.upto(k.axil_gap);
    const int kind = r.read ? 2 : 1;
    if (r.read) b.tickets.push_back(r.ticket);
    else b.writes_open++;
    b.waiting.pop_front();
    if (b.refused && b.waiting.size() <= kDepth / 2) {
        b.refused = false;
        tb_attend(kAttnMailbox);
    }
    return kind;
}

extern "C" void mbx_write_done(int pe, int resp) {
    Mailbox& b = g_box[pe];
    if (b.writes_open) b.writes_open--;
    if (resp) b.bad_resp++;
}

extern "C" void mbx_read_done(int pe, uint64_t data, int resp) {
    Mailbox& b = g_box[pe];
    if (b.tickets.empty()) return;  // answer to a read from before a reset
    g_answers[b.tickets.front()] = {data, static_cast<uint32_t>(resp)};
    b.tickets.pop_front();
    tb_attend(kAttnRead);
}

// A reset loses what is on the bus; reads get an answer with resp 0xff, requests that wait stay.
extern "C" void mbx_reset(int pe) {
    Mailbox& b = g_box[pe];
    for (uint64_t t : b.tickets) g_answers[t] = {0, 0xff};
    b.tickets.clear();
    b.writes_open = 0;
}

// --------------------------------------------------------------------------------------------------- for Python
TB_API bool tb_mmio_write(unsigned pe, uint32_t addr, uint64_t data, uint8_t strb) {
    return push(pe, {false, strb, addr, data, 0});
}

// Ticket of the read, 0: mailbox full.
TB_API uint64_t tb_mmio_read(unsigned pe, uint32_t addr) {
    return push(pe, {true, 0, addr, 0, g_next_ticket}) ? g_next_ticket++ : 0;
}

// True: the answer is there; it is handed out once.
TB_API bool tb_mmio_result(uint64_t ticket, uint64_t* data, uint32_t* resp) {
    const auto it = g_answers.find(ticket);
    if (it == g_answers.end()) return false;
    *data = it->second.data;
    *resp = it->second.resp;
    g_answers.erase(it);
    return true;
}

// Requests that wait or are on the bus.
TB_API uint64_t tb_mmio_pending(unsigned pe) {
    const Mailbox& b = g_box[pe];
    return b.waiting.size() + b.tickets.size() + b.writes_open;
}

TB_API uint64_t tb_mmio_bad_responses(unsigned pe) { return g_box[pe].bad_resp; }
