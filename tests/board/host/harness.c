/* Runs .pte files on the host, as the test asks over a pipe. The NPU is the test, or the driver with a stand-in
 * behind its registers.
 *
 * A request is a header, the file, then each .ptd file and each input (its size and bytes). The answer is a report; before it, for each job
 * of the NPU, the job, to which the test answers with a status and the new scratch memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ethosu.h"
#include "kernel.h"

enum { ID = 0x00, STATUS = 0x04, QBASE = 0x10, QSIZE = 0x20, PROT = 0x24, CONFIG = 0x28, REGISTERS = 0x2000 };
enum { NO_INPUT = 0xFFFFFFFF, MOST_INPUT_BYTES = 1 << 24, MOST_SECONDS = 30 };

typedef struct request {
    uint32_t size;
    uint32_t method;
    uint32_t pools[4]; /* method, planned, scratch, fast scratch */
    uint32_t asks_npu;
    uint32_t runs;
    uint32_t files; /* .ptd files */
    uint32_t inputs;
} request;

/* A .ptd file. */
typedef struct data_file {
    uint8_t *bytes;
    uint32_t size;
    tosaic_data opened;
} data_file;

static void read_all(void *to, size_t size) {
    if (size != 0 && fread(to, 1, size, stdin) != size) {
        exit(0);
    }
}

static void write_all(const void *from, size_t size) {
    if (size != 0 && fwrite(from, 1, size, stdout) != size) {
        exit(1);
    }
}

static void write_word(uint32_t word) { write_all(&word, sizeof word); }

/* Exactly this large, so that the sanitizer sees every access outside. */
static void *allocate(size_t size) {
    void *memory = NULL;
    if (size != 0 && posix_memalign(&memory, TOSAIC_ALIGNMENT, size) != 0) {
        exit(1);
    }
    return memory;
}

static tosaic_status ask_npu(void *context, const tosaic_npu_job *job, uint32_t *detail) {
    (void)context;
    write_word('J');
    write_word(job->commands_size);
    write_word(job->weights_size);
    write_word(job->scratch_size);
    write_word(job->fast_scratch_size);
    write_all(job->commands, job->commands_size);
    write_all(job->weights, job->weights_size);
    write_all(job->scratch, job->scratch_size);
    fflush(stdout);
    uint32_t status;
    read_all(&status, sizeof status);
    read_all(job->scratch, job->scratch_size);
    *detail = status;
    return status == 0 ? TOSAIC_OK : TOSAIC_NPU_BUS_FAULT;
}

/* The driver, on registers that are plain memory, and the job that it runs. */
static uint32_t registers[REGISTERS / 4];
static tosaic_ethosu driver;
static const tosaic_npu_job *running;

static uint32_t now(void) {
    static uint32_t time;
    return time++;
}

/* Does what an NPU could: reads the commands that the driver names and all weights, and writes all scratch memory. */
static void work(void) {
    uint64_t base = registers[QBASE / 4] | (uint64_t)registers[QBASE / 4 + 1] << 32;
    const uint8_t *commands = (const uint8_t *)(uintptr_t)base;
    uint8_t sum = 0;
    for (uint32_t i = 0; i < registers[QSIZE / 4]; i++) {
        sum = (uint8_t)(sum + commands[i]);
    }
    for (uint32_t i = 0; i < running->weights_size; i++) {
        sum = (uint8_t)(sum + running->weights[i]);
    }
    memset(running->scratch, sum, running->scratch_size);
    if (running->fast_scratch != NULL) {
        memset(running->fast_scratch, sum, running->fast_scratch_size);
    }
    registers[STATUS / 4] = 1u << 5 | 1u << 1; /* the end was reached, and the interrupt raised */
    tosaic_ethosu_interrupt(&driver);
}

/* Runs a job with the driver, on an NPU that suits the file unless its container says too little. */
static tosaic_status pretend_npu(void *context, const tosaic_npu_job *job, uint32_t *detail) {
    (void)context;
    memset(registers, 0, sizeof registers);
    registers[PROT / 4] = 1;
    registers[ID / 4] = 0x10066001;
    if (job->commands_size >= 16) {
        memcpy(&registers[CONFIG / 4], job->commands + 8, 4);
        memcpy(&registers[ID / 4], job->commands + 12, 4);
    }
    driver = (tosaic_ethosu){
        .config = {.base = (uintptr_t)registers, .time_limit = 100, .now = now, .wait = work},
    };
    running = job;
    tosaic_status status = tosaic_ethosu_init(&driver, detail);
    return status == TOSAIC_OK ? tosaic_ethosu_run(&driver, job, detail) : status;
}

