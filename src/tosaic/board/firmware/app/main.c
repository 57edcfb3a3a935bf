/* The application: runs the model of this build once, or on its samples, and reports on the console. */
#include "board.h"
#include "board_config.h"
#include "console.h"
#include "cortex_m.h"
#include "host.h"
#include "kernel.h"
#include "memory.h"
#include "model.h"
#include "report.h"

enum { DONE = 0, TEST_FAILED = 1, ERROR = 2 };

/* All that lives as long as the program. */
typedef struct app {
    host host;
    tosaic_ethosu npu;
    tosaic_npu runner;
    tosaic_setup setup;
    tosaic_program program;
    tosaic_method method;
    profile times;
    tosaic_status npu_status; /* a program without delegates needs no NPU */
} app;

static app self;

void board_handle_npu(void) { tosaic_ethosu_interrupt(&self.npu); }

static int fail(const char *what, tosaic_status status) {
    report_failure(what, status, &self.method.failure);
    return ERROR;
}

static tosaic_status load(void) {
    self.setup = (tosaic_setup){
        .method = &model_method_pool,
        .planned = &model_planned_pool,
        .scratch = &model_scratch_pool,
        .fast_scratch = &model_fast_scratch_pool,
        .kernels = tosaic_kernels,
        .kernel_count = tosaic_kernel_count,
        .npu = self.npu_status == TOSAIC_OK ? &self.runner : NULL,
        .observe = report_step,
        .observer = &self.times,
    };
    self.method.failure = (tosaic_failure){.instruction = UINT32_MAX};
    self.times.method = &self.method;
    tosaic_status status = tosaic_open(&self.program, tosaic_model, model_size);
    for (uint32_t i = 0; i < model_data_count && status == TOSAIC_OK; i++) {
        model_data_file *file = &model_data[i];
        status = tosaic_add_data(&self.program, &file->opened, file->start, file->size);
    }
    if (status != TOSAIC_OK) {
        return status;
    }
    tosaic_text name = tosaic_get_method_name(&self.program, model_method);
    say(INFO "Model buffer loaded, has %u methods\n", tosaic_count_methods(&self.program));
    say(INFO "Running method %t\n", &name);
    return tosaic_load(&self.method, &self.program, model_method, &self.setup);
}

/* Fills a tensor with ones. */
static void fill(const tosaic_tensor *tensor, uint8_t *to) {
    static const float one = 1.0f;
    uint32_t size = tosaic_get_element_size(tensor->dtype);
    memset(to, 0, tensor->bytes);
    for (uint32_t at = 0; at < tensor->bytes; at += size) {
        to[at] = 1;
        if (tensor->dtype == TOSAIC_FLOAT32) {
            memcpy(to + at, &one, sizeof one);
        }
    }
}

/* Gives memory to inputs and outputs for which the program plans none. False if that fails, which is reported. */
static bool give_memory(void) {
    uint32_t inputs = tosaic_count_inputs(&self.method);
    uint32_t outputs = tosaic_count_outputs(&self.method);
    for (uint32_t i = 0; i < inputs + outputs; i++) {
        bool is_input = i < inputs;
        const tosaic_value *value =
            is_input ? tosaic_get_input(&self.method, i) : tosaic_get_output(&self.method, i - inputs);
        if (value->kind != TOSAIC_TENSOR || value->as.tensor->access != TOSAIC_CALLERS ||
            value->as.tensor->data != NULL) {
            continue;
        }
        void *memory;
        uint32_t bytes = value->as.tensor->bytes;
        if (!tosaic_take(&model_interface_pool, 1, bytes, &memory)) {
            say("E [tosaic] the interface pool is too small: inputs and outputs need %u bytes so far\n",
                model_interface_pool.peak);
            return false;
        }
        tosaic_status status = is_input ? tosaic_set_input(&self.method, i, memory, bytes)
                                        : tosaic_set_output(&self.method, i - inputs, memory, bytes);
        if (status != TOSAIC_OK) {
            (void)fail("giving memory to inputs and outputs", status);
            return false;
        }
    }
    return true;
}

/* Sets the inputs: those of a sample, files of the host, or ones. */
static tosaic_status set_inputs(const model_sample *sample) {
    for (uint32_t i = 0; i < tosaic_count_inputs(&self.method); i++) {
        const tosaic_value *value = tosaic_get_input(&self.method, i);
        if (value->kind != TOSAIC_TENSOR || value->as.tensor->bytes == 0) {
            continue;
        }
        const tosaic_tensor *tensor = value->as.tensor;
        self.method.failure.detail = tensor->bytes;
        if (tensor->access == TOSAIC_CONSTANT) {
            return TOSAIC_BAD_INPUT;
        }
        if (sample != NULL) {
            memcpy(tensor->data, sample->inputs[i], tensor->bytes);
        } else if (!host_has_input(&self.host, i)) {
            fill(tensor, tensor->data);
        } else if (!host_read_input(&self.host, i, tensor->data, tensor->bytes)) {
            return TOSAIC_BAD_INPUT;
        }
    }
    return TOSAIC_OK;
}

