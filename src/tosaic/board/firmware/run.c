/* Runs the instructions of a method. */
#include "fields.h"
#include "method.h"

#define DEFAULT_STEP_LIMIT 1000000u
/* Many arguments take as long as an instruction. */
#define ARGUMENTS_PER_STEP 16u

/* Reads a number of the file that must be less than `count`. */
static bool read_index(flat *file, flat_table row, uint32_t field, uint32_t count, uint32_t *index) {
    *index = flat_get_u32(file, row, field);
    return *index < count;
}

tosaic_status tosaic_decode(tosaic_method *method, flat *file, flat_vector chain, uint32_t index,
                            tosaic_instruction *instruction) {
    flat_table row = flat_get_item(file, chain, index);
    flat_table call = flat_get_table(file, row, INSTRUCTION_INSTR_ARGS);
    uint32_t values = method->value_count;
    bool fits = false;
    *instruction = (tosaic_instruction){.kind = flat_get_u8(file, row, INSTRUCTION_INSTR_ARGS_TYPE)};
    method->failure.instruction = index;
    switch (call == 0 ? 0 : instruction->kind) {
        case INSTRUCTION_ARGUMENTS_KERNEL_CALL:
            fits = read_index(file, call, KERNEL_CALL_OP_INDEX, method->operator_count, &instruction->first);
            instruction->args = flat_get_vector(file, call, KERNEL_CALL_ARGS, 4);
            break;
        case INSTRUCTION_ARGUMENTS_DELEGATE_CALL:
            fits = read_index(file, call, DELEGATE_CALL_DELEGATE_INDEX, method->delegate_count, &instruction->first);
            instruction->args = flat_get_vector(file, call, DELEGATE_CALL_ARGS, 4);
            break;
        case INSTRUCTION_ARGUMENTS_MOVE_CALL:
            fits = read_index(file, call, MOVE_CALL_MOVE_FROM, values, &instruction->first) &&
                   read_index(file, call, MOVE_CALL_MOVE_TO, values, &instruction->second);
            break;
        case INSTRUCTION_ARGUMENTS_JUMP_FALSE_CALL:
            /* The end of the chain is a valid destination. */
            fits = read_index(file, call, JUMP_FALSE_CALL_COND_VALUE_INDEX, values, &instruction->first) &&
                   read_index(file, call, JUMP_FALSE_CALL_DESTINATION_INSTRUCTION, chain.count + 1u,
                              &instruction->second);
            break;
        case INSTRUCTION_ARGUMENTS_FREE_CALL:
            fits = read_index(file, call, FREE_CALL_VALUE_INDEX, values, &instruction->first);
            break;
        default:
            break;
    }
    for (uint32_t i = 0; i < instruction->args.count && fits; i++) {
        tosaic_value *value = tosaic_get_value(method, file, instruction->args, i);
        fits = value != NULL;
        if (method->args != NULL) {
            method->args[i] = value;
        }
    }
    if (file->bad) {
        return tosaic_fail(method, TOSAIC_DAMAGED, file->bad_at);
    }
    return fits ? TOSAIC_OK : tosaic_fail(method, TOSAIC_BAD_INSTRUCTION, instruction->kind);
}

static tosaic_text get_text_of(flat *file, const tosaic_method *method, uint32_t rows_field, uint32_t index,
                               uint32_t field) {
    flat_vector rows = flat_get_vector(file, method->plan, rows_field, 4);
    return tosaic_get_text(file, flat_get_item(file, rows, index), field);
}

static void observe(const tosaic_method *method, flat *file, const tosaic_instruction *instruction, bool ended) {
    if (method->setup->observe == NULL) {
        return;
    }
    tosaic_step step = {.instruction = method->failure.instruction, .index = instruction->first};
    step.is_delegate = instruction->kind == INSTRUCTION_ARGUMENTS_DELEGATE_CALL;
    if (step.is_delegate) {
        step.name = get_text_of(file, method, EXECUTION_PLAN_DELEGATES, step.index, BACKEND_DELEGATE_ID);
        step.blob = method->delegates[step.index].blob;
    } else {
        step.name = get_text_of(file, method, EXECUTION_PLAN_OPERATORS, step.index, OPERATOR_NAME);
    }
    method->setup->observe(method->setup->observer, &step, ended);
}

static tosaic_status call_kernel(tosaic_method *method, flat *file, const tosaic_instruction *instruction) {
    const tosaic_kernel *kernel = method->kernels[instruction->first];
    tosaic_call call = {method->args, instruction->args.count};
    tosaic_status status = tosaic_check_call(kernel, &call, &method->failure.detail);
    if (status == TOSAIC_OK) {
        status = kernel->run(&call);
    }
    if (status != TOSAIC_OK) {
        tosaic_note_operator(method, file, instruction->first);
    }
    return status;
}

/* Makes a value the same as another: a tensor is then the same tensor, not a copy. */
static tosaic_status move(tosaic_method *method, const tosaic_instruction *instruction) {
    const tosaic_value *from = &method->values[instruction->first];
    tosaic_value *to = &method->values[instruction->second];
    bool same = from->kind == to->kind;
    if (same && from->kind == TOSAIC_TENSOR) {
        same = from->as.tensor->dtype == to->as.tensor->dtype && from->as.tensor->rank == to->as.tensor->rank;
    }
    if (!same) {
        return tosaic_fail(method, TOSAIC_BAD_VALUE, instruction->second);
    }
    *to = *from;
    return TOSAIC_OK;
}

