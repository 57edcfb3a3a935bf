/* Functions of floats. Each reduces its argument to a short interval, where a short series is exact enough. */
#include "floats.h"

/* Evaluates c[0] + c[1] x + ... + c[count-1] x^(count-1). */
static float evaluate(const float *c, uint32_t count, float x) {
    float sum = c[count - 1u];
    for (uint32_t i = count - 1u; i-- > 0;) {
        sum = sum * x + c[i];
    }
    return sum;
}

#define EVALUATE(c, x) evaluate(c, sizeof(c) / sizeof(c)[0], x)

/* ---- Integers ---------------------------------------------------------------------------------------------------- */

/* From 2^23 on every float is an integer; it returns itself, and so do an infinity and what is not a number. */
static bool is_small(float x) { return tosaic_abs(x) < 0x1p23f; }

float tosaic_trunc(float x) { return is_small(x) ? tosaic_copy_sign((float)(int32_t)x, x) : x; }

float tosaic_floor(float x) {
    float cut = tosaic_trunc(x);
    return cut > x ? cut - 1.0f : cut;
}

float tosaic_ceil(float x) { return -tosaic_floor(-x); }

float tosaic_round(float x) {
    /* Near 2^23 the sum has no bits for a fraction: the processor rounds it. */
    return is_small(x) ? tosaic_copy_sign((tosaic_abs(x) + 0x1p23f) - 0x1p23f, x) : x;
}

float tosaic_fmod(float x, float y) {
    float a = tosaic_abs(x);
    float b = tosaic_abs(y);
    if (!(a < TOSAIC_INFINITY) || !(b > 0.0f)) {
        return TOSAIC_NAN;
    }
    /* Division by hand: subtract b times the largest powers of two. All differences are exact. */
    while (a >= b) {
        float part = b;
        uint32_t up = (tosaic_get_bits(a) >> 23) - (tosaic_get_bits(b) >> 23);
        while (up > 0) {
            uint32_t step = up < 64u ? up : 64u;
            part *= tosaic_from_bits((127u + step) << 23);
            up -= step;
        }
        /* A subnormal number has fewer bits than its exponent says. */
        while (part <= a * 0.5f) {
            part += part;
        }
        a -= part > a ? part * 0.5f : part;
    }
    return tosaic_copy_sign(a, x);
}

/* ---- Exponentials and logarithms ---------------------------------------------------------------------------------- */

#define LN2_HIGH 0.693359375f /* few bits: a product with a small integer is exact */
#define LN2_LOW -2.12194440e-4f
#define LOG2_E 1.44269504f

/* Multiplies by 2^n for -300 < n < 300, in two steps as the power may be no float. */
static float scale(float x, int32_t n) {
    int32_t half = n / 2;
    return x * tosaic_from_bits((uint32_t)(half + 127) << 23) * tosaic_from_bits((uint32_t)(n - half + 127) << 23);
}

/* e^r - 1 for |r| <= 0.36, by its series. */
static float expm1_near_zero(float r) {
    static const float c[] = {1.0f / 2, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040};
    return r + r * r * EVALUATE(c, r);
}

float tosaic_exp(float x) {
    if (!(tosaic_abs(x) < 110.0f)) {
        return x > 0.0f ? TOSAIC_INFINITY : x < 0.0f ? 0.0f : x;
    }
    float n = tosaic_round(x * LOG2_E);
    float r = (x - n * LN2_HIGH) - n * LN2_LOW;
    return scale(1.0f + expm1_near_zero(r), (int32_t)n);
}

float tosaic_expm1(float x) {
    if (x == 0.0f) {
        return x; /* with its sign */
    }
    return tosaic_abs(x) < 0.36f ? expm1_near_zero(x) : tosaic_exp(x) - 1.0f;
}

/* Splits x > 0 into m * 2^n with 0.707 < m < 1.415. */
static float split(float x, int32_t *n) {
    int32_t tiny = x < 0x1p-126f ? 25 : 0;
    uint32_t bits = tosaic_get_bits(x * (tiny != 0 ? 0x1p25f : 1.0f));
    int32_t up = (bits & 0x7fffffu) > 0x3504f3u ? 1 : 0;
    *n = (int32_t)(bits >> 23) - 127 + up - tiny;
    return tosaic_from_bits((bits & 0x7fffffu) | (uint32_t)(127 - up) << 23);
}

