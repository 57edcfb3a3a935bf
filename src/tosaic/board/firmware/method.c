/* Loads methods, and gives access to their inputs and outputs. */
#include "method.h"

#include "fields.h"
#include "memory.h"

tosaic_status tosaic_fail(tosaic_method *method, tosaic_status status, uint32_t detail) {
    method->failure.detail = detail;
    return status;
}

void tosaic_note_operator(tosaic_method *method, flat *file, uint32_t index) {
    flat_table row = flat_get_item(file, flat_get_vector(file, method->plan, EXECUTION_PLAN_OPERATORS, 4), index);
    method->failure.name = tosaic_get_text(file, row, OPERATOR_NAME);
    method->failure.overload = tosaic_get_text(file, row, OPERATOR_OVERLOAD);
}

tosaic_status tosaic_take_for(tosaic_method *method, uint32_t count, uint32_t width, void **memory) {
    tosaic_pool *pool = method->setup->method;
    return tosaic_take(pool, count, width, memory) ? TOSAIC_OK : tosaic_fail(method, TOSAIC_METHOD_POOL, pool->peak);
}

static tosaic_status find_kernels(tosaic_method *method, flat *file) {
    flat_vector rows = flat_get_vector(file, method->plan, EXECUTION_PLAN_OPERATORS, 4);
    void *memory;
    tosaic_status status = tosaic_take_for(method, rows.count, sizeof(tosaic_kernel *), &memory);
    if (status != TOSAIC_OK) {
        return status;
    }
    method->kernels = memory;
    method->operator_count = rows.count;
    for (uint32_t i = 0; i < rows.count; i++) {
        flat_table row = flat_get_item(file, rows, i);
        tosaic_text name = tosaic_get_text(file, row, OPERATOR_NAME);
        method->kernels[i] = tosaic_find_kernel(method->setup, name, tosaic_get_text(file, row, OPERATOR_OVERLOAD));
        if (file->bad) {
            return tosaic_fail(method, TOSAIC_DAMAGED, file->bad_at);
        }
        if (method->kernels[i] == NULL) {
            tosaic_note_operator(method, file, i);
            return tosaic_fail(method, TOSAIC_NO_KERNEL, i);
        }
    }
    return TOSAIC_OK;
}

static tosaic_status open_delegates(tosaic_method *method, flat *file) {
    flat_vector rows = flat_get_vector(file, method->plan, EXECUTION_PLAN_DELEGATES, 4);
    void *memory;
    tosaic_status status = tosaic_take_for(method, rows.count, sizeof(tosaic_delegate), &memory);
    method->delegates = memory;
    method->delegate_count = rows.count;
    for (uint32_t i = 0; i < rows.count && status == TOSAIC_OK; i++) {
        status = tosaic_open_delegate(method, file, flat_get_item(file, rows, i), i);
        if (file->bad) {
            return tosaic_fail(method, TOSAIC_DAMAGED, file->bad_at);
        }
    }
    return status;
}

/* Checks all instructions, and takes memory for the longest argument list. */
static tosaic_status check_instructions(tosaic_method *method, flat *file) {
    uint32_t longest = 0;
    flat_vector chains = flat_get_vector(file, method->plan, EXECUTION_PLAN_CHAINS, 4);
    for (uint32_t c = 0; c < chains.count; c++) {
        flat_vector chain = flat_get_vector(file, flat_get_item(file, chains, c), CHAIN_INSTRUCTIONS, 4);
        for (uint32_t i = 0; i < chain.count; i++) {
            tosaic_instruction instruction;
            tosaic_status status = tosaic_decode(method, file, chain, i, &instruction);
            if (status != TOSAIC_OK) {
                return status;
            }
            longest = instruction.args.count > longest ? instruction.args.count : longest;
        }
    }
    void *memory;
    tosaic_status status = tosaic_take_for(method, longest, sizeof(tosaic_value *), &memory);
    method->args = memory;
    return status;
}

/* Checks that all inputs and outputs are values. */
static tosaic_status check_interface(tosaic_method *method, flat *file) {
    static const uint32_t fields[] = {EXECUTION_PLAN_INPUTS, EXECUTION_PLAN_OUTPUTS};
    for (uint32_t side = 0; side < 2; side++) {
        flat_vector numbers = flat_get_vector(file, method->plan, fields[side], 4);
        for (uint32_t i = 0; i < numbers.count; i++) {
            if (tosaic_get_value(method, file, numbers, i) == NULL) {
                return tosaic_fail(method, TOSAIC_BAD_VALUE, i);
            }
        }
    }
    return file->bad ? tosaic_fail(method, TOSAIC_DAMAGED, file->bad_at) : TOSAIC_OK;
}

