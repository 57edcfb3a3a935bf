/* What a kernel is: a function for one operator of a .pte file, such as `aten::add.out`.
 *
 *     TOSAIC_KERNEL(neg_out, "aten::neg.out", "TO") {
 *         const tosaic_tensor *x = tosaic_tensor_at(call, 0);
 *         tosaic_tensor *out = tosaic_tensor_at(call, 1);
 *         ...
 *         return TOSAIC_OK;
 *     }
 *
 * The line TOSAIC_KERNEL is all that the build reads: the C name, the operator with its overload, and the signature,
 * one letter per argument in the order of the operator's schema, outputs last:
 *
 *     T  tensor, read               I  list of ints
 *     O  tensor, written            D  list of doubles
 *     i  int                        B  list of bools
 *     d  number: int, double, bool  L  list of tensors, read
 *     r  number, written            W  list of tensors, written
 *     b  bool                       l  list of optional tensors, read
 *     s  string                     ?  after a letter: or None
 *     *  anything                   V  tensor, given the memory of another one
 *
 * Before the call the runtime has checked that the arguments have these kinds, that every tensor has memory (its data
 * is aligned, and large enough for its sizes), and that none that is written is a constant. A kernel checks types and
 * shapes, and gives its outputs their sizes with tosaic_resize(). Arguments may share memory only where the program
 * plans it, in place. More arguments than letters may follow (a .pte names outputs twice); they are not checked.
 *
 * A kernel has no static variables and takes no memory but a little stack.
 */
#ifndef TOSAIC_KERNEL_H
#define TOSAIC_KERNEL_H

#include "bytes.h"
#include "tosaic.h"

typedef struct tosaic_call {
    tosaic_value *const *args;
    uint32_t count;
} tosaic_call;

typedef tosaic_status tosaic_kernel_function(const tosaic_call *call);

struct tosaic_kernel {
    const char *name;      /* the operator with its overload: aten::add.out */
    const char *signature; /* its arguments: TTdO */
    tosaic_kernel_function *run;
};

/* The kernels of this build, a generated table. */
extern const tosaic_kernel tosaic_kernels[];
extern const uint32_t tosaic_kernel_count;

/* Begins a kernel; `call` is its only parameter. */
#define TOSAIC_KERNEL(c_name, operator_name, signature)             \
    tosaic_status tosaic_kernel_##c_name(const tosaic_call *call); \
    tosaic_status tosaic_kernel_##c_name(const tosaic_call *call)

/* ---- Arguments: valid for letters of the signature that allow them --------------------------------------------- */

/* The tensor (T, O); NULL for None. */
static inline tosaic_tensor *tosaic_tensor_at(const tosaic_call *call, uint32_t index) {
    const tosaic_value *value = call->args[index];
    return value->kind == TOSAIC_NONE ? NULL : value->as.tensor;
}

static inline bool tosaic_is_none_at(const tosaic_call *call, uint32_t index) {
    return call->args[index]->kind == TOSAIC_NONE;
}

static inline int64_t tosaic_int_at(const tosaic_call *call, uint32_t index) { return call->args[index]->as.integer; }

static inline bool tosaic_bool_at(const tosaic_call *call, uint32_t index) { return call->args[index]->as.boolean; }

static inline const tosaic_list *tosaic_list_at(const tosaic_call *call, uint32_t index) {
    return &call->args[index]->as.list;
}

/* A number (d) as a float: one rounding from the file's double, or from a 64-bit integer. */
float tosaic_float_at(const tosaic_call *call, uint32_t index);

/* A number (d) as an integer: a double is cut off, and limited to 64 bits. */
int64_t tosaic_whole_at(const tosaic_call *call, uint32_t index);

/* ---- Tensors --------------------------------------------------------------------------------------------------- */

/* The number of elements. */
uint32_t tosaic_count(const tosaic_tensor *tensor);

/* Writes the strides of the dimensions, in elements, to `strides` (`rank` of them). */
void tosaic_get_strides(const tosaic_tensor *tensor, uint32_t *strides);

/* Whether two tensors have the same sizes. */
bool tosaic_same_shape(const tosaic_tensor *a, const tosaic_tensor *b);

/* Whether two tensors of the same shape have their elements in the same order in memory. */
bool tosaic_same_order(const tosaic_tensor *a, const tosaic_tensor *b);

/* Whether the elements of a tensor are in memory in the order of its dimensions. */
bool tosaic_is_contiguous(const tosaic_tensor *tensor);

/* Gives `out` the sizes of `x`. */
tosaic_status tosaic_resize_like(tosaic_tensor *out, const tosaic_tensor *x);

/* Returns `dim` counted from the front, for -rank <= dim < rank; UINT32_MAX for another one. */
uint32_t tosaic_wrap_dim(int64_t dim, uint32_t rank);

#endif
