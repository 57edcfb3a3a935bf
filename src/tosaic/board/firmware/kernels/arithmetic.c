/* Sums, products, quotients and powers of two operands: tensors that are broadcast, or a tensor and a number. */
#include "elementwise.h"
#include "floats.h"

/* Integers wrap around as unsigned ones do. */
#define ADD(a, b) (int64_t)((uint64_t)(a) + (uint64_t)(b))
#define SUB(a, b) (int64_t)((uint64_t)(a) - (uint64_t)(b))
#define MUL(a, b) (int64_t)((uint64_t)(a) * (uint64_t)(b))

/* ---- Sums: the third operand, alpha, takes the type of the other two --------------------------------------------- */

static tosaic_status sum(const tosaic_function *function, const tosaic_call *call) {
    tosaic_operands operands;
    tosaic_take_operands(&operands, call, 0, 2);
    if (!tosaic_add_number(&operands, call, 2)) {
        return TOSAIC_BAD_TYPE;
    }
    return tosaic_apply(function, &operands, tosaic_tensor_at(call, 3));
}

static float add(const float *x) { return x[0] + x[2] * x[1]; }
static int64_t add_ints(const int64_t *x) { return ADD(x[0], MUL(x[2], x[1])); }
static const tosaic_function add_function = {add, add_ints, TOSAIC_KEEPS};

static float sub(const float *x) { return x[0] - x[2] * x[1]; }
static int64_t sub_ints(const int64_t *x) { return SUB(x[0], MUL(x[2], x[1])); }
static const tosaic_function sub_function = {sub, sub_ints, TOSAIC_KEEPS};

static float rsub(const float *x) { return x[1] - x[2] * x[0]; }
static int64_t rsub_ints(const int64_t *x) { return SUB(x[1], MUL(x[2], x[0])); }
static const tosaic_function rsub_function = {rsub, rsub_ints, TOSAIC_KEEPS};

/* out = self + alpha * other */
TOSAIC_KERNEL(add_out, "aten::add.out", "TTdO") { return sum(&add_function, call); }
TOSAIC_KERNEL(add_number_out, "aten::add.Scalar_out", "TddO") { return sum(&add_function, call); }

/* out = self - alpha * other */
TOSAIC_KERNEL(sub_out, "aten::sub.out", "TTdO") { return sum(&sub_function, call); }
TOSAIC_KERNEL(sub_number_out, "aten::sub.Scalar_out", "TddO") { return sum(&sub_function, call); }

/* out = other - alpha * self */
TOSAIC_KERNEL(rsub_number_out, "aten::rsub.Scalar_out", "TddO") { return sum(&rsub_function, call); }

/* ---- Products and quotients -------------------------------------------------------------------------------------- */

static float mul(const float *x) { return x[0] * x[1]; }
static int64_t mul_ints(const int64_t *x) { return MUL(x[0], x[1]); }
static const tosaic_function mul_function = {mul, mul_ints, TOSAIC_KEEPS};

TOSAIC_KERNEL(mul_out, "aten::mul.out", "TTO") { return tosaic_compute(&mul_function, call, 2); }
TOSAIC_KERNEL(mul_number_out, "aten::mul.Scalar_out", "TdO") { return tosaic_compute(&mul_function, call, 2); }

static float divide(const float *x) { return x[0] / x[1]; }
static const tosaic_function divide_function = {divide, 0, TOSAIC_FLOATS};

TOSAIC_KERNEL(div_out, "aten::div.out", "TTO") { return tosaic_compute(&divide_function, call, 2); }
TOSAIC_KERNEL(div_number_out, "aten::div.Scalar_out", "TdO") { return tosaic_compute(&divide_function, call, 2); }

