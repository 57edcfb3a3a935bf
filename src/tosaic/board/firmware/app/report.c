#include "report.h"

#include "console.h"
#include "cortex_m.h"
#include "delegate.h"
#include "kernel.h"
#include "model.h"

void report_method(const tosaic_method *method) {
    say(INFO "Setup Method allocator pool. Size: %u bytes.\n", model_method_pool.size);
    for (uint32_t i = 0; i < model_planned_count; i++) {
        say(INFO "Setting up planned buffer %u, size %u.\n", i, model_planned_sizes[i]);
    }
    for (uint32_t i = 0; i < method->delegate_count; i++) {
        say(INFO "EthosUBackend::init %x\n", (uint32_t)(uintptr_t)method->delegates[i].blob);
    }
    say(INFO "Method loaded.\n");
}

void report_step(void *context, const tosaic_step *step, bool ended) {
    profile *times = context;
    if (!ended) {
        uint64_t before = cortex_get_cycles();
        if (step->is_delegate) {
            say(INFO "%t::execute %x\n", &step->name, (uint32_t)(uintptr_t)step->blob);
        }
        times->step_begin = cortex_get_cycles();
        times->printing += times->step_begin - before;
        return;
    }
    uint64_t cycles = cortex_get_cycles() - times->step_begin;
    uint32_t row = step->index + (step->is_delegate ? times->method->operator_count : 0);
    times->steps += cycles;
    times->delegates += step->is_delegate ? cycles : 0;
    if (row < model_step_count) {
        model_cycles[row] += cycles;
        model_calls[row]++;
    }
}

/* Prints `part` of `whole` in percent, with two digits behind the point. */
static void say_percent(const char *what, uint64_t part, uint64_t whole) {
    uint32_t share = whole == 0 ? 0 : (uint32_t)(part * 10000u / whole);
    say(INFO "Inference %s ratio: %u.%u%u %%\n", what, share / 100u, share / 10u % 10u, share % 10u);
}

void report_run(const profile *times, const tosaic_ethosu *npu) {
    const tosaic_method *method = times->method;
    say(INFO "NPU Inferences : %u\n", npu->counters.jobs);
    say(INFO "NPU delegations: %u\n", method->delegate_count);
    say(INFO "Profiler report, CPU cycles per operator:\n");
    for (uint32_t i = 0; i < model_step_count; i++) {
        bool is_delegate = i >= method->operator_count;
        say(INFO "%s : %u calls : cycle_cnt : %l cycles\n", is_delegate ? "ethos-u" : method->kernels[i]->name,
            model_calls[i], model_cycles[i]);
    }
    say(INFO "Operator(s) total: %l CPU cycles\n", times->steps);
    say(INFO "Inference runtime: %l CPU cycles total\n", times->total);
    say(INFO "NOTE: on a simulator, cycles of CPU and NPU are estimates; ratios need equal clocks\n");
    uint64_t wait = times->delegates < times->total ? times->delegates : times->total;
    say_percent("CPU", times->total - wait, times->total);
    say_percent("NPU", wait, times->total);
    say(INFO "cpu_wait_for_npu_cntr : %l CPU cycles\n", times->delegates);
    say(INFO "Ethos-U PMU report:\n");
    say(INFO "ethosu_pmu_cycle_cntr : %l\n", npu->counters.cycles);
    for (uint32_t i = 0; i < npu->event_count; i++) {
        say(INFO "ethosu_pmu_cntr%u : %l\n", i, npu->counters.events[i]);
    }
    say(INFO "Ethos-U PMU Events:[");
    for (uint32_t i = 0; i < npu->event_count; i++) {
        say("%s%s", i == 0 ? "" : ", ", tosaic_ethosu_get_event_name(npu, i));
    }
    say("]\n");
}

static void say_pool(const char *what, uint32_t used, uint32_t size) {
    uint32_t percent = size == 0 ? 0 : (uint32_t)((uint64_t)used * 100u / size);
    say(INFO "%s %u / %u free: %u ( used: %u %% )\n", what, used, size, size - used, percent);
}

