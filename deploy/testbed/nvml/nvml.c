/*
 * Stands in for libnvidia-ml.so.1: the calls that the node agent makes through pynvml, answered from a
 * state file instead of a driver. Struct layouts and return codes are those of NVML's public interface.
 * state.h describes the file; mig.c has the calls about MIG.
 */
#include "state.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { RECOVERY_ACTION_FIELD = 230, VALUE_TYPE_UNSIGNED_INT = 1, AMPERE = 7, DOUBLE_BIT_ERROR = 1 };

/* Layouts of NVML. */
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_info_t;
typedef union { double d; unsigned u; unsigned long ul; unsigned long long ull; long long sll; } value_t;
typedef struct {
    uint32_t field_id, scope_id;
    int64_t timestamp, latency;
    uint32_t value_type, code;
    value_t value;
} field_value_t;
typedef struct {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance, compute_instance;
} process_info_t;

typedef struct {
    unsigned version;
    unsigned char ib_guid[16], chassis_serial_number[16], slot, tray, host, peer_type, module;
} platform_info_t;

/* Version 2. */
typedef struct {
    unsigned version;
    unsigned char cluster_uuid[16];
    int status;
    unsigned clique_id, state, health_mask;
} fabric_info_t;

int nvmlInitWithFlags(unsigned flags) {
    state_t state;
    (void)flags;
    int code = enter(&state, __func__);
    if (!code) code = state.init;
    if (!code) initialized++;
    return code;
}

int nvmlShutdown(void) {
    if (!initialized) return UNINITIALIZED;
    initialized--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    state_t state;
    int code = enter_system(&state, __func__);
    if (!code) snprintf(version, length, "%s", state.driver);
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    state_t state;
    int code = enter_system(&state, __func__);
    if (code) return code;
    *count = 0;
    for (unsigned place = 0; place < state.count; place++) *count += state.gpus[place].presence != MISSING;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    state_t state;
    int code = enter_system(&state, __func__);
    if (code) return code;
    for (unsigned place = 0; place < state.count; place++) {
        if (state.gpus[place].presence == MISSING || index-- > 0) continue;
        *handle = (void *)(size_t)(place + 1);
        return state.gpus[place].presence == LOST ? GPU_IS_LOST : SUCCESS;
    }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (!code) snprintf(uuid, length, "%s", gpu->uuid);
    return code;
}

int nvmlDeviceGetSerial(void *handle, char *serial, unsigned length) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    if (gpu->serial[0] == '!') return parse_answer(gpu->serial).code;
    snprintf(serial, length, "%s", gpu->serial);
    return SUCCESS;
}

int nvmlDeviceGetPlatformInfo(void *handle, platform_info_t *info) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    if (gpu->board[0] == '!') return parse_answer(gpu->board).code;
    /* Sixteen bytes, not necessarily with a zero at their end. */
    memcpy(info->chassis_serial_number, gpu->board, sizeof info->chassis_serial_number);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *handle, pci_info_t *info) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    memset(info, 0, sizeof *info);
    info->domain = gpu->domain;
    info->bus = gpu->bus;
    info->device = gpu->device;
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", gpu->domain, gpu->bus, gpu->device);
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *handle, int count, field_value_t *values) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    for (int i = 0; i < count; i++) {
        int known = values[i].field_id == RECOVERY_ACTION_FIELD;
        values[i].code = (uint32_t)(known ? gpu->recovery.code : NOT_SUPPORTED);
        values[i].value_type = VALUE_TYPE_UNSIGNED_INT;
        values[i].value.u = known ? gpu->recovery.value : 0;
    }
    return SUCCESS;
}

/* Of a GPU that does not tell its architecture: no. */
static int before_ampere(const gpu_t *gpu) {
    return !gpu->architecture.code && gpu->architecture.value < AMPERE;
}

int nvmlDeviceGetRetiredPages(void *handle, int cause, unsigned *count, unsigned long long *addresses) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    if (!before_ampere(gpu)) return NOT_SUPPORTED;
    const answer_t *retired = cause == DOUBLE_BIT_ERROR ? &gpu->retired2 : &gpu->retired1;
    if (retired->code) return retired->code;
    unsigned room = *count;
    *count = retired->value;
    if (!retired->value) return SUCCESS;
    if (!addresses || room < retired->value) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < retired->value; i++) addresses[i] = (unsigned long long)i << 12;
    return SUCCESS;
}

int nvmlDeviceGetRetiredPagesPendingStatus(void *handle, unsigned *pending) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    if (!before_ampere(gpu)) return NOT_SUPPORTED;
    *pending = gpu->retiring.value;
    return gpu->retiring.code;
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    /* As on the hardware: before Ampere, and while MIG instances are there. */
    if (before_ampere(gpu) || gpu->instances.count.value) return NOT_SUPPORTED;
    *corrected = *uncorrected = 0;
    *pending = gpu->pending.value;
    *failed = gpu->failed.value;
    return gpu->pending.code ? gpu->pending.code : gpu->failed.code;
}

int nvmlDeviceGetTotalEccErrors(void *handle, int error_type, int counter_type, unsigned long long *count) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    /* Only uncorrected (1) volatile (0) errors are acted out. */
    *count = error_type == 1 && counter_type == 0 ? gpu->ecc.value : 0;
    return gpu->ecc.code;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    if (gpu->links.code) return gpu->links.code;
    if (link >= gpu->links.value) return INVALID_ARGUMENT;
    *active = link < gpu->active.value;
    return gpu->active.code;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, unsigned *type) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    if (gpu->links.code) return gpu->links.code;
    if (link >= gpu->links.value) return INVALID_ARGUMENT;
    *type = gpu->remote.value;
    return gpu->remote.code;
}

int nvmlDeviceGetGpuFabricInfoV(void *handle, fabric_info_t *info) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    info->state = gpu->fabric.value;
    info->status = SUCCESS;
    return gpu->fabric.code;
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    *minor = gpu->minor.value;
    return gpu->minor.code;
}

int nvmlDeviceGetArchitecture(void *handle, unsigned *architecture) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    *architecture = gpu->architecture.value;
    return gpu->architecture.code;
}

int nvmlDeviceGetVirtualizationMode(void *handle, unsigned *mode) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    *mode = gpu->virtualization.value;
    return gpu->virtualization.code;
}

int nvmlDeviceGetPersistenceMode(void *handle, unsigned *mode) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    *mode = gpu->persistence.value;
    return gpu->persistence.code;
}

int nvmlDeviceSetPersistenceMode(void *handle, unsigned mode) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (!code) code = gpu->persistence.code;
    return code ? code : write_field((size_t)handle, "persistence", mode ? "1" : "0");
}

static int tell_processes(const processes_t *held, unsigned *count, process_info_t *processes) {
    if (held->count.code) return held->count.code;
    unsigned room = *count;
    *count = held->count.value;
    if (!held->count.value) return SUCCESS;
    if (!processes || room < held->count.value) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < held->count.value; i++)
        processes[i] = (process_info_t){.pid = held->pids[i], .used_memory = 1ULL << 30};
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_info_t *processes) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    return code ? code : tell_processes(&gpu->compute, count, processes);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, process_info_t *processes) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    return code ? code : tell_processes(&gpu->graphics, count, processes);
}
