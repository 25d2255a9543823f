/*
 * Stands in for libnvidia-ml.so.1: the calls that the node agent makes through pynvml, answered from a
 * state file instead of a driver. Struct layouts and return codes are those of NVML's public interface.
 *
 * The file is named by GPU_RUNBOOKS_NVML_STATE and read anew at each call, so whoever rewrites it (by
 * rename) changes the hardware under a running process. One word and its values a line:
 *
 *   driver 570.148.08           driver version
 *   init 0                      what nvmlInitWithFlags returns (9: driver not loaded)
 *   hang nvmlDeviceGetCount_v2  this call returns only when the line is gone; may be repeated
 *   gpu uuid=GPU-... pci=0000:53:00 presence=present recovery=0 ecc=0 pending=0 failed=0 active=18 links=18
 *       pids= graphics=         all on one line; pids of compute processes and of graphics processes
 *       serial= board=          serial numbers of the GPU and of its chassis
 *
 * presence is present, missing (not counted) or lost (counted, every call returns 15). A value of the form
 * !N makes the call behind it return N (3: not supported). Other words belong to the stand-in nvidia-smi.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15
};
enum { RECOVERY_ACTION_FIELD = 230, VALUE_TYPE_UNSIGNED_INT = 1 };
enum { MAX_GPUS = 64, MAX_PIDS = 32, TEXT = 96 };

/* A number, or the return code that the call gives instead. */
typedef struct { int code; unsigned value; } answer_t;

/* The processes of one kind. */
typedef struct { answer_t count; unsigned pids[MAX_PIDS]; } processes_t;

typedef struct {
    char uuid[TEXT];
    unsigned domain, bus, device;
    enum { PRESENT, MISSING, LOST } presence;
    answer_t recovery, ecc, pending, failed, active, links;
    char serial[TEXT], board[TEXT];
    processes_t compute, graphics;
} gpu_t;

typedef struct {
    char driver[TEXT];
    int init, hangs;
    unsigned count;
    gpu_t gpus[MAX_GPUS];
} state_t;

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

static int initialized = 0;

static answer_t parse_answer(const char *text) {
    answer_t answer = {SUCCESS, 0};
    if (text[0] == '!') answer.code = atoi(text + 1);
    else answer.value = (unsigned)strtoul(text, NULL, 10);
    return answer;
}

static void parse_pids(processes_t *processes, char *text) {
    char *rest = NULL;
    processes->count = parse_answer(text[0] == '!' ? text : "0");
    if (text[0] == '!') return;
    for (char *pid = strtok_r(text, ",", &rest); pid; pid = strtok_r(NULL, ",", &rest))
        if (processes->count.value < MAX_PIDS) processes->pids[processes->count.value++] = (unsigned)atoi(pid);
}

static void parse_gpu(gpu_t *gpu, char *fields) {
    char *rest = NULL;
    memset(gpu, 0, sizeof *gpu);
    for (char *field = strtok_r(fields, " \n", &rest); field; field = strtok_r(NULL, " \n", &rest)) {
        char *value = strchr(field, '=');
        if (!value) continue;
        *value++ = '\0';
        if (!strcmp(field, "uuid")) snprintf(gpu->uuid, TEXT, "%s", value);
        else if (!strcmp(field, "pci")) sscanf(value, "%x:%x:%x", &gpu->domain, &gpu->bus, &gpu->device);
        else if (!strcmp(field, "presence"))
            gpu->presence = !strcmp(value, "lost") ? LOST : !strcmp(value, "missing") ? MISSING : PRESENT;
        else if (!strcmp(field, "recovery")) gpu->recovery = parse_answer(value);
        else if (!strcmp(field, "ecc")) gpu->ecc = parse_answer(value);
        else if (!strcmp(field, "pending")) gpu->pending = parse_answer(value);
        else if (!strcmp(field, "failed")) gpu->failed = parse_answer(value);
        else if (!strcmp(field, "active")) gpu->active = parse_answer(value);
        else if (!strcmp(field, "links")) gpu->links = parse_answer(value);
        else if (!strcmp(field, "pids")) parse_pids(&gpu->compute, value);
        else if (!strcmp(field, "graphics")) parse_pids(&gpu->graphics, value);
        else if (!strcmp(field, "serial")) snprintf(gpu->serial, TEXT, "%s", value);
        else if (!strcmp(field, "board")) snprintf(gpu->board, TEXT, "%s", value);
    }
}

