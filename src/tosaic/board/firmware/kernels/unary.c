/* Functions of one number. */
#include "elementwise.h"
#include "floats.h"

/* A function with floats as results. */
#define FLOATS(name, result)                                      \
    static float name##_of_float(const float *x) { return result; } \
    static const tosaic_function name##_function = {name##_of_float, 0, TOSAIC_FLOATS};

/* A function of floats and one of integers. */
#define BOTH(name, rule, of_float, of_int)                          \
    static float name##_of_float(const float *x) { return of_float; } \
    static int64_t name##_of_int(const int64_t *x) { return of_int; } \
    static const tosaic_function name##_function = {name##_of_float, name##_of_int, rule};

#define UNARY(name) tosaic_compute(&name##_function, call, 1)

FLOATS(sqrt, tosaic_sqrt(x[0]))
FLOATS(rsqrt, 1.0f / tosaic_sqrt(x[0]))
FLOATS(reciprocal, 1.0f / x[0])
FLOATS(exp, tosaic_exp(x[0]))
FLOATS(expm1, tosaic_expm1(x[0]))
FLOATS(log, tosaic_log(x[0]))
FLOATS(log1p, tosaic_log1p(x[0]))
FLOATS(log2, tosaic_log2(x[0]))
FLOATS(log10, tosaic_log10(x[0]))
FLOATS(sin, tosaic_sin(x[0]))
FLOATS(cos, tosaic_cos(x[0]))
FLOATS(tan, tosaic_tan(x[0]))
FLOATS(asin, tosaic_asin(x[0]))
FLOATS(acos, tosaic_acos(x[0]))
FLOATS(atan, tosaic_atan(x[0]))
FLOATS(sinh, tosaic_sinh(x[0]))
FLOATS(cosh, tosaic_cosh(x[0]))
FLOATS(tanh, tosaic_tanh(x[0]))
FLOATS(asinh, tosaic_asinh(x[0]))
FLOATS(acosh, tosaic_acosh(x[0]))
FLOATS(atanh, tosaic_atanh(x[0]))
FLOATS(erf, tosaic_erf(x[0]))
FLOATS(sigmoid, tosaic_sigmoid(x[0]))

TOSAIC_KERNEL(sqrt_out, "aten::sqrt.out", "TO") { return UNARY(sqrt); }
TOSAIC_KERNEL(rsqrt_out, "aten::rsqrt.out", "TO") { return UNARY(rsqrt); }
TOSAIC_KERNEL(reciprocal_out, "aten::reciprocal.out", "TO") { return UNARY(reciprocal); }
TOSAIC_KERNEL(exp_out, "aten::exp.out", "TO") { return UNARY(exp); }
TOSAIC_KERNEL(expm1_out, "aten::expm1.out", "TO") { return UNARY(expm1); }
TOSAIC_KERNEL(log_out, "aten::log.out", "TO") { return UNARY(log); }
TOSAIC_KERNEL(log1p_out, "aten::log1p.out", "TO") { return UNARY(log1p); }
TOSAIC_KERNEL(log2_out, "aten::log2.out", "TO") { return UNARY(log2); }
TOSAIC_KERNEL(log10_out, "aten::log10.out", "TO") { return UNARY(log10); }
TOSAIC_KERNEL(sin_out, "aten::sin.out", "TO") { return UNARY(sin); }
TOSAIC_KERNEL(cos_out, "aten::cos.out", "TO") { return UNARY(cos); }
TOSAIC_KERNEL(tan_out, "aten::tan.out", "TO") { return UNARY(tan); }
TOSAIC_KERNEL(asin_out, "aten::asin.out", "TO") { return UNARY(asin); }
TOSAIC_KERNEL(acos_out, "aten::acos.out", "TO") { return UNARY(acos); }
TOSAIC_KERNEL(atan_out, "aten::atan.out", "TO") { return UNARY(atan); }
TOSAIC_KERNEL(sinh_out, "aten::sinh.out", "TO") { return UNARY(sinh); }
TOSAIC_KERNEL(cosh_out, "aten::cosh.out", "TO") { return UNARY(cosh); }
TOSAIC_KERNEL(tanh_out, "aten::tanh.out", "TO") { return UNARY(tanh); }
TOSAIC_KERNEL(asinh_out, "aten::asinh.out", "TO") { return UNARY(asinh); }
TOSAIC_KERNEL(acosh_out, "aten::acosh.out", "TO") { return UNARY(acosh); }
TOSAIC_KERNEL(atanh_out, "aten::atanh.out", "TO") { return UNARY(atanh); }
TOSAIC_KERNEL(erf_out, "aten::erf.out", "TO") { return UNARY(erf); }
TOSAIC_KERNEL(sigmoid_out, "aten::sigmoid.out", "TO") { return UNARY(sigmoid); }

