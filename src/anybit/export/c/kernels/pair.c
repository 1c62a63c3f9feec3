/* The sums at two places at once: a weight is taken apart once. */
static void $name(const row_t *w, const $type *x, const $type *z, int size, int32_t *sums)
{
    int i = 0;
#if ROW_BITS == 8 && defined(__wasm_simd128__)
    v128_t first = wasm_i32x4_splat(0), second = first;
    for (; i + 16 <= size; i += 16) {
        const v128_t a = wasm_v128_load(w + i), b = wasm_v128_load(x + i), c = wasm_v128_load(z + i);
        const v128_t low = wasm_i16x8_extend_low_i8x16(a), high = wasm_i16x8_extend_high_i8x16(a);
        first = wasm_i32x4_add(first, wasm_i32x4_dot_i16x8(low, wasm_${i}16x8_extend_low_${i}8x16(b)));
        second = wasm_i32x4_add(second, wasm_i32x4_dot_i16x8(low, wasm_${i}16x8_extend_low_${i}8x16(c)));
        first = wasm_i32x4_add(first, wasm_i32x4_dot_i16x8(high, wasm_${i}16x8_extend_high_${i}8x16(b)));
        second = wasm_i32x4_add(second, wasm_i32x4_dot_i16x8(high, wasm_${i}16x8_extend_high_${i}8x16(c)));
    }
    sums[0] += wasm_i32x4_extract_lane(first, 0) + wasm_i32x4_extract_lane(first, 1) + wasm_i32x4_extract_lane(first, 2) +
               wasm_i32x4_extract_lane(first, 3);
    sums[1] += wasm_i32x4_extract_lane(second, 0) + wasm_i32x4_extract_lane(second, 1) + wasm_i32x4_extract_lane(second, 2) +
               wasm_i32x4_extract_lane(second, 3);
#elif ROW_BITS == 8 && defined(__ARM_FEATURE_SIMD32)
    int32_t first = sums[0], second = sums[1];
    for (; i + 4 <= size; i += 4) {
        uint32_t a, b, c;
        memcpy(&a, w + i, 4);
        memcpy(&b, x + i, 4);
        memcpy(&c, z + i, 4);
        const int16x2_t even = __sxtb16(a), odd = __sxtb16(a >> 8 | a << 24);
        first = __smlad(even, ${halves}(b), first);
        second = __smlad(even, ${halves}(c), second);
        first = __smlad(odd, ${halves}(b >> 8 | b << 24), first);
        second = __smlad(odd, ${halves}(c >> 8 | c << 24), second);
    }
    sums[0] = first;
    sums[1] = second;
#endif
    if (i < size) {
        sums[0] += $dot(w + i, x + i, size - i);
        sums[1] += $dot(w + i, z + i, size - i);
    }
}
