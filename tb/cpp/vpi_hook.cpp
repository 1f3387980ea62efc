#include "vpi_hook.h"

#include <cstring>
#include <string>
#include <unordered_set>

#include "vpi_user.h"

VpiPending g_vpi;

extern "C" vpiHandle verilated_register_cb(p_cb_data data);
extern "C" PLI_INT32 verilated_remove_cb(vpiHandle handle);

static std::string g_attention_names[2];
static std::unordered_set<vpiHandle> g_value_handles;

void vpi_hook_attention_signal(const char* top, const char* name) {
    // Verilator puts the ports of the top into a scope of its own
    g_attention_names[0] = std::string("TOP.") + name;
    g_attention_names[1] = std::string(top) + "." + name;
}

static bool is_attention(const char* name) {
    return name && (g_attention_names[0] == name || g_attention_names[1] == name);
}

extern "C" __attribute__((visibility("default"))) vpiHandle vpi_register_cb(p_cb_data data) {
    g_vpi.registrations++;
    vpiHandle handle = verilated_register_cb(data);
    switch (data->reason) {
    case cbNextSimTime:
    case cbReadWriteSynch:
    case cbReadOnlySynch: g_vpi.phase = true; break;
    case cbValueChange: {
        const char* name = vpi_get_str(vpiFullName, data->obj);
        if (handle && !is_attention(name)) {
            g_value_handles.insert(handle);
            g_vpi.values = static_cast<uint32_t>(g_value_handles.size());
        }
        break;
    }
    default: break;
    }
    return handle;
}

extern "C" __attribute__((visibility("default"))) PLI_INT32 vpi_remove_cb(vpiHandle handle) {
    if (g_value_handles.erase(handle)) g_vpi.values = static_cast<uint32_t>(g_value_handles.size());
    return verilated_remove_cb(handle);
}
