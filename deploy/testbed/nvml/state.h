/*
 * The state file that stands behind the stand-in for libnvidia-ml.so.1.
 *
 * The file is named by GPU_RUNBOOKS_NVML_STATE and read anew at each call, so whoever rewrites it (by
 * rename) changes the hardware under a running process. One word and its values a line:
 *
 *   driver 570.148.08           driver version
 *   init 0                      what nvmlInitWithFlags returns (9: driver not loaded)
 *   hang nvmlDeviceGetCount_v2  this call returns only when the line is gone; may be repeated
 *   gpu uuid=GPU-... pci=0000:53:00 presence=present recovery=0 ecc=0 pending=0 failed=0 active=18 links=18
 *       retiring=0 retired1=0 retired2=0
 *                               before Ampere: whether pages wait to be retired, and how many were for
 *                               single-bit errors and for double-bit errors
 *       pids= graphics=         all on one line; pids of compute processes and of graphics processes
 *       serial= board=          serial numbers of the GPU and of its chassis
 *       minor=0 arch=9          number of /dev/nvidia<minor>; NVML's number of the architecture
 *       remote=2 fabric=3       what the NVLinks lead to (0 a GPU, 2 a switch); state of the fabric
 *       virtual=1               virtualization mode (1 passed through whole, 2 a vGPU)
 *       persistence=1           calls change it here
 *       mig=0 instances=9:0:4/0:0:1+0:1:1,19:4:1/0:0:1
 *                               MIG mode, and GPU instances (profile:start:size) with their compute instances;
 *                               calls change both here
 *       create=0                what the creation of an instance returns
 *
 * presence is present, missing (not counted) or lost (counted, every call returns 15). A value of the form
 * !N makes the call behind it return N (3: not supported). Other words belong to the stand-in nvidia-smi.
 * Whoever changes the file on the basis of what it says holds a lock on the file of its name and `.lock`.
 */
#include <stddef.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, INSUFFICIENT_RESOURCES = 23, UNKNOWN_ERROR = 999
};
enum { MAX_GPUS = 64, MAX_PIDS = 32, MAX_INSTANCES = 8, TEXT = 96, LINE = 4096 };

/* A number, or the return code that the call gives instead. */
typedef struct { int code; unsigned value; } answer_t;

/* The processes of one kind. */
typedef struct { answer_t count; unsigned pids[MAX_PIDS]; } processes_t;

/* A part of a GPU, or of a GPU instance. */
typedef struct { unsigned profile, start, size; } part_t;

typedef struct { part_t part; unsigned count; part_t compute[MAX_INSTANCES]; } gpu_instance_t;

/* The GPU instances of one GPU. */
typedef struct { answer_t count; gpu_instance_t list[MAX_INSTANCES]; } instances_t;

typedef struct {
    char uuid[TEXT];
    unsigned domain, bus, device;
    enum { PRESENT, MISSING, LOST } presence;
    answer_t recovery, ecc, pending, failed, retiring, retired1, retired2, active, links;
    answer_t minor, architecture, remote, fabric, virtualization, persistence, mig, create;
    char serial[TEXT], board[TEXT];
    processes_t compute, graphics;
    instances_t instances;
} gpu_t;

typedef struct {
    char driver[TEXT];
    int init, hangs;
    unsigned count;
    gpu_t gpus[MAX_GPUS];
} state_t;

answer_t parse_answer(const char *text);

/* State for a call; does not return while the file tells the call to hang. */
int enter(state_t *state, const char *call);

/* The same for a call that needs an initialised library. */
int enter_system(state_t *state, const char *call);

/* The same for a call on a GPU. A handle is the place of the GPU in the file, from 1 on: it stays the same
 * when another GPU goes missing. */
int enter_gpu(state_t *state, const char *call, size_t place, gpu_t **gpu);

/* Write a value of a GPU into the file. */
int write_field(size_t place, const char *field, const char *value);

extern int initialized;
