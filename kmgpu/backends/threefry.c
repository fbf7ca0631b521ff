/* Threefry-2x32 with 20 rounds (Salmon et al., SC'11). A word of number i is a function of the key and of i: both words
   at the counter (i >> 32, i & 0xffffffff), xored, as in the partitionable form of jax.random. */
#include <stdint.h>

#if defined(__x86_64__)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

#define ROTATED(y, r) (((y) << (r)) | ((y) >> (32 - (r))))
#define ROUND(r) x += y; y = ROTATED(y, r) ^ x;
#define EVEN ROUND(13) ROUND(15) ROUND(26) ROUND(6)
#define ODD ROUND(17) ROUND(29) ROUND(16) ROUND(24)
#define THREEFRY \
    EVEN x += b; y += c + 1; \
    ODD x += c; y += a + 2; \
    EVEN x += a; y += b + 3; \
    ODD x += b; y += c + 4; \
    EVEN x += c; y += a + 5;

static inline uint32_t word(uint32_t a, uint32_t b, uint32_t c, uint32_t high, uint32_t low)
{
    uint32_t x = high + a, y = low + b;
    THREEFRY
    return x ^ y;
}

/* Words number start .. start + count - 1. The low word of the counter must not wrap within them: vectors need that. */
FOR_EACH_CPU void words(uint32_t a, uint32_t b, uint64_t start, int64_t count, uint32_t *out)
{
    const uint32_t c = a ^ b ^ 0x1BD11BDA, high = (uint32_t)(start >> 32), low = (uint32_t)start;
    for (int64_t i = 0; i < count; i++)
        out[i] = word(a, b, c, high, low + (uint32_t)i);
}

/* Whether each of these words, its last 9 bits dropped, is less than a limit. */
FOR_EACH_CPU void below(uint32_t a, uint32_t b, uint64_t start, int64_t count, uint32_t limit, uint8_t *out)
{
    const uint32_t c = a ^ b ^ 0x1BD11BDA, high = (uint32_t)(start >> 32), low = (uint32_t)start;
    for (int64_t i = 0; i < count; i++)
        out[i] = (word(a, b, c, high, low + (uint32_t)i) >> 9) < limit;
}

/* Both words at the counters 0 .. count - 1, for keys made of a key. */
void pairs(uint32_t a, uint32_t b, int64_t count, int64_t *out)
{
    const uint32_t c = a ^ b ^ 0x1BD11BDA;
    for (int64_t i = 0; i < count; i++) {
        uint32_t x = a, y = (uint32_t)i + b;
        THREEFRY
        out[2 * i] = x;
        out[2 * i + 1] = y;
    }
}