/* Fills state; returns 0 where there is no state file: a machine without a driver. */
static int load(state_t *state, const char *call) {
    char line[1024], *path = getenv("GPU_RUNBOOKS_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    memset(state, 0, sizeof *state);
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        char word[TEXT] = "", value[TEXT] = "";
        sscanf(line, "%95s %95s", word, value);
        if (!strcmp(word, "driver")) snprintf(state->driver, TEXT, "%s", value);
        else if (!strcmp(word, "init")) state->init = atoi(value);
        else if (!strcmp(word, "hang")) state->hangs |= !strcmp(value, call);
        else if (!strcmp(word, "gpu") && state->count < MAX_GPUS)
            parse_gpu(&state->gpus[state->count++], line + strlen("gpu"));
    }
    fclose(file);
    return 1;
}

/* State for a call; does not return while the file tells the call to hang. */
static int enter(state_t *state, const char *call) {
    if (!load(state, call)) return DRIVER_NOT_LOADED;
    while (state->hangs) {
        usleep(50 * 1000);
        if (!load(state, call)) return DRIVER_NOT_LOADED;
    }
    return SUCCESS;
}

static int enter_system(state_t *state, const char *call) {
    return initialized ? enter(state, call) : UNINITIALIZED;
}

/* A handle is the place of the GPU in the file, from 1 on: it stays the same when another GPU goes missing. */
static int enter_gpu(state_t *state, const char *call, void *handle, gpu_t **gpu) {
    int code = enter_system(state, call);
    if (code) return code;
    size_t place = (size_t)handle;
    if (place < 1 || place > state->count) return INVALID_ARGUMENT;
    *gpu = &state->gpus[place - 1];
    return (*gpu)->presence == PRESENT ? SUCCESS : GPU_IS_LOST;
}

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
    int code = enter_gpu(&state, __func__, handle, &gpu);
    if (!code) snprintf(uuid, length, "%s", gpu->uuid);
    return code;
}

int nvmlDeviceGetSerial(void *handle, char *serial, unsigned length) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, handle, &gpu);
    if (code) return code;
    if (gpu->serial[0] == '!') return parse_answer(gpu->serial).code;
    snprintf(serial, length, "%s", gpu->serial);
    return SUCCESS;
}

int nvmlDeviceGetPlatformInfo(void *handle, platform_info_t *info) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, handle, &gpu);
    if (code) return code;
    if (gpu->board[0] == '!') return parse_answer(gpu->board).code;
    /* Sixteen bytes, not necessarily with a zero at their end. */
    memcpy(info->chassis_serial_number, gpu->board, sizeof info->chassis_serial_number);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *handle, pci_info_t *info) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, handle, &gpu);
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
    int code = enter_gpu(&state, __func__, handle, &gpu);
    if (code) return code;
    for (int i = 0; i < count; i++) {
        int known = values[i].field_id == RECOVERY_ACTION_FIELD;
        values[i].code = (uint32_t)(known ? gpu->recovery.code : NOT_SUPPORTED);
        values[i].value_type = VALUE_TYPE_UNSIGNED_INT;
        values[i].value.u = known ? gpu->recovery.value : 0;
    }
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, handle, &gpu);
    if (code) return code;
    *corrected = *uncorrected = 0;
    *pending = gpu->pending.value;
    *failed = gpu->failed.value;
    return gpu->pending.code ? gpu->pending.code : gpu->failed.code;
}

int nvmlDeviceGetTotalEccErrors(void *handle, int error_type, int counter_type, unsigned long long *count) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, handle, &gpu);
    if (code) return code;
    /* Only uncorrected (1) volatile (0) errors are acted out. */
    *count = error_type == 1 && counter_type == 0 ? gpu->ecc.value : 0;
    return gpu->ecc.code;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, handle, &gpu);
    if (code) return code;
    if (gpu->links.code) return gpu->links.code;
    if (link >= gpu->links.value) return INVALID_ARGUMENT;
    *active = link < gpu->active.value;
    return gpu->active.code;
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
    int code = enter_gpu(&state, __func__, handle, &gpu);
    return code ? code : tell_processes(&gpu->compute, count, processes);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, process_info_t *processes) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, handle, &gpu);
    return code ? code : tell_processes(&gpu->graphics, count, processes);
}
