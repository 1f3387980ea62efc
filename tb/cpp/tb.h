// The C++ testbench: what main.cpp, the DPI-C functions and Python (ctypes, tb/sim/lib.py) share.
#pragma once
#include <cstddef>
#include <cstdint>

#define TB_API extern "C" __attribute__((visibility("default")))

static constexpr unsigned kMaxPes = 16;

// Reasons for attention, a bit mask; Python reads and clears them (tb/sim/lib.py names them alike).
enum : uint64_t {
    kAttnWatch = 1,      // a watch has its hits
    kAttnRing = 2,       // record ring or side buffer three quarters full
    kAttnDeadline = 4,   // set_deadline() reached
    kAttnMailbox = 8,    // a mailbox that refused a request has room again
    kAttnRead = 16,      // an MMIO read has its result
    kAttnEvent = 32,     // event_o rose
    kAttnStall = 64,     // watchdog: nothing has happened for too long
};

// Shared with Python as one numpy view of u64; the order is part of tb/sim/lib.py.
struct TbControl {
    uint64_t cycle;         // rising clock edges so far
    uint64_t attention;     // reasons that are pending; main toggles evt while it is not 0
    uint64_t reasons;       // reasons that evt was toggled for and Python has not taken
    uint64_t deadline;      // cycle at which kAttnDeadline is raised; ~0: none
    uint64_t wakeups;       // times that evt was toggled
    uint64_t rec_head;      // records written so far
    uint64_t rec_tail;      // records that Python has given back
    uint64_t side_head;     // bytes of the side buffer written so far
    uint64_t side_tail;     // bytes that Python has given back
    uint64_t overflow;      // records or side bytes lost: the test fails
    uint64_t active;        // bit per PE that is out of reset when rst_n is
    uint64_t rst_n;         // reset level that main applies at the next falling edge
    uint64_t work;          // bit per PE for which mailbox or link have something
    uint64_t work_due;      // cycle at which `work` has to be computed again
    uint64_t stall_limit;   // cycles without any activity until kAttnStall; 0: never
    uint64_t moved;         // cycle of the last record or Python activity
    uint64_t event_wakes;   // 1: a rising event_o raises attention
    uint64_t link_dropped;  // packets without a route
    uint64_t faults;        // FAULT records pushed
    uint64_t link_faults;   // faults that rules applied on the link
};
TB_API TbControl g_tb;

static inline void tb_attend(uint64_t reason) { g_tb.attention |= reason; }

// Called by main once per rising edge where g_tb.cycle >= g_tb.work_due.
void tb_update_work();