/* log(m) for m from split(): 2 atanh(s) with s = (m - 1) / (m + 1). */
static float log_near_one(float m) {
    static const float c[] = {1.0f / 3, 1.0f / 5, 1.0f / 7, 1.0f / 9};
    float f = m - 1.0f;
    float s = f / (2.0f + f);
    float z = s * s;
    /* 2s is f - f s, which has the larger part of it exactly. */
    return f - s * (f - 2.0f * z * EVALUATE(c, z));
}

/* Whether log(x) is a finite number; else *result is what it is. */
static bool has_log(float x, float *result) {
    *result = x == 0.0f ? -TOSAIC_INFINITY : x < 0.0f ? TOSAIC_NAN : x;
    return x > 0.0f && x < TOSAIC_INFINITY;
}

float tosaic_log(float x) {
    float result;
    int32_t n;
    if (!has_log(x, &result)) {
        return result;
    }
    float m = split(x, &n);
    return (float)n * LN2_HIGH + ((float)n * LN2_LOW + log_near_one(m));
}

float tosaic_log2(float x) {
    float result;
    int32_t n;
    if (!has_log(x, &result)) {
        return result;
    }
    float m = split(x, &n);
    return (float)n + log_near_one(m) * LOG2_E;
}

float tosaic_log10(float x) { return tosaic_log(x) * 0.434294482f; }

float tosaic_log1p(float x) {
    float sum = 1.0f + x;
    if (sum == 1.0f || !(x < TOSAIC_INFINITY)) {
        return x;
    }
    /* The factor repairs what the sum lost of x. */
    return sum > 0.0f ? tosaic_log(sum) * (x / (sum - 1.0f)) : tosaic_log(sum);
}

/* x^y for finite x > 0. In doubles, as the exponent multiplies the error of the logarithm. */
static float pow_positive(float x, float y) {
    int32_t n;
    double m = (double)split(x, &n);
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double sum = 1.0 / 11;
    for (int32_t k = 9; k > 0; k -= 2) {
        sum = sum * z + 1.0 / k;
    }
    double power = (double)y * (n + s * sum * 2.8853900817779268);
    if (!(power < 160.0)) {
        return TOSAIC_INFINITY;
    }
    if (power < -160.0) {
        return 0.0f;
    }
    float whole = tosaic_round((float)power);
    float rest = (float)((power - (double)whole) * 0.6931471805599453);
    return scale(tosaic_exp(rest), (int32_t)whole);
}

float tosaic_pow(float x, float y) {
    if (y == 0.0f || x == 1.0f) {
        return 1.0f;
    }
    if (tosaic_is_nan(x) || tosaic_is_nan(y)) {
        return TOSAIC_NAN;
    }
    if (y == 2.0f) {
        return x * x;
    }
    float a = tosaic_abs(x);
    if (tosaic_abs(y) == TOSAIC_INFINITY) {
        return a == 1.0f ? 1.0f : (a > 1.0f) == (y > 0.0f) ? TOSAIC_INFINITY : 0.0f;
    }
    bool is_whole = tosaic_trunc(y) == y;
    bool is_odd = is_whole && tosaic_abs(y) < 0x1p24f && ((int32_t)y & 1) != 0;
    float result;
    if (a == 0.0f || a == TOSAIC_INFINITY) {
        result = (a > 0.0f) == (y > 0.0f) ? TOSAIC_INFINITY : 0.0f;
    } else if (x < 0.0f && !is_whole) {
        return TOSAIC_NAN;
    } else {
        result = pow_positive(a, y);
    }
    return is_odd ? tosaic_copy_sign(result, x) : result;
}

/* ---- Angles -------------------------------------------------------------------------------------------------------- */

#define HALF_PI 1.57079633f
#define HALF_PI_LOW -4.37113883e-8f /* what the float lacks */

