#include "delegate.h"

#include "blob.h"
#include "fields.h"
#include "memory.h"
#include "method.h"

#define BACKEND "EthosUBackend"
#define MODE "Dedicated_Sram"
/* The SRAM of the mode Dedicated_Sram, if its name does not say how much. */
#define DEFAULT_DEDICATED 0x60000u

/* Whether `text` begins with `start`. */
static bool begins(tosaic_text text, const char *start, uint32_t length) {
    return text.length >= length && memcmp(text.start, start, length) == 0;
}

/* Reads the size in a memory mode, such as Dedicated_Sram_384KB. */
static uint32_t read_dedicated(tosaic_text mode) {
    uint32_t at = sizeof MODE - 1u;
    uint64_t size = 0;
    if (at >= mode.length || mode.start[at] != '_') {
        return DEFAULT_DEDICATED;
    }
    uint32_t last = at + 6u; /* more digits are no size */
    for (at++; at < mode.length && at <= last && mode.start[at] >= '0' && mode.start[at] <= '9'; at++) {
        size = 10u * size + (uint32_t)(mode.start[at] - '0');
    }
    tosaic_text unit = {mode.start + at, mode.length - at};
    size *= begins(unit, "KB", 2) ? 1u << 10 : begins(unit, "MB", 2) ? 1u << 20 : 0;
    return size == 0 ? DEFAULT_DEDICATED : size > UINT32_MAX ? UINT32_MAX : (uint32_t)size;
}

/* Finds the fast scratch memory that a delegate was compiled for: its blob does not say, its compile specs do. */
static uint32_t find_dedicated(flat *file, flat_table row) {
    flat_vector specs = flat_get_vector(file, row, BACKEND_DELEGATE_COMPILE_SPECS, 4);
    for (uint32_t i = 0; i < specs.count; i++) {
        tosaic_text text = tosaic_get_text(file, flat_get_item(file, specs, i), COMPILE_SPEC_VALUE);
        for (; text.length >= sizeof MODE - 1u; text.start++, text.length--) {
            if (begins(text, MODE, sizeof MODE - 1u)) {
                return read_dedicated(text);
            }
        }
    }
    return 0;
}

/* Takes memory for one call, and gives it back: nothing else is in the pool. */
static bool fits(tosaic_pool *pool, uint32_t size, uint8_t **start) {
    void *memory;
    pool->used = 0;
    bool enough = tosaic_take(pool, 1, size, &memory);
    pool->used = 0;
    *start = memory;
    return enough;
}

static tosaic_status take_scratch(tosaic_method *method, const tosaic_delegate *delegate, tosaic_npu_job *job) {
    const tosaic_setup *setup = method->setup;
    if (!fits(setup->scratch, delegate->scratch_size, &job->scratch)) {
        return tosaic_fail(method, TOSAIC_SCRATCH_POOL, setup->scratch->peak);
    }
    if (!fits(setup->fast_scratch, delegate->fast_scratch_size, &job->fast_scratch)) {
        return tosaic_fail(method, TOSAIC_FAST_SCRATCH_POOL, setup->fast_scratch->peak);
    }
    return TOSAIC_OK;
}

tosaic_status tosaic_open_delegate(tosaic_method *method, flat *file, flat_table row, uint32_t index) {
    tosaic_text backend = tosaic_get_text(file, row, BACKEND_DELEGATE_ID);
    if (method->setup->npu == NULL || !begins(backend, BACKEND, sizeof BACKEND - 1u) ||
        backend.length != sizeof BACKEND - 1u) {
        method->failure.name = backend;
        return tosaic_fail(method, TOSAIC_NO_BACKEND, index);
    }
    flat_table data = flat_get_table(file, row, BACKEND_DELEGATE_PROCESSED);
    uint32_t location = flat_get_u8(file, data, BACKEND_DELEGATE_DATA_REFERENCE_LOCATION);
    uint32_t number = flat_get_u32(file, data, BACKEND_DELEGATE_DATA_REFERENCE_INDEX);
    const tosaic_program *program = method->program;
    tosaic_piece piece = location == DATA_LOCATION_SEGMENT
                             ? tosaic_get_segment(file, &program->file, tosaic_get_segments(file, program), number)
                             : tosaic_get_inline_blob(file, program, number);
    if (file->bad || data == 0 || location > DATA_LOCATION_SEGMENT) {
        return tosaic_fail(method, TOSAIC_DAMAGED, file->bad ? file->bad_at : row);
    }
    if (!tosaic_is_aligned(piece.at)) {
        return tosaic_fail(method, TOSAIC_MISALIGNED, piece.at);
    }
    tosaic_delegate *delegate = &method->delegates[index];
    uint32_t bad;
    tosaic_status status = tosaic_read_blob(file, program, piece, delegate, &bad);
    if (status != TOSAIC_OK) {
        return tosaic_fail(method, status, status == TOSAIC_EXTERNAL_DATA ? index : bad);
    }
    delegate->fast_scratch_size = find_dedicated(file, row);
    tosaic_npu_job job;
    return take_scratch(method, delegate, &job);
}