// Seeded generator: one stream per use, so that knobs do not disturb each other.
struct TbRandom {
    uint64_t state = 0x9e3779b97f4a7c15ull;
    void seed(uint64_t run_seed, uint64_t stream);
    uint64_t next() {  // splitmix64
        uint64_t z = (state += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    // true with probability p / 65536
    bool chance(uint32_t p) { return p && (next() & 0xffff) < p; }
    // uniform in 0..max
    uint64_t upto(uint64_t max) { return max ? next() % (max + 1) : 0; }
};

// ------------------------------------------------------------------------------------------------------------ knobs
struct TbKnobs {
    uint32_t mem_latency = 20;         // cycles from AR to the first R beat, from WLAST to B
    uint32_t mem_latency_jitter = 0;   // up to so many more, drawn per burst
    uint32_t mem_stall = 0;            // probability of a pause per handshake, on each of AR, R, AW, W, B
    uint32_t mem_ooo = 0;              // probability that another ID is served first
    uint32_t commit_delay = 0;         // up to so many cycles between WLAST and visibility
    uint32_t link_latency = 20;        // cycles from a beat sent to the beat received
    uint32_t link_latency_jitter = 0;  // up to so many more, order per destination kept
    uint32_t link_stall_tx = 0;        // probability of a pause per beat, NIC to link
    uint32_t link_stall_rx = 0;        // probability of a pause per beat, link to NIC
    uint32_t axil_gap = 0;             // up to so many idle cycles between two MMIO requests
    uint32_t axil_skew = 0;            // probability that AW and W of a write start apart
    uint32_t stall_max = 8;            // longest pause
};
extern TbKnobs g_knobs[kMaxPes];

// Cycles of a pause: 0 unless chance(p).
static inline uint32_t tb_pause(TbRandom& rng, uint32_t p, uint32_t longest) {
    return rng.chance(p) ? 1 + static_cast<uint32_t>(rng.upto(longest ? longest - 1 : 0)) : 0;
}

// ----------------------------------------------------------------------------------------------------------- records
enum : uint8_t {
    kRecStore = 1,
    kRecTxPkt = 2,
    kRecRxPkt = 3,
    kRecMmioW = 4,
    kRecMmioR = 5,
    kRecAxiR = 6,
    kRecAxiW = 7,
    kRecAxiB = 8,
    kRecCommit = 9,
    kRecEvent = 10,
    kRecNote = 11,
    kRecFault = 12,
};

// Codes of FAULT records (field data): the testbench saw what no correct NIC or test does.
enum : uint64_t {
    kFaultPartialWrite = 1,  // strobed byte outside every region, in a beat that is partly inside
    kFaultWildWrite = 2,     // strobed bytes in a beat that is wholly outside every region (answered DECERR)
    kFaultNoRoute = 3,       // packet to a MAC that no port has
    kFaultOversize = 4,      // packet longer than any port may send
    kFaultWildRead = 5,      // read beat that is wholly outside every region (answered DECERR)
};

// 64 bytes, little-endian; the numpy dtype is in tb/sim/records.py.
struct TbRecord {
    uint64_t time;
    uint8_t kind, pe, id, flags;
    uint32_t len;
    uint64_t addr, data, off, aux0, aux1, spare;
};
static_assert(sizeof(TbRecord) == 64);

// Appends a record; returns it for the caller to fill in, zeroed but for time, kind and pe. Never null: after an
// overflow it is a scratch record.
TbRecord* rec_push(uint8_t kind, unsigned pe);
TB_API void* tb_records();
TB_API uint64_t tb_record_count();
// Reserves len contiguous bytes of the side buffer, to be filled at once; *off takes their absolute offset.
uint8_t* rec_bytes(size_t len, uint64_t* off);
static inline void rec_fault(unsigned pe, uint64_t code, uint64_t addr, uint8_t id, uint64_t aux0) {
    TbRecord* r = rec_push(kRecFault, pe);
    r->data = code;
    r->addr = addr;
    r->id = id;
    r->aux0 = aux0;
    g_tb.faults++;
}

// ------------------------------------------------------------------------------------------------------ link faults
enum : uint8_t {
    kLinkDrop = 1,
    kLinkDuplicate = 2,
    kLinkDelay = 3,
    kLinkReorder = 4,
    kLinkCorrupt = 5,
    kLinkTruncate = 6,
    kLinkRelease = 7,  // in the log only: a packet that was held back goes on
};

// Which conditions of a rule count.
enum : uint32_t {
    kIfQp = 1,
    kIfPsn = 2,
    kIfOpcode = 4,
    kIfSize = 8,
    kIfTime = 16,
    kIfPacket = 32,
    kIfNth = 64,
    kIfEveryNth = 128,
    kIfRandom = 256,
};

enum : uint8_t { kInAnywhere, kInHeader, kInEthernet, kInIp, kInUdp, kInBth, kInExtended, kInPayload, kInIcrc };
enum : uint8_t { kCutAnywhere, kCutTo, kCutBy };

static constexpr unsigned kFaultEdits = 16;  // bits or bytes of one packet that one fault changes at most

// A rule as tb/sim/fault_rule.py compiles it (RULE there); ranges include both ends.
struct TbFaultRule {
    uint32_t conditions;  // kIf...
    uint32_t id;          // what the log calls it
    uint8_t action;
    uint8_t region;       // corrupt: kIn...
    uint8_t bytes;        // corrupt: 0 bits, 1 bytes
    uint8_t cut;          // truncate: kCut...
    int8_t source, destination;  // -1: any
    uint8_t syndromes;    // bit s: an Acknowledge whose AETH syndrome has the upper three bits s
    uint8_t reserved;
    uint32_t qp_low, qp_high;
    uint32_t psn_low, psn_high;  // modulo 2^24
    uint64_t opcodes[4];  // bit per opcode
    uint64_t size_low, size_high;
    uint64_t time_low, time_high;
    uint64_t packet_low, packet_high;
    uint64_t nth_low, nth_high;
    uint64_t every;       // each so many-th
    uint64_t chance, chance_of;
    uint64_t amount;      // copies; cycles; later packets; bits or bytes; bytes to keep or to cut
    uint64_t within;      // reorder: cycles after which the packet goes on in any case
    uint64_t limit;       // 0: none
};
static_assert(sizeof(TbFaultRule) == 176);

// One line of the fault log (LOG in pymodel/faults/log.py).
struct TbFaultEntry {
    uint64_t time;
    uint64_t record;       // records of the stream that were pushed before it
    uint64_t packet;       // number of the packet on the link, from 1
    uint64_t sent;         // number of the packet among those of its source (of its TXPKT records), from 0
    uint64_t amount;       // copies, cycles, later packets (release: that have passed), edits, bytes left
    uint32_t rule, size, qp, psn;
    uint8_t action, source, destination, opcode;
    uint8_t roce;          // 0: no RoCEv2 frame, so no opcode, QP and PSN
    uint8_t edits;         // entries of `edit` that count
    uint8_t reserved[2];
    uint32_t edit[kFaultEdits];  // offset << 8 | what was XORed to that byte
};
static_assert(sizeof(TbFaultEntry) == 128);

// What the link has to do with a packet; the bytes are already as they shall arrive.
struct TbFaultVerdict {
    uint8_t action = 0;  // 0, kLinkDrop, kLinkDuplicate, kLinkDelay or kLinkReorder
    uint32_t rule = 0;
    uint64_t amount = 0, within = 0;
};
struct TbLinkPacket {
    uint64_t number, sent;
    unsigned source, destination;
};
// True while there is any rule.
extern bool g_fault_rules;
TbFaultVerdict faults_judge(const TbLinkPacket& p, uint8_t* bytes, size_t* size);
// The packet that the rule held back goes on, after `passed` later ones.
void faults_release(uint32_t rule, const TbLinkPacket& p, const uint8_t* bytes, size_t size, uint64_t passed);
void faults_seed(uint64_t seed);

// ---------------------------------------------------------------------------------------------------- memory faults
enum : uint8_t { kMemStall = 1, kMemSlvErr = 2, kMemDecErr = 3 };  // errors: the AXI response

// A rule of memory as tb/sim/fault_rule.py compiles it (MEMORY_RULE there); ranges include both ends. Conditions are
// those of TbFaultRule that memory has: kIfTime, kIfNth, kIfEveryNth, kIfRandom.
struct TbMemoryRule {
    uint32_t conditions;
    uint32_t id;       // what the log calls it
    uint8_t action;    // kMem...
    uint8_t ways;      // 1 reads, 2 writes
    uint8_t pe_low, pe_high;
    uint32_t reserved;
    uint64_t addr_low, addr_high;
    uint64_t time_low, time_high;
    uint64_t nth_low, nth_high;
    uint64_t every;
    uint64_t chance, chance_of;
    uint64_t key;      // errors: of the draws by word
    uint64_t amount;   // stall: cycles
    uint64_t limit;    // 0: none
};
static_assert(sizeof(TbMemoryRule) == 112);

// One line of the log of memory faults (MEMORY_LOG in pymodel/faults/log.py).
struct TbMemoryEntry {
    uint64_t time;
    uint64_t record;   // records of the stream that were pushed before it
    uint64_t addr;     // of the beat that fails, of the burst that is stalled
    uint64_t amount;   // stall: cycles
    uint32_t rule;
    uint8_t action, pe, write, id;
};
static_assert(sizeof(TbMemoryEntry) == 40);

// True while there is any rule of memory.
extern bool g_memory_rules;
// The response of the beat at addr, which lies inside one word; 0 where no rule makes it fail.
uint8_t memory_faults_error(unsigned pe, uint64_t addr, bool write, uint8_t id);
// Cycles by which a burst is late.
uint64_t memory_faults_stall(unsigned pe, uint64_t addr, uint64_t len, bool write, uint8_t id);
void memory_faults_seed(uint64_t seed);

// ------------------------------------------------------------------------------------------------------------ memory
// Called by link and mailbox for their part of `work`.
bool link_has_work(unsigned pe, uint64_t cycle, uint64_t* due);
bool mailbox_has_work(unsigned pe);
// Seeds every generator of the testbench from the test's seed.
TB_API void tb_seed(uint64_t seed);
void memory_seed(uint64_t seed);
void link_seed(uint64_t seed);
void mailbox_seed(uint64_t seed);

// ---------------------------------------------------------------------------------------------------------- workload
// A recorded sequence of what Python did to the testbench, to be run again without Python (main.cpp --bare FILE).
bool workload_open(const char* path);
// Applies all that is due at g_tb.cycle; false when the file is exhausted. To be called again from cycle g_workload_due on
// or when attention is raised.
bool workload_step();
extern uint64_t g_workload_due;
