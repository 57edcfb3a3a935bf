/* One of two numbers: the larger, the smaller, or by a condition. */
#include "elementwise.h"
#include "floats.h"

/* What is not a number wins. */
static float get_larger(float a, float b) { return tosaic_is_nan(a) || a > b ? a : b; }
static float get_smaller(float a, float b) { return tosaic_is_nan(a) || a < b ? a : b; }

static float maximum(const float *x) { return get_larger(x[0], x[1]); }
static int64_t maximum_ints(const int64_t *x) { return x[0] > x[1] ? x[0] : x[1]; }
static const tosaic_function maximum_function = {maximum, maximum_ints, TOSAIC_KEEPS};

static float minimum(const float *x) { return get_smaller(x[0], x[1]); }
static int64_t minimum_ints(const int64_t *x) { return x[0] < x[1] ? x[0] : x[1]; }
static const tosaic_function minimum_function = {minimum, minimum_ints, TOSAIC_KEEPS};

/* The upper limit is the last word, also if it is below the lower one. */
static float clamp(const float *x) { return get_smaller(get_larger(x[0], x[1]), x[2]); }
static int64_t clamp_ints(const int64_t *x) {
    int64_t y = x[0] > x[1] ? x[0] : x[1];
    return y < x[2] ? y : x[2];
}
static const tosaic_function clamp_function = {clamp, clamp_ints, TOSAIC_KEEPS};

TOSAIC_KERNEL(maximum_out, "aten::maximum.out", "TTO") { return tosaic_compute(&maximum_function, call, 2); }
TOSAIC_KERNEL(minimum_out, "aten::minimum.out", "TTO") { return tosaic_compute(&minimum_function, call, 2); }

/* Limits by numbers or by tensors, one of which may be None. */
static tosaic_status limit(const tosaic_call *call) {
    tosaic_operands operands;
    tosaic_take_operands(&operands, call, 0, 3);
    const tosaic_function *function = &clamp_function;
    if (tosaic_is_none_at(call, 1)) {
        function = &minimum_function;
        operands.tensors[1] = operands.tensors[2];
    } else if (tosaic_is_none_at(call, 2)) {
        function = &maximum_function;
    }
    operands.count = function == &clamp_function ? 3 : 2;
    return tosaic_apply(function, &operands, tosaic_tensor_at(call, 3));
}

TOSAIC_KERNEL(clamp_out, "aten::clamp.out", "Td?d?O") { return limit(call); }
TOSAIC_KERNEL(clamp_tensors_out, "aten::clamp.Tensor_out", "TT?T?O") { return limit(call); }

/* x is the number if the condition holds, the one if not, and the condition. */
static float choose(const float *x) { return x[2] != 0.0f ? x[0] : x[1]; }
static int64_t choose_int(const int64_t *x) { return x[2] != 0 ? x[0] : x[1]; }
static const tosaic_function choose_function = {choose, choose_int, TOSAIC_KEEPS};

static bool is_condition(const tosaic_tensor *tensor) {
    return tensor->dtype == TOSAIC_BOOL || tensor->dtype == TOSAIC_UINT8;
}

/* out = condition ? self : other */
TOSAIC_KERNEL(where_out, "aten::where.self_out", "TTTO") {
    tosaic_operands operands;
    tosaic_take_operands(&operands, call, 1, 2);
    tosaic_add_tensor(&operands, tosaic_tensor_at(call, 0));
    if (!is_condition(tosaic_tensor_at(call, 0))) {
        return TOSAIC_BAD_TYPE;
    }
    return tosaic_apply(&choose_function, &operands, tosaic_tensor_at(call, 3));
}

/* x is the number, the condition, and the number if it holds. */
static float fill(const float *x) { return x[1] != 0.0f ? x[2] : x[0]; }
static int64_t fill_int(const int64_t *x) { return x[1] != 0 ? x[2] : x[0]; }
static const tosaic_function fill_function = {fill, fill_int, TOSAIC_KEEPS};

/* out = mask ? value : self */
TOSAIC_KERNEL(masked_fill_out, "aten::masked_fill.Scalar_out", "TTdO") {
    tosaic_operands operands;
    tosaic_take_operands(&operands, call, 0, 1);
    tosaic_add_tensor(&operands, tosaic_tensor_at(call, 1));
    if (!is_condition(tosaic_tensor_at(call, 1)) || !tosaic_add_number(&operands, call, 2)) {
        return TOSAIC_BAD_TYPE;
    }
    return tosaic_apply(&fill_function, &operands, tosaic_tensor_at(call, 3));
}
