/* Elements of tensors as numbers of two kinds, floats and 64-bit integers, and the types that operators give. */
#ifndef TOSAIC_NUMBERS_H
#define TOSAIC_NUMBERS_H

#include "kernel.h"

/* Elements that are `step` apart. */
typedef struct tosaic_row {
    void *data;
    uint32_t at; /* the first one */
    uint32_t step; /* a negative one wraps around */
    uint32_t count;
} tosaic_row;

/* Read a row: its numbers go to to[0], to[spread], ... */
typedef void tosaic_load_floats(const tosaic_row *row, float *to, uint32_t spread);
typedef void tosaic_load_ints(const tosaic_row *row, int64_t *to, uint32_t spread);

/* Write a row. As in C: an integer loses its upper bits, a bool is "not zero". */
typedef void tosaic_store_floats(const tosaic_row *row, const float *from);
typedef void tosaic_store_ints(const tosaic_row *row, const int64_t *from);

/* How elements of a type are read and written. */
typedef struct tosaic_access_to {
    tosaic_load_floats *load_floats;
    tosaic_load_ints *load_ints;
    tosaic_store_floats *store_floats;
    tosaic_store_ints *store_ints;
} tosaic_access_to;

/* Returns NULL for a type that is not float32, float16, bool, uint8 or int8 to int64. Kernels copy a float16, and do not
 * compute with it. */
const tosaic_access_to *tosaic_find_access(uint32_t dtype);

static inline bool tosaic_is_float(uint32_t dtype) { return dtype == TOSAIC_FLOAT32 || dtype == TOSAIC_FLOAT16; }

/* Reads or writes one integer; the type is one of these. */
int64_t tosaic_read_int(uint32_t dtype, const void *data, uint32_t at);
void tosaic_write_int(uint32_t dtype, void *data, uint32_t at, int64_t number);

/* Returns the type of a result, as torch promotes types; TOSAIC_UINT64 stands for an impossible one. */
uint32_t tosaic_promote(uint32_t a, uint32_t b);

/* The same for a tensor and a plain number: its type counts only if it is of a higher kind: bool, integer, float. */
uint32_t tosaic_promote_number(uint32_t dtype, const tosaic_value *number);

/* Whether a result of type `from` may go to a tensor of type `to`: no float to an integer, nothing else to a bool. */
bool tosaic_can_cast(uint32_t from, uint32_t to);

/* Cuts an integer to the bits of a type. */
int64_t tosaic_narrow(uint32_t dtype, int64_t number);

/* Cuts a float off to an integer. One that is too large becomes the largest, what is not a number the lowest. */
int64_t tosaic_to_int(float number);

/* A plain number as a tensor: keep `room` as long as the tensor. */
typedef union tosaic_room {
    int64_t integer;
    float number;
    uint16_t half;
    uint8_t boolean;
} tosaic_room;

tosaic_tensor tosaic_make_tensor(const tosaic_call *call, uint32_t index, uint32_t dtype, tosaic_room *room);

#endif
