/* Elements of a tensor, read and written one at a time, whatever their type. */
#ifndef TOSAIC_ELEMENTS_H
#define TOSAIC_ELEMENTS_H

#include "floats.h"
#include "kernel.h"

/* A number: `real` where the type is float32, else `whole`. */
typedef union tosaic_number {
    float real;
    int64_t whole;
} tosaic_number;

/* Whether the functions below take tensors of this type: float32, bool, int8 to int64, uint8. */
bool tosaic_is_number(uint32_t dtype);

tosaic_number tosaic_get_number(const tosaic_tensor *tensor, uint32_t at);

/* An integer that does not fit wraps around; all but zero is true. */
void tosaic_set_number(tosaic_tensor *tensor, uint32_t at, tosaic_number number);

/* Converts between types, but not from float32 to integers. */
tosaic_number tosaic_cast(tosaic_number number, uint32_t from, uint32_t to);

/* Reads the number of a call (d) as an element of this type. */
tosaic_number tosaic_number_at(const tosaic_call *call, uint32_t index, uint32_t dtype);

/* Arithmetic in one type; integers wrap around. */
tosaic_number tosaic_add(tosaic_number a, tosaic_number b, uint32_t dtype);
tosaic_number tosaic_multiply(tosaic_number a, tosaic_number b, uint32_t dtype);

/* Whether a < b, where a NaN is greater than all other numbers and equal to itself. */
bool tosaic_is_less(tosaic_number a, tosaic_number b, uint32_t dtype);

/* The address of an element. */
static inline uint8_t *tosaic_address(const tosaic_tensor *tensor, uint32_t at) {
    return (uint8_t *)tensor->data + at * tosaic_get_element_size(tensor->dtype);
}

/* Reads an index (int32 or int64) that must be within -size <= index < size, counted from the end if negative. */
bool tosaic_read_index(const tosaic_tensor *tensor, uint32_t at, int32_t size, uint32_t *index);

/* Copies the data of a tensor to one of the same type, shape and order. */
void tosaic_copy(tosaic_tensor *to, const tosaic_tensor *from);

#endif
