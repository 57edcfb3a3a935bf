/* Functions of floats, accurate to a few units in the last place. There is no libm on a board. */
#ifndef TOSAIC_FLOATS_H
#define TOSAIC_FLOATS_H

#include <stdbool.h>
#include <stdint.h>

#define TOSAIC_INFINITY __builtin_inff()
#define TOSAIC_NAN __builtin_nanf("")

static inline uint32_t tosaic_get_bits(float x) {
    union {
        float number;
        uint32_t bits;
    } u = {x};
    return u.bits;
}

static inline float tosaic_from_bits(uint32_t bits) {
    union {
        uint32_t bits;
        float number;
    } u = {bits};
    return u.number;
}

static inline bool tosaic_is_nan(float x) { return x != x; }

static inline float tosaic_abs(float x) { return tosaic_from_bits(tosaic_get_bits(x) & 0x7fffffffu); }

/* Returns |x| with the sign of another number. */
static inline float tosaic_copy_sign(float x, float sign) {
    return tosaic_from_bits((tosaic_get_bits(x) & 0x7fffffffu) | (tosaic_get_bits(sign) & 0x80000000u));
}

/* Every CPU of a board has an instruction for it. */
static inline float tosaic_sqrt(float x) { return __builtin_sqrtf(x); }

/* To an integer: cut off, down, up, or to the nearest, halves to the even one. The sign of zero remains. */
float tosaic_trunc(float x);
float tosaic_floor(float x);
float tosaic_ceil(float x);
float tosaic_round(float x);

float tosaic_exp(float x);
float tosaic_expm1(float x);
float tosaic_log(float x);
float tosaic_log1p(float x);
float tosaic_log2(float x);
float tosaic_log10(float x);
float tosaic_pow(float x, float y);

float tosaic_sin(float x);
float tosaic_cos(float x);
float tosaic_tan(float x);
float tosaic_asin(float x);
float tosaic_acos(float x);
float tosaic_atan(float x);
float tosaic_atan2(float y, float x);

float tosaic_sinh(float x);
float tosaic_cosh(float x);
float tosaic_tanh(float x);
float tosaic_asinh(float x);
float tosaic_acosh(float x);
float tosaic_atanh(float x);

float tosaic_erf(float x);
float tosaic_sigmoid(float x);

/* The rest of x / y, exactly, with the sign of x. */
float tosaic_fmod(float x, float y);

#endif