tosaic_status tosaic_load(tosaic_method *method, const tosaic_program *program, uint32_t index,
                          const tosaic_setup *setup) {
    static tosaic_status (*const steps[])(tosaic_method *, flat *) = {
        tosaic_load_values, find_kernels, open_delegates, check_instructions, check_interface,
    };
    flat file = tosaic_read(&program->file);
    file.left = tosaic_limit_reads(program->file.size);
    for (const tosaic_data *data = program->added; data != NULL; data = data->next) {
        file.left += tosaic_limit_reads(data->file.size);
    }
    *method = (tosaic_method){.program = program, .setup = setup, .failure = {.instruction = UINT32_MAX}};
    method->plan = tosaic_get_plan(&file, program, index);
    if (file.bad) {
        return tosaic_fail(method, TOSAIC_DAMAGED, file.bad_at);
    }
    if (method->plan == 0) {
        return tosaic_fail(method, TOSAIC_NO_METHOD, tosaic_count_methods(program));
    }
    for (uint32_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        tosaic_status status = steps[i](method, &file);
        if (status != TOSAIC_OK) {
            return status;
        }
    }
    return TOSAIC_OK;
}

tosaic_value *tosaic_get_value(const tosaic_method *method, flat *file, flat_vector numbers, uint32_t index) {
    uint32_t number = index < numbers.count ? flat_read_u32(file, numbers.at + 4u * index) : UINT32_MAX;
    return number < method->value_count ? &method->values[number] : NULL;
}

static flat_vector get_interface(const tosaic_method *method, flat *file, uint32_t field) {
    *file = tosaic_read(&method->program->file);
    return flat_get_vector(file, method->plan, field, 4);
}

static tosaic_value *get_end(const tosaic_method *method, uint32_t field, uint32_t index) {
    flat file;
    flat_vector numbers = get_interface(method, &file, field);
    return tosaic_get_value(method, &file, numbers, index);
}

uint32_t tosaic_count_inputs(const tosaic_method *method) {
    flat file;
    return get_interface(method, &file, EXECUTION_PLAN_INPUTS).count;
}

uint32_t tosaic_count_outputs(const tosaic_method *method) {
    flat file;
    return get_interface(method, &file, EXECUTION_PLAN_OUTPUTS).count;
}

const tosaic_value *tosaic_get_input(const tosaic_method *method, uint32_t index) {
    return get_end(method, EXECUTION_PLAN_INPUTS, index);
}

const tosaic_value *tosaic_get_output(const tosaic_method *method, uint32_t index) {
    return get_end(method, EXECUTION_PLAN_OUTPUTS, index);
}

/* The tensor of an input or output, if it has that many bytes; else NULL with the failure noted. */
static tosaic_tensor *get_tensor(tosaic_method *method, uint32_t field, uint32_t index, uint32_t size) {
    const tosaic_value *value = get_end(method, field, index);
    bool is_tensor = value != NULL && value->kind == TOSAIC_TENSOR;
    method->failure.detail = is_tensor ? value->as.tensor->bytes : 0;
    return is_tensor && value->as.tensor->bytes == size ? value->as.tensor : NULL;
}

/* Gives memory of the caller to a tensor. */
static tosaic_status give(tosaic_method *method, tosaic_tensor *tensor, void *data, uint32_t size) {
    if ((uintptr_t)data % tosaic_get_element_size(tensor->dtype) != 0) {
        return tosaic_fail(method, TOSAIC_MISALIGNED, (uint32_t)(uintptr_t)data);
    }
    tensor->data = data;
    tensor->capacity = size;
    tensor->access = TOSAIC_CALLERS;
    return TOSAIC_OK;
}

tosaic_status tosaic_set_input(tosaic_method *method, uint32_t index, const void *data, uint32_t size) {
    tosaic_tensor *tensor = get_tensor(method, EXECUTION_PLAN_INPUTS, index, size);
    if (tensor == NULL || tensor->access == TOSAIC_CONSTANT) {
        return TOSAIC_BAD_INPUT;
    }
    if (tensor->access == TOSAIC_PLANNED) {
        if (size != 0) {
            memcpy(tensor->data, data, size);
        }
        return TOSAIC_OK;
    }
    return give(method, tensor, (void *)(uintptr_t)data, size);
}

tosaic_status tosaic_set_output(tosaic_method *method, uint32_t index, void *data, uint32_t size) {
    tosaic_tensor *tensor = get_tensor(method, EXECUTION_PLAN_OUTPUTS, index, size);
    if (tensor == NULL || tensor->access == TOSAIC_CONSTANT || tensor->access == TOSAIC_PLANNED) {
        return TOSAIC_BAD_INPUT;
    }
    return give(method, tensor, data, size);
}
