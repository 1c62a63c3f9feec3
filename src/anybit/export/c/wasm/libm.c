/* Functions of float, computed in double, so that the result is the nearest float but for rare ties. */
#include <stdint.h>

#include "math.h"

#define LN2 0.6931471805599453

typedef union {
    double value;
    uint64_t bits;
} double_t;

/* exp(x) - 1 = x + x^2/2! + ... + x^14/14! for |x| <= ln(2)/2. */
static double series(double x)
{
    double sum = 0.0;
    for (int i = 14; i > 0; i--) {
        sum = (sum + 1.0) * x / i;
    }
    return sum;
}

/* exp(x) = 2^n exp(r), exp(r) - 1 in two parts where n is 0, so that a small x keeps its digits. */
static double exponential(double x, int minus_one)
{
    if (x > 700.0 || x < -700.0) {
        return x > 0.0 ? __builtin_inf() : minus_one ? -1.0 : 0.0;
    }
    const int n = (int)(x / LN2 + (x < 0.0 ? -0.5 : 0.5));
    const double rest = series(x - n * LN2);
    double_t power;
    power.bits = (uint64_t)(1023 + n) << 52;
    return minus_one ? power.value * rest + (power.value - 1.0) : power.value * (1.0 + rest);
}

float expf(float x)
{
    return x != x ? x : (float)exponential(x, 0);
}

float expm1f(float x)
{
    return x != x ? x : (float)exponential(x, 1);
}

/* log(2^n m) = n ln 2 + 2 (s + s^3/3 + s^5/5 + ...), s = (m - 1)/(m + 1), m between sqrt(1/2) and sqrt(2). */
float logf(float x)
{
    if (x != x || x <= 0.0f || x > 3.40282347e38f) {
        return x > 0.0f ? x : x == 0.0f ? -__builtin_inff() : __builtin_nanf("");
    }
    double_t m = {x};
    int n = (int)(m.bits >> 52) - 1023;
    m.bits = (m.bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
    if (m.value > 1.4142135623730951) {
        m.value /= 2.0;
        n++;
    }
    const double s = (m.value - 1.0) / (m.value + 1.0);
    double sum = 0.0;
    for (int i = 23; i > 0; i -= 2) {
        sum = sum * s * s + 1.0 / i;
    }
    return (float)(n * LN2 + 2.0 * s * sum);
}

float tanhf(float x)
{
    if (x != x || x > 10.0f || x < -10.0f) {
        return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
    }
    const double e = exponential(2.0 * (double)x, 1);
    return (float)(e / (e + 2.0));
}

/* erf(x) = 2/sqrt(pi) exp(-x^2) (x + 2/3 x^3 + 4/15 x^5 + ...); from 4 on it is 1 in float. */
float erff(float x)
{
    if (x != x || x >= 4.0f || x <= -4.0f) {
        return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
    }
    const double square = (double)x * (double)x;
    double term = x, sum = x;
    for (int i = 3; i < 200; i += 2) {
        term *= 2.0 * square / i;
        sum += term;
    }
    return (float)(1.1283791670955126 * exponential(-square, 0) * sum);
}
