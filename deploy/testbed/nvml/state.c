/* Reads the state file of the stand-in, and writes what a call changes. state.h tells the format. */
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

int initialized = 0;

answer_t parse_answer(const char *text) {
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

/* "profile:start:size", "/", and the same of each compute instance with "+" between. */
static void parse_instances(instances_t *instances, char *text) {
    char *rest = NULL;
    instances->count = parse_answer(text[0] == '!' ? text : "0");
    if (text[0] == '!') return;
    for (char *item = strtok_r(text, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        if (instances->count.value >= MAX_INSTANCES) return;
        gpu_instance_t *instance = &instances->list[instances->count.value++];
        part_t *part = &instance->part;
        char *compute = strchr(item, '/'), *others = NULL;
        sscanf(item, "%u:%u:%u", &part->profile, &part->start, &part->size);
        if (!compute) continue;
        for (compute = strtok_r(compute, "/+", &others); compute; compute = strtok_r(NULL, "+", &others)) {
            if (instance->count >= MAX_INSTANCES) break;
            part = &instance->compute[instance->count++];
            sscanf(compute, "%u:%u:%u", &part->profile, &part->start, &part->size);
        }
    }
}

static void parse_gpu(gpu_t *gpu, char *fields) {
    const struct { const char *field; answer_t *answer; } numbers[] = {
        {"recovery", &gpu->recovery}, {"ecc", &gpu->ecc}, {"pending", &gpu->pending},
        {"failed", &gpu->failed}, {"retiring", &gpu->retiring}, {"retired1", &gpu->retired1},
        {"retired2", &gpu->retired2}, {"active", &gpu->active}, {"links", &gpu->links},
        {"minor", &gpu->minor}, {"arch", &gpu->architecture}, {"remote", &gpu->remote},
        {"fabric", &gpu->fabric}, {"virtual", &gpu->virtualization},
        {"persistence", &gpu->persistence}, {"mig", &gpu->mig}, {"create", &gpu->create},
    };
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
        else if (!strcmp(field, "pids")) parse_pids(&gpu->compute, value);
        else if (!strcmp(field, "graphics")) parse_pids(&gpu->graphics, value);
        else if (!strcmp(field, "serial")) snprintf(gpu->serial, TEXT, "%s", value);
        else if (!strcmp(field, "board")) snprintf(gpu->board, TEXT, "%s", value);
        else if (!strcmp(field, "instances")) parse_instances(&gpu->instances, value);
        for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
            if (!strcmp(field, numbers[i].field)) *numbers[i].answer = parse_answer(value);
    }
}

/* Fills state; returns 0 where there is no state file: a machine without a driver. */
static int load(state_t *state, const char *call) {
    char line[LINE], *path = getenv("GPU_RUNBOOKS_NVML_STATE");
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

int enter(state_t *state, const char *call) {
    if (!load(state, call)) return DRIVER_NOT_LOADED;
    while (state->hangs) {
        usleep(50 * 1000);
        if (!load(state, call)) return DRIVER_NOT_LOADED;
    }
    return SUCCESS;
}

int enter_system(state_t *state, const char *call) {
    return initialized ? enter(state, call) : UNINITIALIZED;
}

int enter_gpu(state_t *state, const char *call, size_t place, gpu_t **gpu) {
    int code = enter_system(state, call);
    if (code) return code;
    if (place < 1 || place > state->count) return INVALID_ARGUMENT;
    *gpu = &state->gpus[place - 1];
    return (*gpu)->presence == PRESENT ? SUCCESS : GPU_IS_LOST;
}

/* The line with the value of one field replaced. */
static void print_replaced(FILE *file, const char *line, const char *field, const char *value) {
    char wanted[TEXT];
    snprintf(wanted, sizeof wanted, " %s=", field);
    const char *found = strstr(line, wanted);
    if (!found) {
        fputs(line, file);
        return;
    }
    fprintf(file, "%.*s%s%s", (int)(found - line), line, wanted, value);
    fputs(found + strlen(wanted) + strcspn(found + strlen(wanted), " \n"), file);
}

int write_field(size_t place, const char *field, const char *value) {
    char line[LINE], fresh[LINE], lock_name[LINE], *path = getenv("GPU_RUNBOOKS_NVML_STATE");
    if (!path) return DRIVER_NOT_LOADED;
    snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid());
    snprintf(lock_name, sizeof lock_name, "%s.lock", path);
    int lock = open(lock_name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock < 0) return UNKNOWN_ERROR;
    flock(lock, LOCK_EX);
    FILE *old = fopen(path, "r"), *file = old ? fopen(fresh, "w") : NULL;
    while (file && fgets(line, sizeof line, old)) {
        if (!strncmp(line, "gpu ", 4) && --place == 0) print_replaced(file, line, field, value);
        else fputs(line, file);
    }
    if (old) fclose(old);
    int written = file && !fclose(file) && !rename(fresh, path);
    close(lock);
    return written ? SUCCESS : UNKNOWN_ERROR;
}
