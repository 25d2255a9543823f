/*
 * The calls of NVML about MIG. A GPU instance and a compute instance are known by their places in the state
 * file; a handle carries the places of the GPU (from 1 on) and of the instances (from 1 on) in its bytes.
 */
#include "state.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SLICES = 7 };

/* Layouts of NVML. */
typedef struct { unsigned start, size; } placement_t;
typedef struct {
    unsigned version, id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    unsigned long long memory;
    char name[96];
} gpu_instance_profile_t;
typedef struct {
    unsigned version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    char name[96];
} compute_instance_profile_t;
typedef struct { void *device; unsigned id, profile; placement_t placement; } gpu_instance_info_t;
typedef struct {
    void *device, *gpu_instance;
    unsigned id, profile;
    placement_t placement;
} compute_instance_info_t;

/* Profiles of an H100 by NVML's index: id as the driver knows it, slices, and how many fit. */
static const struct { unsigned index, id, slices, instances; } gpu_profiles[] = {
    {0, 19, 1, 7}, {1, 14, 2, 3}, {2, 9, 3, 2}, {3, 5, 4, 1}, {4, 0, 7, 1}, {7, 20, 1, 1}, {9, 15, 1, 4},
};
/* Slices of the compute instance profiles by index, which is their id. */
static const unsigned compute_slices[] = {1, 2, 3, 4, 7};

static size_t place_of(const void *handle) { return (uintptr_t)handle & 0xff; }
static size_t gpu_instance_of(const void *handle) { return (uintptr_t)handle >> 8 & 0xff; }
static size_t compute_instance_of(const void *handle) { return (uintptr_t)handle >> 16 & 0xff; }
static void *handle_of(size_t place, size_t gpu_instance, size_t compute_instance) {
    return (void *)(uintptr_t)(place | gpu_instance << 8 | compute_instance << 16);
}

static int enter_instance(state_t *state, const char *call, const void *handle, gpu_instance_t **instance) {
    gpu_t *gpu;
    int code = enter_gpu(state, call, place_of(handle), &gpu);
    if (code) return code;
    size_t number = gpu_instance_of(handle);
    if (number < 1 || number > gpu->instances.count.value) return INVALID_ARGUMENT;
    *instance = &gpu->instances.list[number - 1];
    return SUCCESS;
}

static int write_instances(size_t place, const instances_t *instances) {
    char text[LINE / 2] = "";
    size_t length = 0;
    for (unsigned i = 0; i < instances->count.value; i++) {
        const gpu_instance_t *instance = &instances->list[i];
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%u:%u:%u", i ? "," : "",
                                   instance->part.profile, instance->part.start, instance->part.size);
        for (unsigned j = 0; j < instance->count; j++)
            length += (size_t)snprintf(text + length, sizeof text - length, "%s%u:%u:%u", j ? "+" : "/",
                                       instance->compute[j].profile, instance->compute[j].start,
                                       instance->compute[j].size);
    }
    return write_field(place, "instances", text);
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    *current = *pending = gpu->mig.value;
    return gpu->mig.code;
}

int nvmlDeviceSetMigMode(void *handle, unsigned mode, int *activation) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (!code) code = gpu->mig.code;
    if (code) return code;
    *activation = SUCCESS;
    return write_field((size_t)handle, "mig", mode ? "1" : "0");
}

int nvmlDeviceGetGpuInstanceProfileInfoV(void *handle, unsigned index, gpu_instance_profile_t *info) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    for (unsigned i = 0; i < sizeof gpu_profiles / sizeof *gpu_profiles; i++) {
        if (gpu_profiles[i].index != index) continue;
        info->id = gpu_profiles[i].id;
        info->slices = gpu_profiles[i].slices;
        info->instances = gpu_profiles[i].instances;
        return SUCCESS;
    }
    return NOT_SUPPORTED;
}

