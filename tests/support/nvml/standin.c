/* A stand-in for libnvidia-ml.so.1 that answers from a file, for tests on machines without a GPU.

   NVML_STANDIN names a file of lines `key=value`, made from an nvml.json by standin.py:
     init=CODE              what nvmlInitWithFlags returns (0: success)
     hang=FUNCTION          that function never returns
     fail.FUNCTION=CODE     that function returns CODE
     devices=N, devices.I.KEY=VALUE, p2p.I.J=STATUS, pid.PID=NAME
   A key that is missing is answered with NVML_ERROR_NOT_SUPPORTED, as real cards do.
   Signatures and structures are those of nvml.h (API version 13). */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

/* The value of a key, or NULL. The file is read again each time: nobody counts microseconds here. */
static const char *value_of(const char *key) {
    static char line[512];
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = strlen(key);
    if (!file) return NULL;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) == 0 && line[length] == '=') {
            line[strcspn(line, "\n")] = 0;
            fclose(file);
            return line + length + 1;
        }
    }
    fclose(file);
    return NULL;
}

/* What the file wants a function to do before it answers: hang, or fail. */
static nvmlReturn_t enter(const char *function) {
    char key[128];
    const char *hang = value_of("hang");
    if (hang && strcmp(hang, function) == 0)
        for (;;) pause();
    snprintf(key, sizeof key, "fail.%s", function);
    const char *code = value_of(key);
    return code ? atoi(code) : SUCCESS;
}

#define ENTER                                       \
    do {                                            \
        nvmlReturn_t code_ = enter(__func__);       \
        if (code_ != SUCCESS) return code_;         \
    } while (0)

static const char *of_device(nvmlDevice_t device, const char *key) {
    char name[128];
    snprintf(name, sizeof name, "devices.%ld.%s", (long)device - 1, key);
    return value_of(name);
}

static nvmlReturn_t put_text(const char *value, char *into, unsigned int length) {
    if (!value) return NOT_SUPPORTED;
    snprintf(into, length, "%s", value);
    return SUCCESS;
}

static nvmlReturn_t put_number(const char *value, unsigned int *into) {
    if (!value) return NOT_SUPPORTED;
    *into = (unsigned int)strtoul(value, NULL, 10);
    return SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    ENTER;
    const char *code = value_of("init");
    return code ? atoi(code) : SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
        case 3: return "Not Supported";
        case 9: return "Driver Not Loaded";
        case 15: return "GPU is lost";
        case 18: return "Driver/library version mismatch";
        case 999: return "Unknown Error";
        default: return "Stand-in Error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *into, unsigned int length) {
    ENTER;
    return put_text(value_of("driver_version"), into, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *into) {
    ENTER;
    return put_number(value_of("cuda_driver_version"), (unsigned int *)into);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *into, unsigned int length) {
    char key[64];
    ENTER;
    snprintf(key, sizeof key, "pid.%u", pid);
    return put_text(value_of(key), into, length);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *into) {
    ENTER;
    return put_number(value_of("devices"), into);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *into) {
    ENTER;
    const char *count = value_of("devices");
    if (!count || index >= (unsigned int)atoi(count)) return INVALID_ARGUMENT;
    *into = (nvmlDevice_t)((long)index + 1);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *into) {
    ENTER;
    memset(into, 0, sizeof *into);
    return put_text(of_device(device, "pci_bus_id"), into->busId, sizeof into->busId);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *into) {
    ENTER;
    const char *total = of_device(device, "memory_total");
    if (!total) return NOT_SUPPORTED;
    into->total = strtoull(total, NULL, 10);
    const char *used = of_device(device, "memory_used");
    into->used = used ? strtoull(used, NULL, 10) : 0;
    into->free = into->total - into->used;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlMemory_t *into) {
    ENTER;
    const char *total = of_device(device, "bar1_total");
    if (!total) return NOT_SUPPORTED;
    into->total = into->free = strtoull(total, NULL, 10);
    into->used = 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    ENTER;
    const char *value = of_device(device, "compute_capability");
    if (!value || sscanf(value, "%d.%d", major, minor) != 2) return NOT_SUPPORTED;
    return SUCCESS;
}

#define TEXT_OF_DEVICE(FUNCTION, KEY)                                                     \
    nvmlReturn_t FUNCTION(nvmlDevice_t device, char *into, unsigned int length) {         \
        ENTER;                                                                            \
        return put_text(of_device(device, KEY), into, length);                            \
    }

#define NUMBER_OF_DEVICE(FUNCTION, KEY)                                                   \
    nvmlReturn_t FUNCTION(nvmlDevice_t device, unsigned int *into) {                      \
        ENTER;                                                                            \
        return put_number(of_device(device, KEY), into);                                  \
    }

#define MODE_OF_DEVICE(FUNCTION, KEY)                                                     \
    nvmlReturn_t FUNCTION(nvmlDevice_t device, unsigned int *now, unsigned int *pending) { \
        ENTER;                                                                            \
        nvmlReturn_t code = put_number(of_device(device, KEY), now);                      \
        if (code == SUCCESS) *pending = *now;                                             \
        return code;                                                                      \
    }

TEXT_OF_DEVICE(nvmlDeviceGetName, "name")
TEXT_OF_DEVICE(nvmlDeviceGetUUID, "uuid")
NUMBER_OF_DEVICE(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
NUMBER_OF_DEVICE(nvmlDeviceGetPowerUsage, "power_draw_mw")
NUMBER_OF_DEVICE(nvmlDeviceGetPersistenceMode, "persistence_mode")
NUMBER_OF_DEVICE(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen_current")
NUMBER_OF_DEVICE(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
NUMBER_OF_DEVICE(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width_current")
NUMBER_OF_DEVICE(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
MODE_OF_DEVICE(nvmlDeviceGetEccMode, "ecc_mode")
MODE_OF_DEVICE(nvmlDeviceGetMigMode, "mig_mode")

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *into) {
    (void)sensor;
    ENTER;
    return put_number(of_device(device, "temperature_c"), into);
}

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *into) {
    ENTER;
    into->memory = 0;
    return put_number(of_device(device, "utilization_percent"), &into->gpu);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *into) {
    ENTER;
    return put_number(of_device(device, type == 2 ? "memory_clock_mhz" : "sm_clock_mhz"), into);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long *into) {
    ENTER;
    const char *value = of_device(device, "throttle_reasons");
    if (!value) return NOT_SUPPORTED;
    *into = strtoull(value, NULL, 10);
    return SUCCESS;
}

/* `devices.I.processes=PID:BYTES,PID:BYTES` */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *into) {
    ENTER;
    const char *at = of_device(device, "processes");
    unsigned int found = 0, room = into ? *count : 0;
    for (; at && *at; found++) {
        char *end;
        unsigned int pid = (unsigned int)strtoul(at, &end, 10);
        unsigned long long used = *end == ':' ? strtoull(end + 1, &end, 10) : 0;
        if (found < room) into[found] = (nvmlProcessInfo_t){pid, used, ~0u, ~0u};
        at = *end == ',' ? end + 1 : end;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_t *into) {
    (void)device;
    (void)into;
    ENTER;
    *count = 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, int kind, int *into) {
    char key[64];
    (void)kind;
    ENTER;
    snprintf(key, sizeof key, "p2p.%ld.%ld", (long)a - 1, (long)b - 1);
    return put_number(value_of(key), (unsigned int *)into);
}
