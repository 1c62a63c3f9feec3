#if defined(__ARM_FEATURE_SIMD32) && !defined(__ARM_BIG_ENDIAN)
static void $name(const $type *x, float *y, const weights_t *w, int rows, int outputs, uint8_t *columns)
{
    const int length = (w->size * $bits + 7) / 8, words = (length + 3) / 4, whole = w->size / $codes;
    (void)unpack;
    (void)$spare;
    for (int r = 0; r < rows; r++, x += w->size) {
        $type rest[$codes] = {0};
        for (int i = whole * $codes; i < w->size; i++) {
            rest[i - whole * $codes] = x[i];
        }
        const int32_t total = $pairs(rest, columns + whole * $stride, words - whole, 4, $pairs(x, columns, whole, 4, 0));
        for (int o = 0; o < outputs; o += 2) {
            const uint8_t *codes = w->codes + (size_t)o * (size_t)length;
            const int more = o + 1 < outputs;
            int32_t sums[2];
            $block(codes, codes + more * length, columns, words, sums);
            for (int i = 0; i <= more; i++) {
                const float scale = w->scale[w->per_row ? o + i : 0], bias = w->bias ? w->bias[o + i] : 0.0f;
                y[r * outputs + o + i] = (float)(w->factor * sums[i] + w->low * total) * scale + bias;
            }
        }
    }
}
#else
$other
#endif