int nvmlDeviceGetGpuInstances(void *handle, unsigned profile, void **found, unsigned *count) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (code) return code;
    *count = 0;
    for (unsigned i = 0; i < gpu->instances.count.value; i++)
        if (gpu->instances.list[i].part.profile == profile)
            found[(*count)++] = handle_of((size_t)handle, i + 1, 0);
    return gpu->instances.count.code;
}

int nvmlGpuInstanceGetInfo(void *handle, gpu_instance_info_t *info) {
    state_t state;
    gpu_instance_t *instance;
    int code = enter_instance(&state, __func__, handle, &instance);
    if (code) return code;
    *info = (gpu_instance_info_t){
        handle_of(place_of(handle), 0, 0),
        (unsigned)gpu_instance_of(handle),
        instance->part.profile,
        {instance->part.start, instance->part.size},
    };
    return SUCCESS;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(void *handle, unsigned profile, const placement_t *wanted,
                                             void **created) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, (size_t)handle, &gpu);
    if (!code) code = gpu->create.code;
    if (code) return code;
    if (!gpu->mig.value) return NOT_SUPPORTED;
    instances_t *instances = &gpu->instances;
    if (instances->count.value >= SLICES) return INSUFFICIENT_RESOURCES;
    for (unsigned i = 0; i < instances->count.value; i++) {
        const part_t *part = &instances->list[i].part;
        if (wanted->start < part->start + part->size && part->start < wanted->start + wanted->size)
            return INSUFFICIENT_RESOURCES;
    }
    instances->list[instances->count.value++] =
        (gpu_instance_t){.part = {profile, wanted->start, wanted->size}};
    *created = handle_of((size_t)handle, instances->count.value, 0);
    return write_instances((size_t)handle, instances);
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *handle, unsigned index, unsigned engines,
                                                  compute_instance_profile_t *info) {
    state_t state;
    gpu_instance_t *instance;
    int code = enter_instance(&state, __func__, handle, &instance);
    if (code) return code;
    if (engines || index >= sizeof compute_slices / sizeof *compute_slices) return NOT_SUPPORTED;
    info->id = index;
    info->slices = compute_slices[index];
    info->instances = SLICES / compute_slices[index];
    return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstances(void *handle, unsigned profile, void **found, unsigned *count) {
    state_t state;
    gpu_instance_t *instance;
    int code = enter_instance(&state, __func__, handle, &instance);
    if (code) return code;
    *count = 0;
    for (unsigned i = 0; i < instance->count; i++)
        if (instance->compute[i].profile == profile)
            found[(*count)++] = handle_of(place_of(handle), gpu_instance_of(handle), i + 1);
    return SUCCESS;
}

int nvmlComputeInstanceGetInfo_v2(void *handle, compute_instance_info_t *info) {
    state_t state;
    gpu_instance_t *instance;
    int code = enter_instance(&state, __func__, handle, &instance);
    if (code) return code;
    size_t number = compute_instance_of(handle);
    if (number < 1 || number > instance->count) return INVALID_ARGUMENT;
    const part_t *part = &instance->compute[number - 1];
    *info = (compute_instance_info_t){
        handle_of(place_of(handle), 0, 0),
        handle_of(place_of(handle), gpu_instance_of(handle), 0),
        (unsigned)number - 1,
        part->profile,
        {part->start, part->size},
    };
    return SUCCESS;
}

int nvmlGpuInstanceCreateComputeInstanceWithPlacement(void *handle, unsigned profile, const placement_t *wanted,
                                                      void **created) {
    state_t state;
    gpu_t *gpu;
    int code = enter_gpu(&state, __func__, place_of(handle), &gpu);
    if (!code) code = gpu->create.code;
    if (code) return code;
    size_t number = gpu_instance_of(handle);
    if (number < 1 || number > gpu->instances.count.value) return INVALID_ARGUMENT;
    gpu_instance_t *instance = &gpu->instances.list[number - 1];
    if (instance->count >= SLICES) return INSUFFICIENT_RESOURCES;
    instance->compute[instance->count++] = (part_t){profile, wanted->start, wanted->size};
    *created = handle_of(place_of(handle), number, instance->count);
    return write_instances(place_of(handle), &gpu->instances);
}