/* The lowest integer has no positive one: it stays what it is. */
#define NEGATE(x) (int64_t)(0u - (uint64_t)(x))

BOTH(abs, TOSAIC_KEEPS, tosaic_abs(x[0]), x[0] < 0 ? NEGATE(x[0]) : x[0])
BOTH(neg, TOSAIC_KEEPS, -x[0], NEGATE(x[0]))
BOTH(floor, TOSAIC_KEEPS, tosaic_floor(x[0]), x[0])
BOTH(ceil, TOSAIC_KEEPS, tosaic_ceil(x[0]), x[0])
BOTH(round, TOSAIC_KEEPS, tosaic_round(x[0]), x[0])
BOTH(trunc, TOSAIC_KEEPS, tosaic_trunc(x[0]), x[0])
BOTH(sign, TOSAIC_KEEPS, x[0] > 0.0f ? 1.0f : x[0] < 0.0f ? -1.0f : x[0], x[0] > 0 ? 1 : x[0] < 0 ? -1 : 0)
BOTH(relu, TOSAIC_KEEPS, x[0] < 0.0f ? 0.0f : x[0], x[0] < 0 ? 0 : x[0])
BOTH(isnan, TOSAIC_TESTS, tosaic_is_nan(x[0]) ? 1.0f : 0.0f, x[0] != x[0])
BOTH(isinf, TOSAIC_TESTS, tosaic_abs(x[0]) == TOSAIC_INFINITY ? 1.0f : 0.0f, x[0] != x[0])
BOTH(logical_not, TOSAIC_TESTS, x[0] == 0.0f ? 1.0f : 0.0f, x[0] == 0)

TOSAIC_KERNEL(abs_out, "aten::abs.out", "TO") { return UNARY(abs); }
TOSAIC_KERNEL(neg_out, "aten::neg.out", "TO") { return UNARY(neg); }
TOSAIC_KERNEL(floor_out, "aten::floor.out", "TO") { return UNARY(floor); }
TOSAIC_KERNEL(ceil_out, "aten::ceil.out", "TO") { return UNARY(ceil); }
TOSAIC_KERNEL(round_out, "aten::round.out", "TO") { return UNARY(round); }
TOSAIC_KERNEL(trunc_out, "aten::trunc.out", "TO") { return UNARY(trunc); }
TOSAIC_KERNEL(sign_out, "aten::sign.out", "TO") { return UNARY(sign); }
TOSAIC_KERNEL(relu_out, "aten::relu.out", "TO") { return UNARY(relu); }
TOSAIC_KERNEL(isnan_out, "aten::isnan.out", "TO") { return UNARY(isnan); }
TOSAIC_KERNEL(isinf_out, "aten::isinf.out", "TO") { return UNARY(isinf); }
TOSAIC_KERNEL(logical_not_out, "aten::logical_not.out", "TO") { return UNARY(logical_not); }

static int64_t bitwise_not_of_int(const int64_t *x) { return ~x[0]; }
static const tosaic_function bitwise_not_function = {0, bitwise_not_of_int, TOSAIC_KEEPS};

TOSAIC_KERNEL(bitwise_not_out, "aten::bitwise_not.out", "TO") {
    /* A bool has one bit. */
    bool of_bools = tosaic_tensor_at(call, 0)->dtype == TOSAIC_BOOL;
    return of_bools ? UNARY(logical_not) : UNARY(bitwise_not);
}