static tosaic_status run(const model_sample *sample) {
    say(INFO "Preparing inputs...\n");
    tosaic_status status = set_inputs(sample);
    if (status != TOSAIC_OK) {
        return status;
    }
    say(INFO "Input prepared.\n");
    say(INFO "Starting the model execution...\n");
    uint64_t begin = cortex_get_cycles();
    self.times.printing = 0;
    status = tosaic_run(&self.method);
    self.times.total += cortex_get_cycles() - begin - self.times.printing;
    return status;
}

static float magnitude(float x) { return x < 0.0f ? -x : x; }

/* Whether element `index` of an output is what it must be: floats within the tolerance, all else exactly. */
static bool is_expected(const tosaic_tensor *tensor, const uint8_t *expected, uint32_t index) {
    uint32_t size = tosaic_get_element_size(tensor->dtype);
    const uint8_t *found = (const uint8_t *)tensor->data + index * size;
    if (memcmp(found, expected + index * size, size) == 0) {
        return true;
    }
    if (tensor->dtype != TOSAIC_FLOAT32) {
        return false;
    }
    float x;
    float y;
    memcpy(&x, found, sizeof x);
    memcpy(&y, expected + index * size, sizeof y);
    return magnitude(x - y) <= model_atol + model_rtol * magnitude(y);
}

/* Compares the outputs with those of a sample; prints the first difference. */
static bool check(uint32_t number, const model_sample *sample) {
    for (uint32_t i = 0; i < tosaic_count_outputs(&self.method); i++) {
        const tosaic_value *value = tosaic_get_output(&self.method, i);
        if (value->kind != TOSAIC_TENSOR) {
            continue;
        }
        uint32_t count = tosaic_count(value->as.tensor);
        for (uint32_t j = 0; j < count; j++) {
            if (!is_expected(value->as.tensor, sample->outputs[i], j)) {
                say("E [tosaic] sample %u: the first difference is in output %u, element %u: ", number, i, j);
                report_difference(value->as.tensor, sample->outputs[i], j);
                return false;
            }
        }
    }
    return true;
}

static int run_all(void) {
    bool passed = true;
    uint32_t runs = model_sample_count != 0 ? model_sample_count : 1;
    for (uint32_t i = 0; i < runs; i++) {
        const model_sample *sample = model_sample_count != 0 ? &model_samples[i] : NULL;
        tosaic_status status = run(sample);
        if (status != TOSAIC_OK) {
            return fail("the run", status);
        }
        passed = (sample == NULL || check(i, sample)) && passed;
    }
    report_run(&self.times, &self.npu);
    report_memory();
    say(INFO "Model executed successfully.\n");
    report_outputs(&self.method);
    for (uint32_t i = 0; i < tosaic_count_outputs(&self.method); i++) {
        const tosaic_value *value = tosaic_get_output(&self.method, i);
        if (value->kind == TOSAIC_TENSOR &&
            !host_write_output(&self.host, i, value->as.tensor->data, value->as.tensor->bytes)) {
            say("E [tosaic] the host did not take output %u\n", i);
            return ERROR;
        }
    }
    if (model_sample_count != 0) {
        say("Test_result: %s\n", passed ? "PASS" : "FAIL");
    }
    say(INFO "Program complete, exiting.\n");
    return passed ? DONE : TEST_FAILED;
}

int main(void) {
    board_init();
    cortex_start_timer(BOARD_CLOCK);
    host_connect(&self.host);
    say(INFO "Model in %x\n", (uint32_t)(uintptr_t)tosaic_model);
    say(INFO "Model PTE file loaded. Size: %u bytes.\n", model_size);
    uint32_t detail = 0;
    self.npu_status = board_find_npu(&self.npu, &self.runner, &detail);
    tosaic_status status = load();
    if (status == TOSAIC_NO_BACKEND && self.npu_status != TOSAIC_OK) {
        self.method.failure = (tosaic_failure){.instruction = UINT32_MAX, .detail = detail};
        return fail("the start of the NPU", self.npu_status);
    }
    if (status != TOSAIC_OK) {
        return fail("loading the model", status);
    }
    report_method(&self.method);
    return give_memory() ? run_all() : ERROR;
}
