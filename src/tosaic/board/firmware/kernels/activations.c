/* Functions of one number with parameters. */
#include "elementwise.h"
#include "floats.h"

/* The operand `self`, and parameters that take its type. */
static tosaic_status compute(const tosaic_function *function, const tosaic_call *call, uint32_t parameters,
                             uint32_t out) {
    tosaic_operands operands;
    tosaic_take_operands(&operands, call, 0, 1);
    for (uint32_t k = 0; k < parameters; k++) {
        if (!tosaic_add_number(&operands, call, 1u + k)) {
            return TOSAIC_BAD_TYPE;
        }
    }
    return tosaic_apply(function, &operands, tosaic_tensor_at(call, out));
}

/* x / 2 (1 + erf(x / sqrt 2)) */
static float gelu(const float *x) { return 0.5f * x[0] * (1.0f + tosaic_erf(x[0] * 0.707106781f)); }

/* x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
static float gelu_by_tanh(const float *x) {
    float inner = 0.797884561f * (x[0] + 0.044715f * x[0] * x[0] * x[0]);
    return 0.5f * x[0] * (1.0f + tosaic_tanh(inner));
}

static const tosaic_function gelu_function = {gelu, 0, TOSAIC_KEEPS};
static const tosaic_function gelu_by_tanh_function = {gelu_by_tanh, 0, TOSAIC_KEEPS};

TOSAIC_KERNEL(gelu_out, "aten::gelu.out", "TsO") {
    tosaic_text approximate = call->args[1]->as.string;
    /* `none` or `tanh` */
    bool by_tanh = approximate.length > 0 && approximate.start[0] == 't';
    return compute(by_tanh ? &gelu_by_tanh_function : &gelu_function, call, 0, 2);
}

static float leaky_relu(const float *x) { return x[0] >= 0.0f ? x[0] : x[0] * x[1]; }
static const tosaic_function leaky_relu_function = {leaky_relu, 0, TOSAIC_KEEPS};

TOSAIC_KERNEL(leaky_relu_out, "aten::leaky_relu.out", "TdO") { return compute(&leaky_relu_function, call, 1, 2); }

static float hardtanh(const float *x) { return x[0] < x[1] ? x[1] : x[0] > x[2] ? x[2] : x[0]; }
static int64_t hardtanh_of_ints(const int64_t *x) { return x[0] < x[1] ? x[1] : x[0] > x[2] ? x[2] : x[0]; }
static const tosaic_function hardtanh_function = {hardtanh, hardtanh_of_ints, TOSAIC_KEEPS};

TOSAIC_KERNEL(hardtanh_out, "aten::hardtanh.out", "TddO") { return compute(&hardtanh_function, call, 2, 3); }

/* x is input, negative coefficient, input scale; the positive side is scaled afterwards. */
static float elu(const float *x) { return x[0] <= 0.0f ? tosaic_expm1(x[0] * x[2]) * x[1] : x[0]; }
static const tosaic_function elu_function = {elu, 0, TOSAIC_KEEPS};

static float scale(const float *x) { return x[0] * x[1]; }
static const tosaic_function scale_function = {scale, 0, TOSAIC_KEEPS};

/* out = scale * (x > 0 ? x : alpha * (e^(x * input_scale) - 1)) */
TOSAIC_KERNEL(elu_out, "aten::elu.out", "TdddO") {
    tosaic_tensor *out = tosaic_tensor_at(call, 4);
    tosaic_operands operands;
    tosaic_take_operands(&operands, call, 0, 1);
    if (!tosaic_add_number(&operands, call, 1) || !tosaic_add_number(&operands, call, 3)) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_status status = tosaic_apply(&elu_function, &operands, out);
    if (status != TOSAIC_OK) {
        return status;
    }
    operands.tensors[0] = out;
    operands.count = 1;
    return tosaic_add_number(&operands, call, 2) ? tosaic_apply(&scale_function, &operands, out) : TOSAIC_BAD_TYPE;
}

static float logit(const float *x) {
    float p = x[0] < x[1] ? x[1] : x[0] > 1.0f - x[1] ? 1.0f - x[1] : x[0];
    return tosaic_log(p / (1.0f - p));
}

static float logit_of_any(const float *x) { return tosaic_log(x[0] / (1.0f - x[0])); }
static const tosaic_function logit_function = {logit, 0, TOSAIC_FLOATS};
static const tosaic_function logit_of_any_function = {logit_of_any, 0, TOSAIC_FLOATS};

/* out = log(x / (1 - x)), with x limited to [eps, 1 - eps] */
TOSAIC_KERNEL(logit_out, "aten::logit.out", "Td?O") {
    bool is_limited = !tosaic_is_none_at(call, 1);
    return compute(is_limited ? &logit_function : &logit_of_any_function, call, is_limited ? 1 : 0, 2);
}