/* Sets the inputs that the test sent, and ones for all others; returns the memory to free. */
static tosaic_status set_inputs(tosaic_method *method, uint8_t **given, const uint32_t *sizes, uint32_t count) {
    for (uint32_t i = 0; i < tosaic_count_inputs(method); i++) {
        const tosaic_value *value = tosaic_get_input(method, i);
        if (value == NULL || value->kind != TOSAIC_TENSOR || i >= count) {
            continue;
        }
        if (sizes[i] == NO_INPUT && given[i] == NULL && value->as.tensor->bytes <= MOST_INPUT_BYTES) {
            given[i] = allocate(value->as.tensor->bytes);
            if (given[i] != NULL) {
                memset(given[i], 1, value->as.tensor->bytes);
            }
        }
        uint32_t size = sizes[i] == NO_INPUT ? value->as.tensor->bytes : sizes[i];
        tosaic_status status = TOSAIC_OK;
        if (given[i] != NULL) {
            status = tosaic_set_input(method, i, given[i], size);
        }
        if (status != TOSAIC_OK && sizes[i] != NO_INPUT) {
            return status;
        }
    }
    return TOSAIC_OK;
}

static void write_output(const tosaic_value *value) {
    write_word(value == NULL ? TOSAIC_NONE : value->kind);
    if (value == NULL || value->kind != TOSAIC_TENSOR) {
        int64_t number = value == NULL ? 0 : value->kind == TOSAIC_BOOLEAN ? value->as.boolean : value->as.integer;
        write_all(&number, sizeof number);
        return;
    }
    const tosaic_tensor *tensor = value->as.tensor;
    uint32_t bytes = tensor->data == NULL ? 0 : tensor->bytes;
    write_word(tensor->dtype);
    write_word(tensor->rank);
    write_all(tensor->sizes, tensor->rank * sizeof(int32_t));
    write_all(tensor->dim_order, tensor->rank);
    write_word(bytes);
    write_all(tensor->data, bytes);
}

static void write_report(tosaic_status status, const tosaic_method *method, const tosaic_pool *pools) {
    const tosaic_failure *failure = &method->failure;
    write_word('E');
    write_word(status);
    write_word(failure->instruction);
    write_word(failure->detail);
    bool dotted = failure->overload.length != 0;
    write_word(failure->name.length + (dotted ? 1u + failure->overload.length : 0));
    write_all(failure->name.start, failure->name.length);
    write_all(".", dotted ? 1 : 0);
    write_all(failure->overload.start, dotted ? failure->overload.length : 0);
    for (uint32_t i = 0; i < 4; i++) {
        write_word(pools[i].peak);
    }
    uint32_t outputs = status == TOSAIC_OK ? tosaic_count_outputs(method) : 0;
    write_word(outputs);
    for (uint32_t i = 0; i < outputs; i++) {
        write_output(tosaic_get_output(method, i));
    }
    fflush(stdout);
}

static void serve(const request *ask) {
    uint8_t *file = allocate(ask->size);
    uint8_t **inputs = calloc(ask->inputs + 1u, sizeof *inputs);
    uint32_t *sizes = calloc(ask->inputs + 1u, sizeof *sizes);
    read_all(file, ask->size);
    data_file *files = calloc(ask->files + 1u, sizeof *files);
    for (uint32_t i = 0; i < ask->files; i++) {
        read_all(&files[i].size, sizeof files[i].size);
        files[i].bytes = allocate(files[i].size);
        read_all(files[i].bytes, files[i].size);
    }
    for (uint32_t i = 0; i < ask->inputs; i++) {
        read_all(&sizes[i], sizeof sizes[i]);
        if (sizes[i] != NO_INPUT) {
            inputs[i] = allocate(sizes[i]);
            read_all(inputs[i], sizes[i]);
        }
    }
    tosaic_pool pools[4];
    for (uint32_t i = 0; i < 4; i++) {
        pools[i] = (tosaic_pool){.base = allocate(ask->pools[i]), .size = ask->pools[i]};
    }
    tosaic_npu npu = {ask->asks_npu ? ask_npu : pretend_npu, NULL};
    tosaic_setup setup = {
        .method = &pools[0],
        .planned = &pools[1],
        .scratch = &pools[2],
        .fast_scratch = &pools[3],
        .kernels = tosaic_kernels,
        .kernel_count = tosaic_kernel_count,
        .npu = &npu,
        .step_limit = 10000,
    };
    tosaic_program program;
    tosaic_method method = {.failure = {.instruction = UINT32_MAX}};
    tosaic_status status = tosaic_open(&program, file, ask->size);
    for (uint32_t i = 0; i < ask->files && status == TOSAIC_OK; i++) {
        status = tosaic_add_data(&program, &files[i].opened, files[i].bytes, files[i].size);
    }
    if (status == TOSAIC_OK) {
        status = tosaic_load(&method, &program, ask->method, &setup);
    }
    for (uint32_t i = 0; i < ask->runs && status == TOSAIC_OK; i++) {
        status = set_inputs(&method, inputs, sizes, ask->inputs);
        if (status == TOSAIC_OK) {
            status = tosaic_run(&method);
        }
    }
    write_report(status, &method, pools);
    for (uint32_t i = 0; i < 4; i++) {
        free(pools[i].base);
    }
    for (uint32_t i = 0; i < ask->inputs; i++) {
        free(inputs[i]);
    }
    for (uint32_t i = 0; i < ask->files; i++) {
        free(files[i].bytes);
    }
    free(files);
    free(inputs);
    free(sizes);
    free(file);
}

int main(void) {
    for (;;) {
        request ask;
        read_all(&ask, sizeof ask);
        alarm(MOST_SECONDS);
        serve(&ask);
        alarm(0);
    }
}
