/* Plain numbers of a program: sizes of tensors, and arithmetic with them. */
#include "numbers.h"

static void set_int(const tosaic_call *call, uint32_t index, int64_t number) {
    *call->args[index] = (tosaic_value){.kind = TOSAIC_INT, .as.integer = number};
}

static void set_bool(const tosaic_call *call, uint32_t index, bool truth) {
    *call->args[index] = (tosaic_value){.kind = TOSAIC_BOOLEAN, .as.boolean = truth};
}

static void set_double(const tosaic_call *call, uint32_t index, double number) {
    *call->args[index] = (tosaic_value){.kind = TOSAIC_DOUBLE, .as.number = number};
}

static double get_double(const tosaic_call *call, uint32_t index) {
    const tosaic_value *value = call->args[index];
    return value->kind == TOSAIC_DOUBLE ? value->as.number : (double)tosaic_whole_at(call, index);
}

/* Whether both operands are integers or bools. */
static bool are_whole(const tosaic_call *call) {
    return call->args[0]->kind != TOSAIC_DOUBLE && call->args[1]->kind != TOSAIC_DOUBLE;
}

/* A result of the operands' kind. Integers wrap around as unsigned ones do. */
#define ARITHMETIC(sign)                                                                                     \
    if (are_whole(call)) {                                                                                   \
        set_int(call, 2, (int64_t)((uint64_t)tosaic_whole_at(call, 0) sign(uint64_t) tosaic_whole_at(call, 1))); \
    } else {                                                                                                 \
        set_double(call, 2, get_double(call, 0) sign get_double(call, 1));                                   \
    }                                                                                                        \
    return TOSAIC_OK

#define COMPARISON(sign)                                                                                   \
    set_bool(call, 2,                                                                                      \
             are_whole(call) ? tosaic_whole_at(call, 0) sign tosaic_whole_at(call, 1)                       \
                             : get_double(call, 0) sign get_double(call, 1));                               \
    return TOSAIC_OK

TOSAIC_KERNEL(add_numbers, "executorch_prim::add.Scalar", "ddr") { ARITHMETIC(+); }
TOSAIC_KERNEL(sub_numbers, "executorch_prim::sub.Scalar", "ddr") { ARITHMETIC(-); }
TOSAIC_KERNEL(mul_numbers, "executorch_prim::mul.Scalar", "ddr") { ARITHMETIC(*); }
TOSAIC_KERNEL(eq_numbers, "executorch_prim::eq.Scalar", "ddr") { COMPARISON(==); }
TOSAIC_KERNEL(gt_numbers, "executorch_prim::gt.Scalar", "ddr") { COMPARISON(>); }
TOSAIC_KERNEL(ge_numbers, "executorch_prim::ge.Scalar", "ddr") { COMPARISON(>=); }
TOSAIC_KERNEL(lt_numbers, "executorch_prim::lt.Scalar", "ddr") { COMPARISON(<); }
TOSAIC_KERNEL(le_numbers, "executorch_prim::le.Scalar", "ddr") { COMPARISON(<=); }

TOSAIC_KERNEL(truediv_numbers, "executorch_prim::truediv.Scalar", "ddr") {
    set_double(call, 2, get_double(call, 0) / get_double(call, 1));
    return TOSAIC_OK;
}

/* Down to an integer, and the rest of that division: integers only. */
static tosaic_status divide(const tosaic_call *call, bool wants_rest) {
    int64_t a = tosaic_whole_at(call, 0);
    int64_t b = tosaic_whole_at(call, 1);
    if (!are_whole(call) || b == 0 || (a == INT64_MIN && b == -1)) {
        return TOSAIC_BAD_ARGUMENT;
    }
    int64_t rest = a % b;
    bool is_beyond = rest != 0 && (rest < 0) != (b < 0);
    set_int(call, 2, wants_rest ? rest + (is_beyond ? b : 0) : a / b - (is_beyond ? 1 : 0));
    return TOSAIC_OK;
}

TOSAIC_KERNEL(floordiv_numbers, "executorch_prim::floordiv.Scalar", "ddr") { return divide(call, false); }
TOSAIC_KERNEL(floordiv_ints, "executorch_prim::floordiv.int", "iir") { return divide(call, false); }
TOSAIC_KERNEL(mod_numbers, "executorch_prim::mod.Scalar", "ddr") { return divide(call, true); }
TOSAIC_KERNEL(mod_ints, "executorch_prim::mod.int", "iir") { return divide(call, true); }

TOSAIC_KERNEL(neg_number, "executorch_prim::neg.Scalar", "dr") {
    if (call->args[0]->kind == TOSAIC_DOUBLE) {
        set_double(call, 1, -call->args[0]->as.number);
    } else {
        set_int(call, 1, (int64_t)(0u - (uint64_t)tosaic_whole_at(call, 0)));
    }
    return TOSAIC_OK;
}

TOSAIC_KERNEL(sym_float, "executorch_prim::sym_float.Scalar", "dr") {
    set_double(call, 1, get_double(call, 0));
    return TOSAIC_OK;
}

static tosaic_status cut_off(const tosaic_call *call) {
    set_int(call, 1, tosaic_whole_at(call, 0));
    return TOSAIC_OK;
}

TOSAIC_KERNEL(sym_int, "executorch_prim::sym_int.Scalar", "dr") { return cut_off(call); }
TOSAIC_KERNEL(trunc_number, "executorch_prim::trunc.Scalar", "dr") { return cut_off(call); }

TOSAIC_KERNEL(sym_not, "executorch_prim::sym_not.Scalar", "dr") {
    set_bool(call, 1, tosaic_whole_at(call, 0) == 0);
    return TOSAIC_OK;
}

/* The larger or the smaller of two numbers. */
static tosaic_status choose(const tosaic_call *call, bool larger) {
    bool is_less = are_whole(call) ? tosaic_whole_at(call, 0) < tosaic_whole_at(call, 1)
                                   : get_double(call, 0) < get_double(call, 1);
    *call->args[2] = *call->args[is_less == larger ? 1 : 0];
    return TOSAIC_OK;
}

TOSAIC_KERNEL(sym_max, "executorch_prim::sym_max.Scalar", "ddr") { return choose(call, true); }
TOSAIC_KERNEL(sym_min, "executorch_prim::sym_min.Scalar", "ddr") { return choose(call, false); }

TOSAIC_KERNEL(sym_size, "aten::sym_size.int", "Tir") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), self->rank);
    if (dim >= self->rank) {
        return TOSAIC_BAD_SHAPE;
    }
    set_int(call, 2, self->sizes[dim]);
    return TOSAIC_OK;
}

TOSAIC_KERNEL(sym_numel, "aten::sym_numel", "Tr") {
    set_int(call, 1, tosaic_count(tosaic_tensor_at(call, 0)));
    return TOSAIC_OK;
}

/* The only element of a tensor. */
TOSAIC_KERNEL(local_scalar_dense, "aten::_local_scalar_dense", "Tr") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    if (tosaic_count(self) != 1u) {
        return TOSAIC_BAD_SHAPE;
    }
    if (tosaic_find_access(self->dtype) == NULL || self->dtype == TOSAIC_FLOAT16) {
        return TOSAIC_BAD_TYPE;
    }
    if (self->dtype == TOSAIC_FLOAT32) {
        set_double(call, 1, (double)*(const float *)self->data);
        return TOSAIC_OK;
    }
    int64_t number = tosaic_read_int(self->dtype, self->data, 0);
    if (self->dtype == TOSAIC_BOOL) {
        set_bool(call, 1, number != 0);
    } else {
        set_int(call, 1, number);
    }
    return TOSAIC_OK;
}