/* Returns x - n pi/2, between -pi/4 and pi/4, and the lower bits of n.
 *
 * x is an integer of 24 bits times a power of two. The product with 2/pi matters modulo 4 only, so bits of 2/pi that
 * make multiples of 4 are skipped, and 96 bits from there on are enough. */
static float reduce(float x, uint32_t *quarter) {
    /* 2/pi after 32 zeros, in binary. */
    static const uint32_t two_over_pi[] = {0x00000000, 0xa2f9836e, 0x4e441529, 0xfc2757d1,
                                           0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};
    *quarter = 0;
    if (tosaic_abs(x) <= 0.5f * HALF_PI) {
        return x;
    }
    uint32_t bits = tosaic_get_bits(x);
    uint64_t whole = (bits & 0x7fffffu) | 0x800000u;
    uint32_t start = ((bits >> 23) & 255u) - 150u + 30u;
    const uint32_t *word = &two_over_pi[start / 32u];
    uint32_t shift = start % 32u;
    uint64_t high = (uint64_t)word[0] << 32 | word[1];
    uint64_t low = (uint64_t)word[2] << 32 | word[3];
    if (shift != 0) {
        high = high << shift | low >> (64u - shift);
        low <<= shift;
    }
    uint64_t product = high * whole + ((low >> 32) * whole >> 32);
    uint32_t count = (uint32_t)((product + (1ull << 61)) >> 62);
    int64_t rest = (int64_t)(product - ((uint64_t)count << 62));
    float angle = (float)rest * (HALF_PI * 0x1p-62f);
    bool is_negative = bits >> 31 != 0;
    *quarter = is_negative ? 0u - count : count;
    return is_negative ? -angle : angle;
}

static float sin_near_zero(float r) {
    static const float c[] = {-1.0f / 6, 1.0f / 120, -1.0f / 5040, 1.0f / 362880};
    float z = r * r;
    return r + r * z * EVALUATE(c, z);
}

static float cos_near_zero(float r) {
    static const float c[] = {1.0f / 24, -1.0f / 720, 1.0f / 40320, -1.0f / 3628800};
    float z = r * r;
    return 1.0f - (0.5f * z - z * z * EVALUATE(c, z));
}

/* sin(x + turns pi/2) */
static float sin_turned(float x, uint32_t turns) {
    uint32_t quarter;
    if (!(tosaic_abs(x) < TOSAIC_INFINITY)) {
        return TOSAIC_NAN;
    }
    float r = reduce(x, &quarter);
    quarter += turns;
    float y = (quarter & 1u) != 0 ? cos_near_zero(r) : sin_near_zero(r);
    return (quarter & 2u) != 0 ? -y : y;
}

float tosaic_sin(float x) { return x == 0.0f ? x : sin_turned(x, 0); }

float tosaic_cos(float x) { return sin_turned(x, 1); }

float tosaic_tan(float x) { return tosaic_sin(x) / tosaic_cos(x); }

/* atan(t) for |t| <= tan(pi/8) */
static float atan_near_zero(float t) {
    static const float c[] = {-1.0f / 3,  1.0f / 5,   -1.0f / 7, 1.0f / 9,
                              -1.0f / 11, 1.0f / 13, -1.0f / 15, 1.0f / 17};
    float z = t * t;
    return t + t * z * EVALUATE(c, z);
}

/* The angle of a point (x, y) with 0 <= y, x and one of them not zero, neither infinite with the other. */
static float get_angle(float y, float x) {
    bool is_steep = y > x;
    float t = is_steep ? x / y : y / x;
    float angle =
        t > 0.414213562f ? 0.5f * HALF_PI + (atan_near_zero((t - 1.0f) / (t + 1.0f)) + 0.5f * HALF_PI_LOW)
                         : atan_near_zero(t);
    return is_steep ? HALF_PI - (angle - HALF_PI_LOW) : angle;
}

float tosaic_atan(float x) { return tosaic_is_nan(x) ? x : tosaic_copy_sign(get_angle(tosaic_abs(x), 1.0f), x); }