void report_memory(void) {
    uint32_t stack_size;
    uint32_t stack = cortex_measure_stack(&stack_size);
    say(INFO "model_pte_loaded_size:     %u bytes.\n", model_size);
    say_pool("method_allocator_used:    ", model_method_pool.peak, model_method_pool.size);
    say_pool("method_allocator_planned: ", model_planned_pool.peak, model_planned_pool.size);
    say(INFO "method_allocator_loaded:   %u bytes\n", model_method_pool.used);
    say(INFO "method_allocator_input:    %u bytes\n", model_interface_pool.used);
    say(INFO "method_allocator_executor: %u bytes\n", model_method_pool.peak - model_method_pool.used);
    say_pool("temp_allocator_used:      ", model_scratch_pool.peak, model_scratch_pool.size);
    say_pool("fast_scratch_used:        ", model_fast_scratch_pool.peak, model_fast_scratch_pool.size);
    say_pool("stack_used:               ", stack, stack_size);
}

/* Prints element `index` of an array. */
static void say_element(uint32_t dtype, const void *array, uint32_t index) {
    const uint8_t *at = (const uint8_t *)array + index * tosaic_get_element_size(dtype);
    switch (dtype) {
        case TOSAIC_UINT8:
            say("(byte) %u", (uint32_t)*at);
            break;
        case TOSAIC_INT8:
            say("(char) %d", (int32_t)(int8_t)*at);
            break;
        case TOSAIC_BOOL:
            say("(bool) %s", *at != 0 ? "true" : "false");
            break;
        case TOSAIC_INT16:
            say("(short) %d", (int32_t) * (const int16_t *)(const void *)at);
            break;
        case TOSAIC_INT32:
            say("(int) %d", *(const int32_t *)(const void *)at);
            break;
        case TOSAIC_INT64:
            say("(long) ");
            say_integer(*(const int64_t *)(const void *)at);
            break;
        case TOSAIC_FLOAT32:
            say("(float) ");
            say_float(*(const float *)(const void *)at);
            break;
        default: /* other types by their bits, the last byte first */
            say("(bits)");
            for (uint32_t i = tosaic_get_element_size(dtype); i-- > 0;) {
                say(" %x", (uint32_t)at[i]);
            }
            break;
    }
}

static void report_output(uint32_t index, const tosaic_tensor *tensor) {
    uint32_t count = tosaic_count(tensor);
    uint32_t shown = count < model_max_values ? count : model_max_values;
    for (uint32_t i = 0; i < shown; i++) {
        say("Output[%u][%u]: ", index, i);
        say_element(tensor->dtype, tensor->data, i);
        say("\n");
    }
    if (shown < count) {
        say("Output[%u]: %u more values\n", index, count - shown);
    }
}

void report_difference(const tosaic_tensor *tensor, const uint8_t *expected, uint32_t index) {
    say_element(tensor->dtype, tensor->data, index);
    say(", expected ");
    say_element(tensor->dtype, expected, index);
    say("\n");
}

void report_outputs(const tosaic_method *method) {
    uint32_t count = tosaic_count_outputs(method);
    say(INFO "%u outputs:\n", count);
    for (uint32_t i = 0; i < count; i++) {
        const tosaic_value *value = tosaic_get_output(method, i);
        switch (value->kind) {
            case TOSAIC_TENSOR:
                report_output(i, value->as.tensor);
                break;
            case TOSAIC_INT:
                say("Output[%u]: (Int) ", i);
                say_integer(value->as.integer);
                say("\n");
                break;
            case TOSAIC_BOOLEAN:
                say("Output[%u]: (Bool) %s\n", i, value->as.boolean ? "true" : "false");
                break;
            case TOSAIC_DOUBLE:
                say("Output[%u]: (Double) ", i);
                say_float((float)value->as.number);
                say("\n");
                break;
            case TOSAIC_STRING:
                say("Output[%u]: (String) %t\n", i, &value->as.string);
                break;
            default:
                say("Output[%u]: None\n", i);
                break;
        }
    }
}

void report_failure(const char *what, tosaic_status status, const tosaic_failure *failure) {
    say("E [tosaic] %s failed: %s (status %u, detail %u = %x", what, tosaic_describe(status), (uint32_t)status,
        failure->detail, failure->detail);
    if (failure->instruction != UINT32_MAX) {
        say(", instruction %u", failure->instruction);
    }
    if (failure->name.length != 0) {
        say(", %t%s%t", &failure->name, failure->overload.length != 0 ? "." : "", &failure->overload);
    }
    say(")\n");
}
