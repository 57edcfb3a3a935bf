#ifndef TOSAIC_TENSOR_H
#define TOSAIC_TENSOR_H

#include "kernel.h"

/* Computes the bytes of a tensor. False if its type is unknown, a size negative, or the product too large. */
bool tosaic_measure(uint32_t dtype, uint32_t rank, const int32_t *sizes, uint32_t *bytes);

#endif