float tosaic_atan2(float y, float x) {
    if (tosaic_is_nan(x) || tosaic_is_nan(y)) {
        return TOSAIC_NAN;
    }
    float high = tosaic_abs(y);
    float wide = tosaic_abs(x);
    bool both_infinite = high == TOSAIC_INFINITY && wide == TOSAIC_INFINITY;
    float angle = high == 0.0f ? 0.0f : both_infinite ? 0.5f * HALF_PI : get_angle(high, wide);
    /* The sign bit counts: -0 is on the left, too. */
    if (tosaic_get_bits(x) >> 31 != 0) {
        angle = 2.0f * HALF_PI - (angle - 2.0f * HALF_PI_LOW);
    }
    return tosaic_copy_sign(angle, y);
}

float tosaic_asin(float x) {
    return tosaic_abs(x) <= 1.0f ? tosaic_atan2(x, tosaic_sqrt((1.0f - x) * (1.0f + x))) : TOSAIC_NAN;
}

float tosaic_acos(float x) {
    return tosaic_abs(x) <= 1.0f ? 2.0f * tosaic_atan2(tosaic_sqrt(1.0f - x), tosaic_sqrt(1.0f + x)) : TOSAIC_NAN;
}

/* ---- Hyperbolic functions ------------------------------------------------------------------------------------------ */

float tosaic_sinh(float x) {
    float a = tosaic_abs(x);
    if (a < 9.0f) {
        float t = tosaic_expm1(a);
        return tosaic_copy_sign(0.5f * (t + t / (t + 1.0f)), x);
    }
    return tosaic_copy_sign(tosaic_cosh(x), x);
}

float tosaic_cosh(float x) {
    float a = tosaic_abs(x);
    /* e^a may be too large where half of it is not. */
    float half = a < 80.0f ? 0.5f * tosaic_exp(a) : tosaic_exp(a - 8.0f) * 1490.47899f;
    return half + 0.25f / half;
}

float tosaic_tanh(float x) {
    float t = tosaic_expm1(-2.0f * tosaic_abs(x));
    return tosaic_copy_sign(-t / (t + 2.0f), x);
}

float tosaic_asinh(float x) {
    float a = tosaic_abs(x);
    float y = a < 0x1p12f ? tosaic_log1p(a + a * a / (1.0f + tosaic_sqrt(1.0f + a * a)))
                          : tosaic_log(a) + 0.693147181f;
    return tosaic_copy_sign(y, x);
}

float tosaic_acosh(float x) {
    float t = x - 1.0f;
    if (t < 0.0f) {
        return TOSAIC_NAN;
    }
    return x < 0x1p12f ? tosaic_log1p(t + tosaic_sqrt(t * (2.0f + t))) : tosaic_log(x) + 0.693147181f;
}

float tosaic_atanh(float x) {
    float a = tosaic_abs(x);
    return tosaic_copy_sign(0.5f * tosaic_log1p(2.0f * a / (1.0f - a)), x);
}

/* ---- Others ---------------------------------------------------------------------------------------------------------- */

float tosaic_erf(float x) {
    /* Polynomials of best fit: erf(x) / x in x^2 up to 1, e^(x^2) erfc(x) in 1 / (x + 1) from there to 4. */
    static const float near[] = {1.128379166f,    -0.3761262582f,   0.1128358515f,   -2.685381186e-2f,
                                 5.188327550e-3f, -8.010192431e-4f, 7.853857410e-5f};
    static const float far[] = {-1.018407466e-4f, 0.5666226182f,  0.5404294831f, 0.3991975003f,
                                -0.5449985243f,   -0.7699292492f, 1.451450627f,  -0.6642142223f};
    float a = tosaic_abs(x);
    if (a <= 1.0f) {
        return x * EVALUATE(near, x * x);
    }
    if (a >= 4.0f) {
        return tosaic_copy_sign(1.0f, x);
    }
    float y = 1.0f - tosaic_exp(-a * a) * EVALUATE(far, 1.0f / (a + 1.0f));
    return tosaic_copy_sign(y, x);
}

float tosaic_sigmoid(float x) { return 1.0f / (1.0f + tosaic_exp(-x)); }