/* Evaluates a condition: a number that is not zero, or a tensor of bools that are all true. */
static tosaic_status test(tosaic_method *method, uint32_t number, bool *result) {
    const tosaic_value *value = &method->values[number];
    *result = true;
    if (value->kind == TOSAIC_BOOLEAN) {
        *result = value->as.boolean;
        return TOSAIC_OK;
    }
    if (value->kind == TOSAIC_INT) {
        *result = value->as.integer != 0;
        return TOSAIC_OK;
    }
    if (value->kind != TOSAIC_TENSOR || value->as.tensor->dtype != TOSAIC_BOOL) {
        return tosaic_fail(method, TOSAIC_BAD_VALUE, number);
    }
    const uint8_t *data = value->as.tensor->data;
    if (data == NULL && value->as.tensor->bytes != 0) {
        return tosaic_fail(method, TOSAIC_NO_DATA, number);
    }
    for (uint32_t i = 0; i < value->as.tensor->bytes && *result; i++) {
        *result = data[i] != 0;
    }
    return TOSAIC_OK;
}

/* Takes the memory of a tensor away, if it is the caller's: planned memory is the plan's to reuse. */
static void release(tosaic_value *value) {
    if (value->kind == TOSAIC_TENSOR &&
        (value->as.tensor->access == TOSAIC_CALLERS || value->as.tensor->access == TOSAIC_VIEW)) {
        value->as.tensor->access = TOSAIC_CALLERS;
        value->as.tensor->data = NULL;
        value->as.tensor->capacity = 0;
    }
}

/* Takes their memory from the views of the last run: the caller may have reused it since. */
static void release_views(tosaic_method *method) {
    for (uint32_t i = 0; i < method->value_count; i++) {
        tosaic_value *value = &method->values[i];
        if (value->kind == TOSAIC_TENSOR && value->as.tensor->access == TOSAIC_VIEW) {
            release(value);
        }
    }
}

/* Checks that every output tensor has data: a program may leave it out, or take it away. */
static tosaic_status check_outputs(tosaic_method *method) {
    uint32_t count = tosaic_count_outputs(method);
    for (uint32_t i = 0; i < count; i++) {
        const tosaic_value *value = tosaic_get_output(method, i);
        if (value->kind == TOSAIC_TENSOR && value->as.tensor->data == NULL && value->as.tensor->bytes != 0) {
            return tosaic_fail(method, TOSAIC_NO_DATA, i);
        }
    }
    return TOSAIC_OK;
}

static tosaic_status run_chain(tosaic_method *method, flat *file, flat_vector chain, uint32_t *steps_left) {
    uint32_t next = 0;
    while (next < chain.count) {
        tosaic_instruction instruction;
        tosaic_status status = tosaic_decode(method, file, chain, next++, &instruction);
        if (status != TOSAIC_OK) {
            return status;
        }
        uint32_t steps = 1u + instruction.args.count / ARGUMENTS_PER_STEP;
        if (steps > *steps_left) {
            return tosaic_fail(method, TOSAIC_TOO_LONG, next);
        }
        *steps_left -= steps;
        bool is_true = true;
        switch (instruction.kind) {
            case INSTRUCTION_ARGUMENTS_KERNEL_CALL:
                observe(method, file, &instruction, false);
                status = call_kernel(method, file, &instruction);
                observe(method, file, &instruction, true);
                break;
            case INSTRUCTION_ARGUMENTS_DELEGATE_CALL:
                observe(method, file, &instruction, false);
                status = tosaic_call_delegate(method, instruction.first, instruction.args.count);
                observe(method, file, &instruction, true);
                break;
            case INSTRUCTION_ARGUMENTS_MOVE_CALL:
                status = move(method, &instruction);
                break;
            case INSTRUCTION_ARGUMENTS_JUMP_FALSE_CALL:
                status = test(method, instruction.first, &is_true);
                next = is_true ? next : instruction.second;
                break;
            default:
                release(&method->values[instruction.first]);
                break;
        }
        if (status != TOSAIC_OK) {
            return status;
        }
    }
    return TOSAIC_OK;
}

tosaic_status tosaic_run(tosaic_method *method) {
    flat file = tosaic_read(&method->program->file);
    uint32_t limit = method->setup->step_limit;
    uint32_t steps_left = limit != 0 ? limit : DEFAULT_STEP_LIMIT;
    flat_vector chains = flat_get_vector(&file, method->plan, EXECUTION_PLAN_CHAINS, 4);
    method->failure = (tosaic_failure){.instruction = UINT32_MAX};
    release_views(method);
    for (uint32_t i = 0; i < chains.count; i++) {
        flat_vector chain = flat_get_vector(&file, flat_get_item(&file, chains, i), CHAIN_INSTRUCTIONS, 4);
        tosaic_status status = run_chain(method, &file, chain, &steps_left);
        if (status != TOSAIC_OK) {
            return status;
        }
    }
    return check_outputs(method);
}