/* Whether the NPU takes tensors of a type, with elements of this size. */
static bool is_npu_type(const tosaic_tensor *tensor, int32_t element_size) {
    switch (tensor->dtype) {
        case TOSAIC_INT8:
        case TOSAIC_UINT8:
        case TOSAIC_BOOL:
        case TOSAIC_INT16:
        case TOSAIC_INT32:
            return element_size > 0 && (uint32_t)element_size == tosaic_get_element_size(tensor->dtype);
        default:
            return false;
    }
}

/* Returns the tensor that an argument of the call must be; NULL if it is none, or its type does not fit the slot. */
static tosaic_tensor *get_tensor(const tosaic_value *value, const tosaic_slot *slot, bool is_written) {
    if (value->kind != TOSAIC_TENSOR || value->as.tensor->data == NULL ||
        !is_npu_type(value->as.tensor, slot->element_size) ||
        (is_written && value->as.tensor->access == TOSAIC_CONSTANT)) {
        return NULL;
    }
    return value->as.tensor;
}

/* Copies rows without the padding that Vela adds to the last dimension. */
static bool copy_rows(tosaic_tensor *tensor, const uint8_t *from, uint32_t bytes, const tosaic_slot *slot) {
    uint32_t padded = (uint32_t)slot->shape[5] * (uint32_t)slot->element_size;
    uint32_t rows = bytes / padded;
    uint32_t row = tensor->bytes / rows;
    if (row == 0 || row * rows != tensor->bytes) {
        return false;
    }
    for (uint32_t i = 0; i < rows; i++) {
        memcpy((uint8_t *)tensor->data + i * row, from + i * padded, row);
    }
    return true;
}

/* Writes each half of a byte as one signed byte: the NPU has two 4-bit numbers in it, the lower one first. */
static void expand_halves(tosaic_tensor *tensor, const uint8_t *from) {
    int8_t *to = tensor->data;
    for (uint32_t i = 0; i < tensor->bytes; i++) {
        uint32_t half = (uint32_t)from[i / 2] >> (4u * (i % 2u)) & 0xFu;
        to[i] = (int8_t)((int32_t)(half ^ 8u) - 8);
    }
}

static bool copy_output(tosaic_tensor *tensor, const uint8_t *from, uint32_t bytes, const tosaic_slot *slot) {
    if (bytes == tensor->bytes) {
        memcpy(tensor->data, from, bytes);
        return true;
    }
    if (tensor->dtype == TOSAIC_INT8 && bytes == tensor->bytes / 2u + tensor->bytes % 2u) {
        expand_halves(tensor, from);
        return true;
    }
    return bytes > tensor->bytes && copy_rows(tensor, from, bytes, slot);
}

tosaic_status tosaic_call_delegate(tosaic_method *method, uint32_t index, uint32_t count) {
    const tosaic_delegate *delegate = &method->delegates[index];
    const tosaic_npu *npu = method->setup->npu;
    tosaic_npu_job job = {
        .commands = delegate->commands,
        .commands_size = delegate->commands_size,
        .weights = delegate->weights,
        .weights_size = delegate->weights_size,
        .scratch_size = delegate->scratch_size,
        .fast_scratch_size = delegate->fast_scratch_size,
    };
    uint32_t inputs = delegate->input_count;
    uint32_t bytes;
    if (count != (uint64_t)inputs + delegate->output_count) {
        return tosaic_fail(method, TOSAIC_BAD_DELEGATE_IO, count);
    }
    tosaic_status status = take_scratch(method, delegate, &job);
    for (uint32_t i = 0; i < inputs && status == TOSAIC_OK; i++) {
        tosaic_slot slot = tosaic_get_slot(delegate->inputs, i, &bytes);
        const tosaic_tensor *tensor = get_tensor(method->args[i], &slot, false);
        if (tensor == NULL || tensor->bytes != bytes) {
            return tosaic_fail(method, TOSAIC_BAD_DELEGATE_IO, i);
        }
        memcpy(job.scratch + slot.offset, tensor->data, bytes);
    }
    if (status == TOSAIC_OK) {
        status = npu->run(npu->context, &job, &method->failure.detail);
    }
    for (uint32_t i = 0; i < delegate->output_count && status == TOSAIC_OK; i++) {
        tosaic_slot slot = tosaic_get_slot(delegate->outputs, i, &bytes);
        tosaic_tensor *tensor = get_tensor(method->args[inputs + i], &slot, true);
        if (tensor == NULL || !copy_output(tensor, job.scratch + slot.offset, bytes, &slot)) {
            return tosaic_fail(method, TOSAIC_BAD_DELEGATE_IO, inputs + i);
        }
    }
    return status;
}
