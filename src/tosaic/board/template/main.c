/* Runs the model once, with inputs of ones, and prints its outputs. Begin here: replace what fills the inputs and what
 * uses the outputs. tosaic.h is the runtime, model.h what was generated for the model, board.h what a board provides. */
#include "board.h"
#include "board_config.h"
#include "console.h"
#include "cortex_m.h"
#include "kernel.h"
#include "model.h"
#include "report.h"

static tosaic_ethosu npu;
static tosaic_npu runner;
static tosaic_program program;
static tosaic_method method;

static tosaic_setup setup = {
    .method = &model_method_pool,
    .planned = &model_planned_pool,
    .scratch = &model_scratch_pool,
    .fast_scratch = &model_fast_scratch_pool,
    .kernels = tosaic_kernels,
    .npu = &runner,
};

void board_handle_npu(void) { tosaic_ethosu_interrupt(&npu); }

static int fail(const char *what, tosaic_status status) {
    report_failure(what, status, &method.failure);
    return 2;
}

/* Fills an input: one in each element. The program plans its memory; if it did not, the run would say so. */
static void fill(const tosaic_tensor *input) {
    uint8_t *bytes = input->data;
    if (bytes == (void *)0) {
        return;
    }
    uint32_t size = tosaic_get_element_size(input->dtype);
    memset(bytes, 0, input->bytes);
    for (uint32_t at = 0; at < input->bytes; at += size) {
        const float one = 1.0f;
        bytes[at] = 1;
        if (input->dtype == TOSAIC_FLOAT32) {
            memcpy(bytes + at, &one, sizeof one);
        }
    }
}

int main(void) {
    board_init();
    cortex_start_timer(BOARD_CLOCK);
    tosaic_status status = board_find_npu(&npu, &runner, &method.failure.detail);
    if (status != TOSAIC_OK) {
        return fail("the start of the NPU", status);
    }
    setup.kernel_count = tosaic_kernel_count;
    status = tosaic_open(&program, tosaic_model, model_size);
    if (status == TOSAIC_OK) {
        status = tosaic_load(&method, &program, model_method, &setup);
    }
    if (status != TOSAIC_OK) {
        return fail("loading the model", status);
    }
    for (uint32_t i = 0; i < tosaic_count_inputs(&method); i++) {
        if (tosaic_get_input(&method, i)->kind == TOSAIC_TENSOR) {
            fill(tosaic_get_input(&method, i)->as.tensor);
        }
    }
    status = tosaic_run(&method);
    if (status != TOSAIC_OK) {
        return fail("the run", status);
    }
    report_outputs(&method);
    return 0;
}
