/* The exact measures of two contents of one dtype, in one pass: what exact.py takes of a chunk in many calls of numpy.

   Compiled where the machine has a compiler, when it is first needed (native.py). Plain loops that any compiler turns into
   vector instructions. Elements are float32 numbers, errors are rounded to float32, and sums are of float64, in which every
   product is exact. What is not finite, and what float32 does not hold, is left to exact.py. */

#include <math.h>
#include <stdint.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

enum { BLOCK = 1024 };
enum { FLOAT32, BFLOAT16, FLOAT16 };

typedef struct {
    double bb, dd, db, b, d, aa, ab, a; /* sums of products, and sums; d = a - b */
    double relative; /* the sum of |d| / |b| where b is not 0 */
    double most, most_relative; /* the largest |d| and |d| / |b| */
    int64_t first, worst; /* the first element that differs, the one that differs most; -1: none */
    int64_t zeros, near1, near5, mismatches; /* how many have b = 0, |d| / |b| ≤ 0.001, ≤ 0.005, |d| > rtol |b| + atol */
    int64_t ulps; /* the largest distance, and no less than what was given */
} Found;

static void widen(const uint16_t *restrict from, uint32_t *restrict to, int n) {
    for (int k = 0; k < n; k++) to[k] = (uint32_t)from[k] << 16;
}

/* float16 to float32. Returns whether all are finite, or will be seen not to be. */
static int convert(const uint16_t *restrict from, float *restrict to, int n) {
    int k = 0;
    uint32_t bad = 0;
#if defined(__F16C__)
    for (; k + 8 <= n; k += 8) _mm256_storeu_ps(to + k, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + k))));
#endif
    /* The bits to where float32 has them, and the difference of the exponents' offsets as a factor. */
    for (; k < n; k++) {
        union { uint32_t bits; float number; } one = {(uint32_t)((int32_t)((uint32_t)from[k] << 16) >> 3) & 0x8FFFFFFF};
        to[k] = one.number * 0x1p112f;
        bad |= (from[k] & 0x7C00) == 0x7C00;
    }
    return !bad;
}

static void sums(const float *restrict x, const float *restrict y, float *restrict error, int n, Found *found) {
    double bb = 0, dd = 0, db = 0, b = 0, d = 0;
#pragma omp simd reduction(+ : bb, dd, db, b, d)
    for (int k = 0; k < n; k++) {
        float apart = x[k] - y[k];
        double q = y[k], r = apart;
        error[k] = fabsf(apart);
        bb += q * q;
        dd += r * r;
        db += r * q;
        b += q;
        d += r;
    }
    found->bb += bb;
    found->dd += dd;
    found->db += db;
    found->b += b;
    found->d += d;
    double aa = bb + 2 * db + dd, ab = bb + db, a = b + d;
    if (aa < 0.1 * (bb + dd)) { /* they cancel */
        aa = ab = a = 0;
#pragma omp simd reduction(+ : aa, ab, a)
        for (int k = 0; k < n; k++) {
            double p = x[k], q = y[k];
            aa += p * p;
            ab += p * q;
            a += p;
        }
    }
    found->aa += aa;
    found->ab += ab;
    found->a += a;
}

/* Count; returns the largest relative error. */
static float counts(
    const float *restrict error, const float *restrict y, int n, float rtol, float atol, int64_t begin, Found *found
) {
    int32_t zeros = 0, near1 = 0, near5 = 0, mismatches = 0;
    float most = 0, most_relative = 0, total = 0;
#pragma omp simd reduction(+ : zeros, near1, near5, mismatches, total) reduction(max : most, most_relative)
    for (int k = 0; k < n; k++) {
        float e = error[k], size = fabsf(y[k]);
        float relative = e / size;
        float counted = size == 0 ? 0 : relative;
        relative = e == 0 ? 0 : relative;
        zeros += size == 0;
        near1 += relative <= 1e-3f;
        near5 += relative <= 5e-3f;
        mismatches += e > size * rtol + atol;
        most = e > most ? e : most;
        most_relative = relative > most_relative ? relative : most_relative;
        total += counted;
    }
    found->zeros += zeros;
    found->near1 += near1;
    found->near5 += near5;
    found->mismatches += mismatches;
    found->relative += total;
    if (most_relative > found->most_relative) found->most_relative = most_relative;
    if (found->first < 0 && most > 0) {
        int k = 0;
        while (k < n - 1 && error[k] == 0) k++;
        found->first = begin + k;
    }
    if (most > found->most) {
        int k = 0;
        while (k < n - 1 && error[k] != most) k++;
        found->most = most;
        found->worst = begin + k;
    }
    return most_relative;
}

/* The largest distance of two numbers in the order of all, which is that of their bits, with both zeros at 0. */
static uint32_t furthest(const uint32_t *restrict x, const uint32_t *restrict y, int n) {
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (int k = 0; k < n; k++) {
        int32_t sign_x = (int32_t)x[k] >> 31, sign_y = (int32_t)y[k] >> 31;
        int32_t p = ((int32_t)(x[k] & 0x7FFFFFFF) ^ sign_x) - sign_x, q = ((int32_t)(y[k] & 0x7FFFFFFF) ^ sign_y) - sign_y;
        uint32_t apart = p > q ? (uint32_t)p - (uint32_t)q : (uint32_t)q - (uint32_t)p;
        most = apart > most ? apart : most;
    }
    return most;
}

/* Measure `count` elements from the two addresses on; |d| goes to `errors`. Returns 0, or 1 where exact.py has to. */
int numscope_measures(
    int kind, const void *a, const void *b, int64_t count, double rtol, double atol, float *errors, Found *found
) {
    uint32_t wide_x[BLOCK], wide_y[BLOCK];
    float converted_x[BLOCK], converted_y[BLOCK];
    const float scale = kind == FLOAT32 ? 0x1p24f : kind == BFLOAT16 ? 0x1p8f : 0x1p11f;
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        const int n = (int)(count - begin < BLOCK ? count - begin : BLOCK);
        const uint32_t *x = (const uint32_t *)a + begin, *y = (const uint32_t *)b + begin;
        const uint16_t *half_x = (const uint16_t *)a + begin, *half_y = (const uint16_t *)b + begin;
        if (kind == BFLOAT16) {
            widen(half_x, wide_x, n);
            widen(half_y, wide_y, n);
            x = wide_x;
            y = wide_y;
        }
        const float *p = (const float *)x, *q = (const float *)y;
        if (kind == FLOAT16) {
            if (!convert(half_x, converted_x, n) || !convert(half_y, converted_y, n)) return 1;
            p = converted_x;
            q = converted_y;
        }
        sums(p, q, errors + begin, n, found);
        if (!isfinite(found->dd)) return 1;
        const float most = counts(errors + begin, q, n, (float)rtol, (float)atol, begin, found);
        /* Up to this relative error, numbers lie evenly enough for a bound to the distance. */
        if (most <= 0.5f && floorf(most * scale * (1 + 1e-6f)) <= found->ulps) continue;
        if (kind == FLOAT16) {
            widen(half_x, wide_x, n);
            widen(half_y, wide_y, n);
            x = wide_x;
            y = wide_y;
        }
        const uint32_t ulps = furthest(x, y, n) >> (kind == FLOAT32 ? 0 : 16);
        if (ulps > found->ulps) found->ulps = ulps;
    }
    return !isfinite(found->relative);
}
