#pragma once

// Dot product of F16 weights with F32 activations, for x86 with AVX2 and F16C.
//
// Upstream rounds the activations to F16 first, which moves the logits of a small model by up to 0.3 and changes greedy
// tokens. Not rounding is closer to the weights as stored, and one conversion less.

#include <immintrin.h>

static inline float pyclover_sum_avx(__m256 x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

static void pyclover_vec_dot_f16_f32(int n, float * GGML_RESTRICT s, size_t bs, const void * GGML_RESTRICT vx, size_t bx,
                                     const void * GGML_RESTRICT vy, size_t by, int nrc) {
    GGML_UNUSED(bs);
    GGML_UNUSED(bx);
    GGML_UNUSED(by);
    GGML_UNUSED(nrc);

    const ggml_fp16_t * x = (const ggml_fp16_t *) vx;
    const float * y = (const float *) vy;

    int i = 0;
    float sum = 0.0f;
#if defined(__AVX512F__)
    __m512 acc0 = _mm512_setzero_ps();
    __m512 acc1 = _mm512_setzero_ps();
    for (; i + 32 <= n; i += 32) {
        const __m512 x0 = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (x + i)));
        const __m512 x1 = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (x + i + 16)));
        acc0 = _mm512_fmadd_ps(x0, _mm512_loadu_ps(y + i), acc0);
        acc1 = _mm512_fmadd_ps(x1, _mm512_loadu_ps(y + i + 16), acc1);
    }
    sum = _mm512_reduce_add_ps(_mm512_add_ps(acc0, acc1));
#else
    __m256 acc[4] = { _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps() };
    for (; i + 32 <= n; i += 32) {
        for (int j = 0; j < 4; j++) {
            const __m256 xj = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (x + i + 8 * j)));
            acc[j] = _mm256_fmadd_ps(xj, _mm256_loadu_ps(y + i + 8 * j), acc[j]);
        }
    }
    sum = pyclover_sum_avx(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])));
#endif
    for (; i < n; i++) {
        sum += GGML_CPU_FP16_TO_FP32(x[i]) * y[i];
    }
    *s = sum;
}