/* The lowest integer divided by -1 has no room: it wraps around. A divisor is zero only if the output overwrote it. */
static int64_t divide_ints(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? SUB(0, a) : a / b; }
static int64_t get_rest(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

/* Whether the rest of a division has to move to the divisor's side of zero. */
static bool is_beyond(int64_t rest, int64_t divisor) { return rest != 0 && (rest < 0) != (divisor < 0); }

static float divide_trunc(const float *x) { return tosaic_trunc(x[0] / x[1]); }
static int64_t divide_trunc_ints(const int64_t *x) { return divide_ints(x[0], x[1]); }
static const tosaic_function divide_trunc_function = {divide_trunc, divide_trunc_ints, TOSAIC_KEEPS};

/* From the exact rest: a quotient just below an integer does not round up to it. */
static float divide_floor(const float *x) {
    if (x[1] == 0.0f) {
        return x[0] / x[1];
    }
    float rest = tosaic_fmod(x[0], x[1]);
    float quotient = (x[0] - rest) / x[1];
    if (rest != 0.0f && (rest < 0.0f) != (x[1] < 0.0f)) {
        quotient -= 1.0f;
    }
    if (quotient == 0.0f) {
        return tosaic_copy_sign(0.0f, x[0] / x[1]);
    }
    float down = tosaic_floor(quotient);
    return quotient - down > 0.5f ? down + 1.0f : down;
}

static int64_t divide_floor_ints(const int64_t *x) {
    return divide_ints(x[0], x[1]) - (is_beyond(get_rest(x[0], x[1]), x[1]) ? 1 : 0);
}

static const tosaic_function divide_floor_function = {divide_floor, divide_floor_ints, TOSAIC_KEEPS};

/* The rest with the sign of the dividend. */
static float fmod_floats(const float *x) { return tosaic_fmod(x[0], x[1]); }
static int64_t fmod_ints(const int64_t *x) { return get_rest(x[0], x[1]); }
static const tosaic_function fmod_function = {fmod_floats, fmod_ints, TOSAIC_KEEPS};

/* The rest with the sign of the divisor. */
static float remainder_floats(const float *x) {
    float rest = tosaic_fmod(x[0], x[1]);
    return rest != 0.0f && (rest < 0.0f) != (x[1] < 0.0f) ? rest + x[1] : rest;
}

static int64_t remainder_ints(const int64_t *x) {
    int64_t rest = get_rest(x[0], x[1]);
    return is_beyond(rest, x[1]) ? rest + x[1] : rest;
}

static const tosaic_function remainder_function = {remainder_floats, remainder_ints, TOSAIC_KEEPS};

/* Integers have no result for a division by zero. */
static tosaic_status divide_by(const tosaic_function *function, const tosaic_call *call, uint32_t out) {
    tosaic_operands operands;
    tosaic_take_operands(&operands, call, 0, 2);
    if (operands.dtype == TOSAIC_UINT64) {
        return TOSAIC_BAD_TYPE;
    }
    const tosaic_tensor *divisor = operands.tensors[1];
    uint32_t count = operands.dtype == TOSAIC_FLOAT32 ? 0 : tosaic_count(divisor);
    for (uint32_t i = 0; i < count; i++) {
        if (tosaic_read_int(divisor->dtype, divisor->data, i) == 0) {
            return TOSAIC_BAD_ARGUMENT;
        }
    }
    return tosaic_apply(function, &operands, tosaic_tensor_at(call, out));
}

static tosaic_status divide_in_mode(const tosaic_call *call) {
    if (tosaic_is_none_at(call, 2)) {
        tosaic_operands operands;
        tosaic_take_operands(&operands, call, 0, 2);
        return tosaic_apply(&divide_function, &operands, tosaic_tensor_at(call, 3));
    }
    tosaic_text mode = call->args[2]->as.string;
    /* `trunc` or `floor` */
    bool is_floor = mode.length > 0 && mode.start[0] == 'f';
    return divide_by(is_floor ? &divide_floor_function : &divide_trunc_function, call, 3);
}

TOSAIC_KERNEL(div_out_mode, "aten::div.out_mode", "TTs?O") { return divide_in_mode(call); }
TOSAIC_KERNEL(div_number_mode_out, "aten::div.Scalar_mode_out", "Tds?O") { return divide_in_mode(call); }
TOSAIC_KERNEL(floor_divide_out, "aten::floor_divide.out", "TTO") { return divide_by(&divide_floor_function, call, 2); }
TOSAIC_KERNEL(fmod_out, "aten::fmod.Tensor_out", "TTO") { return divide_by(&fmod_function, call, 2); }
TOSAIC_KERNEL(fmod_number_out, "aten::fmod.Scalar_out", "TdO") { return divide_by(&fmod_function, call, 2); }
TOSAIC_KERNEL(remainder_out, "aten::remainder.Tensor_out", "TTO") { return divide_by(&remainder_function, call, 2); }
TOSAIC_KERNEL(remainder_number_out, "aten::remainder.Scalar_out", "TdO") {
    return divide_by(&remainder_function, call, 2);
}

/* ---- Powers and angles ------------------------------------------------------------------------------------------- */

static float power(const float *x) { return tosaic_pow(x[0], x[1]); }

static int64_t power_ints(const int64_t *x) {
    int64_t base = x[0];
    int64_t exponent = x[1];
    if (exponent < 0) {
        /* A fraction, but for 1 and -1. */
        return base == 1 ? 1 : base != -1 ? 0 : (exponent & 1) != 0 ? -1 : 1;
    }
    int64_t result = 1;
    for (; exponent != 0; exponent >>= 1) {
        result = (exponent & 1) != 0 ? MUL(result, base) : result;
        base = MUL(base, base);
    }
    return result;
}

static const tosaic_function power_function = {power, power_ints, TOSAIC_KEEPS};

TOSAIC_KERNEL(pow_out, "aten::pow.Tensor_Tensor_out", "TTO") { return tosaic_compute(&power_function, call, 2); }
TOSAIC_KERNEL(pow_number_out, "aten::pow.Tensor_Scalar_out", "TdO") {
    return tosaic_compute(&power_function, call, 2);
}
TOSAIC_KERNEL(pow_of_number_out, "aten::pow.Scalar_out", "dTO") { return tosaic_compute(&power_function, call, 2); }

static float angle(const float *x) { return tosaic_atan2(x[0], x[1]); }
static const tosaic_function angle_function = {angle, 0, TOSAIC_FLOATS};

TOSAIC_KERNEL(atan2_out, "aten::atan2.out", "TTO") { return tosaic_compute(&angle_function, call, 2); }
