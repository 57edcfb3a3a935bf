#include "elementwise.h"

#include "walk.h"

void tosaic_take_operands(tosaic_operands *operands, const tosaic_call *call, uint32_t first, uint32_t count) {
    uint32_t dtype = TOSAIC_BOOL;
    for (uint32_t k = 0; k < count; k++) {
        if (call->args[first + k]->kind == TOSAIC_TENSOR) {
            dtype = tosaic_promote(dtype, tosaic_tensor_at(call, first + k)->dtype);
        }
    }
    for (uint32_t k = 0; k < count; k++) {
        if (call->args[first + k]->kind != TOSAIC_TENSOR) {
            dtype = tosaic_promote_number(dtype, call->args[first + k]);
        }
    }
    operands->count = count;
    operands->dtype = dtype;
    for (uint32_t k = 0; k < count; k++) {
        if (call->args[first + k]->kind == TOSAIC_TENSOR) {
            operands->tensors[k] = tosaic_tensor_at(call, first + k);
        } else if (dtype != TOSAIC_UINT64) {
            operands->made[k] = tosaic_make_tensor(call, first + k, dtype, &operands->rooms[k]);
            operands->tensors[k] = &operands->made[k];
        }
    }
}

bool tosaic_add_number(tosaic_operands *operands, const tosaic_call *call, uint32_t index) {
    uint32_t k = operands->count++;
    if (operands->dtype == TOSAIC_UINT64 ||
        (call->args[index]->kind == TOSAIC_DOUBLE && operands->dtype != TOSAIC_FLOAT32)) {
        return false;
    }
    operands->made[k] = tosaic_make_tensor(call, index, operands->dtype, &operands->rooms[k]);
    operands->tensors[k] = &operands->made[k];
    return true;
}

void tosaic_add_tensor(tosaic_operands *operands, const tosaic_tensor *tensor) {
    operands->tensors[operands->count++] = tensor;
}

/* Elements that are read, computed and written at once. */
#define BLOCK 16u

typedef struct block {
    const tosaic_walk *walk; /* stands on the row */
    uint32_t offset;         /* of the block in the row */
    uint32_t at;             /* of the block in the output */
    uint32_t count;
} block;

static tosaic_row get_input(const tosaic_operands *operands, uint32_t k, const block *part) {
    uint32_t step = part->walk->strides[k][part->walk->rank];
    return (tosaic_row){operands->tensors[k]->data, part->walk->at[k] + part->offset * step, step, part->count};
}

static void apply_to_floats(tosaic_of_floats *function, const tosaic_operands *operands, const block *part,
                            const tosaic_tensor *out) {
    float x[BLOCK][TOSAIC_MAX_OPERANDS];
    float y[BLOCK];
    for (uint32_t k = 0; k < operands->count; k++) {
        tosaic_row input = get_input(operands, k, part);
        tosaic_find_access(operands->tensors[k]->dtype)->load_floats(&input, &x[0][k], TOSAIC_MAX_OPERANDS);
    }
    for (uint32_t i = 0; i < part->count; i++) {
        y[i] = function(x[i]);
    }
    tosaic_row output = {out->data, part->at, 1, part->count};
    tosaic_find_access(out->dtype)->store_floats(&output, y);
}

static void apply_to_ints(tosaic_of_ints *function, const tosaic_operands *operands, const block *part,
                          const tosaic_tensor *out) {
    int64_t x[BLOCK][TOSAIC_MAX_OPERANDS];
    int64_t y[BLOCK];
    /* The result has the bits of the inputs' type, though that of the output may be wider. */
    bool is_wider = out->dtype != operands->dtype;
    for (uint32_t k = 0; k < operands->count; k++) {
        tosaic_row input = get_input(operands, k, part);
        tosaic_find_access(operands->tensors[k]->dtype)->load_ints(&input, &x[0][k], TOSAIC_MAX_OPERANDS);
    }
    for (uint32_t i = 0; i < part->count; i++) {
        y[i] = function(x[i]);
        y[i] = is_wider ? tosaic_narrow(operands->dtype, y[i]) : y[i];
    }
    tosaic_row output = {out->data, part->at, 1, part->count};
    tosaic_find_access(out->dtype)->store_ints(&output, y);
}

tosaic_status tosaic_apply(const tosaic_function *function, const tosaic_operands *operands, tosaic_tensor *out) {
    bool in_floats = operands->dtype == TOSAIC_FLOAT32 || function->rule == TOSAIC_FLOATS;
    uint32_t result = in_floats ? TOSAIC_FLOAT32 : operands->dtype;
    bool has_function = in_floats ? function->of_floats != NULL : function->of_ints != NULL;
    bool fits = function->rule == TOSAIC_TESTS || tosaic_can_cast(result, out->dtype);
    if (!has_function || !fits || operands->dtype == TOSAIC_UINT64 ||
        tosaic_find_access(out->dtype) == NULL) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_walk walk;
    tosaic_status status = tosaic_walk_begin(&walk, out, operands->tensors, operands->count);
    if (status != TOSAIC_OK) {
        return status;
    }
    uint32_t length = tosaic_walk_by_rows(&walk);
    uint32_t total = tosaic_count(out);
    for (uint32_t start = 0; start < total; start += length) {
        for (uint32_t offset = 0; offset < length; offset += BLOCK) {
            uint32_t rest = length - offset;
            block part = {&walk, offset, start + offset, rest < BLOCK ? rest : BLOCK};
            if (in_floats) {
                apply_to_floats(function->of_floats, operands, &part, out);
            } else {
                apply_to_ints(function->of_ints, operands, &part, out);
            }
        }
        tosaic_walk_next(&walk);
    }
    return TOSAIC_OK;
}

tosaic_status tosaic_compute(const tosaic_function *function, const tosaic_call *call, uint32_t count) {
    tosaic_operands operands;
    tosaic_take_operands(&operands, call, 0, count);
    return tosaic_apply(function, &operands, tosaic_tensor_at(call, count));
}
