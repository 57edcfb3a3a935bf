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

/* Fills an input with ones. Without planned memory it has none: tosaic_set_input() gives it, or the run reports it. */
static void fill(const tosaic_value *input) {
    const float one = 1.0f;
    if (input->kind != TOSAIC_TENSOR || input->as.tensor->data == NULL) {
        return;
    }
    const tosaic_tensor *tensor = input->as.tensor;
    uint8_t *bytes = tensor->data;
    uint32_t size = tosaic_get_element_size(tensor->dtype);
    memset(bytes, 0, tensor->bytes);
    for (uint32_t at = 0; at < tensor->bytes; at += size) {
        bytes[at] = 1;
        if (tensor->dtype == TOSAIC_FLOAT32) {
            memcpy(bytes + at, &one, sizeof one);
        }
    }
}

int main(void) {
    board_init();
    cortex_start_timer(BOARD_CLOCK);
    setup.kernel_count = tosaic_kernel_count;
    tosaic_status status = board_find_npu(&npu, &runner, &method.failure.detail);
    status = status == TOSAIC_OK ? tosaic_open(&program, tosaic_model, model_size) : status;
    for (uint32_t i = 0; status == TOSAIC_OK && i < model_data_count; i++) {
        model_data_file *file = &model_data[i];
        status = tosaic_add_data(&program, &file->opened, file->start, file->size);
    }
    status = status == TOSAIC_OK ? tosaic_load(&method, &program, model_method, &setup) : status;
    for (uint32_t i = 0; status == TOSAIC_OK && i < tosaic_count_inputs(&method); i++) {
        fill(tosaic_get_input(&method, i));
    }
    status = status == TOSAIC_OK ? tosaic_run(&method) : status;
    if (status != TOSAIC_OK) {
        report_failure("the program", status, &method.failure);
        return 2;
    }
    report_outputs(&method);
    return 0;
}
