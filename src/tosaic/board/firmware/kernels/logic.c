/* Comparisons, and operations on bits and truth values. */
#include "elementwise.h"

/* The same test of floats and of integers. */
#define TEST(name, condition)                                                    \
    static float name##_floats(const float *x) { return condition ? 1.0f : 0.0f; } \
    static int64_t name##_ints(const int64_t *x) { return condition ? 1 : 0; }     \
    static const tosaic_function name##_function = {name##_floats, name##_ints, TOSAIC_TESTS};

#define BINARY(name) tosaic_compute(&name##_function, call, 2)

TEST(eq, (x[0] == x[1]))
TEST(ne, (x[0] != x[1]))
TEST(lt, (x[0] < x[1]))
TEST(le, (x[0] <= x[1]))
TEST(gt, (x[0] > x[1]))
TEST(ge, (x[0] >= x[1]))
TEST(logical_and, (x[0] != 0 && x[1] != 0))
TEST(logical_or, (x[0] != 0 || x[1] != 0))
TEST(logical_xor, ((x[0] != 0) != (x[1] != 0)))

TOSAIC_KERNEL(eq_out, "aten::eq.Tensor_out", "TTO") { return BINARY(eq); }
TOSAIC_KERNEL(eq_number_out, "aten::eq.Scalar_out", "TdO") { return BINARY(eq); }
TOSAIC_KERNEL(ne_out, "aten::ne.Tensor_out", "TTO") { return BINARY(ne); }
TOSAIC_KERNEL(ne_number_out, "aten::ne.Scalar_out", "TdO") { return BINARY(ne); }
TOSAIC_KERNEL(lt_out, "aten::lt.Tensor_out", "TTO") { return BINARY(lt); }
TOSAIC_KERNEL(lt_number_out, "aten::lt.Scalar_out", "TdO") { return BINARY(lt); }
TOSAIC_KERNEL(le_out, "aten::le.Tensor_out", "TTO") { return BINARY(le); }
TOSAIC_KERNEL(le_number_out, "aten::le.Scalar_out", "TdO") { return BINARY(le); }
TOSAIC_KERNEL(gt_out, "aten::gt.Tensor_out", "TTO") { return BINARY(gt); }
TOSAIC_KERNEL(gt_number_out, "aten::gt.Scalar_out", "TdO") { return BINARY(gt); }
TOSAIC_KERNEL(ge_out, "aten::ge.Tensor_out", "TTO") { return BINARY(ge); }
TOSAIC_KERNEL(ge_number_out, "aten::ge.Scalar_out", "TdO") { return BINARY(ge); }
TOSAIC_KERNEL(logical_and_out, "aten::logical_and.out", "TTO") { return BINARY(logical_and); }
TOSAIC_KERNEL(logical_or_out, "aten::logical_or.out", "TTO") { return BINARY(logical_or); }
TOSAIC_KERNEL(logical_xor_out, "aten::logical_xor.out", "TTO") { return BINARY(logical_xor); }

/* An operation on the bits of integers. */
#define BITS(name, result)                                         \
    static int64_t name##_ints(const int64_t *x) { return result; } \
    static const tosaic_function name##_function = {0, name##_ints, TOSAIC_KEEPS};

BITS(bitwise_and, x[0] & x[1])
BITS(bitwise_or, x[0] | x[1])
BITS(bitwise_xor, x[0] ^ x[1])
/* All bits leave the number if it is shifted by more than it has. */
BITS(left_shift, x[1] < 0 || x[1] > 63 ? 0 : (int64_t)((uint64_t)x[0] << x[1]))
BITS(right_shift, x[0] >> (x[1] < 0 || x[1] > 63 ? 63 : x[1]))

TOSAIC_KERNEL(bitwise_and_out, "aten::bitwise_and.Tensor_out", "TTO") { return BINARY(bitwise_and); }
TOSAIC_KERNEL(bitwise_and_number_out, "aten::bitwise_and.Scalar_out", "TdO") { return BINARY(bitwise_and); }
TOSAIC_KERNEL(bitwise_or_out, "aten::bitwise_or.Tensor_out", "TTO") { return BINARY(bitwise_or); }
TOSAIC_KERNEL(bitwise_or_number_out, "aten::bitwise_or.Scalar_out", "TdO") { return BINARY(bitwise_or); }
TOSAIC_KERNEL(bitwise_xor_out, "aten::bitwise_xor.Tensor_out", "TTO") { return BINARY(bitwise_xor); }
TOSAIC_KERNEL(bitwise_xor_number_out, "aten::bitwise_xor.Scalar_out", "TdO") { return BINARY(bitwise_xor); }
TOSAIC_KERNEL(left_shift_out, "aten::bitwise_left_shift.Tensor_out", "TTO") { return BINARY(left_shift); }
TOSAIC_KERNEL(left_shift_number_out, "aten::bitwise_left_shift.Tensor_Scalar_out", "TdO") {
    return BINARY(left_shift);
}
TOSAIC_KERNEL(right_shift_out, "aten::bitwise_right_shift.Tensor_out", "TTO") { return BINARY(right_shift); }
TOSAIC_KERNEL(right_shift_number_out, "aten::bitwise_right_shift.Tensor_Scalar_out", "TdO") {
    return BINARY(right_shift);
}
