// Fault rules of memory: which words answer with errors and which bursts are late (docs/faults.md). Rules come compiled
// from tb/sim/fault_rule.py; memory.cpp asks for every beat and burst while there are any. Whether a word fails is drawn
// from its address alone, so that a judge knows it beforehand.
#include <algorithm>
#include <deque>
#include <vector>

#include "tb.h"

bool g_memory_rules;

namespace {

constexpr uint64_t kWord = 64;
constexpr uint64_t kMaxLog = 1u << 20;

struct Rule {
    TbMemoryRule r{};
    uint64_t seen = 0, used = 0;  // bursts that met the fixed conditions; stalls so far
    TbRandom choose;
};

std::vector<Rule> g_rules;
std::deque<TbMemoryEntry> g_log;
uint64_t g_log_lost;
uint64_t g_seed = 1;

// As drawn() in pymodel/faults/memory.py.
bool drawn(const TbMemoryRule& r, uint64_t word) {
    uint64_t z = word * 0x9e3779b97f4a7c15ull + r.key;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (z ^ (z >> 31)) % r.chance_of < r.chance;
}

bool here(const TbMemoryRule& r, unsigned pe, uint64_t addr, uint64_t len, bool write) {
    return r.ways & (write ? 2 : 1) && r.pe_low <= pe && pe <= r.pe_high && addr <= r.addr_high &&
           r.addr_low <= addr + (len - 1);
}

// An access inside a word meets all of the word.
bool fails(const TbMemoryRule& r, unsigned pe, uint64_t addr, bool write) {
    const uint64_t word = addr / kWord;
    if (!here(r, pe, word * kWord, kWord, write)) return false;
    return !(r.conditions & kIfRandom) || drawn(r, word);
}

bool late(Rule& rule, unsigned pe, uint64_t addr, uint64_t len, bool write) {
    const TbMemoryRule& r = rule.r;
    const uint32_t c = r.conditions;
    if (r.limit && rule.used >= r.limit) return false;
    if (!here(r, pe, addr, len, write)) return false;
    if (c & kIfTime && (g_tb.cycle < r.time_low || g_tb.cycle > r.time_high)) return false;
    rule.seen++;
    if (c & kIfNth && (rule.seen < r.nth_low || rule.seen > r.nth_high)) return false;
    if (c & kIfEveryNth && rule.seen % r.every) return false;
    return !(c & kIfRandom) || rule.choose.next() % r.chance_of < r.chance;
}

void log(const TbMemoryRule& r, unsigned pe, uint64_t addr, bool write, uint8_t id) {
    if (g_log.size() >= kMaxLog) {
        g_log_lost++;
        return;
    }
    g_log.push_back({g_tb.cycle, g_tb.rec_head, addr, r.action == kMemStall ? r.amount : 0, r.id, r.action,
                     static_cast<uint8_t>(pe), write, id});
}

void start(Rule& rule) {
    rule.seen = rule.used = 0;
    rule.choose.seed(g_seed, 0x3000 + static_cast<uint64_t>(&rule - g_rules.data()));
}

}  // namespace

uint8_t memory_faults_error(unsigned pe, uint64_t addr, bool write, uint8_t id) {
    for (const Rule& rule : g_rules) {
        if (rule.r.action == kMemStall || !fails(rule.r, pe, addr, write)) continue;
        log(rule.r, pe, addr, write, id);
        return rule.r.action;
    }
    return 0;
}

uint64_t memory_faults_stall(unsigned pe, uint64_t addr, uint64_t len, bool write, uint8_t id) {
    for (Rule& rule : g_rules) {
        if (rule.r.action != kMemStall || !late(rule, pe, addr, len, write)) continue;
        rule.used++;
        log(rule.r, pe, addr, write, id);
        return rule.r.amount;
    }
    return 0;
}

void memory_faults_seed(uint64_t seed) {
    g_seed = seed;
    for (Rule& rule : g_rules) start(rule);
}

// --------------------------------------------------------------------------------------------------- for Python
// These rules in place of all others; they start anew. What is stalled stays so.
TB_API void tb_set_memory_faults(const TbMemoryRule* rules, uint64_t count) {
    g_rules.assign(count, Rule{});
    for (uint64_t i = 0; i < count; ++i) {
        g_rules[i].r = rules[i];
        start(g_rules[i]);
    }
    g_memory_rules = count != 0;
}

// Moves up to `max` log entries to `out`; returns how many. Null: returns how many there are.
TB_API uint64_t tb_memory_fault_log(TbMemoryEntry* out, uint64_t max) {
    if (!out) return g_log.size();
    const uint64_t n = std::min<uint64_t>(max, g_log.size());
    std::copy_n(g_log.begin(), n, out);
    g_log.erase(g_log.begin(), g_log.begin() + static_cast<std::ptrdiff_t>(n));
    return n;
}

// Entries that found the log full.
TB_API uint64_t tb_memory_fault_log_lost() { return g_log_lost; }
TB_API uint64_t tb_memory_fault_sizes() { return sizeof(TbMemoryRule) << 32 | sizeof(TbMemoryEntry); }
