/* Kernels that compute each element of their output from the elements at the same place of their inputs. */
#ifndef TOSAIC_ELEMENTWISE_H
#define TOSAIC_ELEMENTWISE_H

#include "numbers.h"

#define TOSAIC_MAX_OPERANDS 3u

/* Computes an element from those of the inputs, x[0], x[1], ... */
typedef float tosaic_of_floats(const float *x);
typedef int64_t tosaic_of_ints(const int64_t *x);

/* The type of the result. */
typedef enum tosaic_rule {
    TOSAIC_KEEPS,  /* that of the inputs */
    TOSAIC_FLOATS, /* float, also for integers */
    TOSAIC_TESTS   /* 1 for yes and 0 for no, in any type */
} tosaic_rule;

/* One function for floats and one for integers; NULL where the operator does not take them. */
typedef struct tosaic_function {
    tosaic_of_floats *of_floats;
    tosaic_of_ints *of_ints;
    tosaic_rule rule;
} tosaic_function;

/* Inputs of an elementwise kernel: tensors, and plain numbers that are made tensors. */
typedef struct tosaic_operands {
    const tosaic_tensor *tensors[TOSAIC_MAX_OPERANDS];
    uint32_t count;
    uint32_t dtype; /* to which they are promoted */
    tosaic_tensor made[TOSAIC_MAX_OPERANDS];
    tosaic_room rooms[TOSAIC_MAX_OPERANDS];
} tosaic_operands;

/* Collects `count` arguments from `first` on. A number (d) takes the type that the tensors give it. */
void tosaic_take_operands(tosaic_operands *operands, const tosaic_call *call, uint32_t first, uint32_t count);

/* Adds a number that has no say in the types. False if it has a fraction and the operands are integers. */
bool tosaic_add_number(tosaic_operands *operands, const tosaic_call *call, uint32_t index);

/* Adds a tensor that has no say in the types: a condition. */
void tosaic_add_tensor(tosaic_operands *operands, const tosaic_tensor *tensor);

/* Computes `out` from the operands, which are broadcast to its shape. */
tosaic_status tosaic_apply(const tosaic_function *function, const tosaic_operands *operands, tosaic_tensor *out);

/* Both at once, for a kernel with `count` operands and then the output. */
tosaic_status tosaic_compute(const tosaic_function *function, const tosaic_call *call, uint32_t count);

#endif
